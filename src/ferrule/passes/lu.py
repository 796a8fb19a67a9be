"""LU factors by Ferrule's own loops (native/lu.cc), where JAX asks LAPACK for them.

LAPACK wants matrices column by column, which takes a transpose before and one after the call; ours takes them as they
lie, so that the transposes around it and those of the layout cancel each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t

TARGETS = {"lapack_sgetrf_ffi": t.f32, "lapack_dgetrf_ffi": t.f64}


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
    if [r.type for r in op.results] != [type, pivots, info] or not by_columns(op, len(type.shape)):
        return None
    last = len(batch) + 1
    turn = {"permutation": (*range(last - 1), last, last - 1)}
    turned = Tensor((*batch, columns, rows), type.dtype)
    laid = out.add("reshape", operands, [turned], {}, (), op.loc)
    plain = out.add("transpose", laid.results, [type], turn, (), op.loc)
    about = {"target": "lu", "ffi": False, "attrs": {}}
    factors, *others = out.add("library", plain.results, [type, pivots, info], about, (), op.loc).results
    back = out.add("transpose", [factors], [turned], turn, (), op.loc)
    return [out.add("reshape", back.results, [type], {}, (), op.loc).result, *others]


def by_columns(op: Op, rank: int) -> bool:
    """Whether the matrices lie column by column, and all else row by row."""
    matrix, vector = (rank - 2, rank - 1, *range(rank - 3, -1, -1)), tuple(range(rank - 2, -1, -1))
    layouts = [tuple(layout) for layout in op.attrs.get("result_layouts", ())]
    return [tuple(layout) for layout in op.attrs.get("operand_layouts", ())] == [matrix] and layouts == [
        *(matrix, vector, vector[1:])
    ]


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
