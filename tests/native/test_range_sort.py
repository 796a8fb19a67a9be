"""Rows that threads may cut in ranges of keys (native/range_sort.h), in each instruction set and by two to four."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import call, elsewhere
from test_calls import RNG, random

KINDS = ["random", "equal", "two", "sorted", "one far", "narrow", "last", "lumps"]


@pytest.mark.parametrize("length", [16384, 20_001, 262_143])
@pytest.mark.parametrize("dtype", ["i", "I", "f", "B"])
@pytest.mark.parametrize("kind", KINDS)
def test_sort_in_ranges(kind: str, dtype: str, length: int) -> None:
    """Rows that lie evenly, and such as a sample says little of."""
    at = np.arange(length)
    least, most = (-(1 << 31), (1 << 31) - 1) if dtype in "if" else (0, 255 if dtype == "B" else (1 << 32) - 1)
    spread = RNG.integers(least, most, length, endpoint=True, dtype=np.int64)
    x = {
        "random": spread,
        "equal": np.full(length, least),
        "two": np.where(spread % 2 == 0, least, most),
        "sorted": np.sort(spread)[::-1],
        "one far": np.where(at == length // 3, most, least + at % 100),
        "narrow": least + spread % 1000,
        "last": most - spread % 70_000 % (most - least),
        "lumps": np.where(at % 3 == 0, spread, least + at // 4096 % 16),
    }[kind]
    x = x.astype(dtype)
    values = random((length,), "f")
    others = [[], [np.arange(length, dtype=np.int32)], [values], [values, x[::-1].copy()]]
    for order in "lt", "gt":
        perm = np.argsort(x.astype("d") * (1 if order == "lt" else -1), kind="stable")
        for other in others:
            attrs = dict(dimension=0, is_stable=True, key=0, order=order, total=dtype == "f")
            found = call("sort", [x, *other], [(x.shape, y.dtype) for y in (x, *other)], attrs)
            for got, given in zip(found, (x, *other), strict=True):
                np.testing.assert_array_equal(got, given[perm])


SCRIPT = """
from test_range_sort import KINDS, test_sort_in_ranges
for kind in KINDS:
    for dtype in "iIf":
        for length in 16384, 20_001, 65_539:
            test_sort_in_ranges(kind, dtype, length)
"""


@pytest.mark.parametrize("isa", ALL_SETS)
@pytest.mark.parametrize("threads", ["2", "3", "4"])
def test_each_instruction_set_and_number_of_threads(isa: str, threads: str) -> None:
    elsewhere(SCRIPT, FERRULE_ISA=isa, FERRULE_NUM_THREADS=threads)
