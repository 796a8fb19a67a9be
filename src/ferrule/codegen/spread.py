"""Elements of padded arrays.

Where interior padding goes along the lanes, neighbours are read together and spread over every so many lanes. Asked for
one by one, each lane divides its place by the distance and gathers under a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferrule.codegen.index import Component, Cond, Index
from ferrule.codegen.memory import shuffle
from ferrule.ir import Op

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes


def neighbours(em: Emitter, op: Op, index: Key) -> tuple[Index, Cond] | None:
    """The place of the first element that is spread over the lanes, and whether all of them exist; None where lanes do
    not go along a dimension with interior padding from a place that is known well enough."""
    from ferrule.codegen.emitter import is_uniform

    inner = (op.attrs.get("interior_padding") or [0] * len(index))[-1:]
    if not index or not inner[0] or em.family.machine.grouped or em.family.mask is not None:
        return None
    distance, low, size = inner[0] + 1, op.attrs["edge_padding_low"][-1], op.operands[0].shape[-1]
    *outer, last = index
    count = em.width // distance
    if em.width % distance or count < 2 or not isinstance(last, Index) or last.step != 1 or not is_uniform(outer):
        return None
    if last.align % distance:
        return None
    begin = last._replace(step=0, high=max(last.low + 1, last.high - em.width + 1))
    first, _ = em.ix.divmod(em.ix.sub(begin, low - low % distance), distance)
    there = em.ix.inside(first, 0, size - count + 1)
    return None if there is False else (first, there)


def spread(em: Emitter, op: Op, source: Sequence[Component], first: Index) -> Lanes:
    """The elements from `first` on of the row `source`, with the padding between them."""
    from ferrule.codegen.emitter import parts, whole

    distance, low = op.attrs["interior_padding"][-1] + 1, op.attrs["edge_padding_low"][-1]
    count = em.width // distance
    few = em.family.at(count)
    row = few.operand(op, 0, [*source, Index(first.base, 1, first.low, first.high + count - 1)])
    padding = few.operand(op, 1, ())
    picks = [lane // distance if (lane - low) % distance == 0 else count for lane in range(em.width)]
    mixed = [shuffle(em.b, a, b, picks) for a, b in zip(parts(row), parts(padding), strict=True)]
    return whole(op.result.dtype, mixed)


def unpadded(em: Emitter, op: Op, index: Key) -> tuple[Cond, list[Component]]:
    """Whether these components of an index are inside of what is padded, and where."""
    shape, low = op.operands[0].shape, op.attrs["edge_padding_low"]
    inner = op.attrs.get("interior_padding") or [0] * len(shape)
    inside: Cond = 0 not in shape
    source: list[Component] = []
    for c, n_d, low_d, inner_d, out in zip(index, shape, low, inner, op.result.shape, strict=False):
        if low_d == 0 and inner_d == 0 and out <= n_d:
            source.append(c)
            continue
        at = em.ix.sub(c, low_d)
        inside = em.ix.both(inside, em.ix.inside(at, 0, (n_d - 1) * (inner_d + 1) + 1))
        at, rest = em.ix.divmod(at, inner_d + 1)
        inside = em.ix.both(inside, em.ix.is_zero(rest))
        source.append(em.ix.within(at, 0, n_d))
    return inside, source


def padded(em: Emitter, op: Op, index: Key) -> Lanes:
    """An element of a padded array."""
    dtype = op.result.dtype

    def padding() -> Lanes:
        return em.operand(op, 1, ())

    def one_by_one() -> Lanes:
        inside, source = unpadded(em, op, index)
        return em.choose(inside, dtype, lambda: em.operand(op, 0, source), padding)

    found = neighbours(em, op, index)
    if found is None:
        return one_by_one()
    (first, there), (inside, source) = found, unpadded(em, op, index[:-1])

    def row() -> Lanes:
        return em.choose(there, dtype, lambda: spread(em, op, source, first), one_by_one)

    return em.choose(inside, dtype, row, padding)
