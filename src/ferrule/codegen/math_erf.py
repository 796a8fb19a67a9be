"""The error function on f64 lanes, its complement and its inverse.

The coefficients are minimax fits (Remez exchange in 40 and 50-digit arithmetic) with errors below 2⁻⁵⁶.
"""

from __future__ import annotations

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import V
from ferrule.codegen.math_exp import LOG_SERIES, exp_terms, scaled
from ferrule.codegen.math_wide import LN2_HIGH, LN2_LOW

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
# (erfinv(x)/x - √π/2)/w as a polynomial of w = -log(1 - x²) up to 5; above, erfinv(x)/x - √w as one of √w - 3
# and, where √w is 3.7 and more, of √w - 4¾
_START, _START_LOW = 0.8862269254527577, 2.9473397488841797e-16
_INVERSE = (
    *(0.2320136665346544, 0.01154934203827385, -0.0023351016416493565, -0.00012804329401339097),
    *(4.661143952498116e-05, 2.019990639909584e-06, -1.0125560836924334e-06, -3.729651056418886e-08),
    *(2.2800745337912364e-08, 7.413467344710143e-10, -5.090930628672837e-10, -2.8991860900094647e-11),
    *(2.037753827206608e-11, -3.6062434072571384e-12, 1.2130988266453203e-12, -4.4878524678298447e-13),
    *(1.0511266298552587e-13, -1.578751691859125e-14, 1.5662198251981534e-15, -1.0079898911275646e-16),
    *(3.854116285350206e-18, -6.697696528376513e-20),
)
_INVERSE_BEYOND = (
    *(-0.1670232012717293, 0.001675276693399973, 0.009445522011985964, -0.007643805570076898),
    *(0.005685182418100911, -0.003558794015407563, 0.0014837373397902703, -0.00014889811034076673),
    *(-0.0002831243854017696, 0.00020551665472719974, -4.646053924382881e-05, -2.28734511509181e-05),
    *(2.1934436739999004e-05, -5.946179520159787e-06, -1.6505123401531264e-06, 1.995558220234058e-06),
    *(-6.50472056490186e-07, -7.171370289885574e-08, 1.7831697476602934e-07, -7.206640801953315e-08),
    *(-1.231842791937887e-08, 1.4794685375119231e-08),
)
_INVERSE_FAR = (
    *(-0.1526737076729066, 0.01032434392248002, 5.4414078629279904e-05, -0.00030489083210901677),
    *(0.00010545653758180135, -2.8017191493850304e-05, 6.786250962670104e-06, -1.685037932211714e-06),
    *(5.226136248467644e-07, -2.3224401929435344e-07, 1.252974597561244e-07, -6.564764576157163e-08),
    *(2.9761809395494672e-08, -1.0862748190757986e-08, 2.8270653763370494e-09, -2.279754932413894e-10),
    *(-2.8537574945596873e-10, 1.9434092038983211e-10, -5.1900195128966704e-11, 5.645980678920494e-13),
    *(1.735509583592335e-12,),
)


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


def _deep(size: Num) -> Num:
    """-log(1 - x²), 0 ≤ x < 1, to 2⁻⁵² of one and of itself, which is as right as an inverse needs."""
    k, m = wide.log_parts((1.0 - size) * (size + 1.0))
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    series = z.fma(z.poly(LOG_SERIES), 2 / 3)
    return k.fma(-LN2_HIGH, k.fma(-LN2_LOW, -((s * z).fma(series, s + s))))


def erf_inv(x: Num) -> Num:
    """x times a polynomial of -log(1 - x²), and of its root where a lane is beyond 0.9966."""
    size = abs(x)
    w = _deep(wide.limit(size, 0.0, 1.0 - 2.0**-53))
    p = w.poly(_INVERSE)
    sum = w.fma(p, _START)  # the start lacks the last bits, so that their difference below has no rounding
    near = x.fma(sum, x * (w.fma(p, _START - sum) + _START_LOW))

    def with_tail() -> list[V]:
        root = w.intrinsic("sqrt")
        middle, far = (root - 3.0).poly(_INVERSE_BEYOND), (root - 4.75).poly(_INVERSE_FAR)
        rest = (root < 3.7).where(middle, far) + (-root).fma(root, w) / (root + root)
        result = (w < 5.0).where(near, x.fma(root, x * rest))
        result = size.eq(1.0).where(x.const(float("inf")).copysign(x), result)
        return [(size > 1.0).where(float("nan"), result).v]

    return Num(x.b, x.b.branch(wide.any_lane(w >= 5.0), with_tail, lambda: [near.v])[0]).copysign(x)
