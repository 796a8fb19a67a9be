"""Scatters to sorted places keep what they wrote last in a register; the promise may be broken."""

from __future__ import annotations

import numpy as np
import pytest
from fused import Case, Graph, body, case, check, monoid

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, ScatterDims, Value
from ferrule.targets.cpu import host

POINTS = ScatterDims((), (0,), (), (), (0,), 1)


def scattered(region: Block, dims: ScatterDims, dtype: str, indices: np.ndarray, whole: tuple[int, ...]) -> Case:
    """Integers as updates, in any type: their sums are exact."""
    random = np.random.default_rng(3)
    shape = indices.shape[:-1]
    numpy = np.dtype("float32") if dtype == "bf16" else None

    def build(g: Graph, x: Value, i: Value, u: Value) -> Value:
        about = {"scatter_dimension_numbers": dims, "indices_are_sorted": True, "unique_indices": False}
        return g("scatter", x, i, u, **about, regions=[region])

    types = [(whole, dtype), (indices.shape, "i32"), (shape, dtype)]
    tested = case("sorted", types, build, inplace=1)
    old, update = tested.args[0], tested.args[2]
    tested.args[0] = random.integers(0, 2, whole).astype(numpy or old.dtype).astype(old.dtype)
    tested.args[1] = indices.astype(np.int32)
    tested.args[2] = random.integers(0, 2, shape).astype(numpy or update.dtype).astype(update.dtype)
    return tested


def taken(dtype: str) -> Block:
    """The region of an update that replaces what is there."""
    return body([dtype, dtype], lambda g, a, b: b)


@pytest.mark.parametrize("order", ["sorted", "unsorted", "all at one", "outside"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "ui32", "i64", "i1", "complex<f32>"])
def test_sums_at_places(dtype: str, order: str) -> None:
    random = np.random.default_rng(5)
    places = random.integers(-4, 24, (500, 1)) if order == "outside" else random.integers(0, 20, (500, 1))
    if order in ("sorted", "outside"):
        places.sort(0)
    if order == "all at one":
        places[:] = 7
    regions = [monoid("or" if dtype == "i1" else "add", dtype), taken(dtype)]
    cases = [scattered(region, POINTS, dtype, places, (20,)) for region in regions]
    for each in cases:
        assert ("updates" in emit_kernel(each.block, "k", host()).text) == (dtype != "complex<f32>")
    check(cases)


@pytest.mark.parametrize("shape", [(), (1,), (6, 50)], ids=str)
def test_shapes_of_updates(shape: tuple[int, ...]) -> None:
    """None, one, and rows of them, at places in a matrix."""
    random = np.random.default_rng(7)
    places = random.integers(0, 3, (*shape, 2))
    dims = ScatterDims((), (0, 1), (), (), (0, 1), len(shape))
    check([scattered(monoid("add", "f32"), dims, "f32", places, (3, 4))])


def test_sums_of_f32_in_their_order() -> None:
    """The same additions one after the other as without the promise: not one bit differs."""
    random = np.random.default_rng(9)
    places = np.sort(random.integers(0, 30, (4000, 1)), 0).astype(np.int32)
    updates = random.standard_normal(4000).astype(np.float32)
    tested = scattered(monoid("add", "f32"), POINTS, "f32", places, (30,))
    tested.args[2] = updates
    check([tested])
