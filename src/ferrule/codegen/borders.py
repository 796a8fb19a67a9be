"""Where the vectors of a row meet the borders of joined and padded arrays.

A vector with a border in it computes both sides under masks. The others do not, if their loops know where they are: a
row is cut at its borders, and each piece has a loop of its own. Whole rows are cut exactly there, and each piece ends
with shorter vectors. Where another array begins with some row, too, the rows before and behind have loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from ferrule.codegen import streams, whole_lines
from ferrule.codegen.index import ZERO, Component, Index, strides
from ferrule.codegen.lanes import first_lanes
from ferrule.codegen.llvm import V, i64
from ferrule.ir import Block, Value
from ferrule.ops import OPS
from ferrule.ops.shape import one_source

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Family

# Rows in more pieces, and more operations in all of them together, are not worth the code.
PIECES, COST = 5, 400.0
# So many pieces of rows and of the dimension before them.
PARTS = 9
VISITED = 300
# Long pieces go by WIDE registers, if no more than LIGHT operations are behind each element: counting would be most of
# the work.
LONG, WIDE, LIGHT = 4, 4, 20.0
# Each rest of a shorter row with more operations would be most of what is computed.
SHORT = 128
JOINING = ("concatenate", "pad")

Piece = tuple[int, int]  # [begin, end)


class Parts(NamedTuple):
    """The pieces of rows, those of the dimension of which each index is a row, and how many registers side by side.

    `line`: long pieces are gone over by lines of so many elements of the result (codegen/whole_lines.py).
    """

    columns: Sequence[Piece]
    rows: Sequence[Piece]
    wide: int
    line: int = 0


def parts(block: Block, sizes: Sequence[int]) -> Parts | None:
    """The pieces between borders, wherever these are; None if there are none, or many, or short ones of much work."""
    if not any(op.name in JOINING for op in block.ops):
        return None
    outer, inner = ([1, *sizes])[-2:]
    columns = _between(along(block.results, (inner,)), inner)
    rows = _between(along(block.results, (outer, inner)), outer)
    if not 1 < len(columns) <= PIECES:
        return None
    cost = sum(OPS[op.name].flops for op in block.ops)
    if len(columns) * len(rows) > PARTS or cost * len(columns) * len(rows) > COST:
        rows = [(0, outer)]
    if cost * len(columns) * len(rows) > COST or cost > LIGHT and inner < SHORT:
        return None
    return Parts(columns, rows, WIDE if cost <= LIGHT else 1)


def _between(borders: set[int], size: int) -> list[Piece]:
    ordered = [0, *sorted(borders), size]
    return list(zip(ordered, ordered[1:], strict=False))


def rolled(block: Block) -> bool:
    """Is something computed of rotated arrays only? Their vectors choose one place in one array (ops/shape.py)."""
    joined = [op for op in block.ops if op.name in JOINING]
    return all(op.name == "concatenate" and one_source(op) is not None for op in joined) and any(
        OPS[op.name].flops > 0 for op in block.ops if op not in joined
    )


def each(
    family: Family,
    found: Parts,
    width: int,
    before: Index,
    outer: Sequence[Component],
    body: Callable[[Emitter, Sequence[Component]], None],
) -> None:
    """`body` for the row at `outer`, `before` which so many elements are, in vectors from where each piece begins on,
    then its rest.

    These are of `width` lanes, in long pieces of several registers of them.
    """
    b = family.b
    row = family.at(1).ix.force(outer[-1]) if outer else ZERO

    def columns(low: int, high: int) -> list[V]:
        with family.at(1).scope():
            at = (*outer[:-1], row._replace(low=max(low, row.low), high=min(high, row.high))) if outer else ()
            for piece in found.columns:
                _piece(family, width, found, before, piece, lambda em, column: body(em, (*at, column)))
        return []

    def choose(k: int) -> list[V]:
        low, high = found.rows[k]
        if k == len(found.rows) - 1:
            return columns(low, high)
        above = b.compare("icmp slt", row.base, i64(high))
        return b.branch(above, lambda: columns(low, high), lambda: choose(k + 1))

    choose(0)


def each_run(
    family: Family,
    found: Parts,
    width: int,
    length: int,
    row: Index,
    outer: Sequence[Component],
    which: Index,
    body: Callable[[Emitter, Sequence[Component]], None],
) -> None:
    """The same for run number `which` of a long row, before which so many elements are: each piece is one or several,
    of up to `length` elements."""
    b, ix = family.b, family.at(1).ix

    def run(low: int, high: int, before: int) -> list[V]:
        with family.at(1).scope():
            first = ix.add(ix.mul(ix.sub(which, before)._replace(low=0), length), low)
            last = ix.clamp(ix.add(first, length), low, high)
            if by_lines(found, (low, high)):
                wide = max(1, found.wide * width // found.line)

                def element(em: Emitter, column: Index) -> None:
                    body(em, (*outer, column))

                whole_lines.span(family, found.line, wide, row, first.base, last.base, (low, high), element)
                return []
            with streams.kept_in_cache(family) if found.line else nullcontext():
                for lanes in sorted({found.wide * width, width, 1}, reverse=True):
                    rest = ix.divmod(ix.sub(last, first)._replace(low=0), lanes)[1]
                    stop = ix.sub(last, rest)._replace(low=low, high=high + 1)
                    em = family.at(lanes)

                    def vector(i: V, _: list[V], em: Emitter = em, lanes: int = lanes) -> list[V]:
                        with em.scope():
                            body(em, (*outer, Index(i, int(lanes > 1), low, high, gcd(low, lanes))))
                        return []

                    b.loop(first.base, stop.base, lanes, [], vector, "run")
                    first = stop
        return []

    def choose(k: int, before: int) -> list[V]:
        low, high = found.columns[k]
        if k == len(found.columns) - 1:
            return run(low, high, before)
        behind = before + runs((low, high), length)
        here = b.compare("icmp slt", which.base, i64(behind))
        return b.branch(here, lambda: run(low, high, before), lambda: choose(k + 1, behind))

    choose(0, 0)


def runs(piece: Piece, length: int) -> int:
    """Of how many runs of up to `length` elements a piece is."""
    low, high = piece
    return -(-(high - low) // length)


def by_lines(found: Parts, piece: Piece) -> bool:
    """Is a piece long enough to be gone over by lines?"""
    return found.line > 0 and piece[1] - piece[0] >= whole_lines.LONG_ROW * found.line


def _piece(
    family: Family, width: int, found: Parts, before: Index, piece: Piece, body: Callable[[Emitter, Index], None]
) -> None:
    (low, high), wide = piece, found.wide
    if by_lines(found, piece):
        wide = max(1, wide * width // found.line)
        whole_lines.span(family, found.line, wide, before, i64(low), i64(high), piece, body)
        return
    with streams.kept_in_cache(family) if found.line else nullcontext():
        _vectors_and_rest(family, width, wide, piece, body)


def _vectors_and_rest(
    family: Family, width: int, wide: int, piece: Piece, body: Callable[[Emitter, Index], None]
) -> None:
    low, high = piece
    if high - low < LONG * wide * width:
        wide = 1
    for lanes in sorted({wide * width, width}, reverse=True):
        low = _vectors(family, lanes, low, low + (high - low) // lanes * lanes, body)
    if family.machine.vector_bytes == 64 and high - low > 1:
        em = family.at(width)
        with em.scope(), em.masked(first_lanes(width, high - low)):
            body(em, Index(i64(low), 1, low, high, low))
        return
    while low < high:
        lanes = 1 << ((high - low).bit_length() - 1)
        low = _vectors(family, lanes, low, low + lanes, body)


def _vectors(family: Family, lanes: int, low: int, high: int, body: Callable[[Emitter, Index], None]) -> int:
    """`body` in whole vectors; gives the end."""
    em = family.at(lanes)

    def vector(i: V, _: list[V]) -> list[V]:
        with em.scope():
            body(em, Index(i, int(lanes > 1), low, high, low if low + lanes == high else gcd(low, lanes)))
        return []

    if high == low + lanes:
        vector(i64(low), [])
    elif high > low:
        family.b.loop(i64(low), i64(high), lanes, [], vector, "piece")
    return high


def pieces(block: Block, inner: int, width: int) -> list[Piece]:
    """The pieces [begin, end) of whole vectors of the innermost loop; one if there are no borders, or too many."""
    whole = inner // width * width
    found = along(block.results, (inner,)) if width > 1 and any(op.name in JOINING for op in block.ops) else set()
    cuts = {0, whole}
    for border in found:
        cuts.update(c for c in (border // width * width, -(-border // width) * width) if c < whole)
    ordered = sorted(cuts)
    cost = sum(OPS[op.name].flops for op in block.ops)
    if len(cuts) - 1 > PIECES or cost * (len(cuts) - 1) > COST:
        return [(0, whole)]
    return list(zip(ordered, ordered[1:], strict=False))


def along(values: Sequence[Value], sizes: Sequence[int]) -> set[int]:
    """The places along the first of these innermost loops from where on something else is read."""
    found = set[int]()
    for value in values:
        last = max((d for d, n in enumerate(value.shape) if n > 1), default=-1)
        first = last + 1 - len(sizes)
        if first >= 0 and value.shape[first : last + 1] == tuple(sizes):
            found |= of(value, first)
    return found


def of(value: Value, dim: int) -> set[int]:
    """Those along a dimension of one value."""
    found, seen, stack = set[int](), set[tuple[Value, int, int]](), [(value, dim, 0)]
    while stack and len(seen) < VISITED:
        state = stack.pop()
        if state not in seen:
            seen.add(state)
            for below, border in _step(*state):
                if border is not None and 0 < border < value.shape[dim]:
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
