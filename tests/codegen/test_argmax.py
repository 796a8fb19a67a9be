"""Argmax: counters of 64 bits that become 32, and parts that count from zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused import Graph, body, case, check, evaluate

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.ops.starts import counts_in_parts
from ferrule.passes.expand import expand
from ferrule.passes.reduce_parts import SPLIT_FROM
from ferrule.targets.cpu import host

LONG, PRIME = 2 * SPLIT_FROM + 128, 131_101


def reduce(g: Graph, x: Any, kind: str, counter: str, dim: int, first: int = 0) -> Any:
    """Of several NaN, and of equals, the first one, as JAX writes it; `last`: the last one of equals."""
    dtype, worst = x.dtype.name, np.inf if kind == "least" else -np.inf
    if x.dtype.is_int:
        worst = np.iinfo(x.dtype.numpy).max if kind == "least" else np.iinfo(x.dtype.numpy).min

    def pick(g: Graph, a: Any, i: Any, b: Any, k: Any) -> Any:
        if kind == "last":
            better = g("compare", a, b, comparison_direction="GT")
            return g("select", better, a, b), g("select", better, i, k)
        if kind == "sum":
            return g("maximum", a, b), g("add", i, k)
        better = g("compare", a, b, comparison_direction="LT" if kind == "least" else "GT")
        better = g("or", better, g("compare", a, a, comparison_direction="NE"))
        equal = g("compare", a, b, comparison_direction="EQ")
        lower = g("and", equal, g("compare", i, k, comparison_direction="LT"))
        return g("select", better, a, b), g("select", g("or", better, lower), i, k)

    number = g("iota", result=Tensor(x.shape, DTYPES[counter]), iota_dimension=dim)
    starts = g.const(worst, dtype), g.const(first, counter)
    return g("reduce", x, number, *starts, dimensions=(dim,), regions=[body([dtype, counter] * 2, pick)])


def values(shape: tuple[int, ...], seed: int, nans: int = 0) -> np.ndarray:
    """Many equals; a few NaN."""
    random = np.random.default_rng(seed)
    x = random.integers(-5, 6, shape).astype(np.float32)
    x.reshape(-1)[random.integers(0, x.size, nans)] = np.nan
    return x


def reductions(block: Block) -> list[tuple[tuple[int, ...], str]]:
    return [(op.results[1].shape, op.results[1].dtype.name) for op in block.ops if op.name == "reduce"]


@pytest.mark.parametrize("kind", ["most", "least"])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        *(((7, 300), 1), ((300, 40), 0), ((LONG,), 0), ((LONG, 3), 0), ((3, LONG), 1)),
        *(((PRIME,), 0), ((PRIME, 3), 0), ((3, PRIME), 1)),
    ],
)
@pytest.mark.parametrize("nans", [0, 5])
def test_counters(kind: str, shape: tuple[int, ...], dim: int, nans: int) -> None:
    x = values(shape, 1, nans)
    one = case("", [(shape, "f32")], lambda g, x: reduce(g, x, kind, "i64", dim), args=[x])
    wanted = evaluate(one.block, [x])
    block = expand(one.block, host())
    assert {counter for _, counter in reductions(block)} == {"i32"}
    assert len(reductions(block)) == 1 + (LONG in shape) + 2 * (PRIME in shape)
    for got, want in zip(evaluate(block, [x]), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["i32", "i8", "f64"])
def test_other_values(dtype: str) -> None:
    """Without NaN the order of two does not matter, and any lane may count anything."""
    x = values((LONG,), 2).astype(DTYPES[dtype].numpy)
    one = case("", [((LONG,), dtype)], lambda g, x: reduce(g, x, "most", "i64", 0), args=[x])
    wanted, block = evaluate(one.block, [x]), expand(one.block, host())
    assert [counter for _, counter in reductions(block)] == ["i32", "i32"]
    for got, want in zip(evaluate(block, [x]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_column_of_one_element_is_a_line() -> None:
    x = values((300, 1), 8)
    one = case("", [(x.shape, "f32")], lambda g, v: reduce(g, v, "most", "i32", 0), args=[x])
    wanted, block = evaluate(one.block, [x]), expand(one.block, host())
    assert [op.operands[0].shape for op in block.ops if op.name == "reduce"] == [(300,)]
    for got, want in zip(evaluate(block, [x]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [LONG, PRIME])
@pytest.mark.parametrize("what", ["nothing", "ends", "all NaN", "infinite", "infinite at the end"])
def test_parts(what: str, size: int) -> None:
    x = {
        "nothing": np.full(size, -np.inf),
        "ends": np.where(np.arange(size) % (size - 1) == 0, 9, values((size,), 3)),
        "all NaN": np.full(size, np.nan),
        "infinite at the end": np.where(np.arange(size) == size - 1, np.inf, -np.inf),
        "infinite": np.where(np.arange(size) == size - 70000, np.inf, -np.inf),
    }[what].astype(np.float32)
    for kind in ("most", "least"):
        one = case("", [((size,), "f32")], lambda g, v, kind=kind: reduce(g, v, kind, "i32", 0), args=[x])
        wanted = evaluate(one.block, [x])
        block = expand(one.block, host())
        assert len(reductions(block)) == (2 if size == LONG else 3)
        for got, want in zip(evaluate(block, [x]), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_without_registers_for_flags() -> None:
    """Vectors are one register long: of longer ones LLVM would pack the flags into bytes."""
    narrow = replace(host(), vector_bytes=32)
    x = values((7, 1000), 6, 20)
    x[2] = np.nan
    one = case("", [(x.shape, "f32")], lambda g, v: reduce(g, v, "most", "i32", 1), args=[x])
    text = emit_kernel(one.block, "k", narrow).text
    assert "fcmp ogt <8 x float>" in text and "<16 x i1>" not in text
    check([one], narrow)


@pytest.mark.parametrize("name", ["sum", "last", "small"])
def test_others_stay(name: str) -> None:
    shape = (SPLIT_FROM // 2,) if name == "small" else (LONG,)
    kind = "most" if name == "small" else name
    one = case(name, [(shape, "f32")], lambda g, v: reduce(g, v, kind, "i32", 0), args=[np.zeros(1)])
    assert len(reductions(expand(one.block, host()))) == 1


def test_as_many_as_do_not_fit() -> None:
    g = Graph(Tensor((2, 1 << 31), DTYPES["f32"]))
    block = g.done(*reduce(g, g.args[0], "most", "i64", 1))
    assert {counter for _, counter in reductions(expand(block, host()))} == {"i64"}


def test_what_is_tried() -> None:
    for kind, first, fine in (("most", 0, True), ("least", 0, True), ("sum", 0, False)):
        g = Graph(Tensor((100,), DTYPES["f32"]))
        top, _ = reduce(g, g.args[0], kind, "i32", 0, first)
        assert counts_in_parts(top.op, 1) == fine, kind
