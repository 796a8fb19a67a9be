"""Layouts other than row-major: of a program's parameters and results, and of a custom call's operands and results.

A parameter that lies in memory column by column is, to the compiler, a row-major array of the transposed shape, and a
transpose follows; a result is transposed before it is returned. So a layout costs what a transpose costs.

LAPACK calls from JAX, for example, want matrices column by column. A transpose before the call brings the bytes into
the order that it wants, and a reshape gives the value its logical shape back, which is the shape that the callee is
told. Results go the other way. The layouts stay on the op: they say in which order the bytes of its operands are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, Loc, Op, Tensor, Type, Value

Layout = tuple[int, ...]


def _is_row_major(layout: Layout) -> bool:
    return all(d == len(layout) - 1 - i for i, d in enumerate(layout))


def asked_layout(attrs: dict[str, Any], what: str, type: Type) -> Layout:
    """The layout that `mhlo.layout_mode` asks for; empty for row-major, and where the compiler may choose."""
    mode = attrs.get("mhlo.layout_mode", "default")
    if mode in ("default", "auto", ""):
        return ()
    plain = re.fullmatch(r"\{([\d,]*)\}", mode)
    if plain is None:
        raise Unsupported(
            f"the layout {mode} of {what}",
            why="arrays are dense; tiles and packed elements are not supported",
            fix="ask for an order of the dimensions only: jax.experimental.layout.Layout(major_to_minor=…)",
        )
    layout = tuple(int(d) for d in plain[1].split(",") if d)
    rank = len(type.shape) if isinstance(type, Tensor) else 0
    if sorted(layout) != list(range(rank)):
        raise InvalidArgument(f"the layout {mode} of {what} does not fit {type}")
    return () if _is_row_major(layout) else layout


def laid(type: Type, layout: Layout) -> Tensor:
    """The shape of an array as it lies in memory."""
    assert isinstance(type, Tensor)
    return Tensor(tuple(type.shape[d] for d in reversed(layout)), type.dtype)


def unlaid(type: Type, layout: Layout) -> Tensor:
    """The shape of an array that lies in memory as `type`."""
    assert isinstance(type, Tensor)
    sizes = dict(zip(reversed(layout), type.shape, strict=True)) if layout else {}
    return Tensor(tuple(sizes[d] for d in range(len(type.shape))), type.dtype) if layout else type


def lay(value: Value, layout: Layout, out: Block) -> Value:
    """The value as it is to lie in memory."""
    order = tuple(reversed(layout))
    return out.add("transpose", [value], laid(value.type, layout), {"permutation": order}).result


def unlay(value: Value, layout: Layout, out: Block) -> Value:
    """The value that lies in memory as `value`."""
    order = tuple(reversed(layout))
    back = tuple(order.index(d) for d in range(len(order)))
    return out.add("transpose", [value], unlaid(value.type, layout), {"permutation": back}).result


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
