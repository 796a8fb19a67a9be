"""Vectors of elements at an even distance: every step, both directions, nothing read beside the array."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fused import Graph, Linked, case, check, evaluate, monoid, nothing_beside, registers, sample

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


def every(g, x, first, step, flip=False):  # type: ignore[no-untyped-def]
    y = g("slice", x, start_indices=(first,), limit_indices=x.shape, strides=(step,))
    return g("negate", g("reverse", y, dimensions=(0,)) if flip else y)


@pytest.mark.parametrize(
    "dtypes", [("f32", "f64", "i32"), ("bf16", "i8", "i16"), ("complex<f32>", "complex<f64>", "i64")]
)
def test_steps(dtypes: tuple[str, ...]) -> None:
    check(
        [
            case(
                f"{d} {first}::{step} {flip}", [((643,), d)], lambda g, x, f=first, s=step, r=flip: every(g, x, f, s, r)
            )
            for d in dtypes
            for step in (2, 3, 5, 8, 9)
            for first in (0, 1)
            for flip in (False, True)
        ]
    )


def test_columns() -> None:
    def column(k):  # type: ignore[no-untyped-def]
        return lambda g, x: g("negate", g("slice", x, start_indices=(0, k), limit_indices=(300, k + 1), strides=(1, 1)))

    check(
        [
            case(f"{k} of {n}", [((300, n), d)], column(k))
            for n in (2, 3, 7, 10)
            for k in (0, n - 1)
            for d in ("f32", "ui8")
        ]
    )


def repeated_behind_others(times: int, joined: int) -> Callable[[Graph, Value, Value], Value]:
    """Every element several times, added to itself moved behind another array: a vector of every `times`-th element
    reads the repeated array from a place that begins before it where the two meet."""

    def build(g: Graph, x: Value, y: Value) -> Value:
        size = x.shape[0] * times
        wide = g("broadcast_in_dim", x, broadcast_dimensions=(0,), result=Tensor((x.shape[0], times), x.dtype))
        flat = g("reshape", wide, result=Tensor((size,), x.dtype))
        moved = g("slice", flat, start_indices=(0,), limit_indices=(size - joined,), strides=(1,))
        return g("add", flat, g("concatenate", y, moved, dimension=0))

    return build


def test_repeated_elements_behind_others() -> None:
    check(
        [
            case(
                f"{dtype} {times} {joined}", [((61,), dtype), ((joined,), dtype)], repeated_behind_others(times, joined)
            )
            for dtype in ("f32", "f64", "i8")
            for times in (3, 8, 11)
            for joined in (1, times - 1, 5 * times, 13 * times - 5)
        ]
    )


@pytest.mark.parametrize("dtype", ["f32", "ui8", "f64"])
@pytest.mark.parametrize("step", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("flip", [False, True])
def test_nothing_beside_the_array_is_read(dtype: str, step: int, flip: bool) -> None:
    """The array lies between two pages that nobody may read."""
    x = sample((mmap.PAGESIZE // DTYPES[dtype].itemsize,), dtype)
    g = Graph(Tensor(x.shape, DTYPES[dtype]))
    block = g.done(every(g, g.args[0], (x.size - 1) % step, step, flip))
    (want,) = evaluate(block, [x])
    kernel = emit_kernel(block, "k", host())
    linked, got = Linked([kernel], host()), np.zeros_like(want)
    with nothing_beside(x) as alone:
        linked.run(kernel, [alone, got])
    np.testing.assert_array_equal(got, want)


def pooled(g: Graph, x: Value, window: int, step: int, low: int) -> Value:
    """The largest of overlapping windows of a row, which begin before it and end behind it."""
    start = g.const(-1e9 if x.dtype.is_float else -100, x.dtype.name)
    about = {"window_dimensions": (1, window), "window_strides": (1, step), "padding": ((0, 0), (low, window - 1))}
    return g("reduce_window", x, start, regions=[monoid("maximum", x.dtype.name)], **about)


@pytest.mark.parametrize("size", registers(64, 32))
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i8", "bf16"])
def test_windows_at_the_ends(dtype: str, size: int) -> None:
    """Elements under a mask, whose neighbours in between lie beside the array."""
    made = [
        case(
            f"{window} by {step} from {low} of {length}",
            [((3, length), dtype)],
            lambda g, x, w=window, s=step, p=low: pooled(g, x, w, s, p),
        )
        for window, step in ((3, 2), (5, 3), (2, 4))
        for low in (0, 1)
        for length in (20, 57, 130)
    ]
    check(made, replace(host(), vector_bytes=size))


def test_windows_are_not_gathered() -> None:
    g = Graph(Tensor((64, 112), DTYPES["f32"]))
    assert "gather" not in emit_kernel(g.done(pooled(g, g.args[0], 3, 2, 1)), "k", host()).text


NARROW = replace(host(), vector_bytes=32)


def turned(g, *operands):  # type: ignore[no-untyped-def]
    """Rows stay rows, in another order: loops that cannot be joined to one."""
    turns = [g("transpose", x, permutation=(1, 0, 2)) for x in operands]
    return turns[0] if len(turns) == 1 else turns


@pytest.mark.parametrize("count, rest", [(6, 6), (7, 7), (13, 5), (3, 3)])
def test_ends_of_short_rows_are_shorter_vectors(count: int, rest: int) -> None:
    """Without masks: the end of a row of 13 floats is a vector of 5."""
    made = [case(f"rows of {count}", [((9, 11, count), "f32")], turned)]
    check(made, NARROW)
    text = emit_kernel(made[0].block, "k", NARROW).text
    assert f"store <{rest} x float>" in text
    assert "label %rest" not in text


FLOATS = (
    *("exponential", "exponential_minus_one", "log", "log_plus_one", "tanh", "logistic", "sine", "cosine", "tan"),
    *("sqrt", "rsqrt", "cbrt", "abs", "sign", "floor", "round_nearest_even", "negate"),
)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("count", [3, 5, 7, 13])
def test_functions_of_short_rows(dtype: str, count: int) -> None:
    """What is computed in whole registers is computed of vectors of any length, and nothing beside them is written."""
    rows = [((3, 5, count), dtype)]
    made = [
        case(f"{name} {dtype}", rows, lambda g, x, name=name: g(name, turned(g, x)), tolerance=4e-3) for name in FLOATS
    ]
    for name in ("power", "atan2", "maximum", "remainder", "divide"):
        made.append(
            case(f"{name} {dtype}", rows * 2, lambda g, x, y, name=name: g(name, *turned(g, x, y)), tolerance=4e-3)
        )
    check(made, NARROW)


@pytest.mark.parametrize("count", [3, 5, 6, 7, 9, 13, 31])
def test_narrowed_short_rows(count: int) -> None:
    """Nothing beside a row is written where its elements are of fewer bytes than what they were computed of."""
    made = []
    for dtype in ("i8", "i16", "bf16", "f16", "f8E4M3FN", "i64", "i1"):
        for source in ("f32", "i32"):
            to = Tensor((5, 3, count), DTYPES[dtype])
            made.append(
                case(
                    f"{source} to {dtype}",
                    [((3, 5, count), source)],
                    lambda g, x, to=to: g("convert", turned(g, x), result=to),
                )
            )
    check(made, NARROW)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("count", [45, 75, 171])
def test_functions_of_rows_of_several_registers(dtype: str, count: int) -> None:
    """Reductions go over several registers at once; the end of a row is some of them, and a part of one."""
    made = []
    for name in ("rsqrt", "log", "exponential", "sine", "cbrt"):

        def summed(g, x, name=name):  # type: ignore[no-untyped-def]
            value = g(name, g("abs", x))
            return g("reduce", value, g.const(0, dtype), dimensions=(0,), regions=[monoid("add", dtype)])

        made.append(case(f"{name} {dtype}", [((4, count), dtype)], summed, tolerance=1e-5))
    odd = np.ones((4, count), DTYPES[dtype].numpy)
    odd[2, -1], odd[1, count // 2] = np.nan, 1e-42  # the slow way is taken for the last lane alone
    check([*made, *(replace(c, name=f"{c.name}, odd", args=[odd]) for c in made)], NARROW)


def test_loops_carry_whole_registers() -> None:
    """LLVM takes carried vectors of other lanes apart: the end of a row of 173 is 32 or more, 8, then 5."""
    add = monoid("add", "f32")
    summed = case(
        "columns", [((9, 173), "f32")], lambda g, x: g("reduce", x, g.const(0, "f32"), dimensions=(0,), regions=[add])
    )
    text = emit_kernel(summed.block, "k", replace(NARROW, threads=2)).text
    carried = {int(n) for n in re.findall(r"phi <(\d+) x float>", text)}
    assert 5 in carried and max(carried) > 8
    assert all(n < 8 or n & (n - 1) == 0 for n in carried)
