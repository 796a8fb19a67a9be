"""A scale per channel in the elements of a group: what is the same along a vector is read once, without divisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fused import Graph, case, check, monoid, registers

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

F32 = DTYPES["f32"]
# images, groups, channels of a group, elements of a channel
SHAPES = [(3, 4, 8, 49), (2, 3, 5, 16), (1, 2, 7, 9), (4, 1, 6, 33), (2, 2, 3, 130)]
ARGS = [lambda n, g, c, e: (n, g * c, e), lambda n, g, c, e: (n, g), lambda n, g, c, e: (g * c,)]


def grouped(g: Graph, x: Value, groups: int) -> Value:
    n, channels, elements = x.shape
    return g("reshape", x, result=Tensor((n, groups, channels // groups * elements), F32))


def scaled(g: Graph, x: Value, mean: Value, scale: Value) -> Value:
    """x less its group's mean, times its channel's scale."""
    in_groups = grouped(g, x, mean.shape[1])
    means = g("broadcast_in_dim", mean, result=in_groups.type, broadcast_dimensions=(0, 1))
    centred = g("reshape", g("subtract", in_groups, means), result=x.type)
    return g("multiply", centred, g("broadcast_in_dim", scale, result=x.type, broadcast_dimensions=(1,)))


def total(g: Graph, x: Value, dimensions: tuple[int, ...]) -> Value:
    return g("reduce", x, g.const(0.0, "f32"), dimensions=dimensions, regions=[monoid("add", "f32")])


BUILDS = {
    "elements": scaled,
    "sums of groups": lambda g, x, m, s: total(g, grouped(g, scaled(g, x, m, s), m.shape[1]), (2,)),
    "sums of channels": lambda g, x, m, s: total(g, scaled(g, x, m, s), (0, 2)),
}


@pytest.mark.parametrize("size", registers(64, 32))
@pytest.mark.parametrize("label", BUILDS)
def test_values(label: str, size: int) -> None:
    # Sums of hundreds of numbers of either sign may nearly cancel; another channel's scale is off by far more.
    near = 1e-5 if label == "elements" else 1e-3
    made = [
        case(f"{label} {shape}", [(a(*shape), "f32") for a in ARGS], BUILDS[label], tolerance=near) for shape in SHAPES
    ]
    check(made, replace(host(), vector_bytes=size))


@pytest.mark.parametrize("label", BUILDS)
def test_no_vector_is_divided(label: str) -> None:
    g = Graph(*(Tensor(a(64, 8, 32, 49), F32) for a in ARGS))
    text = emit_kernel(g.done(BUILDS[label](g, *g.args)), "k", host()).text
    assert "udiv <" not in text
    assert "fmul <" in text


def test_sums_of_nothing() -> None:
    """Rows of elements, of which there are none."""
    made = [
        case(f"{shape} {dims}", [(shape, "f32")], lambda g, x, d=dims: g("negate", total(g, x, d)))
        for shape, dims in (((0, 5, 16), (0, 2)), ((3, 0, 40), (1, 2)), ((0, 2, 9, 7), (0, 2, 3)))
    ]
    check(made)
