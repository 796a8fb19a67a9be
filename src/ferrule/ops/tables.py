"""scatter_tables: a scatter of single elements in parts, each into a table of its own, that are combined later.

Only Ferrule's passes make it (passes/tables.py). The updates, in their order, are cut into as many parts as there are
groups of `turns` tables, which take turns in a part. A table is a row of the result that begins with `start`; it has
the elements of the scatter's result, then one that takes what falls outside, then nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from ferrule.ir import Op, ScatterDims, Tensor, Type
from ferrule.ir.types import bf16, c64, f32, f64, i1, i8, i32
from ferrule.ops import numerics as n
from ferrule.ops.bodies import check_body, vectorized
from ferrule.ops.checks import attr, expect, operands, regions
from ferrule.ops.definition import Run, define
from ferrule.ops.indexing import index_vectors, targets
from ferrule.ops.reduction import apply_in_rounds
from ferrule.ops.samples import Sample, data, samples, scalar_body

Arrays = Sequence[np.ndarray]

# Parts are multiples of this, so that vectors of updates end with them.
WHOLE = 64


def part(op: Op) -> int:
    """How many updates a part has; the last ones may have fewer."""
    groups = op.attrs["tables"] // op.attrs["turns"]
    count = prod(op.operands[1].shape)
    return -(-count // (groups * WHOLE)) * WHOLE


def _infer(op: Op) -> Sequence[Type]:
    _, updates = operands(op, 2)
    tables, turns, row = attr(op, "tables"), attr(op, "turns"), attr(op, "row")
    dims: ScatterDims = attr(op, "scatter_dimension_numbers")
    expect(op, not dims.update_window_dims, "its windows are single elements")
    expect(op, tables % turns == 0 and turns & (turns - 1) == 0, f"{turns} of {tables} tables take turns")
    expect(op, prod(attr(op, "shape")) < row, f"rows of {row} for a result of {attr(op, 'shape')}")
    (body,) = regions(op, 1)
    scalar = Tensor((), updates.dtype)
    check_body(op, body, [scalar, scalar], [scalar], "body")
    return [Tensor((tables, row), updates.dtype)]


def _evaluate(op: Op, xs: Arrays, run: Run) -> Arrays:
    indices, updates = xs
    dims, shape = op.attrs["scatter_dimension_numbers"], op.attrs["shape"]
    tables, turns, row = op.attrs["tables"], op.attrs["turns"], op.attrs["row"]
    out = np.full(tables * row, op.attrs["start"].reshape(-1)[0], updates.dtype)
    place, inside = targets(dims, shape, updates.shape, index_vectors(indices, dims.index_vector_dim))
    number = np.arange(updates.size)
    table = number // part(op) * turns + number % part(op) % turns
    where = table * row + np.where(inside.reshape(-1), place.reshape(-1), prod(shape))
    apply_in_rounds([out], where, [n.convert(updates.reshape(-1), op.result.dtype)], vectorized(op.regions[0], run))
    return [out.reshape(tables, row)]


define("scatter_tables", infer=_infer, evaluate=_evaluate, flops=1, internal=True)


# ---- samples ---------------------------------------------------------------------------------------------------------


@samples("scatter_tables")
def _samples(name: str) -> Iterable[Sample]:
    points, line = ScatterDims((), (0, 1), (), (), (0, 1), 1), ScatterDims((), (0,), (), (), (0,), 2)
    for d in (i1, i8, i32, bf16, f32, f64, c64):
        for dims, shape, updates, tables, turns in (
            (line, (20,), (3, 50), 2, 1),
            (line, (1,), (1, 700), 8, 4),
            (points, (7, 5), (301,), 6, 2),
        ):
            size = len(shape)
            at = data(i32, (*updates, size), "at") % 9 - 1
            for kind in ("or",) if d == i1 else ("add", "maximum", "minimum"):
                if d.is_complex and kind != "add":
                    continue
                start = np.zeros((), d.numpy)
                attrs = {
                    "scatter_dimension_numbers": dims, "shape": shape, "start": start,
                    "tables": tables, "turns": turns, "row": prod(shape) + 5,
                }  # fmt: skip
                arrays, spread = (at.astype(np.int32), data(d, updates, "update")), 8.0 * (d.is_float or d.is_complex)
                yield Sample(
                    name, f"{kind}-{d}{list(shape)}", arrays, attrs, regions=(scalar_body(kind, d),), spread=spread
                )
