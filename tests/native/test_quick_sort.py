"""Rows that vectors sort where the processor has them (native/quick_sort_avx512.cc), and the same rows without."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call, elsewhere
from test_calls import RNG, bf16
from test_sort_network import rank_of

# Around what one, two, four, eight and sixteen registers hold, and what partitions of one and more cut.
LENGTHS = [2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 300, 511, 640, 1023, 4097]
DTYPES = ["f", "d", bf16, "i", "l", "I", "L", "B"]
KINDS = ["random", "few", "equal", "greatest", "sorted", "reversed", "organ pipe", "runs"]


def row(kind: str, length: int, dtype: object) -> np.ndarray:
    at = np.arange(length)
    spread = RNG.integers(0, 2**62, length)
    if np.dtype(dtype).kind not in "iu":
        spread = RNG.standard_normal(length).astype(dtype)
        spread[RNG.integers(0, length, 1 + length // 8)] = RNG.choice([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf])
    spread = spread.astype(dtype)
    top = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else np.nan
    return {
        "random": spread,
        "few": np.round(RNG.standard_normal(length) * 2).astype("i").astype(dtype),
        "equal": np.full(length, 3, dtype),
        "greatest": np.where(at % 3 == 0, spread, np.full(length, top, dtype)),
        "sorted": np.sort(spread),
        "reversed": np.sort(spread)[::-1],
        "organ pipe": np.minimum(at, length - at).astype(dtype),
        "runs": np.concatenate([np.sort(part) for part in np.array_split(spread, 4)]),
    }[kind].astype(dtype)


def sorted_rows(dtype: object, length: int, kind: str, rows: int) -> None:
    x = np.stack([row(kind, length, dtype) for _ in range(rows)])
    if rows == 1:
        x = x[0]
    positions = np.broadcast_to(np.arange(length, dtype="i"), x.shape).copy()
    falling = -positions.astype("f")
    for order, canonical in ("lt", True), ("gt", False):
        at = {"dimension": x.ndim - 1, "is_stable": True, "key": 0, "order": order}
        at |= {"total": True, "total_canonical": canonical}
        rank = rank_of(x, canonical)
        perm = np.argsort(rank if order == "lt" else -rank, axis=-1, kind="stable")
        for rest in [], [positions], [falling], [falling, positions]:
            found = call("sort", [x, *rest], [(x.shape, y.dtype) for y in (x, *rest)], at)
            for got, given in zip(found, (x, *rest), strict=True):
                assert got.tobytes() == np.take_along_axis(given, perm, -1).tobytes(), (kind, order, len(rest))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_rows(length: int, dtype: object) -> None:
    for kind in KINDS:
        sorted_rows(dtype, length, kind, 1)
        if length < 600:
            sorted_rows(dtype, length, kind, 9)


@pytest.mark.parametrize("dtype", ["d", "l", "L", "f", "I"])
@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(kind: str, dtype: str) -> None:
    """By all threads."""
    for length in 65_536, 300_001:
        sorted_rows(dtype, length, kind, 1)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_each_instruction_set(isa: str) -> None:
    script = "\n".join(
        [
            "from test_quick_sort import KINDS, test_long_rows, test_rows",
            "for dtype in 'fdIl':",
            "    for length in 9, 64, 257:",
            "        test_rows(length, dtype)",
            "    test_long_rows('random', dtype)",
        ]
    )
    elsewhere(script, FERRULE_ISA=isa)


@pytest.mark.parametrize("threads", ["1", "3", "7", "40"])
def test_each_number_of_threads(threads: str) -> None:
    script = "from test_quick_sort import KINDS, test_long_rows\n"
    script += "for kind in KINDS:\n    for dtype in 'dIf':\n        test_long_rows(kind, dtype)"
    elsewhere(script, FERRULE_NUM_THREADS=threads)
