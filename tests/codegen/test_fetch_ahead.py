"""Rows that indices choose are asked for before they are read or updated."""

from __future__ import annotations

from dataclasses import replace

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


RUNS = [
    ((8, 16, 400, 64), (0, 2, 1, 3), "f32"),
    ((1200, 50, 40), (1, 0, 2), "f32"),
    ((600, 3, 5, 2, 130), (3, 1, 2, 0, 4), "f64"),
    ((9, 8, 40, 3001), (2, 1, 0, 3), "i8"),
    ((30, 2, 700, 128), (2, 1, 0, 3), "bf16"),
]


@pytest.mark.parametrize(("shape", "order", "dtype"), RUNS, ids=str)
def test_runs_of_a_transposed_array_are_asked_for(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    """Some runs ahead in the order in which they are read, not in memory."""

    def build(g: Graph, x: Value, y: Value) -> Value:
        return g("add", g("transpose", x, permutation=order), y)

    turned = tuple(shape[d] for d in order)
    tested = case("runs", [(shape, dtype), (turned, dtype)], build)
    text = emit_kernel(tested.block, "k", host()).text
    assert "llvm.prefetch" in text and "i64 4096" not in text
    check([tested])


@pytest.mark.parametrize("shape", [(8, 16, 40, 64), (1200, 500, 5), (20, 10, 20_000)])
def test_of_small_arrays_short_and_long_runs_nothing_is_asked_for_by_runs(shape: tuple[int, ...]) -> None:
    g = Graph(Tensor(shape, DTYPES[F]))
    order = (1, 0, *range(2, len(shape)))
    kernel = emit_kernel(g.done(g("transpose", g.args[0], permutation=order)), "k", replace(host(), cpu="x86-64"))
    lines = [line for line in kernel.text.splitlines() if "llvm.prefetch" in line and "call" in line]
    assert bool(lines) == (shape[-1] == 20_000) == ("i64 4096" in kernel.text)
