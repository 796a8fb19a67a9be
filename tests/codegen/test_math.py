"""Mathematical functions in generated code: errors in ulp, special values, all lane counts alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from lane_kernels import compile_lanes, compile_op, op_of
from scipy import special

from ferrule.codegen.avx2 import AVX2
from ferrule.codegen.dialect import FUSED, HOST, Dialect, dialect_of
from ferrule.codegen.llvm import Builder
from ferrule.codegen.scalar import Scalars
from ferrule.ir import types
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.targets.cpu import host

Reference = Callable[..., np.ndarray]
# Function → (reference on a wider type, largest error in ulp for f32, for f64 or None where it is the C library's).
UNARY: dict[str, tuple[Reference, float, float | None]] = {
    "exponential": (np.exp, 1.1, 0.7),
    "exponential_minus_one": (np.expm1, 2, 2),
    "exp2": (np.exp2, 1.1, 0.7),
    "bessel_i1e": (special.i1e, 0.51, None),
    "log": (np.log, 0.76, 0.52),
    "log_plus_one": (np.log1p, 1, 1.5),
    "logistic": (lambda x: np.exp(-np.logaddexp(0, -x)) if x.dtype != np.float64 else special.expit(x), 2.4, 0.7),
    "sine": (np.sin, 0.56, 0.52),
    "cosine": (np.cos, 0.56, 0.52),
    "tan": (np.tan, 1, 0.53),
    "tanh": (np.tanh, 2, 3),
    "sinh": (np.sinh, 1, 2.5),
    "cosh": (np.cosh, 1, 2),
    "asin": (np.arcsin, 1, None),
    "acos": (np.arccos, 1, None),
    "atan": (np.arctan, 1, 0.52),
    "asinh": (np.arcsinh, 1, 2),
    "acosh": (np.arccosh, 1, 2),
    "atanh": (np.arctanh, 1, 2.5),
    "cbrt": (np.cbrt, 1, 0.51),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.51, 0.51),
    "erf": (special.erf, 1.9, None),
    "erfc": (special.erfc, 5.5, None),
    "erf_inv": (special.erfinv, 1, None),
    "lgamma": (lambda x: np.where(np.isneginf(x), np.inf, special.gammaln(x)), 0.51, None),
}
SPECIALS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 88.7, 88.8, -87.4, -103.9, -104.5, 1e-45, 3e38]
rng = np.random.default_rng(0)


def samples(dtype: DType, count: int = 1 << 14) -> np.ndarray:
    """Random bit patterns, which cover all magnitudes, and normal distributions of several widths."""
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    near = [rng.standard_normal(count) * scale for scale in (0.05, 0.5, 1, 10, 100)]
    return np.concatenate([raw, *(v.astype(dtype.numpy) for v in near), np.resize(SPECIALS, 64).astype(dtype.numpy)])


def ulps(got: np.ndarray, want: np.ndarray, dtype: DType) -> np.ndarray:
    """The error in units in the last place of `dtype`; equal specials count as no error, different ones as infinite."""
    info = np.finfo(np.float32 if dtype.bits <= 32 else np.float64)
    digits, least = (info.nmant, info.minexp) if dtype.bits >= 32 else {"f16": (10, -14), "bf16": (7, -126)}[dtype.name]
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype.numpy)
        exponent = np.maximum(np.frexp(np.where(np.isfinite(want), want, 1))[1] - 1, least)
        error = np.abs(got.astype(want.dtype) - want) / np.ldexp(np.ones_like(want), exponent - digits)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    # At the limit of the range one side may be infinite: then the largest number counts as one ulp away.
    edge = np.isinf(got) != np.isinf(rounded)
    near = (
        np.abs(np.where(np.isinf(got), want, got).astype(np.float64)) > 0.999 * float(np.finfo(dtype.numpy).max)
        if dtype.bits >= 32
        else edge
    )
    return np.where(
        same,
        np.where(np.isfinite(error), np.minimum(error, 0.5), 0),
        np.where(edge, np.where(near, 1, np.inf), np.where(np.isnan(error), np.inf, error)),
    )


def worst(name: str, dtype: DType, reference: Reference, width: int, x: np.ndarray) -> float:
    op = op_of(name, [dtype], dtype)
    x = x[: len(x) // width * width]
    got = compile_op(op, width)(x)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64 if dtype.bits <= 32 else np.longdouble))
    error = ulps(got, want, dtype)
    at = int(np.argmax(error))
    print(f"{name} {dtype} width {width}: {error[at]} ulp at {x[at]!r}: {got[at]!r}, not {want[at]!r}")
    zero = (want == 0) & (x == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero])) or name in ("erf_inv", "bessel_i1e")
    return float(error[at])


@pytest.mark.parametrize("name", UNARY)
def test_f32(name: str) -> None:
    reference, limit, _ = UNARY[name]
    x = samples(types.f32)
    assert worst(name, types.f32, reference, 16, x) <= limit
    op = op_of(name, [types.f32], types.f32)
    wide, one, eight = (compile_op(op, w)(x[: len(x) // 16 * 16]) for w in (16, 1, 8))
    assert np.array_equal(wide, one, equal_nan=True) and np.array_equal(wide, eight, equal_nan=True)


@pytest.mark.parametrize("dialect", [HOST, FUSED, AVX2], ids=["plain", "fused", "avx2"])
@pytest.mark.parametrize(
    "name",
    [
        "exponential",
        "exp2",
        "logistic",
        "rsqrt",
        "tanh",
        "log",
        "log_plus_one",
        "erf",
        "erf_inv",
        "sine",
        "cosine",
        "tan",
        "lgamma",
    ],
)
def test_f32_of_other_processors(name: str, dialect: Dialect) -> None:
    """Formulas that use what this processor has are as accurate where it is missing."""
    if dialect is AVX2 and not {"+avx2", "+fma"} <= set(host().features.split(",")):
        pytest.skip("this processor has no AVX2")
    reference, limit, _ = UNARY[name]
    x = samples(types.f32)
    op = op_of(name, [types.f32], types.f32)
    got = compile_op(op, 16, dialect=dialect)(x)
    with np.errstate(all="ignore"):
        assert ulps(got, reference(x.astype(np.float64)), types.f32).max() <= limit
    for width in (1, 2, 8, 32):  # one register, parts of one and several
        here = compile_op(op, width)(x[: len(x) // 32 * 32])
        assert np.array_equal(here, compile_op(op, 16)(x[: len(x) // 32 * 32]), equal_nan=True)


@pytest.mark.parametrize("name", [n for n, (_, _, limit) in UNARY.items() if limit])
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs a long double that is wider than double")
def test_f64(name: str) -> None:
    reference, _, limit = UNARY[name]
    assert limit is not None
    x = samples(types.f64, 1 << 12)
    if name == "logistic":  # the reference overflows far out
        x = x[(np.abs(x) < 700) | np.isinf(x)]
    assert worst(name, types.f64, reference, 8, x) <= limit


@pytest.mark.parametrize("name", ["erf_inv", "digamma", "lgamma", "tan", "erf", "erfc", "cbrt"])
def test_f64_against_scipy(name: str) -> None:
    reference = {"digamma": special.digamma, "lgamma": special.gammaln}.get(name) or UNARY[name][0]
    drawn = np.random.default_rng(0)  # its own: near a pole of digamma, digits are lost that no test drew before
    x = drawn.uniform(-0.999, 0.999, 1 << 10) if name == "erf_inv" else drawn.uniform(-20, 50, 1 << 10)
    got = compile_op(op_of(name, [types.f64], types.f64), 8)(x)
    np.testing.assert_allclose(got, reference(x), rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs a long double that is wider than double")
def test_atan2_f64() -> None:
    """All magnitudes and ratios, denormal numbers, and every pair of special values with C's signs."""
    count = 1 << 12
    raw = rng.integers(0, 1 << 64, (2, count), np.uint64).view(np.float64)
    near = rng.standard_normal((2, count)) * np.exp2(rng.uniform(-8, 8, (2, count)))
    tiny = rng.integers(0, 1 << 54, (2, count), np.uint64).view(np.float64) * rng.choice([-1, 1], (2, count))
    huge = rng.integers(0x7F00 << 48, 0x7FF0 << 48, (2, count), np.uint64).view(np.float64)
    one = [0.0, 1.0, 0.5, 3.0, np.inf, np.nan, 5e-324, 2.2250738585072014e-308, 1e-160, 1e160, 1.7e308]
    pairs = np.array(list(product([*one, *(-v for v in one)], repeat=2))).T
    mixed = np.concatenate([tiny, near[::-1]], axis=1)
    y, x = np.concatenate([raw, near, tiny, huge, mixed, mixed[::-1], pairs, pairs[:, :4]], axis=1)
    got = compile_op(op_of("atan2", [types.f64] * 2, types.f64), 8)(y, x)
    with np.errstate(all="ignore"):
        want = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    assert ulps(got, want, types.f64).max() <= 0.53
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))
    for width in (1, 4, 16):
        here = compile_op(op_of("atan2", [types.f64] * 2, types.f64), width)(y[: count * 4], x[: count * 4])
        np.testing.assert_array_equal(here, got[: count * 4])


@pytest.mark.parametrize(("name", "limit"), [("erf", 2), ("erfc", 4)])
def test_error_functions_f64(name: str, limit: float) -> None:
    """Near the C library's, which is off by an ulp and two itself, out to the smallest denormal number."""
    reference = {"erf": math.erf, "erfc": math.erfc}[name]
    some = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1.0, 26.543, 27.2, 27.3, -6.0, 1e300]
    near = [rng.uniform(-1.2, 1.2, 1 << 12), rng.uniform(-6, 6, 1 << 12), rng.uniform(0, 27.3, 1 << 12)]
    x = np.concatenate([*near, rng.integers(0, 1 << 64, 1 << 12, np.uint64).view(np.float64), np.resize(some, 16)])
    got = compile_op(op_of(name, [types.f64], types.f64), 8)(x)
    want = np.array([reference(v) for v in x])
    assert ulps(got, want, types.f64).max() <= limit
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    for width in (1, 4, 16):
        here = compile_op(op_of(name, [types.f64], types.f64), width)(x)
        np.testing.assert_array_equal(here, got)


def test_erf_inv_f64_at_its_ends() -> None:
    rest = np.concatenate([2.0 ** -np.arange(1, 54), 10 ** rng.uniform(-15, -0.4, 971)])
    call = compile_op(op_of("erf_inv", [types.f64], types.f64), 8)
    x = 1 - rest
    np.testing.assert_allclose(call(x), special.erfcinv(1 - x), rtol=2e-15)
    np.testing.assert_allclose(call(-x), -special.erfcinv(1 - x), rtol=2e-15)
    x = np.concatenate([10 ** rng.uniform(-300, -0.4, 1016), [5e-324, 1e-9, 2e-9, 0.5, 0.0, 1.0, -1.0, 2.0]])
    np.testing.assert_allclose(call(x), special.erfinv(x), rtol=2e-15)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_f32(name: str) -> None:
    reference = special.gammaln if name == "lgamma" else special.digamma
    x = np.concatenate([rng.uniform(-20, 50, 1 << 12), np.exp(rng.uniform(-80, 80, 1 << 12))]).astype(np.float32)
    got = compile_op(op_of(name, [types.f32], types.f32), 16)(x)
    np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=4e-7, atol=2e-7)
    edge = np.array([0.0, -0.0, np.inf, np.nan], np.float32).repeat(4)
    got = compile_op(op_of(name, [types.f32], types.f32), 16)(edge)[::4]
    want = [np.inf, np.inf, np.inf, np.nan] if name == "lgamma" else [-np.inf, np.inf, np.inf, np.nan]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
def test_lgamma_left_of_zero(dialect: Dialect) -> None:
    """Between the poles, at them, and near its zeros, where the logarithms cancel; alone and among others."""
    zeros = np.array([-2.4570248, -2.7476826, -3.1435809, -3.9552943, -4.0394, -5.9986], np.float32)
    x = np.concatenate([rng.uniform(-12, 0, 1 << 12), -np.exp(rng.uniform(-100, 17, 1 << 12)), -np.arange(64.0)])
    x = np.concatenate([x.astype(np.float32), zeros.repeat(16), np.nextafter(zeros, np.float32(0)).repeat(16)])
    x[3::16] = np.resize(np.array([0.5, np.nan, np.inf, -np.inf, -0.0], np.float32), len(x[3::16]))
    got = compile_op(op_of("lgamma", [types.f32], types.f32), 16, dialect=dialect)(x)
    assert ulps(got, UNARY["lgamma"][0](x.astype(np.float64)), types.f32).max() <= 0.51


@pytest.mark.parametrize("d", [types.bf16, types.f16], ids=str)
@pytest.mark.parametrize("name", ["exponential", "log", "tanh", "logistic", "sine", "rsqrt", "erf"])
def test_narrow(name: str, d: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(d.numpy)
    got = compile_op(op_of(name, [d], d), 16)(x)
    with np.errstate(all="ignore"):
        want = UNARY[name][0](x.astype(np.float64))
        rounded = want.astype(np.float32).astype(d.numpy)
    same = (got == rounded) | (np.isnan(got.astype(np.float32)) & np.isnan(rounded.astype(np.float32)))
    # An f32 result within an ulp of the middle between two neighbours may go to either.
    assert np.count_nonzero(~same) <= 40, np.count_nonzero(~same)
    neighbours = np.abs(got.view(np.int16).astype(int) - rounded.view(np.int16).astype(int)) <= 1
    assert (same | neighbours).all()


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "host"])
@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("exp2", "bessel_i1e")] + ["digamma", "lgamma"])
def test_nans_of_bf16_stay(name: str, dialect: Dialect) -> None:
    """Rounding to bf16 does not look for NaNs in what was computed from bf16 values."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    nans = bits[(bits & 0x7FFF) > 0x7F80][:240]
    nans = np.concatenate([nans, nans | 0x8000, [0x7FFF, 0xFFFF, 0x7F81, 0xFF81] * 4]).astype(np.uint16)
    got = compile_op(op_of(name, [types.bf16], types.bf16), 16, dialect=dialect)(nans.view(types.bf16.numpy))
    assert np.isnan(got.astype(np.float32)).all()


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_nans_of_bf16_arithmetic(name: str) -> None:
    codes = [0x7FFF, 0xFFFF, 0x7F81, 0xFFC1, 0x7F80, 0xFF80, 0, 0x8000, 1, 0x7F7F, 0xFF7F, 0x0080, 0x3F80, 0xC000]
    x, y = (v.ravel() for v in np.meshgrid(codes, codes))
    x, y = (np.resize(v.astype(np.uint16), 208).view(types.bf16.numpy) for v in (x, y))
    got = compile_op(op_of(name, [types.bf16] * 2, types.bf16), 16)(x, y)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x.astype(np.float32), y.astype(np.float32)).astype(types.bf16.numpy)
    assert np.array_equal(got.astype(np.float32), want.astype(np.float32), equal_nan=True)


def test_sine_of_huge_angles() -> None:
    x = np.array([1e6, 1e7, 1e22, 3.3e38, -5e30, 1.5e6, 710, 0.1] * 2, np.float32)
    for name, reference in (("sine", np.sin), ("cosine", np.cos), ("tan", np.tan)):
        got = compile_op(op_of(name, [types.f32], types.f32), 16)(x)
        np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=2e-7)


POWERS = [
    0.0,
    -0.0,
    1,
    -1,
    2,
    -2,
    3,
    -3,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1e10,
    -1e10,
    1e-10,
    np.inf,
    -np.inf,
    np.nan,
    16777215,
    88,
]


@pytest.mark.parametrize("d", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize(("name", "reference"), [("power", np.power), ("atan2", np.arctan2), ("remainder", np.fmod)])
def test_binary(name: str, reference: Reference, d: DType) -> None:
    a, b = np.meshgrid(POWERS, POWERS)
    n = 1 << 14
    wide = np.float64 if d == types.f32 else np.longdouble
    spread = np.exp(rng.uniform(-5, 5, n)), rng.standard_normal(n) * 12
    both = [
        np.concatenate([u.ravel(), v, rng.standard_normal(n) * 100]).astype(d.numpy)
        for u, v in zip((a, b), spread, strict=True)
    ]
    x, y = (v[: len(v) // 16 * 16] for v in both)
    with np.errstate(all="ignore"):
        want = reference(x.astype(wide), y.astype(wide))
    for width in (1, 16):
        got = compile_op(op_of(name, [d, d], d), width)(x, y)
        error = ulps(got, want, d)
        at = int(np.argmax(error))
        assert error[at] <= 1, (x[at], y[at], got[at], want[at])
        zero = want == 0
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("d", [types.f32, types.f64], ids=str)
def test_remainders_are_exact(d: DType) -> None:
    """Also next to multiples, of quotients of any size, and of numbers below the normal ones."""
    n, info = 1 << 14, np.finfo(d.numpy)
    y = np.exp(rng.uniform(-30, 30, n)).astype(d.numpy)
    times = np.floor(np.exp2(rng.uniform(0, info.nmant + 4, n)))
    multiples = (y * times.astype(d.numpy)).astype(d.numpy)
    near = [np.nextafter(multiples, d.numpy.type(to)) for to in (0, np.inf)]
    tiny = (rng.integers(1, 1 << 20, n) * info.smallest_subnormal).astype(d.numpy)
    odd = np.resize([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal], n)
    x = np.concatenate([multiples, *near, tiny, y, odd.astype(d.numpy), y])
    y = np.concatenate([y, y, y, rng.permutation(tiny), tiny, y, odd.astype(d.numpy)])
    x = np.where(rng.integers(0, 2, len(x)), x, -x)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    for width in (1, 8):
        got = compile_op(op_of("remainder", [d, d], d), width)(x, y)
        np.testing.assert_array_equal(got, want)
        assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("d", [types.f32, types.f64, types.f16, types.bf16], ids=str)
def test_next_after(d: DType) -> None:
    from lane_kernels import evaluate

    x, y = samples(d, 1 << 10), rng.permutation(samples(d, 1 << 10))
    n = min(len(x), len(y)) // 8 * 8
    op = op_of("next_after", [d, d], d)
    got, want = compile_op(op, 8)(x[:n], y[:n]), evaluate(op, x[:n], y[:n])
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


COMPLEX: dict[str, Reference] = {
    **{"exponential": np.exp, "log": np.log, "sqrt": np.sqrt, "sine": np.sin, "cosine": np.cos, "tan": np.tan},
    **{"tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan},
    **{"asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "exponential_minus_one": np.expm1},
    **{"rsqrt": lambda z: 1 / np.sqrt(z), "logistic": lambda z: 1 / (1 + np.exp(-z)), "square": np.square},
    **{"log_plus_one": np.log1p, "cbrt": lambda z: np.exp(np.log(z) / 3)},
}


@pytest.mark.parametrize("d", [types.c64, types.c128], ids=str)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name: str, d: DType) -> None:
    n = 512
    scales = (0.1, 1, 5, 30)
    z = np.concatenate([(rng.standard_normal(n) + 1j * rng.standard_normal(n)) * s for s in scales]).astype(d.numpy)
    got = compile_op(op_of(name, [d], d), 8)(z)
    want = COMPLEX[name](z.astype(np.clongdouble))
    info = np.finfo(d.part.numpy)
    size = np.abs(want)
    inside = (size < info.max / 2) & (size > info.tiny)
    assert np.max((np.abs(got - want) / size)[inside]) <= (1 if d == types.c64 else 60) * info.eps


@pytest.mark.parametrize("name", ["exponential", "log", "sqrt", "tanh", "sine", "cosh", "asinh", "acos", "atanh"])
def test_complex_specials(name: str) -> None:
    parts = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 2.5, -3.0]
    z = np.array([complex(a, b) for a in parts for b in parts], np.complex64)
    got = compile_op(op_of(name, [types.c64], types.c64), 8)(z)
    with np.errstate(all="ignore"):
        want = COMPLEX[name](z.astype(np.complex128)).astype(np.complex64)
    if name == "tanh":  # C23 keeps the zero; C11 and XLA give NaN twice
        want[(z.real == 0) & np.isinf(z.imag)] = complex(np.nan, np.nan)
    if name in ("cosh", "sine"):  # C has one infinite part where there is no angle; XLA and mpmath have none
        want[np.isinf(z.real) & np.isinf(z.imag)] = complex(np.nan, np.nan)
    for g, w in ((got.real, want.real), (got.imag, want.imag)):
        g, w = (np.where(np.isinf(v), np.inf, v) for v in (g, w))  # C leaves some signs of infinities open
        np.testing.assert_allclose(g, w, rtol=1e-6)


def test_complex_power() -> None:
    z, w = ((rng.standard_normal(256) + 1j * rng.standard_normal(256)).astype(np.complex64) for _ in range(2))
    z[:4], w[:4] = [0, 0, 2, 1j], [2, 0, 0, 2]
    d = types.c64
    got = compile_op(op_of("power", [d, d], d), 8)(z, w)
    want = np.power(z.astype(np.complex128), w.astype(np.complex128))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("d", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize(
    "name", ["log_plus_one", "exponential_minus_one", "sine", "tan", "tanh", "sinh", "asinh", "atanh"]
)
def test_smallest_numbers(name: str, d: DType) -> None:
    """Functions that are x near zero keep the smallest numbers and the sign of zero."""
    tiny = float(np.finfo(d.numpy).smallest_subnormal)
    x = np.array([tiny, -tiny, 3 * tiny, -7 * tiny, 0.0, -0.0, 1000 * tiny, -tiny], d.numpy)
    got = compile_op(op_of(name, [d], d), 8)(x)
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
def test_power_of_other_processors(dialect: Dialect) -> None:
    """Zeros, infinities and NaN come out of the exponent's bits here, of comparisons there."""
    special = np.array(
        [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -2, 3, 1e-45, 3e38, 0.75, 1.5, 1 + 2.0**-23, -3], "f"
    )
    x = np.concatenate([np.repeat(special, 16), np.abs(rng.standard_normal(4096)).astype("f")])
    y = np.concatenate([np.tile(special, 16), (rng.standard_normal(4096) * 20).astype("f")])
    got = compile_op(op_of("power", [types.f32, types.f32], types.f32), 16, dialect=dialect)(x, y)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        rounded = want.astype(np.float32)
    assert ulps(got, want, types.f32).max() <= 0.51
    assert np.array_equal(np.signbit(got), np.signbit(rounded) & ~np.isnan(got) | np.signbit(got) & np.isnan(got))


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
@pytest.mark.parametrize("width", [1, 8])
def test_power_f64(dialect: Dialect, width: int) -> None:
    """Where what the logarithm lost would count a thousand times: large exponents, and fractions far from 1."""
    n = 1 << 15
    ranges = [
        (np.exp(rng.uniform(-3, 3, n)), rng.uniform(-5, 5, n)),
        (np.exp(rng.uniform(-700, 700, n)), rng.uniform(-1, 1, n)),
        (1 + rng.uniform(-1, 1, n) * 1e-12, rng.uniform(-6e14, 6e14, n)),
        (np.sqrt(2) * (1 + rng.uniform(-1, 1, n) * 0.01), rng.uniform(-2000, 2000, n)),
        (np.exp(rng.uniform(-740, -700, n)), rng.uniform(-0.9, 1.05, n)),  # denormal numbers
    ]
    special = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, -2.5, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e308]
    special += [-1e308, 1e-308, 2.0**52 + 1, 2.0**53 + 2, 2.0**53, 1 - 2.0**53]
    pairs = np.array(list(product(special, special)))
    ranges.append((pairs[:, 0], pairs[:, 1]))
    call = compile_op(op_of("power", [types.f64, types.f64], types.f64), width, dialect=dialect)
    for x, y in ranges:
        got = call(x, y)
        with np.errstate(all="ignore"):
            want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        error = ulps(got, want, types.f64)
        at = int(np.argmax(error))
        assert error[at] <= 0.85, (x[at], y[at], got[at], want[at])
        zero = want == 0
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("name", ["sine", "cosine"])
def test_angles_at_their_limits(name: str) -> None:
    """Multiples of π/2 and their neighbours, up to where the C library takes over and beyond."""
    quarters = np.concatenate([np.arange(-3000, 3000), rng.integers(-640000, 640000, 20000), [2**23, 2**30, 2**60]])
    x = (quarters * (np.pi / 2)).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, -np.float32(np.inf))])
    x = np.resize(x, len(x) // 16 * 16)
    reference, _, _ = UNARY[name]
    assert worst(name, types.f32, reference, 16, x) <= 0.56


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
@pytest.mark.parametrize("name", ["sine", "cosine", "tan"])
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
def test_one_large_angle(name: str, dtype: DType, dialect: Dialect) -> None:
    """In any lane, above or below zero, also beside something NaN in another register."""
    reference, *limits = UNARY[name]
    call = compile_op(op_of(name, [dtype], dtype), 64, dialect=dialect)
    x = rng.uniform(-9, 9, (128, 64)).astype(dtype.numpy)
    x[::2, :] = np.nan
    x[np.arange(128), np.arange(128) // 2] = np.resize(np.array([1.5e6, -3e7], dtype.numpy), 128)
    with np.errstate(all="ignore"):
        want = reference(x.ravel().astype(np.longdouble))
    assert ulps(call(x.ravel()), want, dtype).max() <= limits[dtype.bits // 64]


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
@pytest.mark.parametrize("width", [1, 8, 16, 32])
@pytest.mark.parametrize(("name", "limit"), [("log", 0.76), ("power", 0.51), ("erf_inv", 0.53)])
def test_one_rare_lane(name: str, limit: float, width: int, dialect: Dialect) -> None:
    """Vectors of ordinary numbers, and the same with one number that sends all lanes the long way."""
    x = np.exp(rng.uniform(-87, 88, 1 << 12)).astype("f")
    rare = [0, -0.0, 1e-45, -1, np.inf, -np.inf, np.nan, 1e-38]
    others = (rng.uniform(-1, 1, 1 << 12).astype("f"),) if name == "power" else ()
    reference = {"power": np.power, "log": np.log, "erf_inv": special.erfinv}[name]
    if name == "erf_inv":
        x = rng.uniform(-0.996, 0.996, 1 << 12).astype("f")
        rare = [1, -1, np.nextafter(np.float32(1), np.float32(0)), -0.998, 0.99662, 2, -np.inf, np.nan]
    call = compile_op(op_of(name, [types.f32] * (1 + len(others)), types.f32), width, dialect=dialect)
    mixed = x.copy()
    mixed[:: width + 1] = np.resize(np.array(rare, "f"), len(mixed[:: width + 1]))
    for a in (x, mixed):
        with np.errstate(all="ignore"):
            want = reference(a.astype(np.float64), *(o.astype(np.float64) for o in others))
        assert ulps(call(a, *others), want, types.f32).max() <= limit
    kept = np.ones(len(x), bool)
    kept[:: width + 1] = False
    assert np.array_equal(call(x, *others)[kept], call(mixed, *others)[kept])


@pytest.mark.parametrize("dialect", [FUSED, dialect_of(host())], ids=["fused", "own"])
@pytest.mark.parametrize("width", [1, 8, 16])
def test_ratios(dialect: Dialect, width: int) -> None:
    """As right as a division, but for what lies near the middle between two numbers; exact by powers of two."""
    x = rng.standard_normal(1 << 14).astype("f") * np.exp2(rng.integers(-60, 60, 1 << 14)).astype("f")
    y = (1 + rng.random(1 << 14)).astype("f") * np.exp2(rng.integers(-60, 60, 1 << 14)).astype("f")
    ratio = compile_lanes(
        lambda s, a, b: dialect.ratio(s.num(a), s.num(b)).v, [types.f32] * 2, types.f32, width, dialect=dialect
    )
    assert ulps(ratio(x, y), x.astype(np.float64) / y, types.f32).max() <= 0.57
    small = np.array([0, -0.0, 1e-45, -1e-45, 1e-40, 3, 1e38, -7] * 16, "f")
    np.testing.assert_array_equal(ratio(small, np.full_like(small, 2.0)), small / np.float32(2))


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
@pytest.mark.parametrize("width", [1, 4, 16, 64])
@pytest.mark.parametrize("name", ["exponential", "exp2", "logistic"])
def test_denormal_results(name: str, width: int, dialect: Dialect) -> None:
    """Beside each other and alone, at the ends of what is denormal, and beyond."""
    ends = ((-152, -120), (-1080, -1010)) if name == "exp2" else ((-106, -85), (-750, -700))
    for dtype, (low, high) in zip((types.f32, types.f64), ends, strict=True):
        x = rng.uniform(low, high, 4096).astype(dtype.numpy)
        x[::5] = rng.uniform(-3, 3, len(x[::5]))
        x[1::97], x[2::97], x[3::97] = np.nan, -np.inf, low * 1e6
        got = compile_op(op_of(name, [dtype], dtype), width, dialect=dialect)(x)
        wide = x.astype(np.longdouble)
        with np.errstate(all="ignore"):
            want = {"exponential": np.exp, "exp2": np.exp2, "logistic": lambda v: 1 / (1 + np.exp(-v))}[name](wide)
            tiny = np.abs(want) < np.finfo(dtype.numpy).tiny
            error = np.abs(got.astype(np.longdouble) - want) / np.longdouble(np.finfo(dtype.numpy).smallest_subnormal)
        assert tiny.sum() > 1000 and error[tiny].max() <= 0.8
        assert ulps(got[~tiny], want[~tiny], dtype).max() <= 2.5
        np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
        assert not got[x <= low * 1e6].any()


@pytest.mark.parametrize("dialect", [HOST, FUSED, dialect_of(host())], ids=["plain", "fused", "own"])
def test_denormal_results_are_made_as_integers(dialect: Dialect) -> None:
    """A multiplication that has such results takes a processor a hundred cycles."""
    for dtype in (types.f32, types.f64):
        b = Builder("k", "void", ["ptr"], dialect=dialect)
        s = Scalars(b, 8)
        x = s.load(dtype, b.args[0], dtype.itemsize)
        OPS["exponential"].element(s, op_of("exponential", [dtype], dtype), x)
        assert any(name.startswith(f"llvm.lrint.v8i{dtype.bits}") for name in b.declares)
