"""The loop schedule: results of one shape, every element computed by its expression.

Dimensions that every access treats alike are joined (a chain of elementwise ops becomes one flat loop). The innermost of
the joined dimensions runs in vector lanes; the others, and pieces of the innermost where it is long, are the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import ZERO, Component, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.runs import joined
from ferrule.codegen.scalar import compute_type
from ferrule.errors import Internal
from ferrule.ir import Block, Op
from ferrule.targets.cpu import Machine

# Elements of one piece of a long innermost dimension.
PIECE = 4096
# A thread is woken for no less work than this.
GRAIN_NS = 25_000.0


def emit(
    family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, nanoseconds: float
) -> tuple[int, int]:
    """Writes the loops; gives the grid and the grain. `nanoseconds` estimates the work of the whole grid."""
    shape = block.results[0].shape
    if any(r.shape != shape for r in block.results):
        raise Internal("a kernel's results differ in shape", where=block.results[0].op and block.results[0].op.loc)
    if 0 in shape:
        return 0, 1
    sizes = joined(block, shape)
    inner, rows = sizes[-1], prod(sizes[:-1])
    width = lane_count(block, family.machine, inner)
    piece = max(PIECE // width, 1) * width
    pieces = 1 if inner <= piece or rows >= 256 else -(-inner // piece)

    def iteration(i: V) -> None:
        em = family.at(1)
        with em.scope():
            row, first, last = Index(i, 0, 0, rows * pieces), ZERO, i64(inner)
            if pieces > 1:
                row, which = em.ix.divmod(row, pieces)
                first = em.ix.mul(which, piece)
                last = em.ix.clamp(em.ix.add(first, piece), 0, inner).base
            outer = em.ix.split(row, sizes[:-1])
            span(family, width, first, last, inner, lambda em, at: element(em, block, outputs, sizes, (*outer, at)))

    family.b.loop(begin, end, 1, [], lambda i, _: [iteration(i)] and [], "grid")
    grid = rows * pieces
    return grid, max(1, min(grid, int(GRAIN_NS * grid / max(nanoseconds, 1.0))))


def element(em: Emitter, block: Block, outputs: Sequence[V], sizes: Sequence[int], at: Sequence[Component]) -> None:
    """Computes and stores the elements of all results at one index (all are computed before the first is stored)."""
    shape = block.results[0].shape
    index = em.ix.reshape(at, sizes, shape)
    lanes = [em.value(value, index) for value in block.results]
    offset = em.ix.flatten(at, sizes)
    for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
        em.store(pointer, value.dtype, offset, lane)


def span(family: Family, width: int, first: Index, last: V, size: int, body) -> None:  # type: ignore[no-untyped-def]
    """`body(emitter, index)` for index in [first, last), in vectors of `width` lanes, then the rest.

    `size` is the upper bound of `last`; when it is a multiple of the width, `last` is one too.
    """
    b = family.b
    em = family.at(width)

    def vector(i: V, _: list[V]) -> list[V]:
        with em.scope():
            body(em, Index(i, 1 if width > 1 else 0, 0, size, width))
        return []

    if width == 1 or size % width == 0:
        b.loop(first.base, last, width, [], vector, "lanes")
        return
    whole = em.ix.sub(Index(last, 0, 0, size + 1), em.family.at(1).ix.divmod(Index(last, 0, 0, size + 1), width)[1]).base
    if size > width:
        b.loop(first.base, whole, width, [], vector, "lanes")
    if family.machine.vector_bytes < 64:  # masked loads and stores are slow or missing
        one = family.at(1)

        def scalar(i: V, _: list[V]) -> list[V]:
            with one.scope():
                body(one, Index(i, 0, 0, size))
            return []

        b.loop(whole, last, 1, [], scalar, "rest")
        return

    def rest() -> list[V]:
        with em.scope():
            lanes = em.ix.lanes(Index(whole, 1, 0, size + width))
            with em.masked(b.compare("icmp slt", lanes, em.ix.splat(last))):
                body(em, Index(whole, 1, 0, size, width))
        return []

    if size < width:
        rest()
    else:
        b.branch(b.compare("icmp slt", whole, last), rest)


def lane_count(block: Block, machine: Machine, inner: int) -> int:
    """How many lanes: as many of the widest type computed with as fill a register, no more than there are elements."""
    if any(_runs_along_lanes(op) for op in block.ops):
        return 1
    bits = [8]
    for op in block.ops:
        bits += [max(8, bits_of(compute_type(r.dtype))) for r in op.results if r.shape]
    bits += [max(8, bits_of(compute_type(a.dtype))) for a in block.args if a.shape]
    width = machine.vector_bytes * 8 // max(bits)
    while width > 1 and width // 2 >= inner:
        width //= 2
    if inner % width and inner % (width // 2 or 1) == 0 and inner > width:
        width //= 2
    return width


def _runs_along_lanes(op: Op) -> bool:
    """A reduction whose own vectors run along the innermost input dimension."""
    if op.name != "reduce":
        return False
    x = op.operands[0]
    return bool(x.shape) and x.type.rank - 1 in op.attrs["dimensions"] and x.shape[-1] >= 8  # type: ignore[union-attr]
