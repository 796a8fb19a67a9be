"""Formulas for f32 lanes on devices without f64, where `math_f32` would go through it: the device's own functions."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import LIBM, call_libm
from ferrule.codegen.math_special import bessel_i1e, digamma

# erfinv(x)/x as a polynomial of w = -log(1 - x²) up to 5, and of √w up to 6.2; both right to 2⁻²⁴.
_ERF_INV = (
    *(0.8862269258193511, 0.2320136444344622, 0.011549558640169004, -0.002335917522081252, -0.0001264920116963938),
    *(4.4927421926142826e-05, 3.1180561119826052e-06, -1.4364752130309924e-06, 4.4869622148546864e-08),
    *(2.3720971483000403e-08, -3.216566798809882e-09, 1.3285821679433311e-10),
)
_ERF_INV_TAIL = (
    *(-4.955350709796889, 20.261091649566808, -30.946206845994908, 28.079195598477586, -16.468004465537835),
    *(6.665233222982182, -1.9231534406897408, 0.4003883770201697, -0.05987231383330057, 0.0062841725389113255),
    *(-0.0004401042049606984, 1.8485887506837173e-05, -3.5248313458499354e-07),
)

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
    result = x * (deep < 5.0).where(deep.poly(_ERF_INV), root.poly(_ERF_INV_TAIL))
    result = size.eq(1.0).where(x.const(float("inf")).copysign(x), result)
    return (size > 1.0).where(float("nan"), x.is_nan().where(x, result))


FORMULAS: dict[str, Formula] = {
    **{name: lambda *xs, c=c: call_libm(c, *xs) for name, c in LIBM.items() if name not in PURE},
    "rsqrt": lambda x: call_libm("rsqrt", x),
    "erf_inv": erf_inv,
    "bessel_i1e": bessel_i1e,
    "digamma": lambda x: digamma(x, lambda y: call_libm("log", y), lambda y: call_libm("tan", y)),
}
