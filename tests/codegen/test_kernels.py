"""Kernels against the NumPy meaning of their ops: schedules, structural ops, odd shapes, dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from fused import Case, Graph, body, case, check, monoid, sample

from ferrule.codegen.kernel import emit_kernel, work
from ferrule.codegen.loop import LONG
from ferrule.ir import Block, ConvDims, DotDims, GatherDims, ScatterDims, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

F, INT = "f32", "i32"


def test_elementwise_shapes() -> None:
    shapes = [(), (1,), (3,), (16,), (31,), (64,), (0,), (5, 7), (2, 3, 16), (1, 1, 1), (3, 0, 2), (10007,)]
    check([case(f"x*y+x {s}", [(s, F), (s, F)], lambda g, x, y: g("add", g("multiply", x, y), x)) for s in shapes])


@pytest.mark.parametrize(
    "dtypes",
    [("i1", "i8", "ui8", "i16", "i32", "ui32", "i64", "ui64"), ("f16", "bf16", "f32", "f64", "complex<f32>")]
    + [("complex<f64>", "f8E5M2", "f8E4M3FN", "i4", "ui4", "i2")],
)
def test_copies_and_moves_of_all_dtypes(dtypes: tuple[str, ...]) -> None:
    cases = []
    for d in dtypes:
        cases += [
            case(f"reverse {d}", [((5, 19), d)], lambda g, x: g("reverse", x, dimensions=(0, 1))),
            case(f"transpose {d}", [((5, 19), d)], lambda g, x: g("transpose", x, permutation=(1, 0))),
            case(f"pad {d}", [((3, 37), d), ((), d)], pad((1, 2), (0, 5), (0, 0))),
            case(f"add {d}", [((67,), d), ((67,), d)], lambda g, x, y: g("add", x, y)),
        ]
    check(cases)


def pad(low: tuple, high: tuple, inner: tuple):  # type: ignore[no-untyped-def]
    return lambda g, x, v: g("pad", x, v, edge_padding_low=low, edge_padding_high=high, interior_padding=inner)


def broadcast(shape: tuple, dims: tuple):  # type: ignore[no-untyped-def]
    return lambda g, x: g("broadcast_in_dim", x, result=Tensor(shape, x.dtype), broadcast_dimensions=dims)


def reshape(g, x, shape):  # type: ignore[no-untyped-def]
    return g("reshape", x, result=Tensor(shape, x.dtype))


def test_broadcast_reshape_transpose() -> None:
    def bias(g, x, b):  # type: ignore[no-untyped-def]
        return g("add", x, broadcast(x.shape, (1,))(g, b))

    def row(g, x, b):  # type: ignore[no-untyped-def]
        return g("multiply", x, broadcast(x.shape, (0,))(g, b))

    cases = [
        case("bias 16", [((9, 16), F), ((16,), F)], bias),
        case("bias 3", [((9, 3), F), ((3,), F)], bias),
        case("bias 100", [((300, 100), F), ((100,), F)], bias),
        case("row", [((9, 33), F), ((9,), F)], row),
        case("scalar", [((), F)], broadcast((5, 7), ())),
        case("ones", [((5, 1, 3), F)], broadcast((5, 4, 3), (0, 1, 2))),
        case("middle", [((4,), F)], broadcast((3, 4, 5), (1,))),
        case("split", [((6, 35), F)], lambda g, x: g("abs", reshape(g, g("negate", x), (6, 5, 7)))),
        case("regroup", [((6, 35), F)], lambda g, x: g("abs", reshape(g, x, (21, 10)))),
        case("regroup+bias", [((6, 36), F), ((18,), F)], lambda g, x, b: bias(g, reshape(g, x, (12, 18)), b)),
        case(
            "regroup bias",
            [((12, 18), F), ((6,), F)],
            lambda g, x, b: reshape(g, row(g, reshape(g, x, (6, 36)), b), (12, 18)),
        ),
        case("t-reshape", [((6, 35), F)], lambda g, x: reshape(g, g("transpose", x, permutation=(1, 0)), (7, 30))),
        case("t3", [((3, 17, 5), F)], lambda g, x: g("transpose", x, permutation=(2, 0, 1))),
        case("t3 inner", [((3, 5, 33), F)], lambda g, x: g("negate", g("transpose", x, permutation=(1, 0, 2)))),
        *(
            case(
                f"heads {d} {inner}", [((2, 5, 3, inner), d)], lambda g, x: g("transpose", x, permutation=(0, 2, 1, 3))
            )
            for d, inner in ((F, 64), (F, 37), ("bf16", 128), ("f64", 8), ("complex<f32>", 32), ("i8", 256))
        ),
        case(
            "five loops",
            [((3, 2, 1, 5, 48), F)],
            lambda g, x: g("negate", g("transpose", x, permutation=(3, 1, 2, 0, 4))),
        ),
        case("t+x", [((33, 33), F)], lambda g, x: g("add", x, g("transpose", x, permutation=(1, 0)))),
    ]
    check(cases)


def test_slices_pads_concatenations() -> None:
    def cut(starts, limits, steps):  # type: ignore[no-untyped-def]
        return lambda g, x: g("slice", x, start_indices=starts, limit_indices=limits, strides=steps)

    def join(axis):  # type: ignore[no-untyped-def]
        return lambda g, *xs: g("concatenate", *xs, dimension=axis)

    def shifted(g, x, a, b):  # type: ignore[no-untyped-def]
        return g("dynamic_slice", x, a, b, slice_sizes=(3, 20))

    def updated(g, x, u, a, b):  # type: ignore[no-untyped-def]
        return g("negate", g("dynamic_update_slice", x, u, a, b))

    at = lambda a, b: [np.asarray(a, np.int32), np.asarray(b, np.int32)]  # noqa: E731
    cases = [
        case("slice", [((9, 40), F)], cut((1, 3), (8, 39), (2, 1))),
        case("slice strided", [((9, 40), F)], cut((0, 3), (9, 39), (1, 3))),
        *(
            case(f"slice strided {d}", [((9, 200), d)], cut((0, 3), (9, 198), (1, 3)))
            for d in ("f64", "bf16", "complex<f32>", "i8")
        ),
        case("slice rows", [((9, 40), F)], cut((2, 0), (7, 40), (1, 1))),
        case("slice none", [((9, 40), F)], cut((2, 4), (7, 4), (1, 1))),
        case("pad both", [((5, 21), F), ((), F)], pad((2, 3), (1, 4), (0, 0))),
        case("pad negative", [((5, 41), F), ((), F)], pad((-1, -3), (2, -4), (0, 0))),
        case("pad interior", [((5, 21), F), ((), F)], pad((1, 2), (0, -3), (1, 2))),
        case("pad shift", [((5, 41), F), ((), F)], pad((1, 3), (-1, -3), (0, 0))),
        case("pad empty", [((0, 4), F), ((), F)], pad((1, 1), (2, 30), (0, 0))),
        case("concat 0", [((3, 19), F), ((2, 19), F)], join(0)),
        case("concat 1", [((3, 16), F), ((3, 32), F), ((3, 5), F)], join(1)),
        case("concat odd", [((3, 7), F), ((3, 0), F), ((3, 30), F)], join(1)),
        case(
            "reverse", [((3, 37), F)], lambda g, x: g("exponential", g("reverse", x, dimensions=(1,))), tolerance=1e-5
        ),
        case("dynamic_slice", [((9, 40), F), ((), INT), ((), INT)], shifted, args=[sample((9, 40), F), *at(4, 11)]),
        case(
            "dynamic_slice low", [((9, 40), F), ((), INT), ((), INT)], shifted, args=[sample((9, 40), F), *at(-4, -1)]
        ),
        case(
            "dynamic_slice high", [((9, 40), F), ((), INT), ((), INT)], shifted, args=[sample((9, 40), F), *at(99, 99)]
        ),
        case(
            "dus producer",
            [((9, 40), F), ((3, 20), F), ((), INT), ((), INT)],
            updated,
            args=[sample((9, 40), F), sample((3, 20), F), *at(2, 99)],
        ),
    ]
    check(cases)


def test_iota_constants_select() -> None:
    def mask(g, x):  # type: ignore[no-untyped-def]
        rows = g("iota", result=Tensor(x.shape, DTYPES[INT]), iota_dimension=0)
        columns = g("iota", result=Tensor(x.shape, DTYPES[INT]), iota_dimension=1)
        keep = g("compare", rows, columns, comparison_direction="GE")
        return g("select", keep, x, g.const(0, F, x.shape))

    def table(g, x):  # type: ignore[no-untyped-def]
        return g("add", x, g.const(np.arange(60).reshape(3, 20), F))

    cases = [
        case("tril", [((37, 37), F)], mask),
        case("table", [((3, 20), F)], table),
        *(
            case(f"iota {d}", [((2, 35), d)], lambda g, x: g("iota", result=x.type, iota_dimension=1))
            for d in ("i8", "ui16", "i32", "i64", "f16", "bf16", "f32", "f64", "complex<f32>")
        ),
        case(
            "two results",
            [((3, 20), F)],
            lambda g, x: (g("negate", x), g("convert", x, result=Tensor((3, 20), DTYPES["i8"]))),
        ),
        case("scalar select", [((), "i1"), ((33,), F), ((33,), F)], lambda g, p, x, y: g("select", p, x, y)),
        case("clamp", [((), F), ((33,), F), ((), F)], lambda g, a, x, b: g("clamp", a, x, b)),
    ]
    check(cases)


def reduction(name: str, d: str, dims: tuple, init: float = 0):  # type: ignore[no-untyped-def]
    return lambda g, x: g("reduce", x, g.const(init, d), dimensions=dims, regions=[monoid(name, d)])


def special(d: str) -> np.ndarray:
    """Few NaNs, some infinities, many ties and zeros of both signs."""
    random = np.random.default_rng(5)
    x = np.round(random.normal(size=(40, 192)))
    chance = random.random(x.shape)
    x[chance < 0.005], x[chance > 0.99], x[(chance > 0.98) & (chance < 0.99)] = np.nan, np.inf, -np.inf
    return x.astype(DTYPES[d].numpy)


def test_reductions() -> None:
    cases = []
    for shape in [(7, 33), (64, 128), (1, 5), (300, 3), (5, 1000), (0, 3), (3, 0), (2, 3, 37)]:
        for dims in [(0,), (1,), (0, 1)]:
            cases.append(case(f"sum {shape} {dims}", [(shape, F)], reduction("add", F, dims), tolerance=1e-4))
    cases += [
        case("sum 02", [((3, 5, 67), F)], reduction("add", F, (0, 2)), tolerance=1e-4),
        case("sum 12", [((3, 5, 67), F)], reduction("add", F, (1, 2)), tolerance=1e-4),
        case("sum init", [((3, 67), F)], reduction("add", F, (1,), 5.0), tolerance=1e-4),
        case("max", [((3, 67), F)], reduction("maximum", F, (1,), -np.inf)),
        case(
            "max nan",
            [((3, 67), F)],
            reduction("maximum", F, (1,), -np.inf),
            args=[np.where(np.arange(201).reshape(3, 67) == 70, np.nan, sample((3, 67), F)).astype(np.float32)],
        ),
        *(
            case(f"{name} {d} {dims} specials", [((40, 192), d)], reduction(name, d, dims, start), args=[special(d)])
            for d in (F, "f64", "bf16")
            for name, start in (("maximum", -np.inf), ("minimum", np.inf))
            for dims in [(0,), (1,)]
        ),
        case("min i8", [((3, 167), "i8")], reduction("minimum", "i8", (1,), 127)),
        case("sum i32", [((3, 167), INT)], reduction("add", INT, (1,))),
        case("or", [((3, 167), "i1")], reduction("or", "i1", (1,))),
        case("and 0", [((3, 167), "i1")], reduction("and", "i1", (0,), 1)),
        case("prod f64", [((3, 67), "f64")], reduction("multiply", "f64", (1,), 1), tolerance=1e-12),
        case("sum bf16", [((3, 300), "bf16")], reduction("add", "bf16", (1,)), tolerance=1e-2),
        case("sum f16 0", [((300, 5), "f16")], reduction("add", "f16", (0,)), tolerance=2e-3),
        case("sum complex", [((3, 67), "complex<f32>")], reduction("add", "complex<f32>", (1,)), tolerance=1e-5),
        case("sum complex 0", [((67, 3), "complex<f64>")], reduction("add", "complex<f64>", (0,)), tolerance=1e-12),
        case(
            "fused",
            [((6, 40), F), ((6, 40), F)],
            lambda g, x, y: g("negate", reduction("add", F, (1,))(g, g("multiply", x, y))),
            tolerance=1e-5,
        ),
        case(
            "not commutative",
            [((3, 40), F)],
            lambda g, x: g("reduce", x, g.const(0, F), dimensions=(1,), regions=[body([F, F], lambda g, a, b: b)]),
        ),
    ]
    check(cases)


def argmax(g, x, dims):  # type: ignore[no-untyped-def]
    def pick(g, v, i, w, j):  # type: ignore[no-untyped-def]
        greater = g("compare", v, w, comparison_direction="GT")
        nan = g("compare", v, v, comparison_direction="NE")
        equal = g("compare", v, w, comparison_direction="EQ")
        lower = g("and", equal, g("compare", i, j, comparison_direction="LT"))
        first = g("or", greater, nan)
        return g("select", first, v, w), g("select", g("or", first, lower), i, j)

    index = g("iota", result=Tensor(x.shape, DTYPES[INT]), iota_dimension=dims[0])
    return g(
        "reduce",
        x,
        index,
        g.const(-np.inf, F),
        g.const(0, INT),
        dimensions=dims,
        regions=[body([F, INT, F, INT], pick)],
    )


def kron(g, a, b):  # type: ignore[no-untyped-def]
    (m, n), (k, j) = a.shape, b.shape
    wide = broadcast((m, k, n, j), (0, 2))(g, a), broadcast((m, k, n, j), (1, 3))(g, b)
    return reshape(g, g("multiply", *wide), (m * k, n * j))


def test_reshapes_at_the_end() -> None:
    """Loops go over the dimensions that the reshape joins: nothing is divided to find them again."""

    def repeated(g, x):  # type: ignore[no-untyped-def]
        return reshape(g, broadcast((*x.shape, 3), (0, 1))(g, g("negate", x)), (x.shape[0], 3 * x.shape[1]))

    def two(g, a, b):  # type: ignore[no-untyped-def]
        """Of two results one has the joined shape already."""
        joined = kron(g, a, b)
        return joined, g("add", joined, broadcast(joined.shape, ())(g, g.const(1, F)))

    cases = [
        case("kron", [((3, 5), F), ((4, 30), F)], kron),
        case("kron ones", [((1, 5), F), ((4, 1), F)], kron),
        case("kron bf16", [((3, 2), "bf16"), ((2, 37), "bf16")], kron),
        case("repeat", [((6, 11), F)], repeated),
        case("kron and more", [((3, 5), F), ((4, 18), F)], two),
        case("no elements", [((0, 5), F), ((4, 3), F)], kron),
    ]
    check(cases)
    text = emit_kernel(case("", [((30, 30), F)] * 2, kron).block, "k", host()).text
    assert "div <" not in text and "rem <" not in text


def test_large() -> None:
    """Several registers side by side, with every kind of rest."""
    assert prod((130, 131)) >= LONG

    def add(g, x, y):  # type: ignore[no-untyped-def]
        return g("add", g("multiply", x, y), g("tanh", x))

    def counted(g, x):  # type: ignore[no-untyped-def]
        return g("add", x, g("convert", g("iota", result=x.type, iota_dimension=1), result=x.type))

    def update(g, x, u, i, j):  # type: ignore[no-untyped-def]
        return g("dynamic_update_slice", x, g("negate", u), i, j)

    cases = []
    for shape in [(16384,), (16400,), (16401,), (40003,), (70000,), (130, 131), (20, 1000), (3, 8208), (256, 64)]:
        cases.append(case(f"add {shape}", [(shape, F), (shape, F)], add, tolerance=1e-6))
        cases.append(case(f"bf16 {shape}", [(shape, "bf16")], lambda g, x: g("negate", x)))
        cases.append(
            case(
                f"i8 f64 {shape}", [(shape, "i8")], lambda g, x: g("convert", x, result=Tensor(x.shape, DTYPES["f64"]))
            )
        )
    cases += [
        case("iota", [((130, 131), F)], counted),
        case("bias", [((300, 100), F), ((100,), F)], lambda g, x, b: g("add", x, broadcast(x.shape, (1,))(g, b))),
        case("heads", [((8, 40, 3, 64), F)], lambda g, x: g("transpose", x, permutation=(0, 2, 1, 3))),
        case(
            "update",
            [((150, 300), F), ((140, 201), F), ((), INT), ((), INT)],
            update,
            args=[sample((150, 300), F), sample((140, 201), F), np.asarray(3, np.int32), np.asarray(77, np.int32)],
            inplace=1,
        ),
    ]
    from dataclasses import replace

    check(cases)
    check(cases, replace(host(), vector_bytes=32))


def test_argmax() -> None:
    ties = np.round(sample((7, 130), F))
    # Of several NaNs the first counts, in whichever lane it is; rows of nothing else, and that never exceed the start.
    nans = ties.copy()
    nans[0, [70, 3, 129, 64]] = nans[1, [128, 127]] = nans[2, 129] = nans[3] = nans[4, [17, 33]] = np.nan
    nans[5] = -np.inf
    check(
        [
            case("argmax nan", [((7, 130), F)], lambda g, x: argmax(g, x, (1,)), args=[nans]),
            case("argmax nan 0", [((130, 7), F)], lambda g, x: argmax(g, x, (0,)), args=[nans.T]),
            case("argmax 1", [((7, 130), F)], lambda g, x: argmax(g, x, (1,)), args=[ties]),
            case("argmax 0", [((7, 130), F)], lambda g, x: argmax(g, x, (0,)), args=[ties]),
            case("index only", [((7, 130), F)], lambda g, x: argmax(g, x, (1,))[1], args=[ties]),
        ]
    )


def test_argmax_runs_along_lanes() -> None:
    """Float argmax does not commute (NaNs); with lanes over the rows every load would be a gather."""
    from ferrule.ops.starts import lane_starts, start_values

    g = Graph(Tensor((7, 130), DTYPES[F]))
    block = g.done(*argmax(g, *g.args, (1,)))
    (op,) = (op for op in block.ops if op.name == "reduce")
    assert start_values(op) is None and lane_starts(op) is not None
    assert "gather" not in emit_kernel(block, "k", host()).text


def test_nan_anywhere_is_the_maximum() -> None:
    """Of rows, of columns and of the middle, wherever the NaN stands."""
    cases = []
    for d in (F, "bf16", "f64"):
        x = sample((9, 40, 130), d)
        for k in range(9):
            x[k, 5 * k % 40, 17 * k % 130] = np.nan
        x[3], x[4, :, 7] = -np.inf, np.nan
        for axis in range(3):
            for name, init in (("maximum", -np.inf), ("minimum", np.inf)):
                build = lambda g, x, n=name, i=init, a=axis, d=d: g(  # noqa: E731
                    "reduce", x, g.const(i, d), dimensions=(a,), regions=[monoid(n, d)]
                )
                cases.append(case(f"{name} {d} {axis}", [((9, 40, 130), d)], build, args=[x]))
    check(cases)


def test_large_arrays_are_asked_for_ahead() -> None:
    """Along rows, once each; not where neighbours in the loop are far in memory, and not arrays that fit the caches."""

    def lines(build: Callable[..., Any], *shapes: tuple[int, ...], d: str = F, cpu: str = "x86-64") -> int:
        block = case("", [(s, d) for s in shapes], build).block
        return emit_kernel(block, "k", replace(host(), cpu=cpu)).text.count("prefetch")

    def total(axis):  # type: ignore[no-untyped-def]
        return lambda g, x: g("reduce", x, g.const(0, F), dimensions=(axis,), regions=[monoid("add", F)])

    add = lambda g, x, y: g("add", x, y)  # noqa: E731
    assert lines(add, (1 << 23,), (1 << 23,), d="bf16") > 0 and lines(add, (1 << 12,), (1 << 12,)) == 0
    assert lines(total(1), (4096, 1024)) > 0 and lines(total(1), (40, 1024)) == 0
    assert lines(total(0), (4096, 1024)) == 0
    # Zen 4 is slower for it.
    assert lines(add, (1 << 23,), (1 << 23,), d="bf16", cpu="znver4") == 0
    assert lines(total(1), (4096, 1024), cpu="znver4") == 0


def window(name: str, d: str, init: float, **attrs):  # type: ignore[no-untyped-def]
    return lambda g, x: g("reduce_window", x, g.const(init, d), regions=[monoid(name, d)], **attrs)


def test_windows() -> None:
    check(
        [
            case(
                "max pool",
                [((2, 9, 33, 3), F)],
                window("maximum", F, -np.inf, window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1)),
            ),
            case(
                "same pool",
                [((2, 9, 33), F)],
                window("add", F, 0, window_dimensions=(1, 3, 3), padding=((0, 0), (1, 1), (1, 1))),
                tolerance=1e-5,
            ),
            case(
                "dilated",
                [((9, 33), F)],
                window(
                    "add",
                    F,
                    0,
                    window_dimensions=(2, 3),
                    window_dilations=(2, 3),
                    base_dilations=(2, 1),
                    padding=((1, 0), (2, 1)),
                ),
                tolerance=1e-5,
            ),
            case(
                "init",
                [((9, 33), F)],
                window("add", F, 1, window_dimensions=(3, 1), padding=((1, 1), (0, 0))),
                tolerance=1e-5,
            ),
            case(
                "cumsum",
                [((5, 40), F)],
                window("add", F, 0, window_dimensions=(1, 40), padding=((0, 0), (39, 0))),
                tolerance=1e-5,
            ),
            case(
                "cumsum 0",
                [((5, 40), F)],
                window("add", F, 0, window_dimensions=(5, 1), padding=((4, 0), (0, 0))),
                tolerance=1e-5,
            ),
            case(
                "cumsum back",
                [((5, 40), F)],
                window("add", F, 0, window_dimensions=(1, 40), padding=((0, 0), (0, 39))),
                tolerance=1e-5,
            ),
            case(
                "cumsum back, vectors and a rest",
                [((3, 77), F)],
                window("add", F, 0, window_dimensions=(1, 77), padding=((0, 0), (0, 76))),
                tolerance=1e-5,
            ),
            case(
                "cumsum f64",
                [((1001,), "f64")],
                window("add", "f64", 0, window_dimensions=(1001,), padding=((1000, 0),)),
                tolerance=1e-12,
            ),
            case(
                "cumsum complex",
                [((40,), "complex<f32>")],
                window("add", "complex<f32>", 0, window_dimensions=(40,), padding=((39, 0),)),
                tolerance=1e-5,
            ),
            case(
                "cumprod bf16",
                [((2, 33), "bf16")],
                window("multiply", "bf16", 1, window_dimensions=(1, 33), padding=((0, 0), (32, 0))),
                tolerance=2e-2,
            ),
            case(
                "any so far",
                [((130,), "i1")],
                window("or", "i1", False, window_dimensions=(130,), padding=((129, 0),)),
            ),
            case(
                "cumsum int",
                [((3, 99), INT)],
                window("add", INT, 0, window_dimensions=(1, 99), padding=((0, 0), (98, 0))),
            ),
            case(
                "cummin of a row",
                [((99,), F)],
                window("minimum", F, np.inf, window_dimensions=(99,), padding=((98, 0),)),
            ),
            case(
                "cummax",
                [((40, 35), INT)],
                window("maximum", INT, -(1 << 31), window_dimensions=(40, 1), padding=((39, 0), (0, 0))),
            ),
            case(
                "cumprod f16",
                [((6, 5), "f16")],
                window("multiply", "f16", 1, window_dimensions=(6, 1), padding=((5, 0), (0, 0))),
                tolerance=2e-3,
            ),
        ]
    )


def test_running_totals_along_vectors() -> None:
    """NaN and infinities reach what comes after them and nothing before."""
    x = np.arange(70, dtype=np.float32)
    x[21], x[40], x[53] = np.inf, -np.inf, np.nan
    cases = []
    for padding in ((0, 69), (69, 0)):
        for name, init in (("add", 0), ("maximum", -np.inf), ("minimum", np.inf)):
            form = window(name, F, init, window_dimensions=(70,), padding=(padding,))
            cases.append(case(f"{name} {padding}", [((70,), F)], form, args=[x]))
    assert "shufflevector" in emit_kernel(cases[0].block, "k", host()).text
    check(cases)


def test_select_and_scatter() -> None:
    def back(strides, padding, sizes):  # type: ignore[no-untyped-def]
        return lambda g, x, s: g(
            "select_and_scatter",
            x,
            s,
            g.const(0, F),
            regions=[body([F, F], lambda g, a, b: g("compare", a, b, comparison_direction="GE")), monoid("add", F)],
            window_dimensions=sizes,
            window_strides=strides,
            padding=padding,
        )

    check(
        [
            case("pool 2x2", [((2, 8, 34), F), ((2, 4, 17), F)], back((1, 2, 2), ((0, 0),) * 3, (1, 2, 2))),
            case("pool 3x3", [((7, 33), F), ((4, 17), F)], back((2, 2), ((1, 1), (1, 1)), (3, 3)), tolerance=1e-5),
        ]
    )


def test_products() -> None:
    def dot(dims, d):  # type: ignore[no-untyped-def]
        def build(g, a, b):  # type: ignore[no-untyped-def]
            from ferrule.ir import Op
            from ferrule.ops import OPS

            shapes = OPS["dot_general"].infer(
                Op("dot_general", [a, b], [Tensor((), DTYPES[d])], {"dot_dimension_numbers": dims})
            )
            return g("dot_general", a, b, result=shapes[0], dot_dimension_numbers=dims)

        return build

    matmul, batched = DotDims((), (), (1,), (0,)), DotDims((0,), (0,), (2,), (1,))
    two = DotDims((), (), (0, 1), (1, 0))
    check(
        [
            case("matmul", [((3, 5), F), ((5, 33), F)], dot(matmul, F), tolerance=1e-5),
            case("matmul bf16", [((3, 5), "bf16"), ((5, 33), "bf16")], dot(matmul, "bf16"), tolerance=1e-2),
            case("matmul i8", [((3, 5), "i8"), ((5, 33), "i8")], dot(matmul, INT)),
            case(
                "matmul c64",
                [((3, 5), "complex<f32>"), ((5, 33), "complex<f32>")],
                dot(matmul, "complex<f32>"),
                tolerance=1e-5,
            ),
            case("batched", [((2, 3, 5), F), ((2, 5, 17), F)], dot(batched, F), tolerance=1e-5),
            case("two dims", [((4, 5, 3), F), ((5, 4, 7), F)], dot(two, F), tolerance=1e-5),
        ]
    )


def test_convolutions() -> None:
    nhwc = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    nchw = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))

    def conv(dims, **attrs):  # type: ignore[no-untyped-def]
        def build(g, x, k):  # type: ignore[no-untyped-def]
            from ferrule.ir import Op
            from ferrule.ops import OPS

            attrs["dimension_numbers"] = dims
            shapes = OPS["convolution"].infer(Op("convolution", [x, k], [Tensor((), x.dtype)], dict(attrs)))
            return g("convolution", x, k, result=shapes[0], **attrs)

        return build

    check(
        [
            case("plain", [((2, 7, 8, 3), F), ((3, 3, 3, 5), F)], conv(nhwc), tolerance=1e-4),
            case(
                "same strided",
                [((2, 7, 18, 3), F), ((3, 3, 3, 5), F)],
                conv(nhwc, window_strides=(2, 2), padding=((1, 1), (1, 1))),
                tolerance=1e-4,
            ),
            case(
                "transposed",
                [((1, 5, 6, 3), F), ((3, 3, 3, 4), F)],
                conv(nhwc, lhs_dilation=(2, 2), padding=((2, 2), (2, 1)), window_reversal=(True, False)),
                tolerance=1e-4,
            ),
            case(
                "grouped",
                [((2, 4, 7, 20), F), ((6, 2, 3, 3), F)],
                conv(nchw, feature_group_count=2, rhs_dilation=(1, 2)),
                tolerance=1e-4,
            ),
            case(
                "batch groups", [((4, 2, 7, 7), F), ((6, 2, 3, 3), F)], conv(nchw, batch_group_count=2), tolerance=1e-4
            ),
        ]
    )


def test_gather() -> None:
    def take(dims, sizes):  # type: ignore[no-untyped-def]
        return lambda g, x, i: g("gather", x, i, dimension_numbers=dims, slice_sizes=sizes, indices_are_sorted=False)

    rows = GatherDims((1,), (0,), (), (), (0,), 1)
    points = GatherDims((), (0, 1), (), (), (0, 1), 1)
    blocks = GatherDims((1, 2), (), (), (), (0, 1), 1)
    batched = GatherDims((1,), (0,), (0,), (0,), (0,), 1)
    del batched
    along = GatherDims((), (1,), (0,), (0,), (1,), 2)

    def several(g, x, i):  # type: ignore[no-untyped-def]
        """More than are written as loads."""
        total = None
        for k in range(6):
            part = g("slice", x, start_indices=(k, 0, 0), limit_indices=(k + 1, 4, 9), strides=(1, 1, 1))
            found = take(along, (1, 1))(g, reshape(g, part, (4, 9)), i)
            total = found if total is None else g("add", total, found)
        return total

    few = np.random.default_rng(1).integers(-3, 14, (4, 32, 1)).astype(np.int32)
    index = lambda *shape: np.random.default_rng(1).integers(-3, 14, shape)  # noqa: E731
    check(
        [
            case(
                "rows",
                [((11, 40), F), ((5, 1), INT)],
                take(rows, (1, 40)),
                args=[sample((11, 40), F), index(5, 1).astype(np.int32)],
            ),
            case(
                "points",
                [((11, 9), F), ((37, 2), "i64")],
                take(points, (1, 1)),
                args=[sample((11, 9), F), index(37, 2)],
            ),
            case(
                "points ui8",
                [((11, 9), F), ((37, 2), "ui8")],
                take(points, (1, 1)),
                args=[sample((11, 9), F), index(37, 2).astype(np.uint8)],
            ),
            case(
                "blocks",
                [((11, 40), F), ((5, 2), INT)],
                take(blocks, (3, 20)),
                args=[sample((11, 40), F), index(5, 2).astype(np.int32)],
            ),
            case(
                "along",
                [((4, 9), F), ((4, 30, 1), INT)],
                take(along, (1, 1)),
                args=[sample((4, 9), F), index(4, 30, 1).astype(np.int32)],
            ),
            *(
                case(
                    f"along {d}",
                    [((4, 9), d), ((4, 32, 1), "i64")],
                    take(along, (1, 1)),
                    args=[sample((4, 9), d), index(4, 32, 1)],
                )
                for d in ("f64", "bf16", "complex<f32>", "complex<f64>", "i1")
            ),
            case(
                "embedding",  # the next rows are asked for
                [((50, 96), F), ((300, 1), INT)],
                lambda g, x, i: g("negate", take(rows, (1, 96))(g, x, i)),
                args=[sample((50, 96), F), np.random.default_rng(2).integers(-9, 70, (300, 1)).astype(np.int32)],
            ),
            case("six gathers", [((6, 4, 9), F), ((4, 32, 1), INT)], several, args=[sample((6, 4, 9), F), few]),
            case(
                "bf16 rows",
                [((11, 40), "bf16"), ((5, 1), INT)],
                take(rows, (1, 40)),
                args=[sample((11, 40), "bf16"), index(5, 1).astype(np.int32)],
            ),
        ]
    )


def test_threads_share_the_windows_of_a_scatter() -> None:
    """Places repeat, so each element's updates stay in order; threads have parts of the rows."""
    from dataclasses import replace

    dims = ScatterDims((1,), (0,), (), (), (0,), 1)
    where = np.random.default_rng(4).integers(-3, 14, (700, 1)).astype(np.int32)

    def scatter(g, x, i, u):  # type: ignore[no-untyped-def]
        return g(
            "scatter",
            x,
            i,
            u,
            regions=[body([F, F], lambda g, a, b: g("subtract", g("multiply", a, g.const(0.5, F)), b))],
            scatter_dimension_numbers=dims,
            unique_indices=False,
            indices_are_sorted=False,
        )

    cases = [
        case(
            f"rows of {width}",
            [((11, width), F), ((700, 1), INT), ((700, width), F)],
            scatter,
            args=[sample((11, width), F), where, sample((700, width), F)],
            inplace=1,
            tolerance=1e-6,
        )
        for width in (512, 517, 1000)
    ]
    machine = replace(host(), threads=4)
    assert [emit_kernel(c.block, "k", machine).grid for c in cases] == [4, 4, 4]
    check(cases, machine)
    check(cases, replace(machine, vector_bytes=32))


def test_updates() -> None:
    def dus(g, x, u, a, b):  # type: ignore[no-untyped-def]
        return g("dynamic_update_slice", x, g("negate", u), a, b)

    def scatter(dims, region, unique=False):  # type: ignore[no-untyped-def]
        return lambda g, x, i, u: g(
            "scatter",
            x,
            i,
            u,
            regions=[region],
            scatter_dimension_numbers=dims,
            unique_indices=unique,
            indices_are_sorted=False,
        )

    rows = ScatterDims((1,), (0,), (), (), (0,), 1)
    points = ScatterDims((), (0, 1), (), (), (0, 1), 1)
    blocks = ScatterDims((1, 2), (), (), (), (0, 1), 1)
    index = lambda *shape: np.random.default_rng(1).integers(-3, 14, shape).astype(np.int32)  # noqa: E731
    replace = body([F, F], lambda g, a, b: b)
    at = lambda a, b: [np.asarray(a, np.int32), np.asarray(b, np.int32)]  # noqa: E731
    check(
        [
            case(
                "dus",
                [((9, 40), F), ((3, 20), F), ((), INT), ((), INT)],
                dus,
                args=[sample((9, 40), F), sample((3, 20), F), *at(2, 99)],
                inplace=1,
            ),
            case(
                "dus rows",
                [((9, 40), F), ((3, 40), F), ((), INT), ((), INT)],
                dus,
                args=[sample((9, 40), F), sample((3, 40), F), *at(2, 99)],
                inplace=1,
            ),
            case(
                "dus none",
                [((9, 40), F), ((0, 40), F), ((), INT), ((), INT)],
                dus,
                args=[sample((9, 40), F), sample((0, 40), F), *at(2, 99)],
                inplace=1,
            ),
            case(
                "rows add",
                [((11, 40), F), ((50, 1), INT), ((50, 40), F)],
                scatter(rows, monoid("add", F)),
                args=[sample((11, 40), F), index(50, 1), sample((50, 40), F)],
                inplace=1,
                tolerance=1e-5,
            ),
            case(
                "points max",
                [((11, 9), F), ((37, 2), INT), ((37,), F)],
                scatter(points, monoid("maximum", F)),
                args=[sample((11, 9), F), index(37, 2), sample((37,), F)],
                inplace=1,
            ),
            case(
                "blocks add",
                [((11, 40), F), ((5, 2), INT), ((5, 3, 20), F)],
                scatter(blocks, monoid("add", F)),
                args=[sample((11, 40), F), index(5, 2), sample((5, 3, 20), F)],
                inplace=1,
                tolerance=1e-5,
            ),
            case(
                "unique replace",
                [((11, 40), F), ((11, 1), INT), ((11, 40), F)],
                scatter(rows, replace, True),
                args=[
                    sample((11, 40), F),
                    np.random.default_rng(3).permutation(14)[:11].reshape(11, 1).astype(np.int32),
                    sample((11, 40), F),
                ],
                inplace=1,
            ),
            case(
                "points i8",
                [((11, 9), "i8"), ((37, 2), INT), ((37,), "i8")],
                scatter(points, monoid("add", "i8")),
                args=[sample((11, 9), "i8"), index(37, 2), sample((37,), "i8")],
                inplace=1,
            ),
        ]
    )


def random_bits(algorithm: str, t: Tensor, k: int):  # type: ignore[no-untyped-def]
    return lambda g, s: g("rng_bit_generator", s, result=[s.type, t], rng_algorithm=algorithm)[k]


def test_random_bits() -> None:
    cases = []
    for algorithm in ("THREE_FRY", "PHILOX", "DEFAULT"):
        for d in ("ui32", "ui64", "ui8", "i16", "f32"):
            for shape in [(5, 7), (4, 33), ()]:
                size = 3 if algorithm == "DEFAULT" else 2
                state = np.array([0x123456789ABCDEF0, 0xFFFFFFFFFFFFFFFE, 5][:size], np.uint64)
                for k in (0, 1):
                    cases.append(
                        case(
                            f"{algorithm} {d} {shape} {k}",
                            [((size,), "ui64")],
                            random_bits(algorithm, Tensor(shape, DTYPES[d]), k),
                            args=[state],
                        )
                    )
    check([c for c in cases if c.block.results[0].dtype.name != "f32"])


def test_bitcasts() -> None:
    def cast(shape, d):  # type: ignore[no-untyped-def]
        return lambda g, x: g("bitcast_convert", x, result=Tensor(shape, DTYPES[d]))

    check(
        [
            case("f32 i32", [((3, 20), F)], cast((3, 20), INT)),
            case("f32 ui8", [((3, 20), F)], cast((3, 20, 4), "ui8")),
            case("ui8 f32", [((3, 20, 4), "ui8")], cast((3, 20), "ui32")),
            case("i64 bf16", [((20,), "i64")], cast((20, 4), "ui16")),
            case("c64 i64", [((20,), "complex<f32>")], cast((20,), "i64")),
            case("ui8 ui4", [((20,), "ui8")], cast((20, 2), "ui4")),
            case("ui4 ui8", [((20, 2), "ui4")], cast((20,), "ui8")),
            case("c128 f64", [((20,), "complex<f64>")], cast((20, 2), "f64")),
            case("f64 c128", [((20, 2), "f64")], cast((20,), "complex<f64>")),
            case("c128 i32", [((20,), "complex<f64>")], cast((20, 4), "i32")),
            case("ui8 c64", [((20, 8), "ui8")], cast((20,), "complex<f32>")),
        ]
    )


def test_map() -> None:
    def mapped(g, x, y):  # type: ignore[no-untyped-def]
        inner = body([F, F], lambda g, a, b: g("subtract", g("multiply", a, b), b))
        return g("map", x, y, dimensions=(0,), regions=[inner])

    check([case("map", [((45,), F), ((45,), F)], mapped)])


def test_other_machines() -> None:
    """Vectors of 32 and 16 bytes have scalar tails instead of masks."""
    from dataclasses import replace

    from ferrule.targets.cpu import host

    cases: list[Case] = [
        case("bias", [((9, 19), F), ((19,), F)], lambda g, x, b: g("add", x, broadcast(x.shape, (1,))(g, b))),
        case("sum", [((9, 131), F)], reduction("add", F, (1,)), tolerance=1e-4),
        case("pad", [((5, 21), F), ((), F)], pad((2, 3), (1, 4), (0, 0))),
        case("argmax", [((7, 130), F)], lambda g, x: argmax(g, x, (1,))),
    ]
    for size in (32, 16):
        check(cases, replace(host(), vector_bytes=size))


def test_a_product_counts_two_operations_for_each_term():
    block = Block([Tensor((8, 16), DTYPES[F]), Tensor((16, 4), DTYPES[F])])
    dims = DotDims((), (), (1,), (0,))
    block.results = block.add(
        "dot_general", block.args, Tensor((8, 4), DTYPES[F]), {"dot_dimension_numbers": dims}
    ).results
    assert work(block) == (2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4))
