"""Interior padding along the lanes: elements that are read together and spread, and whatever that must not touch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fused import Case, Graph, case, check

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

EDGES = [(0, 0), (1, 0), (0, 3), (5, 2), (-1, 0), (-3, -2), (0, -5), (70, 9), (-40, 33)]


def apart(g: Graph, x: Value, v: Value, inner: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]) -> Value:
    return g("pad", x, v, edge_padding_low=low, edge_padding_high=high, interior_padding=inner)


def along(dtype: str, size: int, inner: int, low: int, high: int) -> Case:
    return case(
        f"{dtype} {size} {inner} {low} {high}",
        [((size,), dtype), ((), dtype)],
        lambda g, x, v: apart(g, x, v, (inner,), (low,), (high,)),
    )


@pytest.mark.parametrize("inner", [1, 2, 3, 7, 15])
@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "f64", "complex<f32>", "i1", "ui64", "bf16"])
def test_one_dimension(dtype: str, inner: int) -> None:
    made = [along(dtype, size, inner, *edges) for size in (61, 150) for edges in EDGES]
    check(made)


@pytest.mark.parametrize("size", [32, 16])
def test_other_vectors(size: int) -> None:
    made = [along(d, 77, inner, *edges) for d in ("i8", "f32") for inner in (1, 3) for edges in EDGES]
    check(made, replace(host(), vector_bytes=size))


def test_small() -> None:
    check([along("f32", size, inner, 0, high) for size in (1, 2, 3, 17) for inner in (1, 3) for high in (0, 1, 40)])


@pytest.mark.parametrize("dtype", ["i8", "f32"])
def test_several_dimensions_and_what_is_fused(dtype: str) -> None:
    def build(g: Graph, x: Value, y: Value, v: Value) -> Value:
        return g("add", apart(g, g("negate", x), v, (1, 0, 1), (2, -1, 1), (-1, 2, 0)), y)

    def turned(g: Graph, x: Value, v: Value) -> Value:
        return g("transpose", apart(g, x, v, (0, 3), (0, 2), (1, 0)), permutation=(1, 0))

    check(
        [
            case("rows", [((9, 11), dtype), ((), dtype)], lambda g, x, v: apart(g, x, v, (2, 1), (0, 0), (0, 0))),
            case("three", [((5, 6, 90), dtype), ((10, 7, 180), dtype), ((), dtype)], build),
            case("turned", [((70, 30), dtype), ((), dtype)], turned),
        ]
    )


@pytest.mark.parametrize("dtype", ["i8", "f32", "complex<f64>"])
def test_nothing_is_gathered(dtype: str) -> None:
    g = Graph(Tensor((512,), DTYPES[dtype]), Tensor((), DTYPES[dtype]))
    block = g.done(apart(g, *g.args, (1,), (0,), (1,)))
    assert "gather" not in emit_kernel(block, "k", host()).text
