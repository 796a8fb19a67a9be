"""Operands that are read across: squares of rows and lanes change places in registers, complex numbers' both parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fused import Case, Graph, case, check, registers

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

SHAPES = [(8, 8), (64, 96), (5, 130), (33, 65), (4, 1), (3, 31, 37), (40, 3, 16)]


# What crosses is shorter than a square's side, on one side or on both: the next dimensions go with it.
SHORT = [
    ((3, 22, 16, 2, 64), (2, 3, 4, 1, 0)),
    ((24, 9, 4, 3, 8, 8), (1, 4, 2, 5, 0, 3)),
    ((3, 6, 64, 51), (1, 3, 2, 0)),
    ((14, 6, 24, 6, 5), (0, 4, 2, 1, 3)),
    ((9, 32, 14, 33), (3, 1, 0, 2)),
    ((3, 12, 9, 2, 6, 32), (1, 2, 4, 5, 3, 0)),
    ((6, 8, 10, 4, 20, 2), (2, 4, 5, 3, 1, 0)),
]


def turned(g: Graph, x: Value) -> Value:
    """The last dimension first."""
    rank = len(x.shape)
    return g("transpose", x, permutation=(rank - 1, *range(rank - 1)))


def moved(g: Graph, x: Value, order: tuple[int, ...]) -> Value:
    return g("transpose", x, permutation=order)


def cases(dtype: str) -> list[Case]:
    made = []
    for shape in SHAPES:
        across = (shape[-1], *shape[:-1])
        made += [
            case(f"turned {shape}", [(shape, dtype)], turned),
            case(f"and added {shape}", [(shape, dtype), (across, dtype)], lambda g, x, y: g("add", turned(g, x), y)),
            case(
                f"less itself {shape}",
                [(shape, dtype)],
                lambda g, x: g("subtract", turned(g, x), g("negate", turned(g, x))),
            ),
        ]
    return made


@pytest.mark.parametrize("size", registers(64, 32, 16))
@pytest.mark.parametrize("dtype", ["complex<f32>", "complex<f64>", "f32", "f64", "bf16", "i8"])
def test_squares_and_edges(dtype: str, size: int) -> None:
    check(cases(dtype), replace(host(), vector_bytes=size))


def test_parts_beside_real_numbers() -> None:
    def build(g: Graph, x: Value, y: Value) -> Value:
        return g("multiply", turned(g, g("real", x)), turned(g, y))

    check([case("real", [((70, 37), "complex<f32>"), ((70, 37), "f32")], build, tolerance=1e-6)])


@pytest.mark.parametrize("dtype", ["complex<f32>", "complex<f64>"])
def test_complex_numbers_are_not_gathered(dtype: str) -> None:
    g = Graph(Tensor((128, 128), DTYPES[dtype]))
    text = emit_kernel(g.done(turned(g, g.args[0])), "k", replace(host(), vector_bytes=32)).text
    assert "gather" not in text


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_few_images_are_turned_in_squares(count: int) -> None:
    g = Graph(Tensor((count, 96, 64), DTYPES["f32"]))
    text = emit_kernel(g.done(g("transpose", g.args[0], permutation=(0, 2, 1))), "k", host()).text
    assert "squares" in text


@pytest.mark.parametrize("size", registers(64, 32, 16))
@pytest.mark.parametrize("dtype", ["complex<f32>", "f32", "f64", "bf16", "i8"])
def test_short_dimensions_go_together(dtype: str, size: int) -> None:
    made = []
    for shape, order in SHORT:
        across = tuple(shape[d] for d in order)
        made.append(case(f"{shape} {order}", [(shape, dtype)], partial(moved, order=order)))
        made.append(
            case(
                f"added {shape} {order}",
                [(shape, dtype), (across, dtype)],
                lambda g, x, y, order=order: g("add", moved(g, x, order), y),
            )
        )
    check(made, replace(host(), vector_bytes=size))


@pytest.mark.parametrize(("shape", "order"), SHORT)
def test_they_are_turned_in_squares(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    g = Graph(Tensor(shape, DTYPES["f32"]))
    text = emit_kernel(g.done(moved(g, g.args[0], order)), "k", host()).text
    assert "squares" in text and "gather" not in text


def factored(g: Graph, x: Value, y: Value, order: tuple[int, ...], along: int) -> Value:
    """Times a factor of its own for each place along one dimension of the result."""
    across = moved(g, x, order)
    type = Tensor(across.shape, x.dtype)
    return g("multiply", across, g("broadcast_in_dim", y, result=type, broadcast_dimensions=(along,)))


FACTORED = [
    ((4, 20, 32, 16), (1, 2, 3, 0)),
    ((256, 20, 48), (2, 0, 1)),
    ((40, 7, 35), (2, 0, 1)),
    ((9, 64, 33), (1, 2, 0)),
]


@pytest.mark.parametrize("size", registers(64, 32))
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
def test_with_a_factor_along_a_dimension(dtype: str, size: int) -> None:
    made = [
        case(
            f"{shape} {order} along {along}",
            [(shape, dtype), ((shape[order[along]],), dtype)],
            partial(factored, order=order, along=along),
        )
        for shape, order in FACTORED
        for along in range(len(shape))
    ]
    check(made, replace(host(), vector_bytes=size))


@pytest.mark.parametrize("along", range(4))
def test_only_what_is_large_is_turned_in_squares(along: int) -> None:
    """A few images side by side are interleaved; a factor for each row does not change that."""
    shape, order = FACTORED[0]
    g = Graph(Tensor(shape, DTYPES["f32"]), Tensor((shape[order[along]],), DTYPES["f32"]))
    text = emit_kernel(g.done(factored(g, *g.args, order, along)), "k", host()).text
    assert "squares" not in text and "gather" not in text


def flipped(g: Graph, x: Value, *dims: int) -> Value:
    return g("reverse", x, dimensions=dims)


def cropped(g: Graph, x: Value, low: int, shape: Sequence[int], step: int = 1) -> Value:
    """From `low` on in each dimension."""
    ends = tuple(low + step * (n - 1) + 1 for n in shape)
    return g("slice", x, start_indices=(low,) * len(shape), limit_indices=ends, strides=(step,) * len(shape))


def placed(g: Graph, x: Value, at: tuple[Value, ...], shape: tuple[int, ...]) -> Value:
    return g("dynamic_slice", x, *at, slice_sizes=shape)


# What is read across is a part of an array, or goes against the order of its memory, or both: from an array that is
# larger by 5, and places.
PARTS = {
    "flipped": lambda g, x, shape, at: turned(g, flipped(g, cropped(g, x, 0, shape), len(shape) - 1)),
    "turned, then flipped": lambda g, x, shape, at: flipped(g, turned(g, cropped(g, x, 0, shape)), 0),
    "all flipped": lambda g, x, shape, at: turned(g, flipped(g, cropped(g, x, 0, shape), *range(len(shape)))),
    "cropped": lambda g, x, shape, at: turned(g, cropped(g, x, 2, shape)),
    "flipped, cropped": lambda g, x, shape, at: turned(g, cropped(g, flipped(g, x, *range(len(shape))), 2, shape)),
    "cropped, flipped": lambda g, x, shape, at: flipped(g, turned(g, cropped(g, x, 3, shape)), 0, 1),
    "cropped twice": lambda g, x, shape, at: turned(g, cropped(g, cropped(g, x, 1, [n + 2 for n in shape]), 2, shape)),
    "somewhere": lambda g, x, shape, at: turned(g, placed(g, x, at, shape)),
    "somewhere, flipped": lambda g, x, shape, at: turned(g, flipped(g, placed(g, x, at, shape), len(shape) - 1)),
}


def less(g: Graph, x: Value, shape: tuple[int, ...], at: tuple[Value, ...]) -> Value:
    return turned(g, g("subtract", cropped(g, x, 2, shape), cropped(g, x, 0, shape)))


def less_turned(g: Graph, x: Value, shape: tuple[int, ...], at: tuple[Value, ...]) -> Value:
    part = cropped(g, x, 1, shape)
    return turned(g, g("subtract", flipped(g, part, len(shape) - 1), part))


def every_other(g: Graph, x: Value, shape: tuple[int, ...], at: tuple[Value, ...]) -> Value:
    return turned(g, cropped(g, x, 1, tuple(n // 2 for n in shape), 2))


MORE = {"neighbours": less, "both ways": less_turned, "every other": every_other}


def part(build: Any, shape: tuple[int, ...], dtype: str) -> Case:
    types = [(tuple(n + 5 for n in shape), dtype), *[((), "i32")] * len(shape)]
    return case(f"{shape}", types, lambda g, x, *at: build(g, x, shape, at))


@pytest.mark.parametrize("size", registers(64, 32))
@pytest.mark.parametrize("dtype", ["complex<f32>", "f32", "f64", "bf16", "i8"])
@pytest.mark.parametrize("way", [*PARTS, *MORE])
def test_parts_and_mirrored_ones(way: str, dtype: str, size: int) -> None:
    shapes = [(64, 96), (33, 65), (3, 31, 37), (40, 3, 16)]
    check([part({**PARTS, **MORE}[way], shape, dtype) for shape in shapes], replace(host(), vector_bytes=size))


@pytest.mark.parametrize("way", PARTS)
def test_a_part_is_read_as_rows_of_its_memory(way: str) -> None:
    """Each row once: what all rows of a square begin with is the same address."""
    block = part(PARTS[way], (64, 96), "f32").block
    text = emit_kernel(block, "k", replace(host(), vector_bytes=64)).text
    assert (text.count("load <16 x float>"), text.count("load float")) == (16, 0)


def pixels(g: Graph, x: Value) -> Value:
    return g("transpose", x, permutation=(0, 2, 1, 3))


def padded(g: Graph, x: Value, low: int, high: int, apart: int) -> Value:
    ends = {"edge_padding_low": (0, low, low, 0), "edge_padding_high": (0, high, high, 0)}
    return g("pad", x, g.const(1, x.dtype.name), **ends, interior_padding=(0, apart, apart, 0))


def rolled(g: Graph, x: Value) -> Value:
    *others, wide, channels = x.shape
    ends = [(7, wide), (0, 7)]
    halves = [
        g("slice", x, start_indices=(0, 0, a, 0), limit_indices=(*others, b, channels), strides=(1,) * 4)
        for a, b in ends
    ]
    return g("concatenate", *halves, dimension=2)


PIXELS = {
    "turned": pixels,
    "a quarter": lambda g, x: flipped(g, pixels(g, x), 1),
    "three quarters": lambda g, x: pixels(g, flipped(g, x, 1)),
    "cropped": lambda g, x: pixels(g, cropped(g, x, 0, (2, 24, 35, x.shape[3]))),
    "rolled": lambda g, x: pixels(g, rolled(g, x)),
    "with a border": lambda g, x: pixels(g, padded(g, x, 2, 1, 0)),
    "apart": lambda g, x: pixels(g, padded(g, x, 0, 0, 1)),
}


@pytest.mark.parametrize("way", PIXELS)
@pytest.mark.parametrize("dtype", ["f32", "i8", "bf16"])
def test_pixels_in_tiles(dtype: str, way: str) -> None:
    check([case(f"{way} {n}", [((2, 26, 40, n), dtype)], PIXELS[way]) for n in (2, 3, 4)], host())
    g = Graph(Tensor((2, 26, 40, 3), DTYPES[dtype]))
    text = emit_kernel(g.done(PIXELS[way](g, g.args[0])), "k", host()).text
    assert ("runs" in text) == (way != "apart")


BY_ROWS = {
    "odd rows": ((700, 701), "f32", {}, True),
    "complex": ((501, 503), "complex<f32>", {}, True),
    "half lines": ((680, 701), "f32", {}, False),
    "few": ((300, 301), "f32", {}, False),
    "more than caches": ((2001, 2003), "f32", {}, False),
    "for more threads": ((2001, 2003), "f32", {"threads": 16}, False),
    "columns that share places": ((701, 704), "f32", {}, False),
    "columns beside each other": ((7001, 101), "f32", {}, False),
    "long columns": ((3001, 301), "f32", {}, False),
    "small elements": ((1401, 1403), "bf16", {}, False),
    "another maker's": ((700, 701), "f32", {"cpu": "znver4"}, False),
}


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_that_begin_anywhere_are_read_by_columns(name: str) -> None:
    shape, dtype, machine, by_rows = BY_ROWS[name]
    here = replace(host(), vector_bytes=64, cpu="sapphirerapids", second_cache_bytes=2 << 20, threads=2)
    here = replace(here, **machine)
    g = Graph(Tensor(shape, DTYPES[dtype]))
    text = emit_kernel(g.done(turned(g, g.args[0])), "k", here).text
    assert ("squares" in text) != by_rows


def test_what_is_computed_or_read_twice_stays_in_squares() -> None:
    here = replace(host(), vector_bytes=64, cpu="sapphirerapids", second_cache_bytes=2 << 20, threads=2)
    g = Graph(Tensor((700, 701), DTYPES["f32"]))
    assert "squares" in emit_kernel(g.done(g("exponential", turned(g, g.args[0]))), "k", here).text


@pytest.mark.parametrize("cpu, instruction", [("sapphirerapids", True), ("znver4", False), ("icelake-server", False)])
def test_gathers(cpu: str, instruction: bool) -> None:
    """Lanes from addresses of their own: by one instruction where that is fast."""
    here = replace(host(), vector_bytes=64, triple="x86_64-unknown-linux-gnu", cpu=cpu)
    g = Graph(Tensor((64, 96), DTYPES["f32"]))
    text = emit_kernel(
        g.done(g("slice", g.args[0], start_indices=(0, 0), limit_indices=(64, 96), strides=(1, 16))), "k", here
    ).text
    assert ("llvm.masked.gather" in text) == instruction


@pytest.mark.parametrize("up", [True, False])
def test_nothing_is_read_beside_an_array(up: bool) -> None:
    """Of a padded array the first row of a square may be outside, where the others are known to be inside."""

    def build(g: Graph, x: Value, y: Value) -> Value:
        part = g("slice", y, start_indices=(0, 0), limit_indices=(x.shape[0], x.shape[1] - 1), strides=(1, 1))
        around = {"edge_padding_low": (0, 1), "edge_padding_high": (0, 0), "interior_padding": (0, 0)}
        padded = g("pad", part, g.const(7, "f32"), **around)
        return g("add", turned(g, x), turned(g, padded if up else flipped(g, padded, 1)))

    check([case(f"padded {shape}", [(shape, "f32")] * 2, build) for shape in ((64, 96), (33, 65))])
    g = Graph(*[Tensor((64, 96), DTYPES["f32"])] * 2)
    text = emit_kernel(g.done(build(g, *g.args)), "k", replace(host(), vector_bytes=64)).text
    assert "squares" in text and text.count("load <16 x float>") == 16


def test_what_is_not_even_is_not_read_in_squares() -> None:
    """Of a border each square would be of single elements; of a part the rows do not follow each other."""

    def text(build: Any, shape: tuple[int, ...]) -> str:
        g = Graph(Tensor(shape, DTYPES["f32"]))
        return emit_kernel(g.done(build(g, g.args[0])), "k", replace(host(), vector_bytes=64)).text

    def bordered(g: Graph, x: Value) -> Value:
        around = {"edge_padding_low": (0, 1), "edge_padding_high": (0, 1), "interior_padding": (0, 0)}
        return turned(g, g("pad", x, g.const(0, "f32"), **around))

    def channels_first(g: Graph, x: Value) -> Value:
        return moved(g, cropped(g, x, 0, (2, 24, 37, 8)), (0, 3, 1, 2))

    assert "squares" in text(turned, (64, 96)) and "squares" not in text(bordered, (64, 96))
    found = text(channels_first, (2, 24, 40, 8))
    assert "load <8 x float>" in found and found.count("load float") == 0
