"""Rows that indices choose are asked for before they are read or updated."""

from __future__ import annotations

import numpy as np
import pytest
from fused import Graph, case, check, monoid

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import GatherDims, ScatterDims, Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

F, INT = "f32", "i32"


def test_rows_are_asked_for_ahead() -> None:
    rows = GatherDims((1,), (0,), (), (), (0,), 1)

    def text(width: int) -> str:
        g = Graph(Tensor((50, width), DTYPES[F]), Tensor((300, 1), DTYPES[INT]))
        found = g("gather", *g.args, dimension_numbers=rows, slice_sizes=(1, width), indices_are_sorted=False)
        return emit_kernel(g.done(found), "k", host()).text

    assert "llvm.prefetch" in text(64) and "llvm.prefetch" not in text(3)


def test_rows_of_a_large_array_are_asked_for_once() -> None:
    """Where indices choose the rows, what lies 4 KB further is not read next."""
    rows = GatherDims((1,), (0,), (), (), (0,), 1)
    g = Graph(Tensor((50_000, 64), DTYPES[F]), Tensor((300, 1), DTYPES[INT]))
    found = g("gather", *g.args, dimension_numbers=rows, slice_sizes=(1, 64), indices_are_sorted=False)
    text = emit_kernel(g.done(found), "k", host()).text
    assert "llvm.prefetch" in text and "i64 4096" not in text


@pytest.mark.parametrize("width", [1, 16, 100, 700])
@pytest.mark.parametrize("count", [1, 3, 301])
def test_rows_that_a_scatter_updates_are_asked_for(width: int, count: int) -> None:
    rows = ScatterDims((1,), (0,), (), (), (0,), 1)
    height = (9 << 20) // (4 * width)
    random = np.random.default_rng(width)
    indices = random.integers(-3, height + 3, (count, 1)).astype(np.int32)  # some are outside
    indices[-1] = indices[0]
    types = [((height, width), F), ((count, 1), INT), ((count, width), F)]
    args = [np.ones((height, width), np.float32), indices, random.integers(-9, 9, (count, width)).astype(np.float32)]

    def build(g: Graph, x: Value, i: Value, u: Value) -> Value:
        about = {"scatter_dimension_numbers": rows, "indices_are_sorted": False, "unique_indices": False}
        return g("scatter", x, i, u, **about, regions=[monoid("add", F)])

    tested = case("rows", types, build, args=args, inplace=1)
    assert ("llvm.prefetch" in emit_kernel(tested.block, "k", host()).text) == (width >= 16)
    check([tested])
