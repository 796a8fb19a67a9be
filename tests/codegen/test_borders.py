"""Rotated, joined and padded arrays in kernels that select from the parts: rows cut where these meet, and one place
chosen where all parts are slices of one array."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from fused import Graph, case, check, evaluate, sample

from ferrule.codegen.borders import WIDE, Parts, parts, pieces
from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.passes.expand import expand
from ferrule.targets.cpu import host

# Where rows and their pieces are not gone over by lines of memory, whose ends are masked (codegen/whole_lines.py).
NO_LINES = replace(host(), vector_bytes=32, cpu="znver3")


def cut(g, x, axis, start, end):
    starts, ends = [0] * len(x.shape), list(x.shape)
    starts[axis], ends[axis] = start, end
    return g("slice", x, start_indices=tuple(starts), limit_indices=tuple(ends), strides=(1,) * len(starts))


def roll(g, x, axis, by):
    n = x.shape[axis]
    at = -by % n
    return g("concatenate", cut(g, x, axis, at, n), cut(g, x, axis, 0, at), dimension=axis) if at else x


def stencil(g, x, distances=(1, -1)):
    total = x
    for axis in range(len(x.shape)):
        for by in distances:
            total = g("add" if x.dtype.kind != "bool" else "xor", total, roll(g, x, axis, by))
    return total


def pad(g, x, low, high, inner=None):
    amounts = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": inner or (0,) * len(low)}
    return g("pad", x, g.const(7, x.dtype.name), **amounts)


@pytest.mark.parametrize(
    "dtypes",
    [("f32", "f64", "i1"), ("bf16", "f16", "i32", "ui64"), ("i8", "ui8", "f8E4M3FN", "i16"), ("complex<f32>", "i4")],
)
def test_dtypes(dtypes: tuple[str, ...]) -> None:
    types = [(s, d) for d in dtypes for s in ((9, 130), (4, 256))]
    check([case(f"{t}", [t], lambda g, x: roll(g, roll(g, x, 1, 3), 0, -2)) for t in types])
    sums = [t for t in types if t[1] not in ("f8E4M3FN", "i4")]
    check([case(f"{t}", [t], stencil, tolerance=0.1 if t[1] in ("bf16", "f16") else 0.0) for t in sums])


@pytest.mark.parametrize("shape", [(1, 16), (5, 17), (3, 31), (2, 64), (3, 4, 48), (70, 33), (2, 3, 5, 160), (9000,)])
@pytest.mark.parametrize("distances", [(1, -1), (1, -1, 2, -2), (16, -7)])
def test_stencils(shape: tuple[int, ...], distances: tuple[int, ...]) -> None:
    check([case("", [(shape, "f32")], lambda g, x: stencil(g, x, distances))])
    narrow = replace(host(), vector_bytes=16)
    check([case("", [(shape, "f32")], lambda g, x: stencil(g, x, distances))], narrow)


def test_what_is_joined() -> None:
    """Of one array in other ways, of several, of what is computed, and under other movements."""

    def wrapped(g, x):
        wide = g("concatenate", cut(g, x, 1, 98, 100), x, cut(g, x, 1, 0, 3), dimension=1)
        return g("concatenate", cut(g, wide, 0, 5, 6), wide, cut(g, wide, 0, 0, 1), dimension=0)

    def in_parts(g, x):
        return g(
            "concatenate", *(cut(g, x, 0, *ends) for ends in ((4, 6), (0, 1), (1, 1), (2, 5), (3, 4))), dimension=0
        )

    def others(g, x, y):
        return g("concatenate", cut(g, x, 1, 0, 37), cut(g, y, 1, 9, 90), x, dimension=1)

    def computed(g, x):
        y = g("multiply", x, x)
        return g("add", roll(g, y, 0, 1), roll(g, g("negate", y), 1, -1))

    def moved(g, x):
        y = g("transpose", roll(g, roll(g, x, 0, 2), 1, 9), permutation=(1, 0))
        return g("reverse", g("reshape", y, result=Tensor((50, 2, 6), x.dtype)), dimensions=(1,))

    def strided(g, x):
        y = roll(g, roll(g, x, 1, 50), 0, 1)
        return g("slice", y, start_indices=(1, 3), limit_indices=(6, 98), strides=(2, 3))

    def padded(g, x):
        return g("add", pad(g, x, (1, 1), (1, 30)), pad(g, x, (0, 31), (2, 0)))

    def cut_and_dilated(g, x):
        return g("add", pad(g, x, (0, -3), (0, 40)), pad(g, pad(g, x, (0, 0), (0, 0), (0, 1)), (0, 0), (0, -62)))

    def broadcast(g, x):
        row = roll(g, cut(g, x, 0, 2, 3), 1, 1)
        return g("add", x, g("broadcast_in_dim", row, broadcast_dimensions=(0, 1), result=x.type))

    def sums(g, x):
        block = Graph(Tensor((), x.dtype), Tensor((), x.dtype))
        body = block.done(block("add", *block.args))
        return g("reduce", roll(g, x, 1, 1), g.const(0, "f32"), dimensions=(0,), regions=[body])

    image = ((6, 100), "f32")
    one = [wrapped, in_parts, computed, moved, strided, padded, cut_and_dilated, broadcast, sums]
    check([case(f.__name__, [image], f, tolerance=1e-6) for f in one])
    check([case("others", [image, image], others)])


def test_not_a_number_stays_in_its_place() -> None:
    x = sample((40, 80), "f32")
    x[[0, 0, 39, 39, 7], [0, 79, 0, 79, 33]] = [np.nan, np.inf, -np.inf, np.nan, -0.0]

    def both(g, x):
        return roll(g, x, 1, 1), roll(g, x, 0, 1), g("multiply", roll(g, x, 1, -1), x)

    check([case("", [((40, 80), "f32")], both, args=[x])])


def _block(shape: tuple[int, ...], build, dtype: str = "f32") -> Block:
    g = Graph(Tensor(shape, DTYPES[dtype]))
    return g.done(build(g, *g.args))


def test_pieces() -> None:
    """The vectors with a border in them, and what lies between."""
    assert pieces(_block((8, 160), stencil), 160, 16) == [(0, 16), (16, 144), (144, 160)]
    assert pieces(_block((8, 170), stencil), 170, 16) == [(0, 16), (16, 160)]
    assert pieces(_block((8, 160), lambda g, x: roll(g, x, 1, 48)), 160, 16) == [(0, 48), (48, 160)]
    assert pieces(_block((8, 160), lambda g, x: roll(g, x, 0, 1)), 160, 16) == [(0, 160)]
    assert pieces(_block((8, 160), lambda g, x: cut(g, roll(g, x, 1, 40), 1, 39, 140)), 101, 16)[:1] == [(0, 16)]
    assert pieces(_block((8, 160), lambda g, x: stencil(g, x, (20, 40, 60, 80))), 160, 16) == [(0, 160)]


def test_rows_between_borders_are_read_without_masks() -> None:
    if host().vector_bytes < 64:
        pytest.skip("shorter vectors are masked in other ways")
    block = _block((64, 64, 160), stencil)
    text = emit_kernel(block, "k", host()).text
    middle = max(re.split(r"^\S+:$", text, flags=re.MULTILINE), key=lambda part: part.count("fadd"))
    loops = [part for part in re.split(r"^\S+:$", text, flags=re.MULTILINE) if part.count("fadd") == 6]
    assert middle.count("fadd") == 6 and len(loops) == 3
    assert sorted("masked" in part for part in loops) == [False, True, True]
    assert "then" not in text


def joined(g, *parts, axis=1):
    return g("concatenate", *parts, dimension=axis)


def wrapped(g, x):
    size = x.shape[1]
    return joined(g, cut(g, x, 1, size - 2, size), x, cut(g, x, 1, 0, 3))


def reflected(g, x, columns=2, rows=1, behind=0):
    """Images with their edges mirrored, as `jnp.pad` does it: rows first, then columns; `behind` them are channels."""
    for axis, n in ((len(x.shape) - 2 - behind, rows), (len(x.shape) - 1 - behind, columns)):
        size = x.shape[axis]
        sides = [cut(g, x, axis, *ends) for ends in ((1, n + 1), (size - n - 1, size - 1))]
        low, high = (g("reverse", side, dimensions=(axis,)) for side in sides)
        x = joined(g, low, x, high, axis=axis)
    return x


ROWS = {
    "reflected": ([(3, 40, 45)], lambda g, x: reflected(g, x)),
    "wide edges": ([(2, 30, 61)], lambda g, x: reflected(g, x, 23, 9)),
    "padded": ([(3, 40, 40)], lambda g, x: pad(g, x, (0, 1, 3), (0, 2, 4))),
    "columns": ([(99, 7), (99, 33), (99, 1), (99, 130)], joined),
    "whole vectors": ([(128, 64), (128, 32)], joined),
    "long": ([(6, 1000), (6, 900)], joined),
    "rotated halves": (
        [(5, 30, 64)],
        lambda g, x: g("add", x, joined(g, g("negate", cut(g, x, 2, 32, 64)), cut(g, x, 2, 0, 32), axis=2)),
    ),
    "one row": ([(5000,), (3000,), (777,)], lambda g, *parts: joined(g, *parts, axis=0)),
    "short row": ([(1100,), (1000,)], lambda g, *parts: joined(g, *parts, axis=0)),
    "one row padded": ([(9000,)], lambda g, x: pad(g, x, (3,), (5000,))),
    "few long rows": ([(3, 9000), (3, 5001)], joined),
    "leading": ([(50, 60), (70, 60)], lambda g, x, y: joined(g, x, y, axis=0)),
    "in the middle": ([(4, 9, 5, 13), (4, 1, 5, 13)], joined),
    "pixels": ([(8, 90, 3)], wrapped),
    "pixels padded": ([(9, 40, 40, 3)], lambda g, x: pad(g, x, (0, 1, 3, 0), (0, 2, 4, 0))),
    "computed": ([(70, 50), (70, 60)], lambda g, x, y: joined(g, g("multiply", x, x), y, g("negate", x))),
    "broadcast": (
        [(50, 60), (50,)],
        lambda g, x, y: joined(
            g, x, g("broadcast_in_dim", y, broadcast_dimensions=(0,), result=Tensor((50, 9), y.dtype))
        ),
    ),
    "of rows": ([(20, 44), (30, 44), (50, 20)], lambda g, x, y, z: joined(g, joined(g, x, y, axis=0), z)),
    "turned": (
        [(4, 9, 64), (9, 4, 17)],
        lambda g, x, y: joined(g, g("transpose", x, permutation=(1, 0, 2)), y, axis=2),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_joined_rows_are_one_kernel(name: str) -> None:
    """Each part of a row has vectors of its own: with a border in them they would be masked, or chosen lane by lane."""
    shapes, build = ROWS[name]
    for dtype in ("f32", "f64", "bf16", "i8", "ui32", "complex<f32>", "f8E4M3FN", "i1", "i4"):
        if dtype in ("f8E4M3FN", "i1", "i4") and name in ("rotated halves", "computed"):
            continue  # nothing is computed of these
        plain = case(dtype, [(shape, dtype) for shape in shapes], build, tolerance=1e-6 if name == "computed" else 0)
        rows = replace(plain, block=expand(plain.block, host()))
        (want,), (got,) = (evaluate(c.block, c.args) for c in (plain, rows))
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
        for bytes in (16, 32, host().vector_bytes):
            check([plain, rows], replace(host(), vector_bytes=bytes))
    g = Graph(*(Tensor(shape, DTYPES["f32"]) for shape in shapes))
    found = expand(g.done(build(g, *g.args)), host())
    assert not any(op.name == "dynamic_update_slice" for op in found.ops)
    text = emit_kernel(found, "k", replace(host(), vector_bytes=32)).text
    assert "select <" not in text and ("masked" not in text or "lines.head" in text)
    assert "masked" not in emit_kernel(found, "k", NO_LINES).text


@pytest.mark.parametrize("dtype", ["f32", "ui8", "bf16", "f64"])
@pytest.mark.parametrize("width", [32, host().vector_bytes])
def test_short_padded_rows(dtype: str, width: int) -> None:
    """Rows of more than four elements, too, are read in order: nothing is gathered from several of them."""
    machine = replace(host(), vector_bytes=width)

    def build(g, x):
        return pad(g, x, (1, 2, 1), (2, 0, 1))

    for n in (2, 3, 5, 8, 13):
        check([case("", [((9, 40, n), dtype)], build)], machine)
        g = Graph(Tensor((9, 40, n), DTYPES[dtype]))
        text = emit_kernel(expand(g.done(build(g, *g.args)), machine), "k", machine).text
        assert n == 2 or "gather" not in text, n  # pixels of four are mixed from columns


def test_what_comes_with_other_results_is_no_row() -> None:
    """The state that a generator of random bits leaves, padded: that op has two results."""
    g = Graph(Tensor((2,), DTYPES["ui64"]))
    kinds = [Tensor((2,), DTYPES["ui64"]), Tensor((64,), DTYPES["ui32"])]
    state, bits = g("rng_bit_generator", g.args[0], result=kinds, rng_algorithm="THREE_FRY")
    found = expand(g.done(pad(g, g("add", g.args[0], state), (0,), (2,)), pad(g, state, (0,), (2,)), bits), host())
    assert [v.shape for v in found.results] == [(4,), (4,), (64,)]


def test_parts_of_rows() -> None:
    block = _block((3, 40, 45), reflected)
    assert parts(block, (3, 42, 49)) == Parts([(0, 2), (2, 47), (47, 49)], [(0, 1), (1, 41), (41, 42)], WIDE)
    assert parts(_block((8, 160), lambda g, x: joined(g, *[x] * 5)), (8, 800)) is not None
    assert parts(_block((8, 160), lambda g, x: joined(g, *[x] * 6)), (8, 960)) is None  # many
    assert parts(_block((8, 160), lambda g, x: joined(g, x, x, axis=0)), (16, 160)) is None  # no borders in rows


def test_what_is_computed_of_rotated_arrays_lies_in_whole_vectors() -> None:
    """In whole vectors of memory, with masks in those with a border, where rows are such and there are masks."""
    for shape, dtype, chosen in (
        ((64, 64, 160), "f32", True),
        ((64, 64, 161), "f32", False),
        ((64, 64, 160), "i8", False),
    ):
        block = _block(shape, stencil, dtype)
        text = emit_kernel(block, "k", NO_LINES).text
        assert ("masked" in text or "select <" in text) is chosen, (shape, dtype)
    assert "masked" in emit_kernel(_block((64, 64, 128), stencil, "i8"), "k", replace(host(), vector_bytes=64)).text


@pytest.mark.parametrize(
    ("left", "dtype", "chosen"), [(3, "f32", False), (64, "f32", False), (3, "i8", True), (64, "i8", False)]
)
def test_stores_past_the_cache_stay_aligned(left: int, dtype: str, chosen: bool) -> None:
    """Pieces of large rows are gone over by lines of memory. Where nothing is masked, borders within vectors do not cut
    them: the vectors behind would not lie in whole lines."""
    machine = replace(host(), triple="x86_64-unknown-linux-gnu", vector_bytes=32, cache_bytes=1 << 20)

    def build(g, x):
        return joined(g, cut(g, x, 1, 0, left), g("negate", cut(g, x, 1, left, 1024)))

    text = emit_kernel(_block((1024, 1024), build, dtype), "k", machine).text
    assert "nontemporal" in text and bool(re.search("(phi|select) <(8 x float|32 x i)", text)) is chosen
    assert ("lines.head" in text) is (left == 3 and dtype == "f32")


NOT_IN_ROWS = {
    "mirrored pixels": ([(2, 9, 40, 3)], lambda g, x: reflected(g, x, 2, 1, 1)),
    "many": ([(70, 50)], lambda g, x: joined(g, *[g("negate", x) for _ in range(6)])),
    "strided": (
        [(70, 200)],
        lambda g, x: joined(g, x, g("slice", x, start_indices=(0, 0), limit_indices=(70, 200), strides=(1, 2))),
    ),
    "turned": ([(70, 90), (60, 70)], lambda g, x, y: joined(g, x, g("transpose", y, permutation=(1, 0)))),
    "much to compute": (
        [(70, 90), (70, 90)],
        lambda g, x, y: joined(g, *[g("power", g("power", x, y), g("power", y, x)) for _ in range(4)]),
    ),
}


@pytest.mark.parametrize("name", NOT_IN_ROWS)
def test_other_joined_arrays_are_written_part_by_part(name: str) -> None:
    shapes, build = NOT_IN_ROWS[name]
    g = Graph(*(Tensor(shape, DTYPES["f32"]) for shape in shapes))
    found = expand(g.done(build(g, *g.args)), host())
    assert sum(op.name == "dynamic_update_slice" for op in found.ops) > 1
