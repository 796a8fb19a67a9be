"""Reductions of flags, which loops carry as masks where a processor has no registers for flags."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from fused import Case, Graph, case, check, monoid

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

NARROW = dataclasses.replace(host(), vector_bytes=min(host().vector_bytes, 32))
SHAPES = [(5, 1003), (70, 45), (64, 256), (3, 9)]  # most with a rest after the last whole vector


def reduced(kind: str, dimensions: tuple[int, ...]) -> Any:
    def build(g: Graph, x: Any, *more: Any) -> Any:
        flags = x
        if x.dtype.kind != "bool":
            limit = g.const(90 if x.dtype.is_int else 2, x.dtype.name, x.shape)
            direction = "GT" if kind != "and" else "LE"
            flags = g("compare", x, limit, comparison_direction=direction, compare_type="NOTYPE")
        for other in more:
            flags = g("xor", flags, g("compare", other, other, comparison_direction="NE", compare_type="NOTYPE"))
        init = g.const(kind == "and", "i1")
        return g("reduce", flags, init, dimensions=dimensions, regions=[monoid(kind, "i1")])

    return build


def rare(shape: tuple[int, ...], dtype: str, seed: int, usual: bool) -> np.ndarray:
    """In each row one element at most is not as the others."""
    random, d = np.random.default_rng(seed), DTYPES[dtype]
    x = np.full(shape, usual if d.kind == "bool" else 1).astype(d.numpy)
    for row in range(shape[0]):
        if random.random() < 0.6:
            x[row, random.integers(shape[1])] = (not usual) if d.kind == "bool" else 100
    return x


def cases(kind: str, dtype: str) -> list[Case]:
    return [
        case(f"{kind} of {dtype} {shape} {dims}", [(shape, dtype)], reduced(kind, dims), args=[x])
        for shape in SHAPES
        for dims in ((0,), (1,), (0, 1))
        for x in [rare(shape, dtype, len(dims), kind == "and")]
    ]


@pytest.mark.parametrize("kind", ["or", "and", "xor"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "ui16", "i64", "i1"])
def test_values(kind: str, dtype: str) -> None:
    check(cases(kind, dtype), NARROW)
    check(cases(kind, dtype))


def test_of_two_widths() -> None:
    shape = (6, 133)
    x, y = rare(shape, "f64", 3, False), rare(shape, "i8", 4, False)
    types = [(shape, "f64"), (shape, "i8")]
    check([case("two widths", types, reduced("or", (1,)), args=[x, y])], NARROW)


@pytest.mark.parametrize("dimensions", [(0,), (1,)])
def test_no_loop_carries_flags(dimensions: tuple[int, ...]) -> None:
    g = Graph(Tensor((512, 512), DTYPES["f32"]))
    text = emit_kernel(g.done(reduced("or", dimensions)(g, *g.args)), "k", NARROW).text
    assert " = phi <" in text
    assert not re.search(r" = phi <\d+ x i1>", text)
