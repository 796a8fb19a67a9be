"""Large arrays that are read at several places side by side: every element counts once, whatever is left at the end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused import Graph, case, check, monoid

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

NARROW = replace(host(), vector_bytes=32)
MEGA = 1 << 20


def total(g: Graph, x: Any, kind: str = "add", init: float = 0, dimension: int = 1) -> Any:
    dtype = x.dtype.name
    return g("reduce", x, g.const(init, dtype), dimensions=(dimension,), regions=[monoid(kind, dtype)])


def above(g: Graph, x: Any) -> Any:
    return g("compare", x, g.const(7, "f32", x.shape), comparison_direction="GT", compare_type="FLOAT")


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(DTYPES[dtype].numpy)


CASES: dict[str, tuple[list[tuple[tuple[int, int], str]], Any, int]] = {
    "sum": ([((2, 2 * MEGA + 77), "f32")], total, 4),
    "ends with a part": ([((3, MEGA), "f32")], total, 4),
    "maximum": ([((2, 2 * MEGA + 1), "i32")], lambda g, x: total(g, x, "maximum", -1000), 4),
    "flags": ([((5, MEGA + 3), "f32")], lambda g, x: total(g, above(g, x), "or"), 4),
    "squares": ([((2, MEGA + 8), "f32")], lambda g, x: total(g, g("multiply", x, x)), 4),
    "two arrays": ([((2, MEGA + 40), "f32")] * 2, lambda g, x, y: total(g, g("multiply", x, y)), 2),
    "rows": ([((700, 4100), "f32")], total, 4),
    "bf16": ([((2, 2 * MEGA + 50), "bf16")], lambda g, x: total(g, x, "maximum", -1000), 4),
    "short rows": ([((2100, 1000), "f32")], total, 1),
    "small": ([((2, MEGA // 2), "f32")], total, 1),
    "dear": ([((2, MEGA + 8), "f32")], lambda g, x: total(g, g("exponential", x), "maximum"), 1),
}


def block(name: str) -> Any:
    types, build, _ = CASES[name]
    g = Graph(*(Tensor(shape, DTYPES[d]) for shape, d in types))
    return g.done(build(g, *g.args))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    types, build, _ = CASES[name]
    args = [numbers(shape, dtype, i) for i, (shape, dtype) in enumerate(types)]
    check([case(name, types, build, args=args, tolerance=1e-5)], NARROW)


@pytest.mark.parametrize("name", CASES)
def test_how_many_places(name: str) -> None:
    text = emit_kernel(block(name), "k", replace(NARROW, cpu="x86-64")).text
    longest = max(re.findall(r"^loop\.body\d+:\n(.*?)^\S+:$", text, re.M | re.S), key=len)
    types, _, count = CASES[name]
    assert len(re.findall(r"= load <", longest)) == count * len(types)
    assert ("llvm.prefetch" in longest) == (count == 1 and name != "small")


SMALL_CACHE = replace(NARROW, cache_bytes=16 << 20)


@pytest.mark.parametrize("length", [2 * MEGA + MEGA // 2, 2 * MEGA + 77, 3 * MEGA + 32])
@pytest.mark.parametrize("inplace", [0, 1])
def test_elements(length: int, inplace: int) -> None:
    def build(g: Graph, x: Any, y: Any) -> Any:
        return g("subtract", g("multiply", x, x), y)

    args = [numbers((length,), "f32", i) for i in range(2)]
    made = case("elements", [((length,), "f32")] * 2, build, args=args, inplace=inplace)
    assert "sides" in emit_kernel(made.block, "k", SMALL_CACHE).text
    check([made], SMALL_CACHE)


@pytest.mark.parametrize(("dtype", "count", "found"), [("f32", 1, True), ("f32", 3, False), ("bf16", 1, False)])
def test_whose_elements(dtype: str, count: int, found: bool) -> None:
    """Not of three large arrays, and not of narrow elements."""
    g = Graph(*[Tensor((8 * MEGA,), DTYPES[dtype])] * count)
    result = g("add", g.args[0], g.args[-1])
    if count == 3:
        result = g("add", result, g.args[1])
    assert ("sides" in emit_kernel(g.done(result), "k", SMALL_CACHE).text) == found
