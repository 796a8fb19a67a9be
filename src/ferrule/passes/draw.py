"""Draw: `rng`, which draws anew at each execution, from Philox bits of a state that the runtime hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.ir import Block, DType, Op, Tensor, Value, tensor
from ferrule.ir import types as t


class _Builder:
    """Adds elementwise ops over one shape."""

    def __init__(self, out: Block, op: Op) -> None:
        self.out, self.op, self.shape = out, op, op.result.shape

    def add(self, name: str, *operands: Value, to: DType | None = None, **attrs: Any) -> Value:
        kind = Tensor(self.shape, to or operands[0].dtype)
        return self.out.add(name, operands, kind, attrs, (), self.op.loc).result

    def fill(self, value: float, dtype: DType) -> Value:
        array = np.broadcast_to(np.asarray(value, dtype.numpy), self.shape)
        return self.out.add("constant", [], Tensor(self.shape, dtype), {"value": array}, (), self.op.loc).result

    def spread(self, scalar: Value, dtype: DType) -> Value:
        """A scalar operand over the whole shape, in the type of the computation."""
        whole = self.add("broadcast_in_dim", scalar, broadcast_dimensions=())
        return self.convert(whole, dtype)

    def convert(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self.add("convert", x, to=dtype)

    def less(self, x: Value, y: Value) -> Value:
        return self.add("compare", x, y, to=t.i1, comparison_direction="LT", compare_type="FLOAT")


def draw(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    """The ops that `rng` means."""
    b, dtype = _Builder(out, op), op.result.dtype
    wide = dtype.bits == 64
    bits = _bits(b, t.ui64 if wide else t.ui32)
    if dtype.kind == "bool":
        return [b.convert(b.add("and", bits, b.fill(1, bits.dtype)), t.i1)]
    if dtype.is_int:
        low, high = (b.spread(v, bits.dtype) for v in operands[:2])
        span = b.add("subtract", high, low)
        return [b.convert(b.add("add", low, b.add("remainder", bits, span)), dtype)]
    work = t.f64 if wide else t.f32
    unit = _unit(b, bits, work)
    first, second = (b.spread(v, work) for v in operands[:2])
    if op.attrs["rng_distribution"] == "NORMAL":
        edge = b.fill(np.nextafter(work.numpy.type(-1), work.numpy.type(0)), work)
        centred = b.add("subtract", b.add("add", unit, unit), b.fill(1, work))
        z = b.add("multiply", b.add("erf_inv", b.add("maximum", centred, edge)), b.fill(np.sqrt(2), work))
        return [b.convert(b.add("add", first, b.add("multiply", z, second)), dtype)]
    value = b.add("add", first, b.add("multiply", unit, b.add("subtract", second, first)))
    value = b.convert(value, dtype)
    low, high = (b.add("broadcast_in_dim", v, broadcast_dimensions=()) for v in operands[:2])
    return [b.add("select", b.less(value, high), value, low, to=dtype)]  # rounding must not reach the upper end


def _bits(b: _Builder, dtype: DType) -> Value:
    count = tensor(b.op.result).size
    words = count * dtype.bits // 32
    about = {"target": "random_state", "ffi": False, "attrs": {"used": -(-words // 4)}, "has_side_effect": True}
    state = b.out.add("library", [], Tensor((3,), t.ui64), about, (), b.op.loc).result
    types = [Tensor((3,), t.ui64), Tensor(b.shape, dtype)]
    return b.out.add("rng_bit_generator", [state], types, {"rng_algorithm": "PHILOX"}, (), b.op.loc).results[1]


def _unit(b: _Builder, bits: Value, work: DType) -> Value:
    """Uniform in [0, 1): random mantissa bits of a number in [1, 2), less 1."""
    mantissa = 52 if work == t.f64 else 23
    one = int(np.asarray(1, work.numpy).view(bits.dtype.numpy))
    fraction = b.add("shift_right_logical", bits, b.fill(work.bits - mantissa, bits.dtype))
    number = b.add("bitcast_convert", b.add("or", fraction, b.fill(one, bits.dtype)), to=work)
    return b.add("subtract", number, b.fill(1, work))
