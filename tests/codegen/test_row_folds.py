"""Reductions over the rows of matrices of long rows: values, ends of rows, pieces, what is fused, which they are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from fused import Graph, Linked, body, case, check, evaluate, monoid, sample

from ferrule.codegen import row_folds
from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES, f32, i32
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.targets.cpu import host

SHORT = replace(host(), vector_bytes=16, threads=2)
ROW = 16 * host().vector_bytes // 4 + 64  # a little longer than what registers hold


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_folds, "LARGE", 0)


def reduce(g: Graph, x: Any, kind: str = "add", init: Any = 0, dims: tuple[int, ...] = ()) -> Any:
    dims = dims or (len(x.shape) - 2,)
    return g("reduce", x, g.const(init, x.dtype.name), dimensions=dims, regions=[monoid(kind, x.dtype.name)])


def spread(g: Graph, x: Any, like: Any, *dims: int) -> Any:
    return g("broadcast_in_dim", x, result=Tensor(like.shape, x.dtype), broadcast_dimensions=dims)


def sure(cases: list[Any], machine: Any = None) -> None:
    """That these are done row by row, and right."""
    machine = machine or host()
    for one in cases:
        assert row_folds.planned(one.block, machine), one.name
    check(cases, machine)


@pytest.mark.parametrize("columns", [ROW, ROW + 1, ROW + 15, 3 * ROW + 7])
@pytest.mark.parametrize("machine", [host(), SHORT], ids=["host", "16 bytes"])
def test_ends_of_rows(columns: int, machine: Any) -> None:
    sure(
        [case(f"{rows} rows", [((2, rows, columns), "f32")], reduce, tolerance=1e-5) for rows in (8, 13, 31, 64)],
        machine,
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "ui8", "i16", "i32", "ui64"])
def test_dtypes(dtype: str) -> None:
    near = {"f32": 1e-5, "f64": 1e-13}.get(dtype, 0)
    types = [((2, 21, 4 * ROW + 5), dtype)]
    low = -np.inf if dtype[0] == "f" else 0
    sure(
        [
            case("sum", types, reduce, tolerance=near),
            case("max", types, lambda g, x: reduce(g, x, "maximum", low)),
            case("min", types, lambda g, x: reduce(g, x, "minimum", 3)),
        ]
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_floats(dtype: str) -> None:
    """Their extremes are floats of their own; their sums must not be rounded after every few rows."""
    types = [((2, 21, 4 * ROW + 5), dtype)]
    sure([case("max", types, lambda g, x: reduce(g, x, "maximum", -np.inf))])
    total = case("sum", types, reduce, tolerance=0.05)
    assert not row_folds.planned(total.block, host())


def test_what_is_fused() -> None:
    """Several results, several dimensions, an initial value, values of each column and of each row, an iota."""
    shape = (3, 24, ROW)

    def two(g: Graph, x: Any) -> Any:
        return reduce(g, x), reduce(g, g("multiply", x, x))

    def from_nine(g: Graph, x: Any) -> Any:
        return reduce(g, x, "minimum", 9.0), reduce(g, x, "add", 9.0)

    def scaled(g: Graph, x: Any, column: Any, row: Any) -> Any:
        return reduce(g, g("multiply", g("subtract", x, spread(g, column, x, 2)), spread(g, row, x, 0, 1)))

    def numbered(g: Graph, x: Any) -> Any:
        number = g("iota", result=Tensor(x.shape, x.dtype), iota_dimension=1)
        return reduce(g, g("select", g("compare", x, number, comparison_direction="GT"), x, number))

    def converted(g: Graph, x: Any) -> Any:
        return reduce(g, g("convert", x, result=Tensor(x.shape, f32)))

    image = [((2, 5, 7, 6, ROW // 2), "f32")]
    sure(
        [
            case("two", [(shape, "f32")], two, tolerance=1e-5),
            case("from nine", [(shape, "f32")], from_nine, tolerance=1e-5),
            case("scaled", [(shape, "f32"), ((ROW,), "f32"), ((3, 24), "f32")], scaled, tolerance=2e-5),
            case("numbered", [(shape, "f32")], numbered, tolerance=1e-5),
            case("converted", [(shape, "bf16")], converted, tolerance=1e-5),
            case("image", image, lambda g, x: reduce(g, x, dims=(1, 2)), tolerance=1e-5),
            case("all but the last two", image, lambda g, x: reduce(g, x, dims=(0, 1, 2)), tolerance=1e-5),
        ]
    )


def argmax(g: Graph, x: Any, dim: int = 1) -> Any:
    """As JAX writes it: of several NaN, and of equals, the first."""

    def larger(g: Graph, a: Any, i: Any, b: Any, k: Any) -> Any:
        nan = g("compare", a, a, comparison_direction="NE")
        first = g("or", g("compare", a, b, comparison_direction="GT"), nan)
        equal = g("compare", a, b, comparison_direction="EQ")
        lower = g("and", equal, g("compare", i, k, comparison_direction="LT"))
        return g("select", first, a, b), g("select", g("or", first, lower), i, k)

    dtype = x.dtype.name
    number = g("iota", result=Tensor(x.shape, i32), iota_dimension=dim)
    starts, region = (g.const(-np.inf, dtype), g.const(0, "i32")), body([dtype, "i32"] * 2, larger)
    return g("reduce", x, number, *starts, dimensions=(dim,), regions=[region])


@pytest.mark.parametrize("machine", [host(), replace(host(), vector_bytes=32), SHORT], ids=["host", "32", "16 bytes"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_argmax(machine: Any, dtype: str) -> None:
    random, row = np.random.default_rng(5), ROW * 4 // DTYPES[dtype].itemsize
    for rows, columns in ((8, row + 3), (21, row + 3), (47, 4 * row), (row_folds.MOST + 9, 8 * row)):
        x = random.integers(-4, 5, (2, rows, columns)).astype(np.float32)
        x[random.random(x.shape) < 0.02] = np.nan
        x[:, :, 7], x[:, :, 8] = -np.inf, np.nan
        values = x.astype(DTYPES[dtype].numpy)
        sure([case(f"{rows} rows", [(x.shape, dtype)], argmax, args=[values])], replace(machine, threads=2))


def test_what_is_made_of_them() -> None:
    """Element by element, in the same memory; what is read besides is smaller."""
    shape, kept = (3, 21, ROW), (3, ROW)

    def mean(g: Graph, x: Any) -> Any:
        return g("multiply", reduce(g, x), g.const(1 / 21, "f32", kept))

    def moments(g: Graph, x: Any) -> Any:
        share = g.const(1 / 21, "f32", kept)
        first, second = g("multiply", reduce(g, x), share), g("multiply", reduce(g, g("multiply", x, x)), share)
        return g("sqrt", g("abs", g("subtract", second, g("multiply", first, first)))), first

    def with_total(g: Graph, x: Any) -> Any:
        total = reduce(g, x)
        return g("tanh", total), total

    def shifted(g: Graph, x: Any, column: Any) -> Any:
        total = reduce(g, x)
        return g("add", total, spread(g, column, total, 1))

    cases = [
        case("mean", [(shape, "f32")], mean, tolerance=1e-5),
        case("long rows", [((2, 9, 4 * ROW), "f32")], lambda g, x: g("negate", reduce(g, x)), tolerance=1e-5),
        case("moments", [(shape, "f32")], moments, tolerance=1e-5),
        case("with the total", [(shape, "f32")], with_total, tolerance=1e-5),
        case("shifted", [(shape, "f32"), ((ROW,), "f32")], shifted, tolerance=1e-5),
    ]
    sure(cases)
    sure(cases, SHORT)


def test_lines_of_their_own() -> None:
    """A result of another type holds no sum; one in an argument's memory must not, while the argument is still read."""
    shape = (3, 21, ROW)
    more = [(shape, "f32"), ((3, ROW), "f32")]

    def narrow(g: Graph, x: Any) -> Any:
        total = reduce(g, g("convert", x, result=Tensor(x.shape, f32)))
        return g("convert", total, result=Tensor(total.shape, x.dtype))

    def added(g: Graph, x: Any, y: Any) -> Any:
        return g("add", reduce(g, x), y)

    def both(g: Graph, x: Any, y: Any) -> Any:
        total = reduce(g, x)
        return g("add", total, y), total

    flags = case("flags", [(shape, "f32")], lambda g, x: g("compare", *[reduce(g, x)] * 2, comparison_direction="EQ"))
    cases = [
        flags,
        case("narrow", [(shape, "bf16")], narrow, tolerance=0.02),
        case("narrow, long rows", [((2, 9, 4 * ROW), "f16")], narrow, tolerance=0.02),
        case("added", more, added, tolerance=1e-5),
        case("both", more, both, tolerance=1e-5),
        case("index alone", [(shape, "f32")], lambda g, x: argmax(g, x)[1]),
    ]
    sure(cases)
    sure(cases, SHORT)
    # In the memory of the argument that is read at the end.
    turned = case("", more[::-1], lambda g, y, x: g("add", reduce(g, x), y), tolerance=1e-5)
    turned.inplace = 1
    sure([turned])


def test_no_memory_for_what_is_carried() -> None:
    """Lines that would be too long, and what is not made element by element."""
    shape, wide = (3, 24, ROW), (2, 8, row_folds.OWN // 4 + 8)
    cases = [
        case("flags", [(wide, "f32")], lambda g, x: g("compare", *[reduce(g, x)] * 2, comparison_direction="EQ")),
        case("spread again", [(shape, "f32")], lambda g, x: spread(g, reduce(g, x), x, 0, 2), tolerance=1e-5),
    ]
    for one in cases:
        assert not row_folds.planned(one.block, host()), one.name
    check(cases)


def test_pieces_of_rows() -> None:
    """One matrix of long rows is cut between threads, and each piece is done right alone."""
    machine = replace(host(), threads=8)
    one = case("", [((32, 40000), "f32")], reduce)
    kernel = emit_kernel(one.block, "k", machine)
    assert kernel.grid >= 8
    out = np.zeros(40000, np.float32)
    Linked([kernel], machine).run(kernel, [*one.args, out], pieces=kernel.grid)
    np.testing.assert_allclose(out, one.args[0].astype(np.float64).sum(0), rtol=0, atol=1e-5)


def test_special_values() -> None:
    values = np.array([1, 2, -0.0, 0.0, np.inf, -np.inf, np.nan, -3], np.float32)
    x = np.random.default_rng(3).choice(values, (2, 20, ROW + 3), p=[0.24, 0.2, 0.2, 0.2, 0.01, 0.01, 0.01, 0.13])
    x = x.astype(np.float32)
    x[:, :, 5] = -0.0
    sure([case("sum", [(x.shape, "f32")], reduce, args=[x])])
    sure([case("max", [(x.shape, "f32")], lambda g, v: reduce(g, v, "maximum", -np.inf), args=[x])])


@pytest.mark.parametrize(
    "name",
    ["turned", "along rows", "few columns", "many rows", "flags", "kept rows between", "subtracted"],
)
def test_others_are_not(name: str) -> None:
    """What lies otherwise in memory, or must be combined in order, is not done so."""
    shape = (2, 24, ROW)
    build: dict[str, tuple[Any, Any]] = {
        "turned": ((2, ROW, 24), lambda g, x: reduce(g, g("transpose", x, permutation=(0, 2, 1)))),
        "along rows": (shape, lambda g, x: reduce(g, x, dims=(2,))),
        "few columns": ((2, 24, 64), reduce),
        "many rows": ((row_folds.MOST + 8, ROW), reduce),
        "flags": (shape, lambda g, x: reduce(g, g("compare", x, x, comparison_direction="NE"), "or", False)),
        "kept rows between": ((12, 3, 12, ROW), lambda g, x: reduce(g, x, dims=(0, 2))),
        "subtracted": (shape, lambda g, x: reduce(g, x, "subtract")),
    }
    size, how = build[name]
    assert not row_folds.planned(case(name, [(size, "f32")], how).block, host())


def stages(block: Block) -> list[tuple[int, ...]]:
    return [op.results[0].shape for op in block.ops if op.name == "reduce"]


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((4096, ROW), (0,), [(32, ROW), (ROW,)]),
        ((6, 40, 50, ROW), (0, 1, 2), [(6, 20, ROW), (ROW,)]),
        ((1500, 7, 80), (0,), [(12, 7, 80), (7, 80)]),
        ((3, 2000, ROW), (1,), [(3, 16, ROW), (3, ROW)]),
        ((row_folds.MOST, ROW), (0,), [(ROW,)]),  # few enough to be added up in turn
        ((4099, ROW), (0,), [(17, ROW), (ROW,), (ROW,)]),  # a prime number of rows leaves some
        ((3, 1009, ROW), (0, 1), [(3, 8, ROW), (ROW,), (ROW,)]),
        ((ROW, 4096), (1,), [(ROW,)]),
    ],
)
def test_stages(shape: tuple[int, ...], dims: tuple[int, ...], expected: list[tuple[int, ...]]) -> None:
    """Many rows are reduced in parts first; both stages together are what one reduction is."""
    x = sample(shape, "f32")
    one = case("", [(shape, "f32")], lambda g, v: reduce(g, v, dims=dims), args=[x])
    block = expand(one.block, host())
    assert stages(block) == expected
    np.testing.assert_allclose(evaluate(block, [x])[0], x.astype(np.float64).sum(dims), rtol=0, atol=2e-3)


def test_not_in_stages() -> None:
    """A start that is no identity would enter many times; argmax has two operands; sums of bf16 are rounded once."""
    shape = (4096, ROW)

    for build, dtype in (
        (partial(argmax, dim=0), "f32"),
        (lambda g, x: reduce(g, x, "add", 1.0), "f32"),
        (lambda g, x: reduce(g, x, "subtract"), "f32"),
        (reduce, "bf16"),
        (lambda g, x: reduce(g, g("transpose", x, permutation=(1, 0)), dims=(1,)), "f32"),
    ):
        block = expand(case("", [(shape, dtype)], build, args=[np.zeros(1)]).block, host())
        assert len(stages(block)) == 1


def test_long_sums_keep_their_digits() -> None:
    """As many rows as are added up in turn: as exact as a sum in pairs within a few units."""
    x = np.full((row_folds.MOST, ROW), 0.1, np.float32)
    out = np.zeros(ROW, np.float32)
    kernel = emit_kernel(case("", [(x.shape, "f32")], reduce, args=[x]).block, "k", host())
    Linked([kernel], host()).run(kernel, [x, out])
    np.testing.assert_allclose(out, x.astype(np.float64).sum(0), rtol=2e-6)


@pytest.mark.parametrize("shape", [(1000, 70), (300, 10, 31)])
def test_all_of_an_expression(shape: tuple[int, ...]) -> None:
    """It is cut in one run of elements, so that no vector asks in which row its elements lie."""

    def distance(g: Graph, x: Any, y: Any) -> Any:
        d = g("subtract", x, y)
        return reduce(g, g("multiply", d, d), dims=tuple(range(len(shape))))

    one = case("", [(shape, "f32")] * 2, distance)
    block = expand(one.block, replace(host(), threads=2))
    assert len(stages(block)) == 2
    x, y = (a.astype(np.float64) for a in one.args)
    np.testing.assert_allclose(evaluate(block, one.args)[0], ((x - y) ** 2).sum(), rtol=1e-4)
    (first, *_) = fuse(block, host()).ops
    text = emit_kernel(first.regions[0], "k", host()).text
    assert "udiv" not in text and "extractelement <64 x i" not in text


@pytest.mark.parametrize(
    ("shape", "large"),
    [
        ((240, 512), True),
        ((200, 512), False),  # less than a second-level cache
        ((240, 500), False),  # whose rows lie anywhere in it
        ((120, 1024), True),
        ((60, 2048), False),  # as long as they are good for
        ((250, 1024), True),
        ((250, 1000), True),  # twice that cache
    ],
)
def test_rows_that_share_few_places_of_a_cache(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], large: bool
) -> None:
    monkeypatch.setattr(row_folds, "LARGE", 2)
    machine = replace(host(), second_cache_bytes=500_000, vector_bytes=32, threads=2)
    assert row_folds.planned(case("", [(shape, "f32")], reduce).block, machine) == large


@pytest.mark.parametrize(("threads", "large"), [(2, True), (8, True), (16, False)])
def test_many_threads_have_more_caches(monkeypatch: pytest.MonkeyPatch, threads: int, large: bool) -> None:
    machine = replace(host(), second_cache_bytes=2 << 20, threads=threads)
    monkeypatch.setattr(row_folds, "LARGE", 1.4)
    assert row_folds.is_large(1000 * 1000 * 4, 4000, machine) == large
    assert row_folds.is_large(1500 * 1000 * 4, 4000, machine)
