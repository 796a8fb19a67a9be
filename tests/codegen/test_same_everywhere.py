"""What one element of a joined array gives to all of a large one leaves the loop several registers wide."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fused import Graph, case, check

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

N = 40_003


def element(g: Graph, x: Any, i: int, j: int) -> Any:
    cut = g("slice", x, start_indices=(i, j), limit_indices=(i + 1, j + 1), strides=(1, 1))
    return g("reshape", cut, result=Tensor((), x.dtype))


def spread(g: Graph, x: Any) -> Any:
    return g("broadcast_in_dim", x, result=Tensor((N,), x.dtype), broadcast_dimensions=())


def key(g: Graph, x: Any, a: Any, b: Any) -> Any:
    """As the key of a random generator is after it was split."""
    joined = g("concatenate", a, b, dimension=1)
    return g("xor", g("add", x, spread(g, element(g, joined, 1, 0))), spread(g, element(g, joined, 0, 1)))


def ends(g: Graph, x: Any, y: Any) -> Any:
    """Every element is of the joined array: at its border the loop is cut."""
    return g("negate", g("concatenate", x, y, dimension=0))


def both(g: Graph, x: Any, y: Any) -> Any:
    """An element of an array that is joined and a result too."""
    joined = g("concatenate", x, y, dimension=0)
    cut = g("slice", joined, start_indices=(5,), limit_indices=(6,), strides=(1,))
    return joined, g("add", joined, spread(g, g("reshape", cut, result=Tensor((), x.dtype))))


CASES: dict[str, tuple[list[tuple[tuple[int, ...], str]], Any, bool]] = {
    "key": ([((N,), "ui32"), ((2, 1), "ui32"), ((2, 1), "ui32")], key, True),
    "ends": ([((N - 9,), "i32"), ((9,), "i32")], ends, True),
    "both": ([((7,), "i32"), ((N - 7,), "i32")], both, True),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    types, build, _ = CASES[name]
    check([case(name, types, build)])


@pytest.mark.parametrize("name", CASES)
def test_registers(name: str) -> None:
    types, build, several = CASES[name]
    text = emit_kernel(case(name, types, build).block, "k", host()).text
    lanes = max(int(n) for n in re.findall(r"<(\d+) x i32>", text))
    assert (lanes > host().vector_bytes // DTYPES["i32"].numpy.itemsize) == several
