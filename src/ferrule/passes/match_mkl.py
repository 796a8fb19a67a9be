"""Match, on devices with oneMKL: transforms become calls of the library on the device's own queue and memory.

The calls ("mkl.…") stand in native/sycl/mkl/calls.h. Without the library, and for what it has nothing for (empty
arrays), the ops go the ways that they have anyway: generated kernels, or a call on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.ir.types import DType
from ferrule.targets.gpu import Gpu

TYPES = (t.f32, t.f64, t.c64, t.c128)
Rule = Callable[["Builder", Op, list[Value]], Sequence[Value]]


def mkl_rule(out: Block, op: Op, operands: list[Value], machine: Gpu) -> Sequence[Value] | None:
    """The results of an op by oneMKL; None when it has none."""
    rule = RULES.get(op.name)
    if rule is None or not machine.has_library("mkl"):
        return None
    if any(v.dtype not in TYPES or 0 in v.shape for v in (*operands, *op.results)):
        return None
    return rule(Builder(out, op), op, operands)


class Builder:
    """Adds ops in the place of one."""

    def __init__(self, out: Block, op: Op) -> None:
        self.out, self.op = out, op

    def add(self, name: str, operands: Sequence[Value], shape: Sequence[int], dtype: DType, **attrs: object) -> Value:
        return self.out.add(name, operands, Tensor(tuple(shape), dtype), attrs, (), self.op.loc).result

    def call(self, target: str, operands: Sequence[Value], results: Sequence[Tensor], **attrs: object) -> list[Value]:
        about = {"target": target, "ffi": False, "attrs": attrs}
        return list(self.out.add("library", operands, list(results), about, (), self.op.loc).results)

    def constant(self, value: object, dtype: DType) -> Value:
        array = np.asarray(value, dtype.numpy)
        return self.add("constant", [], array.shape, dtype, value=array)

    def spread(self, x: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
        return self.add("broadcast_in_dim", [x], shape, x.dtype, broadcast_dimensions=tuple(dims))

    def part(self, x: Value, axis: int, start: int, stop: int) -> Value:
        low = tuple(start if d == axis else 0 for d in range(len(x.shape)))
        high = tuple(stop if d == axis else n for d, n in enumerate(x.shape))
        shape = [b - a for a, b in zip(low, high, strict=True)]
        ones = (1,) * len(shape)
        return self.add("slice", [x], shape, x.dtype, start_indices=low, limit_indices=high, strides=ones)


# --- transforms -------------------------------------------------------------------------------------------------
def _fft(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    (x,) = operands
    kind, length = str(op.attrs["fft_type"]), tuple(int(n) for n in op.attrs["fft_length"])
    if kind == "IRFFT":
        x = _symmetric(b, x, length)
    return b.call("mkl.dft", [x], [op.result.type], type=kind, length=length)  # type: ignore[list-item]


def _symmetric(b: Builder, x: Value, length: tuple[int, ...]) -> Value:
    """A spectrum as a real signal has it, with the same inverse transform as StableHLO's of `x`: that transforms the
    leading dimensions first and then takes the real part of the columns that stand for themselves, the first one and
    for an even length the last. So their halves that make the imaginary part go before."""
    last, rank = len(x.shape) - 1, len(x.shape)
    columns = [0, length[-1] // 2] if length[-1] % 2 == 0 else [0]
    part = x.dtype.part
    if len(length) == 1:
        mask = np.ones(x.shape[last], bool)
        mask[columns] = False
        kept = b.spread(b.constant(mask, t.i1), x.shape, (last,))
        zero = b.spread(b.constant(0, part), x.shape)
        imag = b.add("select", [kept, b.add("imag", [x], x.shape, part), zero], x.shape, part)
        return b.add("complex", [b.add("real", [x], x.shape, part), imag], x.shape, x.dtype)
    half = b.constant(0.5, part)
    for column in columns:
        kept = b.part(x, last, column, column + 1)
        mirrored = kept  # at the negative frequencies: 0, n - 1, …, 1
        for axis in range(rank - len(length), last):
            if (n := x.shape[axis]) > 2:
                rest = b.part(mirrored, axis, 1, n)
                rest = b.add("reverse", [rest], rest.shape, x.dtype, dimensions=(axis,))
                first = b.part(mirrored, axis, 0, 1)
                mirrored = b.add("concatenate", [first, rest], mirrored.shape, x.dtype, dimension=axis)
        shape = kept.shape
        scale = b.spread(half, shape)
        parts = []
        for name, combine in (("real", "add"), ("imag", "subtract")):
            both = [b.add(name, [v], shape, part) for v in (kept, mirrored)]
            parts.append(b.add("multiply", [b.add(combine, both, shape, part), scale], shape, part))
        symmetric = b.add("complex", parts, shape, x.dtype)
        at = [b.constant(column if d == last else 0, t.i64) for d in range(rank)]
        x = b.add("dynamic_update_slice", [x, symmetric, *at], x.shape, x.dtype)
    return x


RULES: dict[str, Rule] = {"fft": _fft}
