"""Reductions over the rows of matrices of few columns: values, every number of columns, and what is read together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused import Graph, Linked, case, check, monoid

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor
from ferrule.targets.cpu import host

Shapes = list[tuple[tuple[int, ...], str]]


def reduce(g: Graph, x: Any, kind: str = "add", init: Any = 0, dims: tuple[int, ...] = ()) -> Any:
    dims = dims or (len(x.shape) - 2,)
    return g("reduce", x, g.const(init, x.dtype.name), dimensions=dims, regions=[monoid(kind, x.dtype.name)])


def spread(g: Graph, x: Any, like: Any, *dims: int) -> Any:
    return g("broadcast_in_dim", x, result=Tensor(like.shape, x.dtype), broadcast_dimensions=dims)


def largest(g: Graph, x: Any) -> Any:
    return reduce(g, x, "maximum", -np.inf if x.dtype.is_float else -100)


def pulls(g: Graph, x: Any, weights: Any) -> Any:
    """The sum of what all bodies do to each: reads (k, j), (i, j) and (i, k)."""
    full = Tensor((*weights.shape, x.shape[1]), x.dtype)
    there, here = (g("broadcast_in_dim", x, result=full, broadcast_dimensions=(d, 2)) for d in (1, 0))
    return reduce(g, g("multiply", g("subtract", there, here), spread(g, weights, full, 0, 1)))


@pytest.mark.parametrize("columns", [2, 3, 4, 5, 6, 7, 8])
def test_columns(columns: int) -> None:
    cases = []
    for rows in (9, 32, 41, 600):
        types: Shapes = [((6, rows, columns), "f32")]
        cases += [case(f"max {rows}", types, largest), case(f"sum {rows}", types, reduce, tolerance=3e-5)]
        cases.append(case(f"pulls {rows}", [((rows, columns), "f32"), ((rows, rows), "f32")], pulls, tolerance=3e-5))
    check(cases)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64", "i8", "ui8", "i16", "i32", "ui64", "complex<f32>", "i1"])
def test_dtypes(dtype: str) -> None:
    near = {"bf16": 0.05, "f16": 0.01, "complex<f32>": 1e-5}.get(dtype, 1e-12 if dtype == "f64" else 0)
    cases = []
    for columns in (2, 3, 5):
        types: Shapes = [((4, 70, columns), dtype)]
        if dtype == "i1":
            cases.append(case(f"or {columns}", types, lambda g, x: reduce(g, x, "or", False)))
            continue
        cases.append(case(f"sum {columns}", types, reduce, tolerance=near))
        if dtype[0] not in "uc":
            cases.append(case(f"max {columns}", types, largest))
    check(cases)


def test_expressions() -> None:
    """What is fused: transposed operands, several dimensions, an initial value, a reduction inside another, results."""
    shape = (5, 40, 3)

    def image(g: Graph, x: Any) -> Any:
        return reduce(g, x, dims=(1, 2))

    def from_nine(g: Graph, x: Any) -> Any:
        return reduce(g, x, "minimum", 9.0), reduce(g, x, "add", 9.0)

    def turned(g: Graph, x: Any, y: Any) -> Any:
        return reduce(g, g("add", g("transpose", x, permutation=(0, 2, 1)), y))

    def centred(g: Graph, x: Any) -> Any:
        return reduce(g, g("abs", g("subtract", x, spread(g, reduce(g, x), x, 0, 2))))

    def finished(g: Graph, x: Any, bias: Any) -> Any:
        return g("negate", g("add", reduce(g, x), bias))

    def part(g: Graph, x: Any) -> Any:
        return reduce(g, g("slice", x, start_indices=(0, 3, 1), limit_indices=(5, 38, 4), strides=(1, 1, 1)))

    def backwards(g: Graph, x: Any) -> Any:
        return g("reverse", reduce(g, x), dimensions=(1,))

    def chosen(g: Graph, x: Any, y: Any, keep: Any) -> Any:
        """Flags in memory and in registers."""
        zero = spread(g, g.const(0, "f32"), x)
        more = g("and", g("compare", x, y, comparison_direction="GT"), keep)
        return reduce(g, g("select", more, x, zero))

    def diagonal(g: Graph, x: Any) -> Any:
        """Both indices of an operand are the column's number."""
        full = Tensor((3, 40, 3), x.dtype)
        return reduce(g, g("add", spread(g, x, full, 0, 2), spread(g, x, full, 0, 2)))

    check(
        [
            case("image", [((3, 5, 40, 3), "f32")], image, tolerance=1e-5),
            case("from nine", [(shape, "f32")], from_nine, tolerance=1e-5),
            case("turned", [((5, 3, 40), "f32"), (shape, "f32")], turned, tolerance=1e-5),
            case("centred", [(shape, "f32")], centred, tolerance=1e-4),
            case("finished", [(shape, "f32"), ((5, 3), "f32")], finished, tolerance=1e-5),
            case("part", [((5, 40, 7), "f32")], part, tolerance=1e-5),
            case("backwards", [(shape, "f32")], backwards, tolerance=1e-5),
            case("chosen", [(shape, "f32"), (shape, "f32"), (shape, "i1")], chosen, tolerance=1e-5),
            case("diagonal", [((3, 3), "f32")], diagonal, tolerance=1e-5),
            case("one row", [((40, 3), "f32")], reduce, tolerance=1e-5),
        ]
    )


def test_other_vectors() -> None:
    """As machines with other vectors do it (16 bytes; 64 where this one has them)."""
    cases = [case(f"{n}", [((6, 75, n), "f32")], reduce, tolerance=4e-6) for n in (2, 3, 5, 7)]
    check(cases, replace(host(), vector_bytes=16))


def test_special_values() -> None:
    values = np.array([1, 2, -0.0, 0.0, np.inf, -np.inf, np.nan, -3], np.float32)
    x = np.random.default_rng(3).choice(values, (50, 20, 3)).astype(np.float32)
    check([case("max", [(x.shape, "f32")], largest, args=[x]), case("sum", [(x.shape, "f32")], reduce, args=[x])])


def test_long_sums_keep_their_digits() -> None:
    x, out = np.full((1, 1 << 20, 3), 0.1, np.float32), np.zeros((1, 3), np.float32)
    kernel = emit_kernel(case("", [(x.shape, "f32")], reduce, args=[x]).block, "k", host())
    Linked([kernel], host()).run(kernel, [x, out])
    np.testing.assert_allclose(out, x.astype(np.float64).sum(1), rtol=1e-6)


@pytest.mark.parametrize("rows, lanes", [(512, True), (9, False)])
def test_lanes_have_rows(rows: int, lanes: bool) -> None:
    block = case("", [((16, rows, 3), "f32")], reduce).block
    text = emit_kernel(block, "k", replace(host(), vector_bytes=32)).text
    assert ("fadd <8 x float>" in text) == lanes
