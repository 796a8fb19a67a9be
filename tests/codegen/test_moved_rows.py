"""Short rows whose elements change places: the values, what lies beside them, and when they are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused import Graph, Linked, case, check, nothing_beside, registers

from ferrule.codegen import moved_rows
from ferrule.codegen.kernel import emit_kernel
from ferrule.codegen.runs import loops
from ferrule.ir import Tensor
from ferrule.targets.cpu import Machine, host

WIDE = replace(host(), vector_bytes=64)


def rolled(g: Graph, x: Any, by: int = 2) -> Any:
    last, n = len(x.shape) - 1, x.shape[-1]
    ends = [part(g, x, n - by, n), part(g, x, 0, n - by)]
    return g("concatenate", *ends, dimension=last)


def part(g: Graph, x: Any, begin: int, end: int, step: int = 1) -> Any:
    lead = x.shape[:-1]
    return g(
        "slice",
        x,
        start_indices=(*(0 for _ in lead), begin),
        limit_indices=(*lead, end),
        strides=(*(1 for _ in lead), step),
    )


def joined(g: Graph, x: Any, y: Any) -> Any:
    return g("concatenate", y, g("reverse", x, dimensions=(1,)), dimension=1)


def turned(g: Graph, x: Any) -> Any:
    """Within rows of two dimensions."""
    return g("reshape", g("transpose", x, permutation=(0, 2, 1)), result=Tensor((x.shape[0], 12), x.dtype))


def taken(block: Any, machine: Machine = WIDE) -> bool:
    return moved_rows.plan(block, machine, loops(block.results, block.results[0].shape)[0]) is not None


DTYPES = ("i8", "i1", "f16", "bf16", "i32", "f32", "f64", "complex<f32>", "f8E4M3FN")


@pytest.mark.parametrize("machine", registers(64))
@pytest.mark.parametrize("rows", [1, 3, 701, 2500])
def test_places(machine: int, rows: int) -> None:
    """With more than one iteration of the grid, the last one with fewer rows."""
    cases = []
    for dtype in DTYPES:
        for count in (5, 7, 8, 11, 15):
            x, y = ((rows, count), dtype), ((rows, 4), dtype)
            cases.append(case(f"rolled {dtype} {count}", [x], rolled))
            cases.append(case(f"joined {dtype} {count}", [((rows, count - 4), dtype), y], joined))
            cases.append(
                case(f"cut {dtype} {count}", [((rows, count + 1), dtype)], lambda g, x: part(g, x, 1, x.shape[1]))
            )
        cases.append(case(f"turned {dtype}", [((rows, 3, 4), dtype)], turned))
        cases.append(case(f"every other {dtype}", [((rows, 16), dtype)], lambda g, x: part(g, x, 1, 16, 2)))
    check(cases, replace(host(), vector_bytes=machine))


@pytest.mark.parametrize("machine", registers(64))
@pytest.mark.parametrize("dtype", ["i8", "f32"])
def test_nothing_is_read_past_the_end(machine: int, dtype: str) -> None:
    """The operand ends where memory does."""
    made = case("", [((50, 9), dtype)], rolled)
    (x,) = made.args
    kernel, out = emit_kernel(made.block, "k", replace(host(), vector_bytes=machine)), np.zeros_like(x)
    linked = Linked([kernel], host())
    with nothing_beside(x) as alone:
        linked.run(kernel, [alone, out])
    np.testing.assert_array_equal(out, np.roll(x, 2, 1))


@pytest.mark.parametrize(
    ("types", "build", "is_taken"),
    [
        ([((100, 9), "f32")], rolled, True),
        ([((100, 16), "i8")], rolled, False),  # longer rows are cut where parts meet
        ([((100, 5), "f32")], rolled, False),  # shorter ones are mixed
        ([((100, 5), "complex<f32>")], rolled, True),  # of ten numbers
        ([((100, 5), "f32"), ((100, 4), "f32")], joined, True),
        ([((100, 3, 4), "f64")], turned, False),  # three lines of 12 numbers
        ([((100, 3, 4), "f32")], turned, True),
        ([((100, 9), "i4")], rolled, False),
        ([((9, 100), "f32")], lambda g, x: g("transpose", x, permutation=(1, 0)), False),  # rows of no row
        ([((100, 9), "f32")], lambda g, x: g("reverse", x, dimensions=(0,)), False),
        ([((50, 50, 9), "f32")], lambda g, x: rolled(g, g("transpose", x, permutation=(1, 0, 2))), False),  # other rows
        ([((50, 2, 9), "f32")], lambda g, x: g("concatenate", part(g, x, 0, 9), x, dimension=0), False),
        ([((100, 9), "f32")], lambda g, x: rolled(g, g("negate", x)), False),
        ([((100, 9), "f32")], lambda g, x: (rolled(g, x), rolled(g, x, 3)), False),
        ([((100, 200), "f32")], lambda g, x: part(g, x, 7, 16), False),  # of rows that do not fit
        ([((100, 3), "f32")] * 3, lambda g, *xs: g("concatenate", *xs, dimension=1), False),
    ],
)
def test_what_is_taken(types: Any, build: Any, is_taken: bool) -> None:
    block = case("", types, build).block
    assert taken(block) == is_taken
    assert not taken(block, replace(WIDE, vector_bytes=32)), "there are no masks for bytes"


def test_nothing_is_asked_twice() -> None:
    """Each of 60 arrays is made of the one before it, twice."""

    def computed(g: Graph, x: Any) -> Any:
        for _ in range(60):
            x = g("add", x, x)
        return rolled(g, x)

    def moved(g: Graph, x: Any) -> Any:
        for _ in range(61):
            x = part(g, g("concatenate", x, x, dimension=1), 3, 12)
        return x

    assert not taken(case("", [((100, 9), "f32")], computed).block)
    assert taken(case("", [((100, 9), "f32")], moved).block)


def test_a_flag_for_all() -> None:
    """An operand without rows."""

    def chosen(g: Graph, x: Any) -> Any:
        return rolled(g, g("select", g.const(True, "i1"), x, x))

    assert not taken(case("", [((100, 9), "f32")], chosen).block)
