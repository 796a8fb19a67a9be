"""Reductions that read bf16 in pairs, and those that must not: where elements' places or other arrays count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fused import Graph, case, check, monoid

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block, Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


def total(g: Graph, x: Any, kind: str = "add", init: float = 0) -> Any:
    dtype = x.dtype.name
    return g("reduce", x, g.const(init, dtype), dimensions=(len(x.shape) - 1,), regions=[monoid(kind, dtype)])


def wide(g: Graph, x: Any) -> Any:
    return g("convert", x, result=Tensor(x.shape, DTYPES["f32"]))


def weighted(g: Graph, x: Any) -> Any:
    place = g("iota", result=Tensor(x.shape, DTYPES["f32"]), iota_dimension=len(x.shape) - 1)
    return total(g, g("multiply", wide(g, x), place))


def across(g: Graph, x: Any, y: Any) -> Any:
    row = g("broadcast_in_dim", wide(g, y), result=Tensor(x.shape, DTYPES["f32"]), broadcast_dimensions=(0,))
    return total(g, g("multiply", wide(g, x), row))


def along(g: Graph, x: Any, y: Any) -> Any:
    row = g("broadcast_in_dim", wide(g, y), result=Tensor(x.shape, DTYPES["f32"]), broadcast_dimensions=(1,))
    return total(g, g("multiply", wide(g, x), row))


def normalized(g: Graph, x: Any) -> Any:
    """The powers are kept in memory, in their order, between the two reductions."""
    powers = g("exponential", wide(g, x))
    row = g("broadcast_in_dim", total(g, powers), result=powers.type, broadcast_dimensions=(0,))
    more = g(
        "broadcast_in_dim", total(g, g("multiply", powers, wide(g, x))), result=powers.type, broadcast_dimensions=(0,)
    )
    return g("add", g("divide", powers, row), more)


SHAPE = (5, 1003)  # with a rest after the last whole vector
CASES: dict[str, tuple[list[tuple[tuple[int, ...], str]], Any, bool]] = {
    "sum": ([(SHAPE, "bf16")], lambda g, x: total(g, wide(g, x)), True),
    "narrow": ([(SHAPE, "bf16")], lambda g, x: total(g, x), True),
    "maximum": ([(SHAPE, "bf16")], lambda g, x: total(g, x, "maximum", -np.inf), True),
    "products": (
        [(SHAPE, "bf16")] * 2,
        lambda g, x, y: total(g, g("multiply", wide(g, x), wide(g, y))),
        True,
    ),
    "of all": (
        [((64, 96), "bf16")],
        lambda g, x: total(g, wide(g, g("reshape", x, result=Tensor((6, 1024), DTYPES["bf16"])))),
        True,
    ),
    "across": ([(SHAPE, "bf16"), (SHAPE[:1], "bf16")], across, True),
    "along": ([(SHAPE, "bf16"), (SHAPE[1:], "bf16")], along, False),
    "two types": ([(SHAPE, "bf16"), (SHAPE, "f32")], lambda g, x, y: total(g, g("multiply", wide(g, x), y)), False),
    "weighted": ([(SHAPE, "bf16")], weighted, False),
    "backwards": (
        [(SHAPE, "bf16")] * 2,
        lambda g, x, y: total(g, g("multiply", wide(g, x), wide(g, g("reverse", y, dimensions=(1,))))),
        False,
    ),
}


def text(name: str) -> str:
    args, build, _ = CASES[name]
    g = Graph(*(Tensor(shape, DTYPES[d]) for shape, d in args))
    block: Block = g.done(build(g, *g.args))
    return emit_kernel(block, "k", host()).text


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    args, build, _ = CASES[name]
    check([case(name, args, build, tolerance=1e-4)])


@pytest.mark.parametrize("name", CASES)
def test_which_read_in_pairs(name: str) -> None:
    assert ("splat (i32 -65536)" in text(name)) == CASES[name][2]


def test_what_is_kept_in_memory() -> None:
    check([case("normalized", [(SHAPE, "bf16")], normalized, tolerance=1e-4)])
