"""Reductions along rows of a few elements: values, ties and NaN, every length, and when lanes have a row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fused import Graph, Linked, body, case, check, monoid, nothing_beside

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

ROWS = 77  # whole vectors and a rest, of any number of lanes


def reduce(g: Graph, x: Any, kind: str, init: Any) -> Any:
    dtype = x.dtype.name
    return g("reduce", x, g.const(init, dtype), dimensions=(len(x.shape) - 1,), regions=[monoid(kind, dtype)])


def wide(g: Graph, row: Any, like: Any) -> Any:
    dims = tuple(range(len(row.shape)))
    return g("broadcast_in_dim", row, result=Tensor(like.shape, row.dtype), broadcast_dimensions=dims)


def softmax(g: Graph, x: Any) -> Any:
    powers = g("exponential", g("subtract", x, wide(g, reduce(g, x, "maximum", -np.inf), x)))
    return g("divide", powers, wide(g, reduce(g, powers, "add", 0), x))


def maximum(g: Graph, x: Any) -> Any:
    low = {"f": -np.inf, "b": -np.inf, "i": -128, "u": 0}[x.dtype.name[0]]
    return reduce(g, x, "maximum", low)


def first_largest(dtype: str) -> Block:
    """As JAX writes argmax: NaN is larger than any number; of equal ones the first is taken."""

    def build(g: Graph, a: Any, i: Any, b: Any, j: Any) -> Any:
        more = g("compare", a, b, comparison_direction="GT")
        nan = g("compare", a, a, comparison_direction="NE")
        left = g("or", more, nan)
        same = g("compare", a, b, comparison_direction="EQ")
        sooner = g("and", same, g("compare", i, j, comparison_direction="LT"))
        return g("select", left, a, b), g("select", g("or", left, sooner), i, j)

    return body([dtype, "i32", dtype, "i32"], build)


def argmax(g: Graph, x: Any) -> Any:
    numbers = g("iota", result=Tensor(x.shape, DTYPES["i32"]), iota_dimension=1)
    inits = g.const(-np.inf, x.dtype.name), g.const(0, "i32")
    return g("reduce", x, numbers, *inits, dimensions=(1,), regions=[first_largest(x.dtype.name)])[1]


def special(shape: tuple[int, ...]) -> np.ndarray:
    """Many ties, zeros of both signs, infinities and NaN."""
    values = np.array([1, 1, 1, 2, 2, -0.0, 0.0, np.inf, -np.inf, np.nan, -3, 0.5], np.float32)
    return np.random.default_rng(3).choice(values, shape).astype(np.float32)


LENGTHS = [2, 3, 4, 5, 7, 8, 9, 10, 13, 16, 17, 20, 24, 31, 32, 33, 48, 63, 64]


@pytest.mark.parametrize("build", [maximum, argmax], ids=["max", "argmax"])
def test_lengths(build: Callable[..., Any]) -> None:
    check([case(f"{n}", [((ROWS, n), "f32")], build, args=[special((ROWS, n))]) for n in LENGTHS])


def test_sums_and_softmax() -> None:
    def sums(g: Graph, x: Any) -> Any:
        return reduce(g, x, "add", 0)

    lengths = [n for n in LENGTHS if n % 8 in (0, 2, 7) or n < 6]
    cases = [case(f"sum {n}", [((ROWS, n), "f32")], sums, tolerance=4e-6) for n in lengths]
    check(cases + [case(f"softmax {n}", [((ROWS, n), "f32")], softmax, tolerance=1e-6) for n in lengths])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64", "i8", "ui8", "i16", "i32", "ui64"])
def test_dtypes(dtype: str) -> None:
    def sums(g: Graph, x: Any) -> Any:
        return reduce(g, x, "add", 0)

    def centred(g: Graph, x: Any) -> Any:
        return g("subtract", x, wide(g, maximum(g, x), x))

    near = {"bf16": 0.05, "f16": 0.01}.get(dtype, 1e-12 if dtype == "f64" else 0)
    cases = []
    for n in (3, 6, 10, 16, 32):
        types = [((ROWS, n), dtype)]
        cases += [case(f"max {n}", types, maximum), case(f"sum {n}", types, sums, tolerance=near)]
        cases += [case(f"rows {n}", types, centred)]
    check(cases)


def test_truths() -> None:
    def some(g: Graph, x: Any) -> Any:
        large = g("compare", x, wide(g, g.const(1, "f32"), x), comparison_direction="GT")
        return reduce(g, large, "or", False)

    check([case(f"{n}", [((ROWS, n), "f32")], some, args=[special((ROWS, n))]) for n in (3, 8, 12, 40)])


def test_expressions() -> None:
    """What is fused: operands of rows and of columns, parts of longer rows, several outer dimensions, paddings."""
    shape = (3, 40, 10)

    def image(g: Graph, x: Any, of_row: Any, of_column: Any) -> Any:
        full = {"result": Tensor(x.shape, x.dtype)}
        y = g("add", x, g("broadcast_in_dim", of_row, broadcast_dimensions=(0, 1), **full))
        y = g("multiply", y, g("broadcast_in_dim", of_column, broadcast_dimensions=(2,), **full))
        return softmax(g, y)

    def middle(g: Graph, x: Any, bias: Any) -> Any:
        y = g("add", x, g("broadcast_in_dim", bias, broadcast_dimensions=(1,), result=Tensor(x.shape, x.dtype)))
        return g("negate", maximum(g, y))

    def part(g: Graph, x: Any) -> Any:
        return maximum(g, g("slice", x, start_indices=(2, 3), limit_indices=(72, 13), strides=(1, 1)))

    def padded(g: Graph, x: Any) -> Any:
        edges = {"edge_padding_low": (0, 1), "edge_padding_high": (0, 2), "interior_padding": (0, 1)}
        return maximum(g, g("pad", x, g.const(0, "f32"), **edges))

    def across(g: Graph, x: Any) -> Any:
        return maximum(g, g("transpose", x, permutation=(1, 0)))

    def diagonal(g: Graph, x: Any) -> Any:
        """Both indices of the operand are the column's number."""
        full = Tensor((ROWS, 8, 8), x.dtype)
        y = g("broadcast_in_dim", x, result=full, broadcast_dimensions=(1, 2))
        return maximum(g, g("slice", y, start_indices=(0, 0, 1), limit_indices=(ROWS, 8, 8), strides=(1, 1, 1)))

    check(
        [
            case("image", [(shape, "f32"), (shape[:2], "f32"), (shape[2:], "f32")], image, tolerance=1e-6),
            case("middle", [(shape, "f32"), ((40,), "f32")], middle),
            case("part", [((ROWS, 20), "f32")], part),
            case("padded", [((ROWS, 6), "f32")], padded),
            case("across", [((10, ROWS), "f32")], across),
            case("diagonal", [((8, 8), "f32")], diagonal),
        ]
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
@pytest.mark.parametrize("kind", ["add", "multiply", "maximum"])
def test_rows_of_whole_vectors(kind: str, dtype: str) -> None:
    """Rows that are combined vector by vector: factors of rows and of columns, parts, other orders, few rows."""
    columns, init = 32, {"add": 0, "multiply": 1, "maximum": -128}[kind]
    integers = dtype == "i8"
    near = 0 if integers or kind == "maximum" else {"f64": 1e-12, "f32": 1e-5, "bf16": 0.3}[dtype]

    def spread(g: Graph, x: Any, shape: tuple[int, ...], *dims: int) -> Any:
        return g("broadcast_in_dim", x, broadcast_dimensions=dims, result=Tensor(shape, x.dtype))

    def factors(g: Graph, x: Any, of_row: Any, of_column: Any) -> Any:
        y = g("multiply", x, spread(g, of_row, x.shape, 0))
        return g("negate", reduce(g, g("add", y, spread(g, of_column, x.shape, 1)), kind, init))

    def costly_factors(g: Graph, x: Any, of_row: Any, of_column: Any) -> Any:
        """What each row needs once is computed for vectors of rows."""
        for _ in range(5):
            of_row = g("subtract", g("maximum", of_row, g("negate", of_row)), of_row)
        return factors(g, x, of_row, of_column)

    def part(g: Graph, x: Any) -> Any:
        cut = g("slice", x, start_indices=(2, 3), limit_indices=(72, 3 + columns), strides=(2, 1))
        return reduce(g, cut, kind, init)

    def every_other(g: Graph, x: Any) -> Any:
        cut = g("slice", x, start_indices=(0, 1), limit_indices=(ROWS, 2 * columns), strides=(1, 2))
        return reduce(g, cut, kind, init)

    def across(g: Graph, x: Any) -> Any:
        return reduce(g, g("transpose", x, permutation=(1, 0)), kind, init)

    def heads(g: Graph, x: Any) -> Any:
        return reduce(g, g("transpose", x, permutation=(1, 0, 2)), kind, init)

    def turned(g: Graph, x: Any) -> Any:
        return reduce(g, spread(g, x, (40, 3, columns), 2, 0), kind, init)

    def joined(g: Graph, x: Any) -> Any:
        return reduce(g, g("reshape", x, result=Tensor((5, 16, columns), x.dtype)), kind, init)

    whole = [((ROWS, columns), dtype), ((ROWS,), dtype), ((columns,), dtype)]
    check(
        [
            case("factors", whole, factors, tolerance=near),
            case("costly factors", whole, costly_factors, tolerance=near),
            case("part", [((ROWS, columns + 8), dtype)], part, tolerance=near),
            case("every other", [((ROWS, 2 * columns + 1), dtype)], every_other, tolerance=near),
            case("across", [((columns, ROWS), dtype)], across, tolerance=near),
            case("heads", [((40, 3, columns), dtype)], heads, tolerance=near),
            case("turned", [((columns, 40), dtype)], turned, tolerance=near),
            case("joined", [((80 * columns,), dtype)], joined, tolerance=near),
        ]
    )


def test_whole_vectors_take_few_exchanges() -> None:
    """Rows whose elements lie beside each other are not transposed; where they lie across, nothing is exchanged."""

    def exchanges(build: Callable[..., Any], shape: tuple[int, ...]) -> int:
        return emit_kernel(case("", [(shape, "f32")], build).block, "k", host()).text.count("shufflevector")

    def across(g: Graph, x: Any) -> Any:
        return maximum(g, g("transpose", x, permutation=(1, 0)))

    lanes = host().vector_bytes // 4
    assert exchanges(maximum, (4096, 64)) <= 2 * lanes
    assert exchanges(across, (64, 4096)) == 0


def test_in_place() -> None:
    """A result in its operand's memory: nothing of a tile is written before all of it is read."""

    def two(g: Graph, x: Any) -> Any:
        y = g("subtract", x, wide(g, maximum(g, x), x))
        return y, g("negate", y)

    types: list[tuple[tuple[int, ...], str]] = [((ROWS, 10), "f32")]
    check([case("softmax", types, softmax, tolerance=1e-6, inplace=1), case("two", types, two, inplace=1)])


def test_nothing_is_read_past_the_end() -> None:
    """The operand ends where memory does."""
    for n in (3, 5, 8, 10, 16, 20, 32):
        rows = 64
        made = case("", [((rows, n), "f32")], maximum)
        kernel = emit_kernel(made.block, "k", host())
        linked, out = Linked([kernel], host()), np.zeros(rows, np.float32)
        with nothing_beside(made.args[0]) as x:
            linked.run(kernel, [x, out])
        np.testing.assert_array_equal(out, made.args[0].max(1))


@pytest.mark.parametrize("build", [maximum, argmax, softmax], ids=["max", "argmax", "softmax"])
@pytest.mark.parametrize("rows, tiles", [(4096, True), (8, False)])
def test_lanes_have_rows(build: Callable[..., Any], rows: int, tiles: bool) -> None:
    """No search for the largest of a vector's lanes, where there are rows for all lanes."""
    text = emit_kernel(case("", [((rows, 16), "f32")], build).block, "k", host()).text
    assert ("extractelement" in text) != tiles


def test_large_arrays_are_read_in_order() -> None:
    """Long lines and one operation for each element: vectors along the rows."""

    def text(rows: int, build: Callable[..., Any]) -> str:
        g = Graph(Tensor((rows, 64), DTYPES["f32"]))
        return emit_kernel(g.done(build(g, *g.args)), "k", host()).text

    assert "extractelement" in text(1 << 16, maximum)
    assert "extractelement" not in text(1 << 12, maximum)
    assert "extractelement" not in text(1 << 16, argmax)
