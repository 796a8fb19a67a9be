"""Windows of arrays of small matrices are written where they belong: one column of each, say (codegen/update.py)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from fused import Graph, Linked, evaluate, registers, sample

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


@pytest.mark.parametrize("vector", registers(16, 32, 64))
@pytest.mark.parametrize("count", [5, 64, 600])
@pytest.mark.parametrize("dtype", ["f32", "i8", "complex<f32>"])
@pytest.mark.parametrize("computed", [False, True], ids=["bare", "computed"])
@pytest.mark.parametrize(
    ("matrix", "window"),
    [
        ((4, 4), (3, 1)),  # the elements of a column, which lie apart
        ((4, 4), (1, 3)),  # of a row
        ((4, 4), (4, 1)),
        ((4, 4, 4), (3, 1, 1)),
        ((4, 5, 2), (3, 1, 2)),
        ((4, 1, 4), (4, 1, 1)),
        ((4, 1, 1), (3, 1, 1)),  # side by side, with what has one element behind them
        ((40, 2, 1), (33, 1, 1)),
        ((3,), (1,)),
    ],
)
def test_windows(
    matrix: tuple[int, ...], window: tuple[int, ...], computed: bool, dtype: str, count: int, vector: int
) -> None:
    whole, part = (count, *matrix), (count, *window)
    start = [0, *(most - size for most, size in zip(matrix, window, strict=True))]
    types = [Tensor(whole, DTYPES[dtype]), Tensor(part, DTYPES[dtype]), *(Tensor((), DTYPES["i32"]) for _ in whole)]
    g = Graph(*types)
    x, update, *at = g.args
    block = g.done(g("dynamic_update_slice", x, g("negate", update) if computed else update, *at))
    machine = replace(host(), vector_bytes=vector)
    kernel = emit_kernel(block, "k", machine)
    old, new, places = sample(whole, dtype), sample(part, dtype), [np.array(n, np.int32) for n in start]
    (want,), linked = evaluate(block, [old, new, *places]), Linked([kernel], machine)
    for pieces in (1, 3):
        out = np.concatenate([old.reshape(-1), np.full(64, 9, old.dtype)])
        found = out[: prod(whole)].reshape(whole)
        linked.run(kernel, [found, new, *places, found], pieces)
        np.testing.assert_array_equal(found, want)
        assert (out[prod(whole) :] == 9).all()
