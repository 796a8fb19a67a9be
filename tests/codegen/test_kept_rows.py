"""What a kernel over rows keeps in its result's memory between its reductions, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fused import Case, Graph, case, check, monoid

from ferrule.codegen.row_loop import _kept
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES

SHAPE = (5, 203)  # with a rest after the last whole vector
INIT = {"add": 0.0, "maximum": -np.inf}


def along(g: Graph, x: Value, kind: str) -> Value:
    """A reduction of each row, for all of its elements; narrow sums are sums of f32."""
    dtype = x.dtype.name if kind == "maximum" else "f32" if x.dtype.bits < 32 else x.dtype.name
    wide = x if dtype == x.dtype.name else g("convert", x, result=Tensor(x.shape, DTYPES[dtype]))
    found = g("reduce", wide, g.const(INIT[kind], dtype), dimensions=(1,), regions=[monoid(kind, dtype)])
    if dtype != x.dtype.name:
        found = g("convert", found, result=Tensor(found.shape, x.dtype))
    return g("broadcast_in_dim", found, result=x.type, broadcast_dimensions=(0,))


def capped(g: Graph, x: Value) -> tuple[Value, Value]:
    """3 tanh x, and the powers that its softmax is made of."""
    high = g("multiply", g("tanh", x), g.const(3, x.dtype.name, x.shape))
    return high, g("exponential", g("subtract", high, along(g, high, "maximum")))


def softmax(g: Graph, x: Value) -> Value:
    _, powers = capped(g, x)
    return g("divide", powers, along(g, powers, "add"))


def with_logits(g: Graph, x: Value) -> Value:
    high, powers = capped(g, x)
    return g("add", g("divide", powers, along(g, powers, "add")), high)


def with_logits_summed(g: Graph, x: Value) -> Value:
    high, powers = capped(g, x)
    total = along(g, powers, "add")
    return g("add", g("divide", powers, total), along(g, g("multiply", high, total), "add"))


def turned(g: Graph, x: Value) -> Value:
    high = g("tanh", x)
    top = along(g, high, "maximum")
    powers = g("exponential", g("subtract", g("reverse", high, dimensions=(1,)), top))
    return g("add", g("divide", powers, along(g, powers, "add")), g("multiply", high, top))


def three(g: Graph, x: Value) -> Value:
    """Each is computed of the one before."""
    for _ in range(3):
        x = g("tanh", x)
        x = g("multiply", x, along(g, x, "add"))
    return x


CASES: dict[str, tuple[Callable[[Graph, Value], Value], list[str]]] = {
    "softmax": (softmax, ["multiply", "exponential"]),
    "read by the result as well": (with_logits, ["multiply"]),
    "summed later as well": (with_logits_summed, ["multiply"]),
    "read in another order": (turned, ["exponential"]),
    "three": (three, ["tanh", "tanh", "tanh"]),
}


def made(name: str, dtype: str) -> Case:
    near = {"f64": 1e-12, "f32": 1e-4, "bf16": 5e-2}[dtype]
    return case(f"{name} {dtype}", [(SHAPE, dtype)], CASES[name][0], tolerance=near)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_kept(name: str, dtype: str) -> None:
    kernel = made(name, dtype)
    assert [value.op.name for value, _ in _kept(kernel.block) if value.op] == CASES[name][1]
    check([kernel])


def test_in_the_operands_memory() -> None:
    kernels: list[Any] = [made(name, "f32") for name in ("softmax", "three")]
    for kernel in kernels:
        kernel.inplace = 1
    check(kernels)
