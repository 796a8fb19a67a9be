"""Reductions of one kernel over the same elements, which are one loop (codegen/reduce.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fused import Graph, case, check, monoid, registers

from ferrule.codegen.kernel import emit_kernel
from ferrule.codegen.reduce import groups
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

STARTS = {"add": 3, "maximum": -100, "minimum": 100}
SHAPES = [
    ((37, 41), (0,)),
    ((37, 41), (1,)),
    ((5, 130, 6), (1,)),
    ((3, 17, 70), (0, 2)),
    ((600,), (0,)),
    ((9, 3), (0,)),
]


def reduced(g: Graph, x: Value, dims: tuple[int, ...], kind: str) -> Value:
    start = g.const(STARTS[kind], x.dtype.name)
    return g("reduce", x, start, regions=[monoid(kind, x.dtype.name)], dimensions=dims)


def each(g: Graph, x: Value, dims: tuple[int, ...]) -> tuple[Value, ...]:
    twice = g("add", x, x)
    return tuple(
        reduced(g, v, dims, kind) for v, kind in ((x, "add"), (x, "maximum"), (twice, "minimum"), (twice, "add"))
    )


@pytest.mark.parametrize("size", registers(64, 32, 16))
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32", "i8"])
def test_four_at_once(dtype: str, size: int) -> None:
    tolerance = {"bf16": 3e-2, "f32": 1e-5}.get(dtype, 1e-12)
    made = [
        case(f"{shape} {dims}", [(shape, dtype)], lambda g, x, dims=dims: each(g, x, dims), tolerance=tolerance)
        for shape, dims in SHAPES
    ]
    check(made, replace(host(), vector_bytes=size))


def test_sums_do_not_begin_the_others() -> None:
    """Largest negative numbers, and smallest positive ones, beside sums, which are added up in runs."""

    def signed(g: Graph, x: Value, dims: tuple[int, ...]) -> tuple[Value, ...]:
        size = g("add", g("abs", x), g.const(1, "f32", x.shape))
        less = g("negate", size)
        return tuple(reduced(g, v, dims, k) for v, k in ((x, "add"), (less, "maximum"), (size, "minimum")))

    check(
        [
            case(f"{shape} {dims}", [(shape, "f32")], lambda g, x, dims=dims: signed(g, x, dims), tolerance=1e-5)
            for shape, dims in SHAPES
        ]
    )


def test_costly_columns_are_several_registers_wide() -> None:
    """Rows far apart are not read line by line."""
    g = Graph(Tensor((300, 1000), DTYPES["f32"]))
    block = g.done(reduced(g, g("tanh", g("exponential", g.args[0])), (0,), "add"))
    text = emit_kernel(block, "k", replace(host(), vector_bytes=64)).text
    assert "load <64 x float>" in text


def test_they_are_one_loop() -> None:
    g = Graph(Tensor((64, 96), DTYPES["f32"]))
    block = g.done(*each(g, g.args[0], (0,)))
    assert {len(group) for group in groups(block).values()} == {4}
    alone = g.done(*each(g, g.args[0], (0,))[:1])
    loads = [emit_kernel(b, "k", host()).text.count("load <") for b in (block, alone)]
    assert loads[0] == loads[1]


def test_what_another_one_needs_is_reduced_first() -> None:
    def centred(g: Graph, x: Value) -> tuple[Value, Value]:
        total = reduced(g, x, (1,), "add")
        across = g("broadcast_in_dim", total, result=x.type, broadcast_dimensions=(0,))
        return reduced(g, g("subtract", x, across), (1,), "maximum"), total

    made = case("centred", [((30, 7), "f32")], centred, tolerance=1e-5)
    assert not groups(made.block)
    check([made])


def test_others_are_loops_of_their_own() -> None:
    g = Graph(Tensor((8, 8), DTYPES["f32"]), Tensor((8, 8), DTYPES["f64"]))
    x, y = g.args
    assert not groups(g.done(reduced(g, x, (0,), "add"), reduced(g, x, (1,), "add"), reduced(g, y, (0,), "add")))
