"""Selections by one flag for all elements: a branch, so that only the chosen side is read and computed.

`where(flag, update(x), x)` skips the update and what it would read; `where(flag & mask, …)` is read as `where(flag,
where(mask, …), …)`. What another value of the kernel is made of, too, stays outside: it would be computed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ferrule.codegen.index import Component
from ferrule.codegen.scalar import Lane as Lanes
from ferrule.ir import Op, Value
from ferrule.ops import OPS

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter

# Ops that a side may consist of besides elementwise ones, and how many.
MOVES = frozenset({"broadcast_in_dim", "reshape", "iota", "constant", "slice", "transpose", "reverse"})
SIZE = 100


def chosen(em: Emitter, op: Op, index: Sequence[Component]) -> Lanes | None:
    """The lanes of a `select` by one flag; None where it is not to be branched over."""
    family = em.family
    plain = family.mask is None and family.tile is None and family.columns is None and family.folded is None
    if em.width == 1 or family.machine.grouped or not plain or family.varying:
        return None
    predicate, *sides = op.operands
    flag, alone = _flag(predicate)
    if flag is None or not _apart(em, op, sides if alone else op.operands):
        return None
    rank = len(index)
    values = [lambda v=v: em.value(v, index if len(v.shape) == rank else ()) for v in op.operands]
    test, yes, no = values
    both = yes if alone else lambda: em.s.select(test(), yes(), no())
    return em.choose(family.at(1).value(flag, ()), op.result.dtype, both, no)  # type: ignore[arg-type]


def _flag(predicate: Value) -> tuple[Value | None, bool]:
    """A scalar without which no flag is set, and whether it is all there is."""
    stack, alone = [predicate], True
    while stack:
        value = stack.pop()
        scalar = value
        while scalar.shape and scalar.op is not None and scalar.op.name == "broadcast_in_dim":
            scalar = scalar.op.operands[0]
        if not scalar.shape:
            return scalar, alone
        if value.op is not None and value.op.name == "and":
            stack += value.op.operands
            alone = False
    return None, False


def _apart(em: Emitter, op: Op, computed: Sequence[Value]) -> bool:
    """Is there something to skip, and does nobody else want it?"""
    family = em.family
    if family.uses is None:
        family.uses = uses(family.results)
    seen: dict[Op, None] = {}
    stack, reads = list(computed), False
    while stack:
        value = stack.pop()
        source = value.op
        if source is None or value in family.pointers:
            reads |= bool(value.shape)
            continue
        if source in seen:
            continue
        if len(seen) == SIZE or not (_pointwise(source) or source.name in MOVES):
            return False
        seen[source] = None
        stack += source.operands
    inside = Counter(v for o in (op, *seen) for v in o.operands)
    dear = [o for o in seen if _pointwise(o) and o.result.shape]
    return (reads or bool(dear)) and all(inside[r] == family.uses[r] for o in dear for r in o.results)


def _pointwise(op: Op) -> bool:
    return op.name in OPS and OPS[op.name].elementwise


def uses(results: Iterable[Value]) -> Counter[Value]:
    """How often each value is read by what a kernel computes, or is a result."""
    found = Counter(results)
    seen: set[Op] = set()
    stack = [v.op for v in found]
    while stack:
        op = stack.pop()
        if op is None or op in seen:
            continue
        seen.add(op)
        read = [*op.operands, *(v for r in op.regions for v in r.free())]
        found.update(read)
        stack += [v.op for v in read]
    return found
