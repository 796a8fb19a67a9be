"""Which selections by one flag are branches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fused import Graph

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

X, FLAG = Tensor((4096,), DTYPES["f32"]), Tensor((), DTYPES["i1"])
Build = Callable[[Graph, Value, Value, Value], tuple[Value, ...]]


def spread(g: Graph, p: Value) -> Value:
    return g("broadcast_in_dim", p, result=Tensor((4096,), DTYPES["i1"]), broadcast_dimensions=())


def masks(g: Graph, p: Value, x: Value, y: Value) -> Value:
    less = g("compare", x, y, comparison_direction="LT", compare_type="FLOAT")
    return g("and", spread(g, p), less)


def shared(g: Graph, p: Value, x: Value, y: Value) -> tuple[Value, ...]:
    z = g("multiply", x, y)
    return g("select", p, z, x), g("negate", z)


CASES: dict[str, tuple[Build, int]] = {
    "one that is read": (lambda g, p, x, y: (g("select", p, x, y),), 1),
    "one that is computed": (lambda g, p, x, y: (g("select", spread(g, p), g("tanh", x), x),), 1),
    "one of the flags": (lambda g, p, x, y: (g("select", masks(g, p, x, y), x, y),), 1),
    "a flag for each": (lambda g, p, x, y: (g("select", g("is_finite", x), x, y),), 0),
    "what another result needs": (shared, 0),
    "nothing to skip": (lambda g, p, x, y: (g("select", p, *(g.const(c, "f32", (4096,)) for c in (1.0, 2.0))),), 0),
}


@pytest.mark.parametrize("label", CASES)
def test_branches(label: str) -> None:
    build, branches = CASES[label]
    g = Graph(FLAG, X, X)
    lines = emit_kernel(g.done(*build(g, *g.args)), "k", host()).text.splitlines()
    heads = [line for line in lines if line.lstrip().startswith("br i1") and "head" not in line and "exit" not in line]
    assert len(heads) == branches, "\n".join(lines)
