"""Short rows that are sorted beside one another (native/sort_network.cc), in each instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call, elsewhere
from test_calls import bf16, random, total_key, wide, with_specials

# (shape, dimension): rows that lie apart and one after the other, blocks that do not come out even, rows of one image
# and the next in one block.
SHAPES = [
    ((2, 40, 33), 1),
    ((40, 3, 5), 0),
    ((70, 2), 1),
    ((31, 100), 0),
    ((50, 16), 1),
    ((9, 7, 5), 1),
    ((8, 127), 1),
    ((9, 256), 1),
]
DTYPES = ["f", "d", "e", bf16, "i", "l", "b", "h", "B", "I", "L", "?"]


def rank_of(x: np.ndarray, canonical: bool) -> np.ndarray:
    """Integers in the order of the elements."""
    if x.dtype.kind != "f" and x.dtype != bf16:
        return np.unique(x, return_inverse=True)[1].reshape(x.shape)
    if not canonical:
        return np.unique(total_key(x), return_inverse=True)[1].reshape(x.shape)
    values = np.where(np.isnan(wide(x)), np.inf, wide(x))
    return 2 * np.unique(values, return_inverse=True)[1].reshape(x.shape) + np.isnan(wide(x))


def some(shape: tuple, dtype: object, kind: str) -> np.ndarray:
    if kind == "specials":
        return with_specials(shape, dtype)
    if kind == "few":
        return np.round(random(shape, "f") * 2).astype(dtype)
    return random(shape, dtype)


def sorted_alike(dtype: object, others: str) -> None:
    for number, (shape, dim) in enumerate(SHAPES):
        for kind in "random", "few", "specials":
            x, rest = some(shape, dtype, kind), [random(shape, other) for other in others]
            operands = [*rest, x] if number % 2 else [x, *rest]
            for order, canonical in ("lt", True), ("gt", True), ("lt", False), ("gt", False):
                at = {"dimension": dim, "is_stable": True, "key": len(rest) if number % 2 else 0, "order": order}
                at |= {"total": True, "total_canonical": canonical}
                found = call("sort", operands, [(shape, y.dtype) for y in operands], at)
                rank = rank_of(x, canonical)
                perm = np.argsort(rank if order == "lt" else -rank, axis=dim, kind="stable")
                for got, given in zip(found, operands, strict=True):
                    assert got.tobytes() == np.take_along_axis(given, perm, dim).tobytes(), (shape, kind, order)
                if rest:
                    kept = call("sort", operands, [(shape, operands[1].dtype)], at | {"kept": (1,)})
                    assert kept[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("others", ["", "i", "bFD"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows(dtype: object, others: str) -> None:
    sorted_alike(dtype, others)


@pytest.mark.parametrize("dtype", ["f", "d", "e", "i", "l"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 33, 64, 100, 128])
def test_largest(dtype: str, length: int) -> None:
    largest(dtype, length)


def largest(dtype: str, length: int) -> None:
    for rows in 8, 32, 45:
        for kind in "random", "few", "specials":
            x = some((rows, length), dtype, kind)
            for k in {1, min(2, length), min(5, length), length}:
                values, places = call("topk", [x], [((rows, k), dtype), ((rows, k), np.int32)], {"k": k})
                want = np.argsort(-rank_of(x, False), axis=1, kind="stable")[:, :k]
                np.testing.assert_array_equal(places, want)
                assert values.tobytes() == np.take_along_axis(x, want, 1).tobytes()


@pytest.mark.parametrize("length", range(2, 140, 3))
def test_every_order_is_sorted(length: int) -> None:
    """A network that sorts all rows of zeros and ones sorts all rows: all those of short ones, steps of long ones."""
    if length <= 12:
        x = (np.arange(2**length)[:, None] >> np.arange(length) & 1).astype(np.uint8)
    else:
        cuts = np.random.default_rng(length).random((3000, 1))
        x = (np.random.default_rng(7).random((3000, length)) < cuts).astype(np.uint8)
    at = {"dimension": 1, "is_stable": True, "key": 0, "order": "lt", "total": False}
    (found,) = call("sort", [x], [(x.shape, np.uint8)], at)
    np.testing.assert_array_equal(found, np.sort(x, 1))


SCRIPT = """
from test_sort_network import DTYPES, largest, sorted_alike
for dtype in DTYPES:
    sorted_alike(dtype, "i")
    sorted_alike(dtype, "")
for dtype in "fdl":
    for length in 3, 16, 31, 100:
        largest(dtype, length)
"""


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_other_instruction_sets(isa: str) -> None:
    elsewhere(SCRIPT, FERRULE_ISA=isa)
