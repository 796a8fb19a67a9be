"""Reductions along short rows that are whole vectors, for as many rows at once as a vector has lanes.

The elements of a row are combined vector by vector, so that one vector of each row is left. These are added crosswise:
of two vectors, halves change places and the two are combined, until each lane has a row's result. For 16 rows of 64
elements that is 64 reads, 48 combinations, and 15 more with two exchanges each; columns in vectors of their own, by
which short_rows.py reads what is not reduced alone, take 256 exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferrule.codegen.index import Component, Index, Part
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import i64
from ferrule.codegen.memory import shuffle
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Op, Value, tensor
from ferrule.ops import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.codegen.emitter import Emitter, Family, Key, Lanes
    from ferrule.codegen.reduce import Fold

# Operations on what is the same all along a row are done once for each row, not for vectors of rows: few are cheap.
ONCE = 4.0
# Elements stay in the order of memory through these.
IN_ORDER = ("constant", "iota", "reshape", "convert", "slice", "dynamic_slice", "broadcast_in_dim", "transpose")


def fits(fold: Fold, family: Family, width: int) -> bool:
    """Are these rows of whole vectors, whose elements lie beside each other in all that they are computed from?"""
    from ferrule.ops.starts import start_values

    count = fold.shape[-1]
    if count % width or any(d.kind == "bool" or d.is_complex for d in fold.dtypes) or start_values(fold.op) is None:
        return False
    rows = max(tensor(v).size for v in fold.read_from) // count
    seen: set[Value] = set()
    waiting = list(fold.read_from)
    once = 0.0
    while waiting:
        value = waiting.pop()
        op = value.op
        if value in seen or op is None or value in family.pointers:
            continue
        seen.add(value)
        if op.regions or not (_keeps_order(op) or OPS[op.name].elementwise):
            return False
        once += OPS[op.name].flops * (1 < tensor(value).size <= rows)
        waiting += op.operands
    return once <= ONCE


def _keeps_order(op: Op) -> bool:
    if op.name not in IN_ORDER:
        return False
    if op.name == "transpose":
        return op.attrs["permutation"][-1:] == (len(op.attrs["permutation"]) - 1,)
    if op.name == "slice":
        return (op.attrs.get("strides") or (1,))[-1] == 1
    dims = tuple(op.attrs.get("broadcast_dimensions", ()))
    return dims == tuple(sorted(dims))


def reduced(em: Emitter, fold: Fold, index: Key) -> list[Lanes] | None:
    """The reductions of the rows in the lanes of `index`, without the initial values; None where rows lie anyhow."""
    width, count = em.width, fold.shape[-1]
    places = [_of_lane(em, index, lane) for lane in range(width)]
    if None in places:
        return None
    per_part = 128 // max(bits_of(compute_type(d)) for d in fold.dtypes)
    stages = _stages(width, per_part)
    order = _order(width, stages)
    vectors: list[list[Lanes]] = [[] for _ in range(width)]
    for lane, place in enumerate(places):
        assert place is not None
        at = [Index(i64(first), 1, 0, count, width) for first in range(0, count, width)]
        vectors[order[lane]] = _tree(em, fold.combine, [fold.inputs(em, place, [column]) for column in at])
    for low, high in stages:
        vectors = [
            fold.combine(
                em,
                *([shuffle(em.b, x, y, picks) for x, y in zip(first, second, strict=True)] for picks in (low, high)),
            )
            for first, second in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _tree(em: Emitter, combine: Callable[..., list[Lanes]], found: list[list[Lanes]]) -> list[Lanes]:
    while len(found) > 1:
        pairs = [combine(em, x, y) for x, y in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[len(found) // 2 * 2 :]
    return found[0]


def _of_lane(em: Emitter, index: Sequence[Component], lane: int) -> Key | None:
    """The index in one lane, the same for all lanes of the vectors along its row."""

    found: list[Component] = []
    for component in index:
        of = component.of if isinstance(component, Part) else component
        if of.step is None:
            return None
        moved = em.family.at(1).ix.add(of._replace(step=0), lane * of.step)
        still = of._replace(base=moved.base, step=0, align=moved.align)
        found.append(component._replace(of=still) if isinstance(component, Part) else still)
    return tuple(found)


def _stages(width: int, per_part: int) -> list[tuple[list[int], list[int]]]:
    """Which lanes of two vectors make the two that are combined, stage by stage.

    Every stage halves the lanes that a row has. While these are more than a part of 128 bits, whole parts change
    places, then lanes within parts: the instructions for that name no other vector.
    """
    stages = []
    lanes = width
    while lanes > 1:
        group = width if lanes > per_part else min(per_part, width)
        sides = []
        for half in (0, lanes // 2):
            picks: list[int] = []
            for start in range(0, width, group):
                for vector in (0, width):
                    for run in range(start, start + group, lanes):
                        picks += range(vector + run + half, vector + run + half + lanes // 2)
            sides.append(picks)
        stages.append((sides[0], sides[1]))
        lanes //= 2
    return stages


def _order(width: int, stages: Sequence[tuple[list[int], list[int]]]) -> list[int]:
    """At which place among the vectors each row begins, for its result to end in the lane of its number."""
    vectors = [[place] * width for place in range(width)]
    for low, _ in stages:
        vectors = [[(x + y)[lane] for lane in low] for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
