"""Custom calls that want other than row-major operands or results.

LAPACK calls from JAX, for example, want matrices column by column. A transpose before the call brings the bytes into
the order that it wants, and a reshape gives the value its logical shape back, which is the shape that the callee is
told. Results go the other way. The layouts stay on the op: they say in which order the bytes of its operands are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.errors import InvalidArgument
from ferrule.ir import Block, Loc, Op, Tensor, Type, Value

Layout = tuple[int, ...]


def _is_row_major(layout: Layout) -> bool:
    return all(d == len(layout) - 1 - i for i, d in enumerate(layout))


def _check(op: Op, key: str, values: Sequence[Value]) -> list[Layout]:
    layouts: Any = op.attrs.get(key)
    if layouts is None:
        return [tuple(reversed(range(len(v.shape)))) for v in values]
    if len(layouts) != len(values) or any(
        sorted(layout) != list(range(len(v.shape))) for layout, v in zip(layouts, values, strict=False)
    ):
        raise InvalidArgument(f"the {key} of a custom call do not fit its values", where=op.loc, why=str(layouts))
    return list(layouts)


def row_major_call(op: Op, operands: list[Value], out: Block, loc: Loc) -> Sequence[Value]:
    """Adds the custom call `op` on `operands` to `out`, with its operands and results brought into its layouts."""
    operand_layouts = _check(op, "operand_layouts", op.operands)
    result_layouts = _check(op, "result_layouts", op.results)
    attrs = dict(op.attrs)
    if all(map(_is_row_major, (*operand_layouts, *result_layouts))):
        attrs.pop("operand_layouts", None)
        attrs.pop("result_layouts", None)
    for i, layout in enumerate(operand_layouts):
        if not _is_row_major(layout):
            operands[i] = _to_layout(operands[i], layout, out, loc)
    types: list[Type] = [r.type for r in op.results]
    call = out.add("custom_call", operands, types, attrs, op.regions, loc)
    return [
        result if _is_row_major(layout) else _from_layout(result, layout, out, loc)
        for result, layout in zip(call.results, result_layouts, strict=True)
    ]


def _to_layout(value: Value, layout: Layout, out: Block, loc: Loc) -> Value:
    """`layout` lists the dimensions from the fastest to the slowest in memory."""
    assert isinstance(value.type, Tensor)
    order = tuple(reversed(layout))
    physical = Tensor(tuple(value.shape[d] for d in order), value.dtype)
    moved = out.add("transpose", [value], physical, {"permutation": order}, loc=loc).result
    return out.add("reshape", [moved], value.type, loc=loc).result


def _from_layout(value: Value, layout: Layout, out: Block, loc: Loc) -> Value:
    assert isinstance(value.type, Tensor)
    order = tuple(reversed(layout))
    physical = Tensor(tuple(value.shape[d] for d in order), value.dtype)
    raw = out.add("reshape", [value], physical, loc=loc).result
    back = tuple(order.index(d) for d in range(len(order)))
    return out.add("transpose", [raw], value.type, {"permutation": back}, loc=loc).result
