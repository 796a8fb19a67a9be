"""Rotated, joined and padded arrays in kernels that select from the parts: rows cut where these meet, and one place
chosen where all parts are slices of one array."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from fused import Graph, case, check, sample

from ferrule.codegen.borders import pieces
from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


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


def _block(shape: tuple[int, ...], build) -> Block:
    g = Graph(Tensor(shape, DTYPES["f32"]))
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
