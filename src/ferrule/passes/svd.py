"""Singular values and vectors of matrices, for which JAX asks LAPACK, with all threads (native/svd.cc)."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.libraries import has_lapack
from ferrule.passes.by_columns import by_columns, read_by_rows, written_by_columns

TARGETS = {"lapack_sgesdd_ffi": t.f32, "lapack_dgesdd_ffi": t.f64}
# Rows or columns, whichever are fewer, from which something is gained; and the most for LAPACK's short integers.
LEAST, MOST, LONGEST = 16, 16384, 1 << 20
MODES = {ord("N"): (False, False), ord("S"): (True, False), ord("A"): (True, True)}


def svd(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """The results of a call of LAPACK's gesdd: the matrix, s, U, V^T and info; None where it is to stay."""
    dtype = TARGETS.get(op.attrs["call_target_name"])
    if dtype is None or len(operands) != 1 or len(op.results) != 5 or not has_lapack():
        return None
    asked = op.attrs.get("backend_config") or op.attrs.get("mhlo.backend_config")
    if not isinstance(asked, dict) or int(asked.get("mode", 0)) not in MODES:
        return None
    vectors, full = MODES[int(asked["mode"])]
    type = operands[0].type
    if not isinstance(type, Tensor) or type.dtype != dtype or len(type.shape) < 2:
        return None
    *batch, rows, columns = type.shape
    least = min(rows, columns)
    if not LEAST <= least <= MOST or max(rows, columns) > LONGEST or 0 in batch:
        return None
    u, vt = (rows, columns) if full or not vectors else (least, least)
    parts = [((least,), dtype), ((rows, u), dtype), ((vt, columns), dtype), ((), t.i32)]
    types = [Tensor((*batch, *shape), element) for shape, element in parts]
    if [r.type for r in op.results] != [type, *types]:
        return None
    if not by_columns(op, (True,), (True, False, True, True, False)):
        return None
    about = {"target": "svd", "ffi": False, "attrs": {"full": full}}
    matrix = [read_by_rows(out, op, operands[0])]
    if not vectors:
        values, info = out.add("library", matrix, [types[0], types[3]], about, (), op.loc).results
        # There is nothing to read in what LAPACK leaves of the others.
        nothing = [out.add("uninitialized", [], [x], {}, (), op.loc).result for x in types[1:3]]
        return [operands[0], values, *nothing, info]
    values, left, right, info = out.add("library", matrix, types, about, (), op.loc).results
    return [operands[0], values, *(written_by_columns(out, op, x) for x in (left, right)), info]
