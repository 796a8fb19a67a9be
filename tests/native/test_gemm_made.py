"""A call that says of its right side that it is computed (gemm_made.cc). See tests/jax/test_made_sides.py."""

from __future__ import annotations

import numpy as np
import pytest
from one_call import call

SIDES = [np.zeros((2, 4), "f"), np.zeros((4, 3), "f"), np.zeros((4, 3), "b")]
ABOUT = {"batch": 1, "m": 2, "n": 3, "k": 4, "a_strides": (0, 4, 1), "b_strides": (0, 3, 1)}


@pytest.mark.parametrize("count", [-1, 1, 2, 2**40])
def test_damaged(count: int) -> None:
    """It says of how many operands its right side is made, but not by what."""
    with pytest.raises(RuntimeError, match="gemm: what the right side is made of does not fit the operands"):
        call("gemm", SIDES, [((2, 3), "f")], ABOUT | {"made_of": count})
