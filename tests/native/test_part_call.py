"""Operands that are parts of larger arrays (native/part_call.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from one_call import call

STACK = np.random.default_rng(0).standard_normal((5, 30, 40)).astype("f")
X = np.random.default_rng(1).standard_normal((20, 30)).astype("f")
PRODUCT = {"batch": 1, "m": 20, "n": 40, "k": 30, "a_strides": (0, 30, 1), "b_strides": (0, 40, 1)}
BYTES = STACK[0].nbytes


@pytest.mark.parametrize("dtype", ["i", "l"])
@pytest.mark.parametrize("index", [-(2**31), -1, 0, 3, 4, 5, 2**31 - 1])
def test_index(index: int, dtype: str) -> None:
    attrs = PRODUCT | {"parts": (1, 2, 0, 4, BYTES, 2, 30, 40)}
    (found,) = call("gemm", [X, STACK, np.array(index, dtype)], [((20, 40), "f")], attrs)
    np.testing.assert_allclose(found, X @ STACK[min(max(index, 0), 4)], rtol=1e-4, atol=1e-4)


def test_both_sides_and_an_offset() -> None:
    many = np.stack([X, 2 * X, 3 * X])
    parts = (0, 2, X.nbytes, 1, X.nbytes, 2, 20, 30) + (1, -1, 3 * BYTES, 0, 0, 2, 30, 40)
    (found,) = call("gemm", [many, STACK, np.array(7)], [((20, 40), "f")], PRODUCT | {"parts": parts})
    np.testing.assert_allclose(found, 3 * X @ STACK[3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "parts",
    [
        (1,),
        (1, 2, 0, 4, BYTES, 2, 30),  # a dimension is missing
        (1, 2, 0, 4, BYTES, -1),
        (1, 2, 0, 4, BYTES, 2, 2**62, 2**62),  # no bytes, in 64 bits
        (1, 2, 0, 4, BYTES, 2, -30, -40),
        (1, 2, 0, 5, BYTES, 2, 30, 40),  # the last lies behind the array
        (1, 2, 4, 4, BYTES, 2, 30, 40),
        (1, -1, 4 * BYTES + 4, 0, 0, 2, 30, 40),
        (1, -1, -4, 0, 0, 2, 30, 40),
        (1, 2, 0, 4, 2**62, 2, 30, 40),
        (1, 2, 0, 2**62, BYTES, 2, 30, 40),
        (3, 2, 0, 4, BYTES, 2, 30, 40),  # no such operand
        (1, 3, 0, 4, BYTES, 2, 30, 40),  # no such index
        (1, 0, 0, 4, BYTES, 2, 30, 40),  # no integer
        (2, 2, 0, 0, 0, 0),  # itself
        (1, -2, 0, 0, 0, 2, 30, 40),
    ],
)
def test_damaged(parts: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="library call gemm: attribute `parts` does not fit the operands"):
        call("gemm", [X, STACK, np.array(0)], [((20, 40), "f")], PRODUCT | {"parts": parts})
