"""Where the vectors of a row meet the borders of joined and padded arrays.

A vector with a border in it computes both sides under masks. The others do not, if their loops know where they are: a
row is cut at its borders, and each piece has a loop of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.codegen.index import strides
from ferrule.ir import Block, Value
from ferrule.ops import OPS

# Rows in more pieces, and more operations in all of them together, are not worth the code.
PIECES, COST = 5, 400.0
VISITED = 300


def pieces(block: Block, inner: int, width: int) -> list[tuple[int, int]]:
    """The pieces [begin, end) of whole vectors of the innermost loop; one if there are no borders, or too many."""
    whole = inner // width * width
    found = (
        _borders(block, inner) if width > 1 and any(op.name in ("concatenate", "pad") for op in block.ops) else set()
    )
    cuts = {0, whole}
    for border in found:
        cuts.update(c for c in (border // width * width, -(-border // width) * width) if c < whole)
    ordered = sorted(cuts)
    cost = sum(OPS[op.name].flops for op in block.ops)
    if len(cuts) - 1 > PIECES or cost * (len(cuts) - 1) > COST:
        return [(0, whole)]
    return list(zip(ordered, ordered[1:], strict=False))


def _borders(block: Block, inner: int) -> set[int]:
    """The places along the innermost loop from where on something else is read."""
    found, seen = set[int](), set[tuple[Value, int, int]]()
    stack = []
    for value in block.results:
        last = max((d for d, n in enumerate(value.shape) if n > 1), default=-1)
        if last >= 0 and value.shape[last] == inner:
            stack.append((value, last, 0))
    while stack and len(seen) < VISITED:
        state = stack.pop()
        if state not in seen:
            seen.add(state)
            for below, border in _step(*state):
                if border is not None and 0 < border < inner:
                    found.add(border)
                if below is not None:
                    stack.append(below)
    return found


def _step(value: Value, dim: int, shift: int) -> Iterator[tuple[tuple[Value, int, int] | None, int | None]]:
    """What is read for the elements whose index along `dim` is that of the loop and `shift`: (what, border)."""
    op = value.op
    if op is None:
        return
    if op.name in OPS and OPS[op.name].elementwise:
        yield from (((v, dim, shift), None) for v in op.operands if v.shape == value.shape)
        return
    attrs, source = op.attrs, op.operands[0] if op.operands else value
    match op.name:
        case "slice":
            if (attrs.get("strides") or [1] * len(value.shape))[dim] == 1:
                yield (source, dim, shift + attrs["start_indices"][dim]), None
        case "concatenate":
            at = 0
            for part in op.operands:
                along = attrs["dimension"] == dim
                yield (part, dim, shift - at * along), (at - shift if along else None)
                at += part.shape[attrs["dimension"]]
        case "pad":
            low = attrs["edge_padding_low"][dim]
            if not (attrs.get("interior_padding") or [0] * len(value.shape))[dim]:
                yield (source, dim, shift - low), low - shift
                yield None, low + source.shape[dim] - shift
        case "transpose":
            yield (source, attrs["permutation"][dim], shift), None
        case "reshape":
            wanted = (strides(value.shape)[dim], value.shape[dim])
            digits = list(zip(strides(source.shape), source.shape, strict=True))
            if wanted in digits:
                yield (source, digits.index(wanted), shift), None
        case "broadcast_in_dim":
            dims = list(attrs["broadcast_dimensions"])
            if dim in dims and source.shape[dims.index(dim)] == value.shape[dim]:
                yield (source, dims.index(dim), shift), None
        case "reduce":
            kept = [d for d in range(len(source.shape)) if d not in attrs["dimensions"]]
            yield from (((v, kept[dim], shift), None) for v in op.operands[: len(op.operands) // 2])
