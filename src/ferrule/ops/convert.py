"""Ops that change the element type: convert, bitcast_convert, and complex numbers to and from their parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ferrule.codegen.llvm import V
from ferrule.ir import Op, Tensor, Type
from ferrule.ir.types import DTYPES, DType, c64, c128, f32, f64, i64
from ferrule.ops import numerics as n
from ferrule.ops.checks import declared, expect, kinds, operands, same_type
from ferrule.ops.definition import Factors, Run, alike, define, element, factors
from ferrule.ops.samples import FLOATS, INTS, SMALL_INTS, UINTS, Sample, corners, data, dtypes, pairs, samples

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key
    from ferrule.codegen.index import Component
    from ferrule.codegen.scalar import Lane, Scalars


def _width(d: DType) -> int:
    """Bits of a whole value."""
    return d.bits * (2 if d.is_complex else 1)


def _infer_convert(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    return [Tensor(t.shape, declared(op).dtype)]


def _infer_bitcast(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    to = declared(op).dtype
    old, new = _width(t.dtype), _width(to)
    if old == new:
        return [Tensor(t.shape, to)]
    if old > new:
        expect(op, old % new == 0, f"{t.dtype} does not divide into {to}")
        return [Tensor((*t.shape, old // new), to)]
    expect(op, new % old == 0, f"{t.dtype} does not group into {to}")
    expect(
        op,
        bool(t.shape) and t.shape[-1] == new // old,
        f"the last dimension of {t} must be {new // old} to group into {to}",
    )
    return [Tensor(t.shape[:-1], to)]


def _to_bits(x: np.ndarray, d: DType) -> np.ndarray:
    """One more dimension: the bits of each value, lowest first."""
    raw = np.ascontiguousarray(x).reshape(x.shape)[..., None].view(np.uint8)  # a scalar comes back with one dimension
    return np.unpackbits(raw, axis=-1, bitorder="little")[..., : _width(d)]


def _from_bits(bits: np.ndarray, d: DType) -> np.ndarray:
    packed = np.packbits(bits, axis=-1, bitorder="little")
    if d.kind == "int" and d.bits < 8:  # a sub-byte signed value is stored with its sign extended
        shift = 8 - d.bits
        packed = ((packed.view(np.int8) << shift) >> shift).view(np.uint8)
    return np.ascontiguousarray(packed).view(d.numpy)[..., 0]


def bitcast(x: np.ndarray, d: DType, to: DType) -> np.ndarray:
    """The same bits read as another element type."""
    old, new = _width(d), _width(to)
    x = np.ascontiguousarray(x).reshape(x.shape)
    if old == new and d.itemsize == to.itemsize and old >= 8:
        return x.view(to.numpy)
    if old >= 8 and new >= 8:
        if old > new:
            return x[..., None].view(to.numpy)
        return x.view(to.numpy)[..., 0]
    bits = _to_bits(x, d)
    if old > new:
        bits = bits.reshape(*x.shape, old // new, new)
    elif old < new:
        bits = bits.reshape(*x.shape[:-1], new)
    return _from_bits(bits, to)


def _evaluate_bitcast(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    return [bitcast(xs[0], n.dtype_of(xs[0]), declared(op).dtype)]


def _infer_part(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kinds(op, "fc", t)
    return [Tensor(t.shape, t.dtype.part)]


def _infer_complex(op: Op) -> Sequence[Type]:
    t = same_type(op, *operands(op, 2))
    expect(op, t.dtype.name in ("f32", "f64"), f"the parts are {t.dtype}", "complex numbers are made of f32 or f64")
    return [Tensor(t.shape, c64 if t.dtype == f32 else c128)]


def _evaluate_complex(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    re, im = np.broadcast_arrays(*xs)
    out = np.empty(re.shape, np.complex64 if re.dtype == np.float32 else np.complex128)
    out.real, out.imag = re, im
    return [out]


def _imaginary(x: np.ndarray) -> np.ndarray:
    return x.imag.copy() if n.dtype_of(x).is_complex else np.zeros_like(x)


define(
    "convert",
    infer=_infer_convert,
    evaluate=lambda op, xs, run: [n.convert(xs[0], declared(op).dtype)],
    elementwise=True,
)
# elementwise only where the two types have one width; a rule for the general case indexes
define("bitcast_convert", infer=_infer_bitcast, evaluate=_evaluate_bitcast, flops=0)
define(
    "real",
    infer=_infer_part,
    evaluate=lambda op, xs, run: [xs[0].real.copy() if n.dtype_of(xs[0]).is_complex else xs[0]],
    elementwise=True,
    flops=0,
)
define("imag", infer=_infer_part, evaluate=lambda op, xs, run: [_imaginary(xs[0])], elementwise=True, flops=0)
define("complex", infer=_infer_complex, evaluate=_evaluate_complex, elementwise=True, flops=0)


# ---- code --------------------------------------------------------------------------------------------------------


@factors("bitcast_convert")
def _bitcast_factors(op: Op) -> Factors:
    before, after = len(op.operands[0].shape), len(op.result.shape)
    same = min(before, after)
    return Factors([alike(before, range(same, before))], [alike(after, range(same, after))])


@element("convert")
def _element_convert(s: Scalars, op: Op, a: Lane) -> Lane:
    return s.convert(op.operands[0].dtype, op.result.dtype, a)


@element("real")
def _element_real(s: Scalars, op: Op, a: Lane) -> Lane:
    return a[0] if op.operands[0].dtype.is_complex else a  # type: ignore[return-value]


@element("imag")
def _element_imag(s: Scalars, op: Op, a: Lane) -> Lane:
    return a[1] if op.operands[0].dtype.is_complex else s.const(op.result.dtype, 0.0)  # type: ignore[return-value]


@element("complex")
def _element_complex(s: Scalars, op: Op, re: V, im: V) -> Lane:
    return re, im


@element("bitcast_convert")
def _element_bitcast(em: Emitter, op: Op, k: int, index: Key) -> Lane:
    source, target = op.operands[0].dtype, op.result.dtype
    old, new = _width(source), _width(target)
    if old == new:
        return em.s.bitcast(source, target, em.operand(op, 0, index))
    if old > new:
        return _piece(em, source, target, em.operand(op, 0, index[:-1]), index[-1])
    pieces = [em.operand(op, 0, (*index, em.ix.number(i))) for i in range(new // old)]
    return _joined(em, source, target, pieces)


def _piece(em: Emitter, source: DType, target: DType, a: Lane, which: Component) -> Lane:
    """Piece number `which` of the bits of `a`, lowest first, as the narrower type `target`."""
    if source.is_complex:
        per = source.bits // _width(target)
        part, rest = em.ix.divmod(which, per)
        assert not isinstance(a, V)
        re, im = (
            _piece(em, source.part, target, x, rest) if per > 1 else em.s.bitcast(source.part, target, x) for x in a
        )
        first = em.ix.is_zero(part)
        if isinstance(first, bool):
            return re if first else im
        return em.s.select(first, re, im)
    width = _width(target)
    wide, narrow = _bits(_width(source)), _bits(width)
    place = em.s.convert(i64, wide, em.ix.lanes(em.ix.mul(which, width)))
    shifted = em.s.shift("logical", wide, em.s.bitcast(source, wide, a), place)  # type: ignore[arg-type]
    low = em.s.and_(wide, shifted, em.s.const(wide, (1 << width) - 1))  # type: ignore[arg-type]
    return em.s.bitcast(narrow, target, em.s.convert(wide, narrow, low))


def _joined(em: Emitter, source: DType, target: DType, pieces: Sequence[Lane]) -> Lane:
    """The wider value whose bits are the pieces', lowest first."""
    if target.is_complex:
        half = len(pieces) // 2
        if half == 1:
            re, im = (em.s.bitcast(source, target.part, p) for p in pieces)
        else:
            re, im = (_joined(em, source, target.part, p) for p in (pieces[:half], pieces[half:]))
        return re, im  # type: ignore[return-value]
    width = _width(source)
    wide, narrow = _bits(_width(target)), _bits(width)
    total = em.s.const(wide, 0)
    for i, piece in enumerate(pieces):
        moved = em.s.convert(narrow, wide, em.s.bitcast(source, narrow, piece))
        moved = em.s.shift("left", wide, moved, em.s.const(wide, i * width))  # type: ignore[arg-type]
        total = em.s.or_(wide, total, moved)  # type: ignore[arg-type]
    return em.s.bitcast(wide, target, total)


def _bits(width: int) -> DType:
    """The unsigned integer type of this width; one bit is an i1."""
    return DTYPES["i1" if width == 1 else f"ui{width}"]


# ---- samples -----------------------------------------------------------------------------------------------------


@samples("convert")
def _convert_samples(name: str) -> Iterable[Sample]:
    for a in dtypes("biufc"):
        for b in dtypes("biufc"):
            if a.is_complex and not b.is_complex:
                continue  # deprecated by StableHLO: real comes first
            edge = np.concatenate([corners(a), data(a, (9,), "convert", low=-300, high=300)])
            yield Sample(name, f"{a}-{b}", (edge,), results=(Tensor(edge.shape, b),))


@samples("bitcast_convert")
def _bitcast_samples(name: str) -> Iterable[Sample]:
    kinds = (*SMALL_INTS, *INTS, *UINTS, *FLOATS)
    for a in kinds:
        for b in kinds:
            old, new = a.bits, b.bits
            for what, rows in (("", (5,)), ("-scalar", ())):
                shape = rows if old >= new else (*rows, new // old)
                out = rows if old <= new else (*rows, old // new)
                yield Sample(name, f"{a}-{b}{what}", (data(a, shape, "bitcast"),), results=(Tensor(out, b),))


@samples("real", "imag")
def _part_samples(name: str) -> Iterable[Sample]:
    for d in dtypes("fc"):
        yield Sample(name, f"{d}", (data(d, (3, 5), name),))
        yield Sample(name, f"{d}-corners", (corners(d),))


@samples("complex")
def _complex_samples(name: str) -> Iterable[Sample]:
    for d in (f32, f64):
        yield Sample(name, f"{d}", pairs(d))
