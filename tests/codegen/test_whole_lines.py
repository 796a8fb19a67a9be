"""Rows that begin anywhere in a line of memory are gone over by lines, masked at both ends (codegen/whole_lines.py)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from fused import Graph, Linked, difference, evaluate, registers, sample
from test_streams import above_the_least, aligned, on_x86

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host
from ferrule.targets.machine import Machine

LARGE = 1 << 40  # bytes of a cache that everything stays in


def shifted(dtype: str, shape: tuple[int, ...]) -> Block:
    """Of each row the differences of neighbours: one element less."""
    g = Graph(Tensor(shape, DTYPES[dtype]))
    lows, highs = [0] * len(shape), list(shape)
    ends = [
        g(
            "slice",
            g.args[0],
            start_indices=(*lows[:-1], k),
            limit_indices=(*highs[:-1], shape[-1] - 1 + k),
            strides=(1,) * len(shape),
        )
        for k in (0, 1)
    ]
    return g.done(g("subtract", *ends))


def of(vector: int, cache: int, cpu: str = "haswell") -> Machine:
    """For what is not run."""
    return replace(host(), triple="x86_64-unknown-linux-gnu", vector_bytes=vector, cache_bytes=cache, cpu=cpu)


def by_lines(block: Block, machine: Machine) -> bool:
    return "lines.head" in emit_kernel(block, "k", machine).text


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
@pytest.mark.parametrize("cache", [4096, LARGE])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("f32", (256, 482)),
        ("f32", (2, 150, 500)),
        ("f32", (20, 490)),
        ("f32", (3, 20_011)),  # cut into pieces
        ("f32", (3, 4 * 4096 + 6)),  # the last of which is less than a line
        ("f64", (2, 9_004)),
        ("f64", (300, 250)),
        ("i32", (270, 531)),
        ("bf16", (256, 262)),
        ("i8", (256, 531)),
    ],
)
def test_rows_that_begin_anywhere(dtype: str, shape: tuple[int, ...], vector: int, cache: int) -> None:
    block, machine = shifted(dtype, shape), replace(host(), cache_bytes=cache, vector_bytes=vector, cpu="haswell")
    kernel, past = emit_kernel(block, "k", machine), cache == 4096
    done = vector == 64 or DTYPES[dtype].itemsize >= 4  # else there are no masks
    assert ("!nontemporal" in kernel.text) == (done and past)
    assert ("lines.head" in kernel.text) == (done and (past or dtype != "bf16"))  # whose rounding takes longer
    if done and past:
        stores = re.findall(r"align (\d+), !nontemporal", kernel.text)
        assert set(stores) == {"64"}
    linked = Linked([kernel], machine)
    x = sample(shape, dtype)
    (want,) = evaluate(block, [x])
    for offset in (0, DTYPES[dtype].itemsize):
        for pieces in (1, 3):
            beyond = np.full(want.size + 64, want.flat[0])
            out = aligned(beyond, offset)
            linked.run(kernel, [aligned(x), out[: want.size].reshape(want.shape)], pieces)
            np.testing.assert_array_equal(out[: want.size].reshape(want.shape), want)
            np.testing.assert_array_equal(out[want.size :], beyond[want.size :])


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
def test_rows_that_are_reduced_first(vector: int) -> None:
    block, machine = above_the_least("f32", (20, 203)), replace(host(), vector_bytes=vector, cpu="haswell")
    kernel, x = emit_kernel(block, "k", machine), sample((20, 203), "f32")
    assert "lines.head" in kernel.text
    (want,), out = evaluate(block, [x]), aligned(np.full(20 * 203 + 64, 9, np.float32))
    found = out[: want.size].reshape(want.shape)
    Linked([kernel], machine).run(kernel, [aligned(x), found], 3)
    assert not difference(found, want, DTYPES["f32"], 0.0) and (out[want.size :] == 9).all()


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
@pytest.mark.parametrize("cache", [4096, LARGE])
@pytest.mark.parametrize("shapes", [[(40, 500), (40, 331), (40, 7)], [(3, 5), (3, 9000), (3, 5001)]])
def test_pieces_of_rows(shapes: list[tuple[int, int]], vector: int, cache: int) -> None:
    """Long ones by lines, others in vectors that stay in the cache."""
    g = Graph(*(Tensor(shape, DTYPES["f32"]) for shape in shapes))
    block = g.done(g("negate", g("concatenate", *g.args, dimension=1)))
    machine = replace(host(), cache_bytes=cache, vector_bytes=vector, cpu="haswell")
    kernel, args = emit_kernel(block, "k", machine), [sample(shape, "f32") for shape in shapes]
    assert "lines.head" in kernel.text and ("!nontemporal" in kernel.text) == (cache == 4096)
    (want,), linked = evaluate(block, args), Linked([kernel], machine)
    for offset in (0, 4):
        for pieces in (1, 3):
            out = aligned(np.full(want.size + 64, 9, np.float32), offset)
            linked.run(kernel, [*map(aligned, args), out[: want.size].reshape(want.shape)], pieces)
            np.testing.assert_array_equal(out[: want.size].reshape(want.shape), want)
            assert (out[want.size :] == 9).all()


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
@pytest.mark.parametrize("cache", [4096, LARGE])
@pytest.mark.parametrize("start", [(0, 0), (3, 7), (2, 16), (9, 999)])
@pytest.mark.parametrize(("whole", "part"), [((9, 600), (5, 512)), ((9, 512), (6, 512)), ((9, 650), (4, 487))])
def test_updates_begin_anywhere(
    whole: tuple[int, int], part: tuple[int, int], start: tuple[int, int], vector: int, cache: int
) -> None:
    types = [Tensor(whole, DTYPES["f32"]), Tensor(part, DTYPES["f32"]), *(Tensor((), DTYPES["i32"]) for _ in whole)]
    g = Graph(*types)
    x, update, *at = g.args
    block = g.done(g("dynamic_update_slice", x, g("negate", update), *at))
    machine = replace(host(), cache_bytes=cache, vector_bytes=vector, cpu="haswell")
    kernel = emit_kernel(block, "k", machine)
    assert "lines.head" in kernel.text and ("!nontemporal" in kernel.text) == (cache == 4096)
    old, new, places = sample(whole, "f32"), sample(part, "f32"), [np.array(n, np.int32) for n in start]
    (want,), linked = evaluate(block, [old, new, *places]), Linked([kernel], machine)
    for offset in (0, 4):
        for pieces in (1, 3):
            out = aligned(np.concatenate([old.reshape(-1), np.full(64, 9, np.float32)]), offset)
            found = out[: old.size].reshape(whole)
            linked.run(kernel, [found, aligned(new), *places, found], pieces)
            np.testing.assert_array_equal(found, want)
            assert (out[old.size :] == 9).all()


def crossed(dtype: str, shape: tuple[int, ...], order: tuple[int, ...]) -> Block:
    g = Graph(Tensor(shape, DTYPES[dtype]))
    return g.done(g("negate", g("transpose", g.args[0], permutation=order)))


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
@pytest.mark.parametrize("cache", [4096, LARGE])
@pytest.mark.parametrize(
    ("dtype", "shape", "order"),
    [
        ("f32", (203, 130), (1, 0)),
        ("f32", (1501, 150), (1, 0)),  # more than waits at once
        ("f32", (1029, 150), (1, 0)),  # and a rest of a few columns
        ("f64", (530, 139), (1, 0)),
        ("i32", (2, 205, 144), (0, 2, 1)),
        ("f32", (21, 13, 160), (2, 0, 1)),
    ],
)
def test_squares_wait_for_lines(
    dtype: str, shape: tuple[int, ...], order: tuple[int, ...], vector: int, cache: int
) -> None:
    machine = replace(host(), cache_bytes=cache, second_cache_bytes=64, threads=1, vector_bytes=vector, cpu="haswell")
    block = crossed(dtype, shape, order)
    kernel, x = emit_kernel(block, "k", machine), sample(shape, dtype)
    squares = dtype != "f64" or vector == 64  # of fewer lanes there are none
    assert ("alloca" in kernel.text and "waiting.head" in kernel.text) == squares
    (want,), linked = evaluate(block, [x]), Linked([kernel], machine)
    past = cache == 4096 and (vector == 64 or want.shape[-1] > 30 * 64 / want.itemsize)
    assert ("!nontemporal" in kernel.text) == past
    for offset in (0, DTYPES[dtype].itemsize):
        for pieces in (1, 3):
            out = aligned(np.full(want.size + 64, 9, x.dtype), offset)
            linked.run(kernel, [aligned(x), out[: want.size].reshape(want.shape)], pieces)
            np.testing.assert_array_equal(out[: want.size].reshape(want.shape), want)
            assert (out[want.size :] == 9).all()


@pytest.mark.parametrize(
    ("dtype", "shape", "near", "waits"),
    [
        ("f32", (203, 130), 64, True),
        ("f32", (203, 130), 1 << 20, False),  # the nearer caches hold it
        ("bf16", (203, 130), 64, False),
        ("f32", (203, 40), 64, False),  # few rows
        ("f32", (208, 130), 64, False),  # whose lines end with them
    ],
)
def test_squares_that_do_not_wait(dtype: str, shape: tuple[int, ...], near: int, waits: bool) -> None:
    machine = replace(of(64, LARGE), second_cache_bytes=near, threads=1)
    assert ("alloca" in emit_kernel(crossed(dtype, shape, (1, 0)), "k", machine).text) == waits


@pytest.mark.parametrize("cache", [4096, LARGE])
@pytest.mark.parametrize("shape", [(300, 100), (7, 90), (3, 129, 5)])
def test_much_of_short_rows_is_at_their_ends(shape: tuple[int, ...], cache: int) -> None:
    assert not by_lines(shifted("f32", shape), of(64, cache))


@pytest.mark.parametrize(("length", "past"), [(480, False), (482, True)])
def test_slow_masks_past_the_cache(length: int, past: bool) -> None:
    """Stores across lines are slower than masks, loads of lines that are written whole are not."""
    text = emit_kernel(shifted("f32", (300, length)), "k", of(32, 4096)).text
    assert "lines.head" in text and ("!nontemporal" in text) == past


def test_masked_stores_that_are_taken_apart() -> None:
    block = shifted("f32", (300, 482))
    assert not by_lines(block, of(32, LARGE, "znver3")) and by_lines(block, of(32, 4096, "znver3"))
    assert by_lines(block, of(64, LARGE, "znver4")) and by_lines(block, of(32, LARGE))


def test_other_machines() -> None:
    assert not by_lines(shifted("f32", (300, 482)), of(16, LARGE))
    assert not by_lines(shifted("f32", (300, 482)), replace(of(32, LARGE), triple="aarch64-unknown-linux-gnu"))


@pytest.mark.parametrize(("name", "light"), [("negate", True), ("tanh", False)])
def test_costly_ends(name: str, light: bool) -> None:
    g = Graph(Tensor((300, 500), DTYPES["f32"]))
    cut = g("slice", g.args[0], start_indices=(0, 1), limit_indices=(300, 500), strides=(1, 1))
    assert by_lines(g.done(g(name, cut)), of(64, LARGE)) == light
