"""The error function on f64 lanes and its complement.

The coefficients are minimax fits (Remez exchange in 50-digit arithmetic) with errors below 2⁻⁵⁶.
"""

from __future__ import annotations

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.math_exp import exp_terms, scaled

# erf(x)/x as a polynomial of x², |x| ≤ 1; the first coefficient in two parts
_NEAR, _NEAR_LOW = 1.1283791670955126, 1.533545961316588e-17
_ERF = (
    *(-0.3761263890318362, 0.11283791670947305, -0.026866170643530994, 0.005223977609157213, -0.0008548326061255217),
    *(0.00012055297209038514, -1.4924777242548965e-05, 1.6447883401036723e-06, -1.6211750177405874e-07),
    *(1.3733294082803632e-08, -7.819155017180344e-10),
)
# (x + 4) exp(x²) erfc(x) as a polynomial of (x - 4) / (x + 4), 0 ≤ x ≤ 28; the first two coefficients in two parts
_ERFC = (
    *(1.095995661000491, -0.976548729080882, 0.7732087022652373, -0.5408538313132348, 0.33085158787799573),
    *(-0.1740109372399368, 0.07638151490981811, -0.026370053340378074, 0.006112055647928096, -0.0002809588646650256),
    *(-0.00045505261709635314, 0.00017681281574077803, -3.635525315599559e-06, -1.8860901691467425e-05),
    *(4.695620612586076e-06, 1.4243431455936166e-06, -8.488793522367229e-07, -7.60549602361759e-08),
    *(1.2792342877704644e-07, 1.8440997679961306e-09, -1.851561101095134e-08, -8.319417595824493e-10),
    *(2.0728084653341347e-09, 4.0564900235046507e-10),
)
_ERFC_LOW = (5.723547481327785e-17, -2.7128270404020496e-17)


def _far(size: Num) -> tuple[Num, Num]:
    """(v, n) with erfc(x) = v 2ⁿ, 0 ≤ x ≤ 28: e^-x² times a polynomial, with what x² and the quotients lose."""
    square = size * size
    r, rest, n = exp_terms(-square, size.fma(size, -square))
    sum = size + 4.0
    inverse = 1.0 / sum
    low = inverse * ((-inverse).fma(sum, 1.0) - inverse * (size - (sum - 4.0)))
    most = inverse.fma(-8.0, 1.0)
    u = most - low * 8.0
    u_low = (most - u) - low * 8.0
    second = u.poly(_ERFC[2:])
    first = u.fma(second, _ERFC[1])
    first_low = u.fma(second, _ERFC[1] - first) + _ERFC_LOW[1]
    p = u.fma(first, _ERFC[0])
    p_low = u.fma(first_low, u.fma(first, _ERFC[0] - p) + _ERFC_LOW[0])
    factor = inverse * p
    # The polynomial's slope is about 0.66 u - 1.04 times its value.
    low = (u_low * inverse).fma(u.fma(0.66, -1.04), low)
    factor_low = inverse.fma(p, -factor) + inverse.fma(p_low, low * p)
    return factor + factor.fma(r, factor.fma(rest, factor_low)), n


def erf(x: Num) -> Num:
    size = wide.limit(abs(x), 0.0, 6.0)
    value, n = _far(size)
    far = (-wide.power_of_two(n)).fma(value, 1.0).copysign(x)
    z = x * x
    p = z.poly(_ERF)
    rest = z * p
    sum = rest + _NEAR
    near = x.fma(sum, x * (((_NEAR - sum) + rest) + (z.fma(p, -rest) + _NEAR_LOW)))
    return (size < 1.0).where(near, far)


def erfc(x: Num) -> Num:
    value, n = _far(wide.limit(abs(x), 0.0, 28.0))
    result = scaled(value, n, abs(x) > 26.0)
    return (x < 0.0).where(2.0 - result, result)
