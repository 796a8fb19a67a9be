"""Match, on devices with oneMKL: transforms, triangular solves and factorizations become calls of the library on the
device's own queue and memory.

The calls ("mkl.…") stand in native/sycl/mkl/calls.h. Without the library, and for what it has nothing for (empty
arrays), the ops go the ways that they have anyway: generated kernels, or a call on the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.ir.types import DType
from ferrule.targets.gpu import Gpu

TYPES = (t.f32, t.c64, t.f64, t.c128)  # the last two where the device has f64
Rule = Callable[["Builder", Op, list[Value]], Sequence[Value]]


def mkl_rule(out: Block, op: Op, operands: list[Value], machine: Gpu) -> Sequence[Value] | None:
    """The results of an op by oneMKL; None when it has none."""
    if not machine.has_library("mkl"):
        return None
    name = op.name
    if name == "custom_call":  # JAX has LAPACK's own names for what StableHLO has no op for
        found = re.fullmatch(r"lapack_[sdcz](\w+)_ffi", op.attrs["call_target_name"])
        name = found[1] if found else ""
    rule = RULES.get(name)
    if rule is None or any(not isinstance(v.type, Tensor) for v in operands):
        return None
    types = TYPES if machine.f64 else TYPES[:2]
    if any(v.dtype not in types for v in operands) or any(0 in v.shape for v in (*operands, *op.results)):
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

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return self.add("reshape", [x], shape, x.dtype)

    def iota(self, shape: Sequence[int], dimension: int) -> Value:
        return self.add("iota", [], shape, t.i32, iota_dimension=dimension)

    def compare(self, x: Value, y: Value, how: str) -> Value:
        kind = "SIGNED" if x.dtype.is_int else "FLOAT"
        return self.add("compare", [x, y], x.shape, t.i1, comparison_direction=how, compare_type=kind)

    def reduce(self, x: Value, name: str, start: object, dimensions: Sequence[int]) -> Value:
        scalar = Tensor((), x.dtype)
        body = Block([scalar, scalar])
        body.results = [body.add(name, body.args, scalar).result]
        left = tuple(n for d, n in enumerate(x.shape) if d not in dimensions)
        attrs = {"dimensions": tuple(dimensions)}
        init = self.constant(start, x.dtype)
        return self.out.add("reduce", [x, init], [Tensor(left, x.dtype)], attrs, [body], self.op.loc).result

    def finite(self, x: Value, read: Value | None = None) -> tuple[Value, Value]:
        """Matrices without what is not finite, and which had no such element (among those that are read): not every
        iteration of a library ends with NaN."""
        good = self.add("is_finite", [x], x.shape, t.i1) if x.dtype.kind != "complex" else self._finite_complex(x)
        kept = self.add("select", [good, x, self.spread(self.constant(0, x.dtype), x.shape)], x.shape, x.dtype)
        if read is not None:
            good = self.add("or", [good, self.add("not", [read], x.shape, t.i1)], x.shape, t.i1)
        return kept, self.reduce(good, "and", True, (len(x.shape) - 2, len(x.shape) - 1))

    def _finite_complex(self, x: Value) -> Value:
        parts = [self.add(name, [x], x.shape, x.dtype.part) for name in ("real", "imag")]
        return self.add("and", [self.add("is_finite", [p], x.shape, t.i1) for p in parts], x.shape, t.i1)

    def refused(self, info: Value, finite: Value) -> Value:
        """LAPACK's info, negative as for a bad argument where a matrix was not finite."""
        bad = self.spread(self.constant(-4, t.i32), info.shape)
        return self.add("select", [finite, info, bad], info.shape, t.i32)


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


# --- matrices ---------------------------------------------------------------------------------------------------
def _triangular_solve(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    flags = {name: int(op.attrs[name]) for name in ("left_side", "lower", "unit_diagonal")}
    return b.call("mkl.trsm", operands, [operands[1].type], **flags, form=str(op.attrs["transpose_a"]))  # type: ignore[list-item]


def _cholesky(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    """The library's factor, zero outside of its triangle, and NaN where the matrix is not positive definite: then an
    element of the diagonal is not positive."""
    lower, rank = bool(op.attrs.get("lower", False)), len(op.result.shape)
    (x,) = b.call("mkl.potrf", operands, [op.result.type], lower=int(lower))  # type: ignore[list-item]
    shape, part = x.shape, x.dtype.part if x.dtype.kind == "complex" else x.dtype
    row, column = b.iota(shape, rank - 2), b.iota(shape, rank - 1)
    size = b.add("real", [x], shape, part) if x.dtype.kind == "complex" else x
    others = b.spread(b.constant(np.inf, part), shape)
    diagonal = b.add("select", [b.compare(row, column, "EQ"), size, others], shape, part)
    least = b.reduce(diagonal, "minimum", np.inf, (rank - 2, rank - 1))
    fine = b.compare(least, b.spread(b.constant(0, part), least.shape), "GT")
    fine = b.spread(fine, shape, range(rank - 2))
    zero, nan = (b.spread(b.constant(v, x.dtype), shape) for v in (0, _nan(x.dtype)))
    inside = b.compare(row, column, "GE" if lower else "LE")
    factor = b.add("select", [inside, x, zero], shape, x.dtype)
    return [b.add("select", [fine, factor, nan], shape, x.dtype)]


def _nan(dtype: DType) -> complex:
    return complex(np.nan, np.nan) if dtype.kind == "complex" else np.nan


# JAX's calls of LAPACK. The bytes of their matrices are column by column under the matrices' own shapes, as they are in
# the library's calls, too.
def _getrf(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    (a,) = operands
    *batch, m, n = a.shape
    k = min(m, n)
    factors, pivots = b.call("mkl.getrf", [a], [a.type, Tensor((*batch, k), t.i64)])  # type: ignore[list-item]
    # LAPACK's info: the first zero on the diagonal of U, counted from 1.
    shape, rank = (*batch, n, m), len(a.shape)
    laid = b.reshape(factors, shape)
    row, column = b.iota(shape, rank - 1), b.iota(shape, rank - 2)
    zero = b.compare(laid, b.spread(b.constant(0, a.dtype), shape), "EQ")
    there = b.add("and", [zero, b.compare(row, column, "EQ")], shape, t.i1)
    none = b.constant(k, t.i32)
    first = b.reduce(
        b.add("select", [there, row, b.spread(none, shape)], shape, t.i32), "minimum", k, (rank - 2, rank - 1)
    )
    counted = b.add("add", [first, b.spread(b.constant(1, t.i32), batch)], batch, t.i32)
    singular = b.compare(first, b.spread(none, batch), "LT")
    info = b.add("select", [singular, counted, b.spread(b.constant(0, t.i32), batch)], batch, t.i32)
    return [factors, b.add("convert", [pivots], pivots.shape, t.i32), info]


def _geqrf(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    return b.call("mkl.geqrf", operands, [r.type for r in op.results])  # type: ignore[misc]


def _orgqr(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    return b.call("mkl.orgqr", operands, [op.result.type])  # type: ignore[list-item]


def _syevd(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    (a,) = operands
    config = _config(op)
    lower, rank = config["uplo"] == ord("L"), len(a.shape)
    # The triangle that is read; the bytes are those of the transpose.
    row, column = b.iota(a.shape, rank - 1), b.iota(a.shape, rank - 2)
    read = b.compare(row, column, "GE" if lower else "LE")
    a, finite = b.finite(a, read)
    flags = {"lower": int(lower), "vectors": int(config["mode"] == ord("V"))}
    vectors, values, info = b.call("mkl.syevd", [a], [r.type for r in op.results], **flags)  # type: ignore[misc]
    return [vectors, values, b.refused(info, finite)]


def _gesvd(b: Builder, op: Op, operands: list[Value]) -> Sequence[Value]:
    (a,) = operands
    wanted = {"A": "all", "S": "some", "N": "none"}[chr(_config(op)["mode"])]
    kept, finite = b.finite(a)
    types = [r.type for r in op.results[1:]]
    values, u, v, info = b.call("mkl.gesvd", [kept], types, vectors=wanted)  # type: ignore[arg-type]
    return [a, values, u, v, b.refused(info, finite)]


def _config(op: Op) -> dict[str, int]:
    older = op.attrs.get("mhlo.backend_config")
    config = older if isinstance(older, dict) else op.attrs["backend_config"]
    return {name: int(value) for name, value in config.items()}


RULES: dict[str, Rule] = {
    "fft": _fft,
    "triangular_solve": _triangular_solve,
    "cholesky": _cholesky,
    "getrf": _getrf,
    "geqrf": _geqrf,
    **dict.fromkeys(("orgqr", "ungqr"), _orgqr),
    **dict.fromkeys(("syevd", "heevd"), _syevd),
    **dict.fromkeys(("gesdd", "gesvd"), _gesvd),
}
