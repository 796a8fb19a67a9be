"""The loop schedule for results whose rows are shorter than a vector, made of arrays that lie across them: what turns
channels first into channels last, or several columns into one array of rows.

Lanes go along the rows' numbers, where the operands are contiguous. For each place in a row there is one vector; the
vectors are mixed in registers, so that the rows leave as whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from ferrule.codegen import borders, memory, streams
from ferrule.codegen.emitter import Emitter, Family, Lanes, parts
from ferrule.codegen.index import Component, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V
from ferrule.codegen.row_pieces import in_pieces
from ferrule.codegen.scalar import compute_type
from ferrule.codegen.short_rows import Columns, by_number
from ferrule.codegen.tiles import CHEAP
from ferrule.ir import Block, Value, tensor
from ferrule.ops import OPS

# The vectors of longer rows, and what they are mixed from, do not stay in registers. A complex number is in two.
LONGEST = 15
# Rows so short are better mixed than written one by one, even where nothing lies across them; of complex numbers those
# of one less: four fill a register.
SHORT = 4
# Lanes where there are few rows.
LEAST = 4
# Operations per element up to which the places of a row are written out one by one, when each has an expression of its
# own.
JOINED = 400.0

Compute = Callable[[Emitter, Sequence[Component]], list[Lanes]]


def lanes_along_rows(family: Family, block: Block, along: Sequence[tuple[Value, int]], sizes: Sequence[int]) -> int:
    """How many rows make a vector, if the kernel is one for this schedule; else 0."""
    if family.machine.grouped or len(sizes) < 2 or not 1 < sizes[-1] <= LONGEST:
        return 0
    joined = any(op.name == "concatenate" for op in block.ops)  # each place in a row asks for its own part only
    if sum(OPS[op.name].flops for op in block.ops) > (JOINED if joined or _once(block, sizes[-1]) else CHEAP):
        return 0
    if any(op.regions for op in block.ops):
        return 0
    types = [tensor(v).dtype for v in (*block.args, *(r for op in block.ops for r in op.results)) if v.shape]
    if any(t.bits < 8 and t.kind != "bool" for t in types):
        return 0
    mixed_parts = any(t.is_complex for t in types)
    if mixed_parts and 2 * sizes[-1] > LONGEST:
        return 0
    width = family.machine.vector_bytes * 8 // max(8, *(bits_of(compute_type(t)) for t in types))
    while width > LEAST and sizes[-2] < 2 * width:
        width //= 2
    if sizes[-2] < 2 * width:
        return 0
    if sizes[-1] <= SHORT - mixed_parts or joined:
        return width
    if any(op.name == "pad" for op in block.ops) and borders.parts(block, sizes):
        return 0  # what lies between the paddings is read in order; lanes across rows would be gathered under masks
    total = prod(sizes)
    beside, inside = len(sizes) - 2, len(sizes) - 1
    loops = {loop for _, loop in along}
    large = {loop for v, loop in along if 4 * tensor(v).size >= total}
    # What is made of small operands alone, such as an outer product, has only its result to take care of.
    if inside in loops and (large or beside not in loops):
        return 0
    return width if beside in large or not large else 0


def _once(block: Block, count: int) -> bool:
    """Is most of the work of a kernel done once for a short row, and not for each of its elements?"""
    if count > SHORT:
        return False
    rows = tensor(block.results[0]).size // count
    work = [(OPS[op.name].flops, tensor(op.results[0]).size <= rows) for op in block.ops]
    return 2 * sum([flops for flops, once in work if once]) >= sum([flops for flops, _ in work])


def emit(
    family: Family,
    block: Block,
    sizes: Sequence[int],
    width: int,
    outputs: Sequence[V],
    begin: V,
    end: V,
    compute: Compute,
) -> int:
    """Writes the loops; gives the grid."""
    alone = prod(sizes[:-2]) == 1
    pointers = [family.pointers[a] for a in block.args]
    past = streams.alignment(family, block, width, sizes[-2] * sizes[-1], whole_lines=True, alone=alone)
    write = partial(_loops, family, block, sizes, width, outputs, begin, end, compute)
    return streams.either(family, pointers, outputs, past, write)


def _loops(
    family: Family,
    block: Block,
    sizes: Sequence[int],
    width: int,
    outputs: Sequence[V],
    begin: V,
    end: V,
    compute: Compute,
) -> int:
    columns = Columns(width, sizes[-1])

    def store(em: Emitter, outer: Sequence[Component], first: Index) -> None:
        """All results are computed before the first is stored: they may lie in an operand's memory."""
        with by_number(family, columns, block.ops, em) as number:
            found = [compute(em, [*outer, first, number(k)]) for k in range(sizes[-1])]
        start = em.ix.flatten([*outer, first._replace(step=0), em.ix.number(0)], sizes)
        for i, (value, pointer) in enumerate(zip(block.results, outputs, strict=True)):
            dtype, unit = value.dtype, 2 if value.dtype.is_complex else 1
            raw = [p if unit == 2 else em.s.to_memory(dtype, p) for lanes in found for p in parts(lanes[i])]
            for j, part in enumerate(raw if em.width == 1 else mixed(family, raw, em.width)):
                place = em.ix.add(em.ix.mul(start, unit), j * em.width)._replace(step=0 if em.width == 1 else 1)
                memory.store(em.ix, pointer, dtype.part, place, [part], None, family.stream)

    return in_pieces(family, sizes, width, begin, end, store, store)


def mixed(family: Family, vectors: Sequence[V], width: int) -> list[V]:
    """Of vectors a, b, … the elements in the order a0 b0 … a1 b1 …, as so many vectors."""
    count, found = len(vectors), []
    for part in range(count):
        wanted = [divmod(part * width + lane, count) for lane in range(width)]  # (lane, vector)
        whole = vectors[0]
        for number, vector in enumerate(vectors[1:], 1):
            picks = [
                (width + lane) if which == number else (lane if number == 1 else at)
                for at, (lane, which) in enumerate(wanted)
            ]
            whole = memory.shuffle(family.b, whole, vector, picks)
        found.append(whole)
    return found
