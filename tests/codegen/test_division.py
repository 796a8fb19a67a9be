"""Division and remainder of 64 bits in vectors, where numbers that f64 holds go through f64, against whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
from lane_kernels import compile_lanes

from ferrule.codegen.scalar import Lane, Scalars
from ferrule.ir import types
from ferrule.ir.types import DType

EDGES = [0, 1, 2, 3, 7, 10, (1 << 31) - 1, 1 << 31, 1 << 32]
EDGES += [(1 << e) + n for e in (50, 51, 52, 53, 62, 63) for n in (-2, -1, 0, 1)] + [(1 << 64) - 1]


def _pairs(d: DType) -> tuple[np.ndarray, np.ndarray]:
    """Edges beside each other and in groups; whole multiples and what is next to them."""
    numbers = [n for e in EDGES for n in ((e, -e) if d.kind == "int" else (e,))]
    info = np.iinfo(d.numpy)
    numbers = np.unique(np.array([n for n in numbers if info.min <= n <= info.max], d.numpy))
    x, y = (a.ravel() for a in np.meshgrid(numbers, numbers))
    rng = np.random.default_rng(0)
    divisors = rng.integers(1, 1 << 26, 4096).astype(d.numpy)
    quotients = rng.integers(1, 1 << 25, 4096).astype(d.numpy)
    near = divisors * quotients + rng.integers(-1, 2, 4096).astype(d.numpy)  # below 2 ** 51
    if d.kind == "int":
        near[::2] *= -1
    x, y = np.concatenate([x, near]), np.concatenate([y, divisors])
    count = -(-len(x) // 32) * 32
    return np.resize(x, count), np.resize(y, count)


def _expected(d: DType, x: int, y: int) -> tuple[int, int]:
    """As StableHLO says: toward zero; x / 0 is all ones, x % 0 is x."""
    if y == 0:
        return (-1 if d.kind == "int" else (1 << 64) - 1), x
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    rest = x - quotient * y
    return (-(1 << 63) if quotient == 1 << 63 and d.kind == "int" else quotient), rest


@pytest.mark.parametrize("width", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("d", [types.i64, types.ui64], ids=str)
def test_quotients_and_remainders(d: DType, width: int) -> None:
    x, y = _pairs(d)
    size = len(x) // width * width
    x, y = x[:size], y[:size]
    want = [_expected(d, int(a), int(b)) for a, b in zip(x, y)]
    for part, name in enumerate(("div", "rem")):
        found = compile_lanes(lambda s, a, b, f=name: getattr(s, f)(d, a, b), [d, d], d, width)(x, y)
        np.testing.assert_array_equal(found, np.array([w[part] for w in want], d.numpy), err_msg=name)


@pytest.mark.parametrize(
    "divisor", [0, 1, 3, 7, 8, 1000, (1 << 51) - 1, 1 << 51, (1 << 53) + 1, -1, -3, -8, -(1 << 63)]
)
def test_by_a_constant(divisor: int) -> None:
    d = types.i64
    x, _ = _pairs(d)
    for part, name in enumerate(("div", "rem")):

        def formula(s: Scalars, a: Lane, name: str = name) -> Lane:
            return getattr(s, name)(d, a, s.const(d, divisor))

        want = np.array([_expected(d, int(a), divisor)[part] for a in x])
        np.testing.assert_array_equal(compile_lanes(formula, [d], d, 8)(x), want, err_msg=name)


def test_quotient_and_remainder_are_divided_once() -> None:
    """A remainder beside a quotient, and quotients of other numbers that are not mistaken for it."""
    d = types.i64
    x, y = _pairs(d)

    def formula(s: Scalars, a: Lane, b: Lane) -> Lane:
        q, r, other = s.div(d, a, b), s.rem(d, a, b), s.div(d, b, a)
        assert sum("fdiv" in line for line in s.b.lines) == 2
        return s.add(d, s.mul(d, q, s.const(d, 3)), s.add(d, r, s.mul(d, other, s.const(d, 5))))

    ours = compile_lanes(formula, [d, d], d, 8)(x, y)
    parts = [(_expected(d, int(a), int(b)), _expected(d, int(b), int(a))[0]) for a, b in zip(x, y)]
    want = [((q * 3 + r + other * 5 + (1 << 63)) % (1 << 64)) - (1 << 63) for (q, r), other in parts]
    np.testing.assert_array_equal(ours, np.array(want))


def test_signed_and_unsigned_quotients_of_the_same_bits() -> None:
    x, y = _pairs(types.i64)

    def formula(s: Scalars, a: Lane, b: Lane) -> Lane:
        return s.sub(types.i64, s.div(types.i64, a, b), s.div(types.ui64, a, b))

    ours = compile_lanes(formula, [types.i64, types.i64], types.i64, 8)(x, y)
    wrap = (1 << 64) - 1
    pairs = [(int(a), int(b)) for a, b in zip(x, y)]
    want = [_expected(types.i64, a, b)[0] - _expected(types.ui64, a & wrap, b & wrap)[0] for a, b in pairs]
    np.testing.assert_array_equal(ours, np.array([w & wrap for w in want], np.uint64).view(np.int64))
