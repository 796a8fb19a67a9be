"""LAPACK's matrices lie column by column: whether a call's do, and the same matrices row by row.

Ferrule's own calls take them row by row, so that the transposes around LAPACK's call and those made here cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value


def by_columns(op: Op, given: Sequence[bool], made: Sequence[bool]) -> bool:
    """Whether the operands and results that are matrices lie column by column, and all others row by row."""
    return _lie(op, "operand_layouts", op.operands, given) and _lie(op, "result_layouts", op.results, made)


def _lie(op: Op, key: str, values: Sequence[Value], matrices: Sequence[bool]) -> bool:
    wanted = []
    for value, matrix in zip(values, matrices, strict=True):
        order = tuple(reversed(range(len(value.shape))))
        wanted.append((order[1], order[0], *order[2:]) if matrix else order)
    return [tuple(layout) for layout in op.attrs.get(key, ())] == wanted


def read_by_rows(out: Block, op: Op, value: Value) -> Value:
    """The matrices whose bytes lie column by column in this one's."""
    turned, how = _turn(value.shape)
    laid = out.add("reshape", [value], [Tensor(turned, value.dtype)], {}, (), op.loc)
    return out.add("transpose", laid.results, [value.type], how, (), op.loc).result


def written_by_columns(out: Block, op: Op, value: Value) -> Value:
    """The other way round."""
    turned, how = _turn(value.shape)
    laid = out.add("transpose", [value], [Tensor(turned, value.dtype)], how, (), op.loc)
    return out.add("reshape", laid.results, [value.type], {}, (), op.loc).result


def _turn(shape: Sequence[int]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """The shape of transposed matrices, and how to transpose them."""
    last = len(shape) - 1
    return (*shape[:-2], shape[-1], shape[-2]), {"permutation": (*range(last - 1), last, last - 1)}
