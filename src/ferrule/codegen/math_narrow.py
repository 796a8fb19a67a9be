"""Formulas for f32 lanes on devices without f64, where `math_f32` would go through it: the device's own functions."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import LIBM, call_libm
from ferrule.codegen.math_special import ERF_INV, ERF_INV_TAIL, bessel_i1e, digamma

Formula = Callable[..., Num]
# What `math_f32` computes in f32 alone; it serves here too.
PURE = frozenset(
    {"sqrt", "square", "exponential", "exp2", "exponential_minus_one", "log", "tanh", "logistic", "erf", "is_finite"}
)


def erf_inv(x: Num) -> Num:
    """The inverse of erf, by the same polynomials in f32; the logarithm of 1 - x² from its two factors."""
    size = abs(x)
    deep = -call_libm("log1p", -size) - call_libm("log1p", size)
    root = deep.intrinsic("sqrt")
    result = x * (deep < 5.0).where(deep.poly(ERF_INV), root.poly(ERF_INV_TAIL))
    result = size.eq(1.0).where(x.const(float("inf")).copysign(x), result)
    return (size > 1.0).where(float("nan"), x.is_nan().where(x, result))


FORMULAS: dict[str, Formula] = {
    **{name: lambda *xs, c=c: call_libm(c, *xs) for name, c in LIBM.items() if name not in PURE},
    "rsqrt": lambda x: call_libm("rsqrt", x),
    "erf_inv": erf_inv,
    "bessel_i1e": bessel_i1e,
    "digamma": lambda x: digamma(x, lambda y: call_libm("log", y), lambda y: call_libm("tan", y)),
}
