"""Mathematical functions on lanes: which formula serves a function and dtype.

`unary("tanh", s, dtype, x)` writes tanh. f32 and f64 have formulas of their own (`math_f32`, `math_f64`); narrower floats
compute as f32 and round; complex numbers are in `math_complex`. Where there is no formula yet, the C library is called
lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import complexes, integers, math_complex, math_f32, math_f64
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import LIBM, call_libm
from ferrule.codegen.llvm import V
from ferrule.codegen.scalar import Lane, Scalars
from ferrule.errors import Internal
from ferrule.ir.types import DType


def _formula(name: str, dtype: DType) -> Callable[..., Num]:
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
    return s.round(dtype, _formula(name, dtype)(s.num(x)).v)


def binary(name: str, s: Scalars, dtype: DType, x: Lane, y: Lane) -> Lane:
    """The function StableHLO calls `name` of two operands."""
    if not isinstance(x, V):
        assert not isinstance(y, V)
        return complexes.pair(math_complex.apply(name, complexes.nums(s, x), complexes.nums(s, y)))
    assert isinstance(y, V)
    if dtype.is_int:
        return integers.power(dtype, s.num(x), s.num(y)).v
    return s.round(dtype, _formula(name, dtype)(s.num(x), s.num(y)).v)
