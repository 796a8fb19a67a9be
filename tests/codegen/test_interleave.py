"""Short rows made of arrays that lie across them: the values, whole vectors of rows, and when the schedule is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fused import Graph, Linked, case, check, evaluate, registers, sample

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


def last(g, x, order=(0, 2, 3, 1)):  # type: ignore[no-untyped-def]
    return g("transpose", x, permutation=order)


@pytest.mark.parametrize(
    "dtypes",
    [("f32", "f64", "i1"), ("bf16", "f16", "i32", "ui64"), ("i8", "ui8", "f8E4M3FN", "i16"), ("complex<f32>", "i4")],
)
def test_dtypes(dtypes: tuple[str, ...]) -> None:
    types = [((c, n), d) for d in dtypes for c in (3, 4) for n in (200, 128)]
    check([case(f"{t}", [t], lambda g, x: last(g, x, (1, 0))) for t in types])


@pytest.mark.parametrize("channels", [2, 3, 5, 7, 8, 12, 15, 16])
def test_channels_last(channels: int) -> None:
    """Images whose rows of pixels fill vectors, leave a rest, and are too short."""
    shapes = [(2, channels, 9, 16), (3, channels, 7, 11), (1, channels, 64, 130), (2, channels, 2, 3)]
    check([case(f"{s}", [(s, "f32")], last) for s in shapes])


def test_expressions() -> None:
    """What is read across, with what is not, and what is the same in a row or in a column."""

    def normalized(g, x, mean, scale):  # type: ignore[no-untyped-def]
        wide = {"result": Tensor((2, 10, 33, 3), x.dtype), "broadcast_dimensions": (3,)}
        centred = g("subtract", last(g, x), g("broadcast_in_dim", mean, **wide))
        return g("multiply", centred, g("broadcast_in_dim", scale, **wide))

    def residual(g, x, y):  # type: ignore[no-untyped-def]
        return g("add", last(g, x), y)

    def weighted(g, x, w):  # type: ignore[no-untyped-def]
        wide = Tensor((2, 10, 33, 3), x.dtype)
        return g("multiply", last(g, x), g("broadcast_in_dim", w, result=wide, broadcast_dimensions=(0, 1, 2)))

    def two(g, x):  # type: ignore[no-untyped-def]
        y = last(g, x)
        return g("negate", y), g("convert", y, result=Tensor(y.shape, DTYPES["bf16"]))

    def number(g, x):  # type: ignore[no-untyped-def]
        return g("concatenate", g.const(9, "f32", (200, 1)), x, g.const(7, "f32", (200, 1)), dimension=1)

    def of_rows(g, w):  # type: ignore[no-untyped-def]
        return g("broadcast_in_dim", w, result=Tensor((200, 3), w.dtype), broadcast_dimensions=(1,))

    def flipped(g, x):  # type: ignore[no-untyped-def]
        return g("reverse", last(g, x), dimensions=(1, 3))

    image = ((2, 3, 10, 33), "f32")
    check(
        [
            case("normalized", [image, ((3,), "f32"), ((3,), "f32")], normalized),
            case("residual", [image, ((2, 10, 33, 3), "f32")], residual),
            case("weighted", [image, ((2, 10, 33), "f32")], weighted),
            case("two", [image], two),
            case("flipped", [image], flipped),
            case("number", [((200, 1), "f32")], number),
            case("only numbers", [((200, 1), "f32")], lambda g, x: number(g, g.const(3, "f32", (200, 1)))),
            case("same rows", [((3,), "f32")], of_rows),
        ]
    )


@pytest.mark.parametrize("size", registers(64, 32, 16))
@pytest.mark.parametrize("dtype", ["complex<f32>", "complex<f64>"])
def test_complex_numbers(dtype: str, size: int) -> None:
    """Both parts are vectors: joined, across, in rows of their own, and beside real results."""

    def joined(count):  # type: ignore[no-untyped-def]
        def build(g, *xs):  # type: ignore[no-untyped-def]
            return g("concatenate", *(g("reshape", x, result=Tensor((131, 1), x.dtype)) for x in xs), dimension=1)

        return case(f"joined {count}", [((131,), dtype)] * count, build)

    def scaled(g, x, w):  # type: ignore[no-untyped-def]
        return g("add", x, g("broadcast_in_dim", w, result=x.type, broadcast_dimensions=(1,)))

    def parts(g, x):  # type: ignore[no-untyped-def]
        y = last(g, x, (1, 0))
        return g("negate", y), g("imag", y)

    made = [joined(count) for count in (2, 3, 4, 7, 8)]
    for rows, count in ((300, 2), (129, 3), (40, 3), (257, 4), (64, 7)):
        made += [
            case(f"across {count}", [((count, rows), dtype)], lambda g, x: last(g, x, (1, 0))),
            case(f"rows {count}", [((rows, count), dtype), ((count,), dtype)], scaled),
            case(f"flipped {count}", [((rows, count), dtype)], lambda g, x: g("reverse", x, dimensions=(0, 1))),
            case(f"parts {count}", [((count, rows), dtype)], parts),
        ]
    check(made, replace(host(), vector_bytes=size))
    check(made[:8], replace(host(), vector_bytes=size, cache_bytes=1024))


def columns(count: int, rows: int, dtype: str = "f32") -> Block:
    g = Graph(Tensor((count, rows), DTYPES[dtype]))
    return g.done(g("negate", g("transpose", g.args[0], permutation=(1, 0))))


@pytest.mark.parametrize("dtype", ["f32", "complex<f32>"])
def test_rows_leave_as_whole_vectors(dtype: str) -> None:
    text = emit_kernel(columns(3, 4096, dtype), "k", replace(host(), cache_bytes=1 << 30)).text
    assert "shufflevector" in text
    assert "masked" not in text  # no store or load with an address for each lane


@pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="stores past the cache are for x86")
@pytest.mark.parametrize("dtype", ["f32", "complex<f32>", "complex<f64>"])
def test_past_the_cache(dtype: str) -> None:
    block, small = columns(3, 4096, dtype), replace(host(), cache_bytes=4096)
    kernel = emit_kernel(block, "k", small)
    stored = small.vector_bytes * (2 if dtype.startswith("complex") else 1)
    assert ("!nontemporal" in kernel.text) == (stored >= 64)  # where a store fills a line
    x, memory = sample((3, 4096), dtype), np.full(3 * 4096 + 64, 77, DTYPES[dtype].numpy)
    start = -memory.ctypes.data % 64 // memory.itemsize
    Linked([kernel], small).run(kernel, [x, memory[start:]], 3)
    end = start + 3 * 4096
    np.testing.assert_array_equal(memory[start:end].reshape(4096, 3), evaluate(block, [x])[0])
    assert (memory[:start] == 77).all() and (memory[end:] == 77).all()


def test_rows_of_joined_parts() -> None:
    """Each place in a row has an expression of its own; parts of several places."""

    def stack(*build):  # type: ignore[no-untyped-def]
        def rows(g, x, y):  # type: ignore[no-untyped-def]
            wide = {"result": Tensor((*x.shape, 1), x.dtype), "broadcast_dimensions": tuple(range(len(x.shape)))}
            return g("concatenate", *(g("broadcast_in_dim", b(g, x, y), **wide) for b in build), dimension=len(x.shape))

        return rows

    def sines(g, x, y):  # type: ignore[no-untyped-def]
        return g("sine", x)

    def sums(g, x, y):  # type: ignore[no-untyped-def]
        return g("add", x, y)

    def first(g, x, y):  # type: ignore[no-untyped-def]
        return x

    def pairs(g, x, y):  # type: ignore[no-untyped-def]
        return g("concatenate", x, g("negate", y), x, dimension=1)

    flat, odd = ((700,), "f32"), ((9, 77), "f32")
    check(
        [
            case("2", [flat, flat], stack(first, sums)),
            case("3", [odd, odd], stack(sines, first, sums), tolerance=1e-6),
            case("5", [((640,), "bf16"), ((640,), "bf16")], stack(first, sums, first, first, sums)),
            case("pairs", [((300, 2), "f32"), ((300, 3), "f32")], pairs),
            case("12 of bytes", [((300, 4), "ui8"), ((300, 4), "ui8")], pairs),
        ]
    )


@pytest.mark.parametrize("rows", [8, 10, 20, 31])
def test_few_rows(rows: int) -> None:
    """Lanes are as many as the rows fill twice."""
    made = [((50, c, rows), d) for c in (2, 3, 7) for d in ("f32", "i8", "complex<f32>")]
    check([case(f"{t}", [t], lambda g, x: last(g, x, (0, 2, 1))) for t in made])
    g = Graph(Tensor((50, 3, rows), DTYPES["f32"]))
    text = emit_kernel(g.done(last(g, g.args[0], (0, 2, 1))), "k", host()).text
    assert "gather" not in text
