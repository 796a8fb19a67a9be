"""Results go past a cache that they and what is read beside them fill, unless they lie in an operand or unaligned."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from fused import Graph, Linked, difference, evaluate, monoid, registers, sample
from test_kept_rows import along

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

SMALL_CACHE = replace(host(), cache_bytes=4096)
# For what is not run: a square's rows are half a line.
HALF_LINES = replace(SMALL_CACHE, triple="x86_64-unknown-linux-gnu", vector_bytes=32)
on_x86 = pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="stores past the cache are for x86")


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy that begins `offset` bytes past a line."""
    memory = np.zeros(array.nbytes + 192, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def negated(dtype: str, shape: tuple[int, ...]) -> Block:
    g = Graph(Tensor(shape, DTYPES[dtype]))
    return g.done(g("negate", g.args[0]))


def transposed(dtype: str, shape: tuple[int, ...]) -> Block:
    g = Graph(Tensor(shape, DTYPES[dtype]))
    return g.done(g("negate", g("transpose", g.args[0], permutation=(1, 0))))


def above_the_least(dtype: str, shape: tuple[int, ...]) -> Block:
    """A row kernel: elements less the least of their row."""
    g = Graph(Tensor(shape, DTYPES[dtype]))
    least = g("reduce", g.args[0], g.const(9, dtype), dimensions=(1,), regions=[monoid("minimum", dtype)])
    all_of_it = g("broadcast_in_dim", least, result=g.args[0].type, broadcast_dimensions=(0,))
    return g.done(g("subtract", g.args[0], all_of_it))


BYTES = {"i8": 1, "i16": 2, "float": 4, "double": 8}
CASES = [
    (negated, "f32", (64, 64)),
    (negated, "f32", (5000,)),
    (negated, "bf16", (40, 128)),
    (negated, "i8", (8192,)),
    (negated, "complex<f32>", (1024,)),
    (above_the_least, "f32", (16, 256)),
    (above_the_least, "f64", (7, 128)),
    (transposed, "f32", (64, 48)),
    (transposed, "f32", (64, 61)),
    (transposed, "f32", (16, 1203)),
    (transposed, "f64", (96, 80)),
    (transposed, "bf16", (64, 40)),
    (transposed, "i16", (96, 77)),
    (transposed, "complex<f32>", (32, 33)),
]


@on_x86
@pytest.mark.parametrize(("build", "dtype", "shape"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_past_the_cache(build, dtype: str, shape: tuple[int, ...]) -> None:
    block = build(dtype, shape)
    kernel = emit_kernel(block, "k", SMALL_CACHE)
    assert "sfence" in kernel.text
    stores = re.findall(r"store <(\d+) x (\w+)> .*, align (\d+), !nontemporal", kernel.text)
    assert stores and all(int(align) <= int(count) * BYTES[type] for count, type, align in stores)
    assert "!nontemporal" not in emit_kernel(block, "k", host()).text
    linked = Linked([kernel], SMALL_CACHE)
    x = sample(shape, dtype)
    (want,) = evaluate(block, [x])
    for offset in (0, DTYPES[dtype].itemsize):  # where it can be done, and where it must not
        for pieces in (1, 3):
            out = aligned(np.zeros(want.shape, want.dtype), offset)
            linked.run(kernel, [aligned(x), out], pieces)
            np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    ("operands", "size", "past"),
    [(1, 480, False), (1, 512, True), (2, 336, False), (2, 352, True), (4, 256, True), (6, 192, False)],
)
def test_what_is_read_and_written_fills_the_cache(operands: int, size: int, past: bool) -> None:
    """A cache of 1024 numbers: results of a quarter go past it if they and what is read beside them fill it."""
    g = Graph(*[Tensor((size,), DTYPES["f32"])] * operands)
    total = g("negate", g.args[0])
    for more in g.args[1:]:
        total = g("add", total, more)
    assert ("!nontemporal" in emit_kernel(g.done(total), "k", HALF_LINES).text) == past


def test_of_an_operand_no_more_counts_than_the_result_has() -> None:
    g = Graph(Tensor((4096,), DTYPES["f32"]))
    cut = g("slice", g.args[0], start_indices=(0,), limit_indices=(480,), strides=(1,))
    assert "!nontemporal" not in emit_kernel(g.done(g("negate", cut)), "k", HALF_LINES).text


def test_in_an_operands_memory() -> None:
    block = negated("f32", (4096,))
    kernel = emit_kernel(block, "k", SMALL_CACHE)
    x = aligned(sample((4096,), "f32"))
    want = -x
    Linked([kernel], SMALL_CACHE).run(kernel, [x, x])
    np.testing.assert_array_equal(x, want)


def test_squares_beside_each_other_would_read_pieces_of_what_lies_in_the_results_order() -> None:
    g = Graph(Tensor((64, 64), DTYPES["f32"]))
    block = g.done(g("add", g.args[0], g("transpose", g.args[0], permutation=(1, 0))))
    assert "!nontemporal" not in emit_kernel(block, "k", HALF_LINES).text


def test_rows_that_no_line_ends_stay_in_the_cache() -> None:
    g = Graph(Tensor((64, 67, 5), DTYPES["f32"]))
    block = g.done(g("transpose", g.args[0], permutation=(1, 0, 2)))
    assert "!nontemporal" not in emit_kernel(block, "k", SMALL_CACHE).text


def softmax(dtype: str, shape: tuple[int, ...]) -> Block:
    """A row kernel that keeps what it divides at the end."""
    g = Graph(Tensor(shape, DTYPES[dtype]))
    powers = g("exponential", g("subtract", g.args[0], along(g, g.args[0], "maximum")))
    return g.done(g("divide", powers, along(g, powers, "add")))


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
@pytest.mark.parametrize("build", [above_the_least, softmax])
@pytest.mark.parametrize(
    ("dtype", "shape"), [("f32", (50, 482)), ("f32", (40, 512)), ("f64", (30, 250)), ("bf16", (20, 262))]
)
def test_rows_that_are_reduced_first(build, dtype: str, shape: tuple[int, ...], vector: int) -> None:
    block, machine = build(dtype, shape), replace(SMALL_CACHE, vector_bytes=vector)
    kernel = emit_kernel(block, "k", machine)
    whole = shape[-1] % 64 == 0
    assert ("!nontemporal" in kernel.text) == (vector == 64 or whole or dtype != "bf16")
    assert ("alloca" in kernel.text) == (build is softmax and "!nontemporal" in kernel.text)
    linked = Linked([kernel], machine)
    x = sample(shape, dtype)
    (want,) = evaluate(block, [x])
    for offset in (0, DTYPES[dtype].itemsize):  # past the cache if the result begins with a line, or may anywhere
        for pieces in (1, 3):
            beyond = np.full(want.size + 64, want.flat[0])
            out = aligned(beyond, offset)
            found = out[: want.size].reshape(want.shape)
            linked.run(kernel, [aligned(x), found], pieces)
            assert not difference(found, want, DTYPES[dtype], 2e-2 if dtype == "bf16" else 1e-6)
            np.testing.assert_array_equal(out[want.size :], beyond[want.size :])


@on_x86
@pytest.mark.parametrize("vector", registers(32, 64))
@pytest.mark.parametrize("build", [above_the_least, softmax])
@pytest.mark.parametrize("columns", [2, 3, 7, 8, 13, 16])
def test_short_rows_that_are_reduced_first(build, columns: int, vector: int) -> None:
    """Of 1003 of them the last do not fill a vector: they are done row by row, in the same kernel."""
    shape, machine = (1003, columns), replace(SMALL_CACHE, vector_bytes=vector)
    block, x = build("f32", shape), sample(shape, "f32")
    kernel = emit_kernel(block, "k", machine)
    (want,), linked = evaluate(block, [x]), Linked([kernel], machine)
    for offset in (0, 4):
        for pieces in (1, 3):
            out = aligned(np.full(want.size + 64, 9, np.float32), offset)
            found = out[: want.size].reshape(want.shape)
            linked.run(kernel, [aligned(x), found], pieces)
            assert not difference(found, want, DTYPES["f32"], 1e-6)
            assert (out[want.size :] == 9).all()


def test_rows_too_long_for_the_stack_stay_in_the_cache() -> None:
    assert "!nontemporal" in emit_kernel(softmax("f32", (3, 1 << 16)), "k", HALF_LINES).text
    kernel = emit_kernel(softmax("f32", (3, (1 << 16) + 64)), "k", HALF_LINES)
    assert "!nontemporal" not in kernel.text and "alloca" not in kernel.text


@on_x86
def test_an_end_of_an_array_fills_no_line() -> None:
    for size in (5003, 4097):
        block = negated("f32", (size,))
        kernel = emit_kernel(block, "k", SMALL_CACHE)
        assert "!nontemporal" in kernel.text
        x = sample((size,), "f32")
        out = aligned(np.full(size + 64, 9, np.float32))
        Linked([kernel], SMALL_CACHE).run(kernel, [aligned(x), out[:size]], 3)
        np.testing.assert_array_equal(out[:size], -x)
        assert (out[size:] == 9).all()


def test_parts_of_registers_are_no_streams() -> None:
    """Rows of 400 bytes: LLVM would take registers of 64 bytes apart for stores of 16."""
    for vector, past in ((32, True), (64, False)):
        machine = replace(HALF_LINES, vector_bytes=vector)
        g = Graph(Tensor((300, 208), DTYPES["bf16"]))
        cut = g("slice", g.args[0], start_indices=(0, 0), limit_indices=(300, 200), strides=(1, 1))
        block = g.done(g("negate", cut))
        assert ("!nontemporal" in emit_kernel(block, "k", machine).text) == past


@on_x86
@pytest.mark.parametrize("columns", [2, 3, 4])
def test_an_end_of_short_rows_fills_no_line(columns: int) -> None:
    """Elements of two arrays alternate in vectors that go past the cache, also where the last ones are shorter."""
    g = Graph(Tensor((1003,), DTYPES["f32"]), Tensor((columns,), DTYPES["f32"]))
    both = Tensor((1003, columns), DTYPES["f32"])
    rows, row = (g("broadcast_in_dim", a, result=both, broadcast_dimensions=(d,)) for d, a in enumerate(g.args))
    block = g.done(g("add", rows, row))
    kernel = emit_kernel(block, "k", SMALL_CACHE)
    assert "!nontemporal" in kernel.text
    x, y = sample((1003,), "f32"), sample((columns,), "f32")
    out = aligned(np.full(1003 * columns + 64, 9, np.float32))
    Linked([kernel], SMALL_CACHE).run(kernel, [aligned(x), aligned(y), out[: 1003 * columns].reshape(1003, columns)], 3)
    np.testing.assert_array_equal(out[: 1003 * columns].reshape(1003, columns), x[:, None] + y)
    assert (out[1003 * columns :] == 9).all()
