"""Mathematical functions on lanes: which formula serves a function and dtype.

`unary("tanh", s, dtype, x)` writes tanh. f32 and f64 have formulas of their own (`math_f32`, `math_f64`); the narrower
compute as f32 and round; complex numbers are in `math_complex`. Where there is no formula, the C library is called
lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import complexes, integers, math_complex, math_f32, math_f64, math_narrow
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import LIBM, call_libm
from ferrule.codegen.llvm import V
from ferrule.codegen.scalar import Lane, Scalars
from ferrule.errors import Internal
from ferrule.ir.types import DType


def _formula(name: str, dtype: DType, has_f64: bool) -> Callable[..., Num]:
    if not has_f64 and dtype.bits < 64 and name in math_narrow.FORMULAS:
        return math_narrow.FORMULAS[name]
    table = math_f64.FORMULAS if dtype.bits == 64 else math_f32.FORMULAS
    if name in table:
        return table[name]
    if name in LIBM:
        return lambda *xs: call_libm(LIBM[name], *xs)
    raise Internal(f"no formula for {name} of {dtype}", why="codegen/math lacks it")


def unary(name: str, s: Scalars, dtype: DType, x: Lane) -> Lane:
    """The function StableHLO calls `name` of one operand."""
    if not isinstance(x, V):
        return complexes.pair(math_complex.apply(name, complexes.nums(s, x)))
    return s.round(dtype, _formula(name, dtype, s.b.dialect.has_f64)(s.num(x)).v, of_same=True)


def binary(name: str, s: Scalars, dtype: DType, x: Lane, y: Lane) -> Lane:
    """The function StableHLO calls `name` of two operands."""
    if not isinstance(x, V):
        assert not isinstance(y, V)
        return complexes.pair(math_complex.apply(name, complexes.nums(s, x), complexes.nums(s, y)))
    assert isinstance(y, V)
    if dtype.is_int:
        return integers.power(dtype, s.num(x), s.num(y)).v
    if name == "next_after":
        return _next_after(s, dtype, x, y)
    return s.round(dtype, _formula(name, dtype, s.b.dialect.has_f64)(s.num(x), s.num(y)).v)


def _next_after(s: Scalars, dtype: DType, a: V, b: V) -> Lane:
    """The next value of the type from a towards b: one step of the bits, away from zero or towards it."""
    x, y, bits = s.num(a), s.num(b), s.num(s.to_bits(dtype, a))
    sign = 1 << (dtype.bits - 1)
    grows = (x < 0.0).where(1, 0, bits).ne((y > x).where(1, 0, bits))
    first = (y < 0.0).where(sign | 1, 1, bits)
    step = x.eq(0.0).where(first, grows.where(bits + 1, bits - 1))
    moved = s.num(s.from_bits(dtype, step.v))  # type: ignore[arg-type]
    result = x.eq(y).where(y, moved)
    return (x.is_nan() | y.is_nan()).where(float("nan"), result).v
