"""Reductions in parts that threads share: sizes that divide, those that do not, what follows a single element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused import Graph, case, evaluate, monoid, sample

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor, tensor
from ferrule.ir.types import DTYPES
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.reduce_parts import LEAST_STAGES, SPLIT_FROM, STAGE, VECTORS, parts_of
from ferrule.targets.cpu import host

PRIME = 100_003
HOST = replace(host(), threads=2)


def reduce(g: Graph, x: Any, kind: str = "add", init: Any = 0, dims: tuple[int, ...] = (0,)) -> Any:
    return g("reduce", x, g.const(init, x.dtype.name), dimensions=dims, regions=[monoid(kind, x.dtype.name)])


def stages(block: Block) -> list[tuple[int, ...]]:
    return [op.results[0].shape for op in block.ops if op.name == "reduce"]


@pytest.mark.parametrize("size", [64, 67, 127, 1000, 1009, 65_536, 65_537, PRIME, 5 * 20_011, 1_000_003, 3_000_017])
def test_number_of_parts(size: int) -> None:
    count, part = parts_of(size)
    rest = size - count * part
    assert LEAST_STAGES <= count <= 2 * STAGE and part >= 1
    assert 0 <= rest < (1 if size == 1000 else 2 * STAGE if size < SPLIT_FROM else size / 100)
    if rest and size >= SPLIT_FROM:
        assert part % VECTORS == 0


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((PRIME,), (0,), 3),
        ((331, 307), (0, 1), 3),
        ((PRIME, 3), (0,), 3),
        ((2, PRIME), (1,), 3),
        ((5, 20_011, 2), (1, 0), 3),  # not of the five
        ((100_000,), (0,), 2),
        ((5, 20_000), (0, 1), 2),
        ((331, 197), (0, 1), 1),  # not large enough
    ],
)
@pytest.mark.parametrize(
    ("kind", "dtype", "init", "of"),
    [
        ("add", "f32", 0, lambda x, d: x.astype(np.float64).sum(d)),
        ("maximum", "f32", -np.inf, lambda x, d: x.max(d)),
        ("or", "i1", False, lambda x, d: x.any(d)),
        ("add", "i32", 0, lambda x, d: x.sum(d, dtype=np.int32)),
        ("multiply", "i32", 1, lambda x, d: x.prod(d, dtype=np.int32)),
    ],
)
def test_values(
    shape: tuple[int, ...], dims: tuple[int, ...], expected: int, kind: str, dtype: str, init: Any, of: Callable
) -> None:
    x = sample(shape, dtype)
    if kind == "multiply":
        x = x | 1
    if dtype == "i1":
        x = np.zeros_like(x)
    x[tuple(n - 1 for n in shape)] = 9  # the last element counts
    one = case("", [(shape, dtype)], lambda g, v: reduce(g, v, kind, init, dims), args=[x])
    block = expand(one.block, HOST)
    assert len(stages(block)) == expected
    np.testing.assert_allclose(evaluate(block, [x])[0], of(x, dims), rtol=1e-4, atol=2e-3)


def test_elements_of_one_run_are_not_divided() -> None:
    """What is the same for all elements, such as a mean, leaves them one run; a rest is as simple."""

    def variance(g: Graph, x: Any, mean: Any) -> Any:
        d = g("subtract", x, g("broadcast_in_dim", mean, result=x.type, broadcast_dimensions=(0, 1)))
        return reduce(g, g("multiply", d, d), dims=(0, 1))

    for shape in ((2000, 301), (331, 307)):
        one = case("", [(shape, "f32"), ((1, 1), "f32")], variance)
        block = expand(one.block, HOST)
        x, mean = (a.astype(np.float64) for a in one.args)
        np.testing.assert_allclose(evaluate(block, one.args)[0], ((x - mean) ** 2).sum(), rtol=1e-4)
        (first, *_) = fuse(block, HOST).ops
        text = emit_kernel(first.regions[0], "k", HOST).text
        assert "udiv" not in text and "extractelement <64 x i" not in text


def test_several_elements_stay_rows() -> None:
    """Means of columns are read row by row: rows are what is divided."""

    def distances(g: Graph, x: Any, mean: Any) -> Any:
        d = g("subtract", x, g("broadcast_in_dim", mean, result=x.type, broadcast_dimensions=(1,)))
        return reduce(g, g("multiply", d, d), dims=(0, 1))

    one = case("", [((10_007, 30), "f32"), ((30,), "f32")], distances)
    block = expand(one.block, HOST)
    count, _ = parts_of(10_007)
    assert stages(block) == [(count,), (), ()]
    x, mean = (a.astype(np.float64) for a in one.args)
    np.testing.assert_allclose(evaluate(block, one.args)[0], ((x - mean) ** 2).sum(), rtol=1e-4)


def test_others_are_one() -> None:
    """A start that is no identity would enter several times; nor is what is no operation by itself joined."""
    for kind, init in (("add", 1.0), ("subtract", 0.0)):
        one = case("", [((PRIME,), "f32")], lambda g, x, kind=kind, init=init: reduce(g, x, kind, init))
        assert stages(expand(one.block, HOST)) == [()]


def test_dear_rests_are_computed_apart() -> None:
    """What is dear and read by two kernels is written to memory: the rest has an expression of its own."""

    def build(g: Graph, x: Any, y: Any) -> Any:
        return reduce(g, g("tanh", g("multiply", g("exponential", x), g("add", x, y))))

    one = case("", [((PRIME,), "f32")] * 2, build)
    block = expand(one.block, HOST)
    assert all(tensor(op.result).size < PRIME for op in fuse(block, HOST).ops if op.name == "fusion")
    x, y = (a.astype(np.float64) for a in one.args)
    np.testing.assert_allclose(evaluate(block, one.args)[0], np.tanh(np.exp(x) * (x + y)).sum(), rtol=1e-4, atol=1e-2)


def spread(g: Graph, x: Any, like: Any, *dims: int) -> Any:
    return g("broadcast_in_dim", x, result=Tensor(like.shape, x.dtype), broadcast_dimensions=dims)


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((1000, 3), (0, 1), [(3,), ()]),
        ((40_009, 7), (0, 1), [(83, 7), (7,), (7,), ()]),  # in parts, and a rest
        ((100, 20, 3), (0, 1, 2), [(3,), ()]),
        ((100, 20, 3), (1, 2), [(100,)]),  # few rows
        ((300, 100, 3), (1, 2), [(300, 3), (300,)]),
        ((300, 100, 4), (1, 2), [(300,)]),  # vectors hold whole rows
        ((2, 1000, 2, 3), (1, 2, 3), [(2, 2, 3), (2,)]),
        ((1000, 8), (0, 1), [()]),
        ((1000, 1), (0, 1), [()]),
        ((1000, 3), (1,), [(1000,)]),
    ],
)
def test_by_columns(shape: tuple[int, ...], dims: tuple[int, ...], expected: list[tuple[int, ...]]) -> None:
    last = len(shape) - 1

    def build(g: Graph, x: Any, c: Any) -> Any:
        return reduce(g, g("subtract", x, spread(g, c, x, last)), "maximum", -np.inf, dims)

    one = case("", [(shape, "f32"), (shape[last:], "f32")], build)
    block = expand(one.block, HOST)
    assert stages(block) == expected
    x, c = one.args
    np.testing.assert_array_equal(evaluate(block, one.args)[0], (x - c).max(dims))


def test_not_by_columns() -> None:
    """What lies in one run needs no columns, nor is what is rounded at the end rounded in between."""
    shape = (1000, 3)
    one = case("", [(shape, "f32")] * 2, lambda g, x, y: reduce(g, g("multiply", x, y), dims=(0, 1)))
    assert stages(expand(one.block, HOST)) == [()]
    one = case(
        "",
        [((1000, 2, 3), "f32"), ((2, 3), "f32")],
        lambda g, x, c: reduce(g, g("add", x, spread(g, c, x, 1, 2)), dims=(0, 1, 2)),
    )
    assert stages(expand(one.block, HOST)) == [(2, 3), ()]
    one = case(
        "",
        [((1000, 20, 3), "f32"), ((20, 3), "f32")],
        lambda g, x, c: reduce(g, g("add", x, spread(g, c, x, 1, 2)), dims=(0, 1, 2)),
    )
    assert stages(expand(one.block, HOST)) == [()]
    one = case(
        "", [(shape, "bf16"), ((3,), "bf16")], lambda g, x, c: reduce(g, g("add", x, spread(g, c, x, 1)), dims=(0, 1))
    )
    assert stages(expand(one.block, HOST)) == [()]


@pytest.mark.parametrize("shape", [(PRIME,), (5000, 20)])
def test_narrow_sums_are_rounded_once(shape: tuple[int, ...]) -> None:
    """Not the sums of parts, which take each other away here."""
    dtype = DTYPES["bf16"].numpy
    x = np.where(np.arange(shape[0]) < shape[0] // 2, 1 + 2**-7, -1).astype(np.float64)
    x = np.broadcast_to(x.reshape(-1, *[1] * (len(shape) - 1)), shape)
    one = case("", [(shape, "bf16")], reduce, args=[x.astype(dtype)])
    block = expand(one.block, HOST)
    assert len(stages(block)) > 1
    np.testing.assert_array_equal(evaluate(block, one.args)[0], x.sum(0).astype(np.float32).astype(dtype))


@pytest.mark.parametrize(
    ("shape", "dims", "line"),
    [
        ((1000, 1), (0,), (1000,)),
        ((7, 300, 1, 1), (1,), (7, 300)),
        ((1000, 2), (0,), (1000, 2)),
        ((1, 1), (0,), (1, 1)),
    ],
)
def test_columns_of_one_element_are_lines(shape: tuple[int, ...], dims: tuple[int, ...], line: tuple[int, ...]) -> None:
    one = case("", [(shape, "f32")], lambda g, x: reduce(g, x, "maximum", -np.inf, dims))
    block = expand(one.block, HOST)
    assert [op.operands[0].shape for op in block.ops if op.name == "reduce"] == [line]
    np.testing.assert_array_equal(evaluate(block, one.args)[0], one.args[0].max(dims))
