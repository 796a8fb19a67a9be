"""Reshaped arguments are read where they lie: their dimensions are those of the shape that is asked for."""

from __future__ import annotations

import pytest
from fused import Graph, case, check

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


def patches(g: Graph, x: Value, side: int) -> Value:
    n, h, w, c = x.shape
    apart = g("reshape", x, result=Tensor((n, h // side, side, w // side, side, c), x.dtype))
    return g("transpose", apart, permutation=(0, 1, 3, 2, 4, 5))


@pytest.mark.parametrize("side", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["f32", "complex<f64>", "bf16", "i8", "i1"])
def test_patches(dtype: str, side: int) -> None:
    def joined(g: Graph, x: Value) -> Value:
        y = patches(g, x, side)
        return g("reshape", y, result=Tensor((x.shape[0], y.shape[1] * y.shape[2], side * side * 3), x.dtype))

    def twice(g: Graph, x: Value) -> Value:
        y = g("reshape", x, result=Tensor((2, 24, 48 * 3), x.dtype))
        back = g("reshape", g("reverse", y, dimensions=(1,)), result=Tensor(x.shape, x.dtype))
        return g("select", g("compare", x, back, comparison_direction="EQ"), x, back)

    shape = ((2, 24, 48, 3), dtype)
    made = [case("patches", [shape], lambda g, x: patches(g, x, side)), case("joined", [shape], joined)]
    check([*made, case("two views", [shape], twice)])


def test_rows_of_patches_are_runs() -> None:
    g = Graph(Tensor((8, 224, 224, 3), DTYPES["f32"]))
    kernel = emit_kernel(g.done(patches(g, g.args[0], 16)), "k", host())
    assert kernel.grid <= 8 * 14 * 14 * 16  # not one for each pixel
