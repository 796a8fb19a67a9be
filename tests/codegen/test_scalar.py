"""Scalar arithmetic in generated code against its NumPy meaning, for every element type and for one and many lanes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lane_kernels import compile_op, evaluate, op_of

import ferrule.ops  # noqa: F401
from ferrule.codegen.lanes import Num
from ferrule.ir import types
from ferrule.ir.types import DTYPES, DType
from ferrule.targets.cpu import host

INTEGERS = [d for d in DTYPES.values() if d.is_int]
FLOATS = [d for d in DTYPES.values() if d.is_float]
COMPLEX = [types.c64, types.c128]
WIDTHS = (1, 8)
rng = np.random.default_rng(0)


def values(d: DType, count: int = 256) -> np.ndarray:
    """Values of a type: all there are if few, else special ones and random bits."""
    if d.kind == "bool":
        return np.tile([False, True], count // 2)
    if d.is_complex:
        re, im = values(d.part, count), values(d.part, count)
        rng.shuffle(im)
        return _pairs(re, im, d)
    if d.bits <= 4 and d.is_int:
        low = -(1 << (d.bits - 1)) if d.kind == "int" else 0
        return np.tile(np.arange(low, low + (1 << d.bits)), count >> d.bits).astype(d.numpy)
    if d.bits < 8:
        return np.tile(np.arange(1 << d.bits, dtype=np.uint8), count >> d.bits).view(d.numpy)
    raw = rng.integers(0, 256, count * d.itemsize, dtype=np.uint8)
    if d.itemsize == 1:
        raw = np.resize(np.arange(256, dtype=np.uint8), count)
    x = raw.view(d.numpy).copy()
    if d.is_int and d.bits >= 16:
        info = np.iinfo(d.numpy)
        x[::3] = rng.integers(-9 if info.min else 0, 9, len(x[::3]))
        x[:8] = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, 7, 2]
    if d.is_float and d.bits >= 16:
        x[::2] = (rng.standard_normal(len(x[::2])) * 10).astype(d.numpy)
        x[:16] = np.array(
            [0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1, -1, 0.5, 1.5, 2.5, -0.5, -2.5, 3, 1e-7, -3]
        ).astype(d.numpy)
    if d.name == "f16":  # widened, a signalling NaN becomes a quiet one: its payload changes, and TOTALORDER sees it
        x.view(np.uint16)[np.isnan(x)] |= 0x200
    return x


def _pairs(re: np.ndarray, im: np.ndarray, d: DType) -> np.ndarray:
    z = np.empty(re.shape, d.numpy)
    z.real, z.imag = re, im
    return z


def pairs(d: DType) -> tuple[np.ndarray, np.ndarray]:
    x = values(d)
    y = x.copy()
    rng.shuffle(y)
    if d.bits <= 8 and not d.is_complex:
        both = np.array(list(itertools.product(range(len(x)), repeat=2)))[:: 7 if d.bits >= 6 else 64]
        both = both[: len(both) // 8 * 8]
        return x[both[:, 0]], x[both[:, 1]]
    y[:16], y[16:32] = x[:16], x[15::-1]
    y[32:64], y[64:96] = x[1], x[2]
    return x, y


def same(got: np.ndarray, want: np.ndarray, d: DType, tolerance: float = 0) -> None:
    assert got.dtype == want.dtype
    if d.is_complex:
        with np.errstate(all="ignore"):
            scale = np.maximum(np.abs(want), np.finfo(d.part.numpy).tiny)
            ok = (got == want) | (np.abs(got - want) <= tolerance * scale) | (np.isnan(got) & np.isnan(want))
    elif d.is_float:
        a, b = (v.astype(np.float64) for v in (got, want))
        ok = (a == b) | (np.isnan(a) & np.isnan(b))
        if tolerance:
            with np.errstate(all="ignore"):
                ok |= np.abs(a - b) <= tolerance * np.abs(b)
    else:
        ok = got == want
    bad = np.flatnonzero(~ok)
    assert bad.size == 0, (bad.size, bad[:4], got[bad[:4]], want[bad[:4]])


@pytest.mark.parametrize("d", INTEGERS, ids=str)
def test_integers(d: DType) -> None:
    x, y = pairs(d)
    names = ["add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor", "power"]
    for name in [*names, "mulhi", "shift_left", "shift_right_logical", "shift_right_arithmetic"]:
        op = op_of(name, [d, d], d)
        for width in WIDTHS:
            try:
                same(compile_op(op, width)(x, y), evaluate(op, x, y), d)
            except AssertionError as error:
                raise AssertionError(f"{name} width {width}: {error}") from None
    for name in ("negate", "abs", "sign", "not", "popcnt", "count_leading_zeros"):
        op = op_of(name, [d], d)
        for width in WIDTHS:
            same(compile_op(op, width)(x), evaluate(op, x), d)


@pytest.mark.parametrize("d", FLOATS, ids=str)
@pytest.mark.parametrize("f16", [True, False])
def test_floats(d: DType, f16: bool) -> None:
    if not f16 and d != types.f16:
        pytest.skip("concerns f16")
    x, y = pairs(d)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
        op = op_of(name, [d, d], d)
        for width in WIDTHS:
            try:
                same(compile_op(op, width, f16)(x, y), evaluate(op, x, y), d)
            except AssertionError as error:
                raise AssertionError(f"{name} width {width}: {error}") from None
    for name in (
        "negate",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round_nearest_even",
        "round_nearest_afz",
        "is_finite",
        "sqrt",
    ):
        op = op_of(name, [d], types.i1 if name == "is_finite" else d)
        for width in WIDTHS:
            try:
                same(compile_op(op, width, f16)(x), evaluate(op, x), op.result.dtype)
            except AssertionError as error:
                raise AssertionError(f"{name} width {width}: {error}") from None


@pytest.mark.parametrize("d", COMPLEX, ids=str)
def test_complex(d: DType) -> None:
    x, y = pairs(d)
    fine = np.isfinite(x) & np.isfinite(y) & (np.abs(x) < 1e15) & (np.abs(y) < 1e15) & (np.abs(y) > 1e-15)
    x, y = np.where(fine, x, 1 + 2j).astype(d.numpy), np.where(fine, y, 2 - 1j).astype(d.numpy)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
        op = op_of(name, [d, d], d)
        for width in WIDTHS:
            same(compile_op(op, width)(x, y), evaluate(op, x, y), d, 4 * np.finfo(d.part.numpy).eps)
    for name in ("negate", "abs", "sign", "real", "imag"):
        out = d if name in ("negate", "sign") else d.part
        op = op_of(name, [d], out)
        for width in WIDTHS:
            same(compile_op(op, width)(x), evaluate(op, x), out, 4 * np.finfo(d.part.numpy).eps)
    op = op_of("complex", [d.part, d.part], d)
    same(compile_op(op, 8)(x.real, x.imag), x, d)


@pytest.mark.parametrize("d", COMPLEX, ids=str)
@pytest.mark.parametrize("y", [complex(np.nan, 0), complex(0, np.nan), complex(np.nan, np.nan), complex(1, np.nan)])
def test_complex_division_by_nan(d: DType, y: complex) -> None:
    numbers = [0, 1, 1j, 2 - 3j, complex(np.inf, 1), complex(-1, np.inf), complex(1, np.nan)]
    x = np.resize(numbers, 64).astype(d.numpy)
    for width in WIDTHS:
        got = compile_op(op_of("divide", [d, d], d), width)(x, np.full_like(x, y))
        assert (np.isnan(got.real) & np.isnan(got.imag)).all(), got


@pytest.mark.parametrize("d", [*DTYPES.values()], ids=str)
def test_compare(d: DType) -> None:
    x, y = pairs(d)
    for direction in ("EQ", "NE") if d.is_complex else ("EQ", "NE", "LT", "LE", "GT", "GE"):
        for kind in ("NOTYPE", "TOTALORDER") if d.is_float and (d.bits > 8 or "NUZ" in d.name) else ("NOTYPE",):
            op = op_of("compare", [d, d], types.i1, {"comparison_direction": direction, "compare_type": kind})
            same(compile_op(op, 8)(x, y), evaluate(op, x, y), types.i1)


@pytest.mark.parametrize("d", DTYPES.values(), ids=str)
def test_convert(d: DType) -> None:
    x = values(d)
    if d.name == "f64":
        near = np.linspace(1, 2, 256).astype(np.float32).astype(np.float64)
        x = np.concatenate([x, x[:64] * 1e-300, near * (1 + 2.0**-9) + 2.0**-45, near * 2.0**-140, near * 1e38])
    if d.name in ("i64", "ui64", "i32", "ui32"):
        x = np.concatenate([x, x >> (d.bits // 2), x >> 5])
    for n, target in enumerate(DTYPES.values()):
        op = op_of("convert", [d], target)
        with np.errstate(all="ignore"):
            want = evaluate(op, x)
        if d.bits == 64 and not d.is_int and target.is_float and target.bits < 32:  # NumPy's way may round twice
            want = _once(x.real, target)
        elif d.is_int and d.bits >= 32 and target.is_float and target.bits < 32:
            want = _once(x.astype(np.float64) if d.bits == 32 else _sticky(x), target)
        for width in WIDTHS if d.name in ("f32", "i4", "i64") else WIDTHS[n % 2 :][:1]:
            try:
                same(compile_op(op, width)(x), want, target)
            except AssertionError as error:
                raise AssertionError(f"to {target}, width {width}: {error}") from None


@pytest.mark.parametrize("d", [d for d in DTYPES.values() if d.is_float and d.bits >= 16], ids=str)
def test_floats_at_the_ends_of_integers(d: DType) -> None:
    """Each of them, its neighbours, and what is no number: in vectors LLVM's own saturation is not used."""
    ends = np.array([sign * 2.0**e for e in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64) for sign in (-1, 1)])
    with np.errstate(all="ignore"):
        near = [np.nextafter(ends.astype(t), t(to)) for t in (np.float32, np.float64) for to in (-np.inf, np.inf)]
        odd = [0.0, -0.0, 0.5, -0.5, -0.999, 0.999, np.nan, -np.nan, np.inf, -np.inf]
        x = np.concatenate([ends, ends - 1, ends + 1, ends - 0.5, ends + 0.5, *near, odd])
        x = np.resize(x, -(-len(x) // WIDTHS[-1]) * WIDTHS[-1]).astype(d.numpy)
    for target in (t for t in DTYPES.values() if t.is_int):
        signed = target.kind == "int"
        low = -(1 << (target.bits - 1)) if signed else 0
        high = (1 << (target.bits - signed)) - 1
        numbers = x.astype(np.float64).tolist()
        want = [0 if v != v else low if v <= low else high if v >= high else int(v) for v in numbers]
        for width in WIDTHS:
            found = compile_op(op_of("convert", [d], target), width)(x)
            assert [int(v) for v in found] == want, f"to {target}, width {width}"


def _sticky(x: np.ndarray) -> np.ndarray:
    return np.array(
        [
            float((abs(int(v)) >> 12 << 12 | (0x800 if int(v) & 0xFFF else 0)) * (1 if v >= 0 else -1))
            if abs(int(v)) >= 1 << 53
            else float(int(v))
            for v in x
        ]
    )


def _once(x: np.ndarray, d: DType) -> np.ndarray:
    """f64 to a narrow float with one rounding: through an f32 rounded to odd."""
    with np.errstate(all="ignore"):
        near = x.astype(np.float32)
    bits = near.view(np.uint32).copy()
    lost = (near != x) & ~np.isnan(x)
    bits -= (np.abs(near.astype(np.float64)) > np.abs(x)) & lost
    bits |= lost
    with np.errstate(all="ignore"):
        return bits.view(np.float32).astype(d.numpy)


@pytest.mark.parametrize("d", [types.f64, types.f32, types.f16, types.bf16], ids=str)
def test_reduce_precision(d: DType) -> None:
    x = values(d, 4096)
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (8, 23), (11, 52), (2, 0)):
        op = op_of("reduce_precision", [d], d, {"exponent_bits": exponent, "mantissa_bits": mantissa})
        same(compile_op(op, 8)(x), evaluate(op, x), d)


@pytest.mark.parametrize("d", [types.f16, types.f8E5M2, types.f8E4M3], ids=str)
def test_reduce_precision_keeps_denormals(d: DType) -> None:
    """With the type's own exponent bits: rounding to all its digits changes nothing, and to fewer is a conversion."""
    x = np.arange(1 << d.bits).astype(f"u{d.itemsize}").view(d.numpy)
    exponent, mantissa = {"f16": (5, 10), "f8E5M2": (5, 2), "f8E4M3": (4, 3)}[d.name]
    op = op_of("reduce_precision", [d], d, {"exponent_bits": exponent, "mantissa_bits": mantissa})
    same(compile_op(op, 8)(x), x, d)
    op = op_of("reduce_precision", [d], d, {"exponent_bits": exponent, "mantissa_bits": mantissa - 1})
    same(compile_op(op, 8)(x), evaluate(op, x), d)
    if d == types.f16:
        op = op_of("reduce_precision", [d], d, {"exponent_bits": 5, "mantissa_bits": 2})
        same(compile_op(op, 8)(x), x.astype(types.f8E5M2.numpy).astype(d.numpy), d)


@pytest.mark.skipif(not host().converts_f16, reason="f16 are decoded by arithmetic here")
def test_one_f16_waits_for_nothing() -> None:
    """Every code is read right in one lane; a register that keeps other bits (pinsrw) waits for who wrote it last."""
    run = compile_op(op_of("convert", [types.f16], types.f32), 1)
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert np.array_equal(run(codes), codes.astype(np.float32), equal_nan=True)
    assert "pinsrw" not in run.assembly


@pytest.mark.parametrize("d", [types.f32, types.f64, types.bf16], ids=str)
def test_zeros_have_an_order(d: DType) -> None:
    """IEEE 754's maximum: -0 is below +0, whichever operand it is."""
    x, y = np.array([0.0, -0.0, -0.0, 0.0] * 4).astype(d.numpy), np.array([-0.0, 0.0, -0.0, 0.0] * 4).astype(d.numpy)
    for name, negative in (("maximum", [False, False, True, False]), ("minimum", [True, True, True, False])):
        for width in WIDTHS:
            got = compile_op(op_of(name, [d, d], d), width)(x, y)
            assert np.signbit(got.astype(np.float32)).tolist() == negative * 4


def test_select_and_clamp() -> None:
    d = types.f32
    x, y = pairs(d)
    op = op_of("select", [types.i1, d, d], d)
    same(compile_op(op, 8)(x > y, x, y), np.where(x > y, x, y), d)
    op = op_of("clamp", [d, d, d], d)
    low, high = np.minimum(x, y), np.maximum(x, y)
    z = np.roll(x, 5)
    same(compile_op(op, 8)(low, z, high), evaluate(op, low, z, high), d)


def test_bitcast_keeps_bits() -> None:
    from lane_kernels import compile_lanes

    groups = (("f32", "i32", "ui32"), ("f64", "i64", "ui64", "complex<f32>"), ("f16", "bf16", "i16"), ("f8E5M2", "i8"))
    for group in groups:
        for a, b in itertools.permutations(group, 2):
            source, target = DTYPES[a], DTYPES[b]
            x = values(source)
            if source.is_float and source.bits < 32:
                x = np.where(np.isnan(x.astype(np.float32)), np.ones_like(x), x)
            if target.is_float and target.bits < 32:
                x = np.where(np.isnan(x.view(target.numpy).astype(np.float32)), np.zeros_like(x), x)
            got = compile_lanes(lambda s, v, p=source, q=target: s.bitcast(p, q, v), [source], target, 8)(x)
            assert got.tobytes() == x.tobytes(), (a, b)


def test_constants_are_exact() -> None:
    from ferrule.codegen.llvm import Builder
    from ferrule.codegen.scalar import Scalars

    s = Scalars(Builder("f", "void", []), 4)
    assert s.const(types.f32, 0.1) == ("<4 x float>", "splat (float 0x3FB99999A0000000)")
    assert [s.const(types.f64, z)[1] for z in (0.0, -0.0)] == [
        "splat (double 0x0000000000000000)",
        "splat (double 0x8000000000000000)",
    ]
    assert s.const(types.i4, 9) == ("<4 x i8>", "splat (i8 -7)")
    assert s.const(types.i32, np.arange(4, dtype=np.int32))[1] == "<i32 0, i32 1, i32 2, i32 3>"
    assert isinstance(s.num(s.const(types.f32, 1)), Num)  # type: ignore[arg-type]


def test_signed_zeros_are_two_constants():
    """0.0 == -0.0, so a cache keyed by the value would hand out whichever came first."""
    from ferrule.codegen.lanes import constant

    for first, second in ((0.0, -0.0), (-0.0, 0.0)):
        assert constant("float", first).ref != constant("float", second).ref
    assert constant("<4 x double>", -0.0).ref == "splat (double 0x8000000000000000)"
