"""QR factorizations and products with their reflections by Ferrule's own loops (native/qr.cc), where JAX asks LAPACK.

LAPACK wants matrices column by column, which takes a transpose before and one after the call; ours takes them as they
lie, so that the transposes around it and those of the layout cancel each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.ir.types import DType

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
    if not (_lie(op, "operand_layouts", operands, given) and _lie(op, "result_layouts", op.results, made)):
        return None
    plain = [_read(out, op, v) if matrix else v for v, matrix in zip(operands, given, strict=True)]
    about = {"target": target, "ffi": False, "attrs": attrs}
    results = out.add("library", plain, [r.type for r in op.results], about, (), op.loc).results
    return [_written(out, op, r) if matrix else r for r, matrix in zip(results, made, strict=True)]


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


def _lie(op: Op, key: str, values: Sequence[Value], matrices: Sequence[bool]) -> bool:
    """Whether the matrices lie column by column, and all else row by row."""
    layouts = [tuple(layout) for layout in op.attrs.get(key, ())]
    wanted = []
    for value, matrix in zip(values, matrices, strict=True):
        order = tuple(reversed(range(len(value.shape))))
        wanted.append((order[1], order[0], *order[2:]) if matrix else order)
    return layouts == wanted


def _turn(shape: Sequence[int]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """The shape of transposed matrices, and how to transpose them."""
    last = len(shape) - 1
    return (*shape[:-2], shape[-1], shape[-2]), {"permutation": (*range(last - 1), last, last - 1)}


def _read(out: Block, op: Op, value: Value) -> Value:
    """The matrices whose bytes lie column by column in this one's."""
    turned, how = _turn(value.shape)
    laid = out.add("reshape", [value], [Tensor(turned, value.dtype)], {}, (), op.loc)
    return out.add("transpose", laid.results, [value.type], how, (), op.loc).result


def _written(out: Block, op: Op, value: Value) -> Value:
    """The other way round."""
    turned, how = _turn(value.shape)
    laid = out.add("transpose", [value], [Tensor(turned, value.dtype)], how, (), op.loc)
    return out.add("reshape", laid.results, [value.type], {}, (), op.loc).result
