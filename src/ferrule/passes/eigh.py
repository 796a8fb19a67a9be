"""Eigenvalues and vectors of one symmetric matrix, for which JAX asks LAPACK, with all threads (native/eigh.cc)."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.libraries import has_lapack
from ferrule.passes.by_columns import by_columns

TARGETS = {"lapack_ssyevd_ffi": t.f32, "lapack_dsyevd_ffi": t.f64}
LEAST, MOST = 64, 16384  # rows: with fewer nothing is gained, and with more the integers of LAPACK get short
VECTORS, LOWER = ord("V"), ord("L")


def eigh(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """The results of a call of LAPACK's syevd: vectors, values and info; None where it is to stay."""
    dtype = TARGETS.get(op.attrs["call_target_name"])
    if dtype is None or len(operands) != 1 or len(op.results) != 3:
        return None
    type = operands[0].type
    if not isinstance(type, Tensor) or type.dtype != dtype or len(type.shape) != 2:
        return None
    rows, columns = type.shape
    if [r.type for r in op.results] != [type, Tensor((rows,), dtype), Tensor((), t.i32)]:
        return None
    if not by_columns(op, (True,), (True, False, False)):
        return None
    asked = op.attrs.get("backend_config") or op.attrs.get("mhlo.backend_config")
    if not isinstance(asked, dict) or (int(asked.get("mode", 0)), int(asked.get("uplo", 0))) != (VECTORS, LOWER):
        return None
    if rows != columns or not LEAST <= rows <= MOST or not has_lapack():
        return None
    # The matrix and the vectors lie column by column before and after, as the call has them.
    about = {"target": "eigh", "ffi": False, "attrs": {}}
    return out.add("library", operands, [r.type for r in op.results], about, (), op.loc).results
