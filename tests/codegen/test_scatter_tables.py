"""Scatters into tables of their parts: the kernel, on the op's samples and at the limits."""

from __future__ import annotations

import numpy as np
import pytest
from fused import Case, Graph, Linked, check, evaluate, monoid
from test_samples import close

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import ScatterDims, Tensor
from ferrule.ir.types import DTYPES
from ferrule.ops import OPS
from ferrule.targets.cpu import host

LINE = ScatterDims((), (0,), (), (), (0,), 1)


def test_samples() -> None:
    made = OPS["scatter_tables"].samples
    assert made is not None
    for sample in made():
        block = sample.block()
        kernel = emit_kernel(block, "k", host())
        expected = evaluate(block, sample.arrays)
        outs = [np.full(r.shape, 77, r.dtype.numpy) for r in block.results]
        Linked([kernel], host()).run(kernel, [*sample.arrays, *outs], 2)
        assert close(outs[0], expected[0], 2, sample.spread), str(sample)


def scattered(count: int, bins: int, tables: int, turns: int, places: np.ndarray, index: str = "i32") -> Case:
    """Numbers of which no two sums in another order are the same."""
    g = Graph(Tensor((count, 1), DTYPES[index]), Tensor((count,), DTYPES["f32"]))
    attrs = {"shape": (bins,), "tables": tables, "turns": turns, "row": bins + 3, "start": np.float32(-0.0)}
    result = g("scatter_tables", *g.args, scatter_dimension_numbers=LINE, regions=[monoid("add", "f32")], **attrs)
    updates = np.random.default_rng(3).standard_normal(count).astype(np.float32)
    return Case(f"{count} to {bins}", g.done(result), [places.astype(DTYPES[index].numpy)[:, None], updates])


@pytest.mark.parametrize("turns", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 127, 1000, 4099])
def test_parts_and_rests(count: int, turns: int) -> None:
    """Each table gets the same numbers in the same order as NumPy's, whatever is left at the end."""
    places = np.random.default_rng(count).integers(-3, 12, count)
    check([scattered(count, 9, turns * groups, turns, places) for groups in (1, 2, 3)])


@pytest.mark.parametrize("index", ["i8", "ui8", "i64", "ui64"])
def test_places_at_the_ends_of_their_types(index: str) -> None:
    kind = np.iinfo(DTYPES[index].numpy)
    places = np.array([kind.min, kind.max, 0, 5, 4, 1] * 30, DTYPES[index].numpy)
    check([scattered(180, 5, 4, 2, places, index)])
