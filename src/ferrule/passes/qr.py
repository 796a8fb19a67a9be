"""QR factorizations and products with their reflections by Ferrule's own loops (native/qr.cc), not LAPACK's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.ir.types import DType
from ferrule.passes.by_columns import by_columns, read_by_rows, written_by_columns

DTYPES = {"s": t.f32, "d": t.f64}
# Of LAPACK's routine: the name of ours, and which of its operands and results are matrices; the others are vectors.
ROUTINES = {
    "geqrf": ("geqrf", (True,), (True, False)),
    "orgqr": ("householder_product", (True, False), (True,)),
    "ormqr": ("ormqr", (True, False, True), (True,)),
}


def qr(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """The results of a call of LAPACK's geqrf, orgqr or ormqr; None where it is to stay."""
    found = re.fullmatch(r"lapack_([sd])(geqrf|orgqr|ormqr)_ffi", op.attrs["call_target_name"])
    if found is None:
        return None
    target, given, made = ROUTINES[found[2]]
    attrs = _asked(op) if target == "ormqr" else {}
    if attrs is None or not _fit(target, attrs, DTYPES[found[1]], operands, op.results):
        return None
    if not by_columns(op, given, made):
        return None
    plain = [read_by_rows(out, op, v) if matrix else v for v, matrix in zip(operands, given, strict=True)]
    about = {"target": target, "ffi": False, "attrs": attrs}
    results = out.add("library", plain, [r.type for r in op.results], about, (), op.loc).results
    return [written_by_columns(out, op, r) if matrix else r for r, matrix in zip(results, made, strict=True)]


def _asked(op: Op) -> dict[str, bool] | None:
    config = op.attrs.get("backend_config") or op.attrs.get("mhlo.backend_config")
    if not isinstance(config, dict) or set(config) != {"left", "transpose"}:
        return None
    return {"left": bool(config["left"]), "adjoint": bool(config["transpose"])}


def _fit(
    target: str, attrs: dict[str, bool], dtype: DType, operands: Sequence[Value], results: Sequence[Value]
) -> bool:
    """Whether these are arrays of elements, and of shapes, that the call takes."""
    values = (*operands, *results)
    if any(not isinstance(v.type, Tensor) or v.type.dtype != dtype or 0 in v.shape for v in values):
        return False
    shapes = [v.shape for v in values]
    if (len(operands), len(results)) != {"geqrf": (1, 2), "householder_product": (2, 1), "ormqr": (3, 1)}[target]:
        return False
    matrix, taus = shapes[0], shapes[2 if target == "geqrf" else 1]
    if len(matrix) < 2 or taus[:-1] != matrix[:-2]:
        return False
    *batch, rows, columns = matrix
    if target == "geqrf":
        return shapes[1] == matrix and taus[-1] == min(rows, columns)
    if target == "householder_product":
        return shapes[2] == matrix and taus[-1] <= columns <= rows
    other = shapes[2]
    fits = len(other) == len(matrix) and [*other[:-2]] == batch and other[-2 if attrs["left"] else -1] == rows
    return fits and shapes[3] == other and taus[-1] <= min(rows, columns)
