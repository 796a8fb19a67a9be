"""A pass of a radix sort on devices: the digits of each part of a line are counted, and its elements written where the
counts of all parts say that they belong.

A work-item has a part of its own and goes along it in order, so that equal digits keep their order. Its counters are a
column of the group's memory, one row per digit: neighbouring items use neighbouring words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Component, Index
from ferrule.codegen.items import dialect, group_size
from ferrule.codegen.llvm import V, i64
from ferrule.ir import Block, Op
from ferrule.ir.types import i32
from ferrule.ops.device import parts
from ferrule.targets.gpu import Gpu


class _Counters:
    """What a work-item knows of each digit."""

    def __init__(self, family: Family, radix: int) -> None:
        self.em, self.size, self.radix = family.at(1), family.group_size, radix
        self.memory = dialect(family).shared(family.b, "i32", radix * self.size)
        self.item = Index(dialect(family).local_id(family.b) if self.size > 1 else i64(0), 0, 0, self.size)

    def _spot(self, digit: Component) -> Index:
        ix = self.em.ix
        return ix.add(ix.mul(digit, self.size), self.item)._replace(low=0, high=self.radix * self.size)

    def get(self, digit: Component) -> V:
        found = self.em.load_at(self.memory, i32, self._spot(digit))
        assert isinstance(found, V)
        return found

    def set(self, digit: Component, value: V) -> None:
        self.em.store(self.memory, i32, self._spot(digit), value)

    def increase(self, digit: Component) -> V:
        """Counts one more; gives the number before."""
        old = self.get(digit)
        self.set(digit, self.em.b.binary("add", old, V("i32", "1")))
        return old

    def each(self, do: Callable[[Index], object]) -> None:
        """`do` for every digit."""

        def step(i: V, _: list[V]) -> list[V]:
            with self.em.scope():
                do(Index(i, 0, 0, self.radix))
            return []

        self.em.b.loop(i64(0), i64(self.radix), 1, [], step, "digits")


def _size(family: Family, radix: int, items: int) -> int:
    """Work-items per group: as many as there is memory for, and one where a processor stands in, which would make
    vectors of them, and gathers of their loads."""
    machine = family.machine
    assert isinstance(machine, Gpu)
    if machine.kind == "cpu":
        return 1
    size = group_size(family, items)
    while size > 1 and size * radix * 4 > machine.local_bytes // 4:
        size //= 2
    return size


def _kernel(family: Family, op: Op, body: Callable[[Emitter, _Counters, Index, Index], None]) -> int:
    """`body(emitter, counters, line, part)` by a work-item for each part; gives the number of work-items."""
    lines, count = op.operands[0].shape[0], parts(op)
    items = lines * count
    size = family.group_size = _size(family, op.attrs["radix"], items)
    em, b = family.at(1), family.b
    counters = _Counters(family, op.attrs["radix"])
    id = Index(dialect(family).global_id(b) if items > 1 else i64(0), 0, 0, items)

    def work() -> list[V]:
        line, part = em.ix.divmod(id, count)
        body(em, counters, line, part)
        return []

    if items % size == 0:
        work()
    else:
        b.branch(b.compare("icmp slt", id.base, i64(items)), work)
    return items


def _elements(
    em: Emitter, op: Op, line: Index, part: Index, do: Callable[[Sequence[Component], Index], object]
) -> None:
    """`do(place, digit)` for the elements of a part, in order."""
    length, size, b = op.operands[0].shape[1], op.attrs["part"], em.b

    def step(i: V, _: list[V]) -> list[V]:
        with em.scope():
            column = em.ix.add(em.ix.mul(part, size), Index(i, 0, 0, size))

            def one() -> list[V]:
                with em.scope():
                    place = (line, column._replace(high=length))
                    digit = em.integer(op, 0, place)
                    do(place, digit._replace(low=0, high=op.attrs["radix"]))
                return []

            if length % size == 0:
                one()
            else:
                b.branch(b.compare("icmp slt", column.base, i64(length)), one)
        return []

    b.loop(i64(0), i64(size), 1, [], step, "elements")


def emit(family: Family, block: Block, outputs: Sequence[V], *_: object) -> tuple[int, int]:
    """Writes the kernel; gives the number of work-items, as a grid."""
    op = block.results[0].op
    assert op is not None
    order = [outputs[block.results.index(r)] if r in block.results else None for r in op.results]
    if op.name == "digit_counts":
        return _counts(family, op, outputs[0]), 1
    return _scatter(family, op, order), 1


def _counts(family: Family, op: Op, output: V) -> int:
    def body(em: Emitter, counters: _Counters, line: Index, part: Index) -> None:
        counters.each(lambda digit: counters.set(digit, V("i32", "0")))
        _elements(em, op, line, part, lambda _, digit: counters.increase(digit))

        def write(digit: Index) -> None:
            em.store(output, i32, em.ix.flatten((line, digit, part), op.result.shape), counters.get(digit))

        counters.each(write)

    return _kernel(family, op, body)


def _scatter(family: Family, op: Op, outputs: Sequence[V | None]) -> int:
    length = op.operands[0].shape[1]

    def body(em: Emitter, counters: _Counters, line: Index, part: Index) -> None:
        def start(digit: Index) -> None:
            lanes = em.operand(op, 1, (line, digit, part))
            assert isinstance(lanes, V)
            counters.set(digit, lanes)

        counters.each(start)

        def move(place: Sequence[Component], digit: Index) -> None:
            values = [em.operand(op, 2 + k, place) for k in range(len(outputs))]
            to = Index(em.b.cast("sext", counters.increase(digit), "i64"), 0, 0, length)
            offset = em.ix.flatten((line, to), op.operands[0].shape)
            for pointer, value, result in zip(outputs, values, op.results, strict=True):
                if pointer is not None:
                    em.store(pointer, result.dtype, offset, value)

        _elements(em, op, line, part, move)

    return _kernel(family, op, body)
