"""LU factors by Ferrule's own loops (native/lu.cc), where JAX asks LAPACK for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.passes.by_columns import by_columns, read_by_rows, written_by_columns

TARGETS = {"lapack_sgetrf_ffi": t.f32, "lapack_dgetrf_ffi": t.f64}
LAID = (True,), (True, False, False)  # which operands and results are matrices


def lu(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """The results of a call of LAPACK's getrf: factors, pivots and info; None where it is to stay."""
    dtype = TARGETS.get(op.attrs["call_target_name"])
    if dtype is None or len(operands) != 1 or len(op.results) != 3:
        return None
    type = operands[0].type
    if not isinstance(type, Tensor) or type.dtype != dtype or len(type.shape) < 2:
        return None
    *batch, rows, columns = type.shape
    pivots, info = Tensor((*batch, min(rows, columns)), t.i32), Tensor(tuple(batch), t.i32)
    if min(rows, columns) == 0 or 0 in batch:
        return None
    if [r.type for r in op.results] != [type, pivots, info] or not by_columns(op, *LAID):
        return None
    about = {"target": "lu", "ffi": False, "attrs": {}}
    plain = [read_by_rows(out, op, operands[0])]
    factors, *others = out.add("library", plain, [type, pivots, info], about, (), op.loc).results
    return [written_by_columns(out, op, factors), *others]


def never_refused(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """`info >= 0` of our factorization is true: no argument is ever bad."""
    info, least = operands
    call, constant = info.op, least.op
    while constant is not None and constant.name == "broadcast_in_dim":
        constant = constant.operands[0].op
    ours = call is not None and call.name == "library" and call.attrs["target"] == "lu" and info is call.results[2]
    if not ours or constant is None or constant.name != "constant" or op.attrs["comparison_direction"] != "GE":
        return None
    if constant.attrs["value"].any():
        return None
    true = {"value": np.broadcast_to(np.array(True), op.result.shape)}
    return out.add("constant", [], [op.result.type], true, (), op.loc).results
