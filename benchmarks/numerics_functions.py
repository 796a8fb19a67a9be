"""The functions that `numerics.py` measures, and what their results should be.

Real results are computed one format wider: in f64 for f32 and narrower, in 80 bits for f64, and with mpmath's digits
where NumPy has no function of 80 bits. Complex ones are computed in 80 bits, or with mpmath where NumPy's cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from scipy import special

from jax import lax

Reference = Callable[..., Any]
mpmath.mp.prec = 100


@dataclass(frozen=True)
class Function:
    """`exact` marks a reference for 80 bits, `digits` one in mpmath for f64; `complex` one for complex numbers."""

    call: Callable[..., Any]
    reference: Reference | None = None
    exact: bool = True
    digits: Reference | None = None
    complex: Reference | None = None
    operands: int = 1
    result_is_real: bool = False


def _each(formula: Reference) -> Reference:
    """An mpmath function of arrays of f64, rounded to 80 bits."""

    def one(*xs: float) -> np.longdouble:
        try:
            value = formula(*(mpmath.mpf(float(x)) for x in xs))
        except (ValueError, ZeroDivisionError, OverflowError):  # a pole, or out of mpmath's range
            return np.longdouble(np.nan)
        if isinstance(value, mpmath.mpc):
            return np.longdouble(np.nan)
        high = float(value)
        return np.longdouble(high) + (np.longdouble(float(value - high)) if np.isfinite(high) else 0)

    return np.frompyfunc(one, 1, 1) if formula not in _TWO else np.frompyfunc(one, 2, 1)


def _each_complex(formula: Reference) -> Reference:
    def part(value: Any) -> np.longdouble:
        high = float(value)
        return np.longdouble(high) + (np.longdouble(float(value - high)) if np.isfinite(high) else 0)

    def one(*zs: complex) -> np.clongdouble:
        if not all(np.isfinite(z) for z in zs):
            return np.clongdouble(complex(np.nan, np.nan))
        try:
            value = mpmath.mpc(formula(*(mpmath.mpc(float(z.real), float(z.imag)) for z in zs)))
        except (ValueError, ZeroDivisionError, OverflowError):
            return np.clongdouble(complex(np.nan, np.nan))
        out = np.zeros(1, np.clongdouble)
        out.real, out.imag = part(value.real), part(value.imag)
        return out[0]

    return lambda *xs: np.frompyfunc(one, len(xs), 1)(*xs).astype(np.clongdouble)


def _log1p_of(z: mpmath.mpc) -> mpmath.mpc:
    with mpmath.workprec(2400):  # 1 + z loses nothing, however small z is
        return mpmath.log(1 + z)


def _lgamma(x: np.ndarray) -> np.ndarray:
    value = special.gammaln(x)
    return np.where(np.isinf(x), np.inf, value)  # C and XLA have +inf at -inf


def _polygamma(n: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.where((n >= 0) & (n == np.floor(n)), special.polygamma(np.where(n >= 0, n, 0).astype(int), x), np.nan)


def _zeta_digits(s: Any, a: Any) -> Any:
    return mpmath.zeta(s, a)


def _erfinv(x: Any) -> Any:
    return mpmath.erfinv(x)


def _lgamma_digits(x: Any) -> Any:
    if x <= 0 and x == mpmath.floor(x):
        return mpmath.inf
    return mpmath.re(mpmath.loggamma(x))


_TWO = (_zeta_digits,)


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _logistic(x: Any) -> Any:
    with np.errstate(all="ignore"):
        t = np.exp(-np.abs(x))
        return np.where(x < 0, t, 1) / (1 + t)


def _logistic_complex(z: Any) -> Any:
    return 1 / (1 + mpmath.exp(-z))


FUNCTIONS: dict[str, Function] = {
    "exp": Function(lax.exp, np.exp, complex=np.exp),
    "exp2": Function(lax.exp2, np.exp2, complex=lambda z: np.exp(z * np.log(np.longdouble(2)))),
    "expm1": Function(lax.expm1, np.expm1, complex=_each_complex(mpmath.expm1)),
    "log": Function(lax.log, np.log, complex=np.log),
    "log1p": Function(lax.log1p, np.log1p, complex=_each_complex(_log1p_of)),
    "logistic": Function(lax.logistic, _logistic, complex=_each_complex(_logistic_complex)),
    "sqrt": Function(lax.sqrt, np.sqrt, complex=np.sqrt),
    "rsqrt": Function(lax.rsqrt, _rsqrt, complex=_rsqrt),
    "cbrt": Function(lax.cbrt, np.cbrt),
    "sin": Function(lax.sin, np.sin, complex=np.sin),
    "cos": Function(lax.cos, np.cos, complex=np.cos),
    "tan": Function(lax.tan, np.tan, complex=np.tan),
    "tanh": Function(lax.tanh, np.tanh, complex=np.tanh),
    "sinh": Function(lax.sinh, np.sinh, complex=np.sinh),
    "cosh": Function(lax.cosh, np.cosh, complex=np.cosh),
    "asin": Function(lax.asin, np.arcsin, complex=np.arcsin),
    "acos": Function(lax.acos, np.arccos, complex=np.arccos),
    "atan": Function(lax.atan, np.arctan, complex=np.arctan),
    "asinh": Function(lax.asinh, np.arcsinh, complex=np.arcsinh),
    "acosh": Function(lax.acosh, np.arccosh, complex=np.arccosh),
    "atanh": Function(lax.atanh, np.arctanh, complex=np.arctanh),
    "square": Function(lax.square, np.square, complex=np.square),
    "abs": Function(lax.abs, None, complex=np.abs, result_is_real=True),
    "sign": Function(lax.sign, None, complex=np.sign),
    "erf": Function(lax.erf, special.erf, False, _each(mpmath.erf)),
    "erfc": Function(lax.erfc, special.erfc, False, _each(mpmath.erfc)),
    "erf_inv": Function(lax.erf_inv, special.erfinv, False, _each(_erfinv)),
    "lgamma": Function(lax.lgamma, _lgamma, False, _each(_lgamma_digits)),
    "digamma": Function(lax.digamma, special.digamma, False, _each(mpmath.digamma)),
    "bessel_i1e": Function(lax.bessel_i1e, special.i1e, False),
    "power": Function(lax.pow, np.power, complex=_each_complex(lambda z, w: z**w), operands=2),
    "atan2": Function(lax.atan2, np.arctan2, operands=2),
    "remainder": Function(lax.rem, np.fmod, operands=2),
    "divide": Function(lax.div, np.divide, complex=np.divide, operands=2),
    "multiply": Function(lax.mul, np.multiply, complex=np.multiply, operands=2),
    "next_after": Function(lax.nextafter, None, operands=2),
    "zeta": Function(lax.zeta, special.zeta, False, _each(_zeta_digits), operands=2),
    "polygamma": Function(lax.polygamma, _polygamma, False, operands=2),
}
