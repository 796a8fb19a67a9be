"""Allocate: gives every value an address.

Input is a fused block (passes/fuse.py). A *storage* is a piece of memory; several values may live in one, one after the
other: the views of a reshape, the stages of an in-place update, the carry of a loop. A storage is a parameter, an
output, a constant, or lies in the arena, where storages whose lifetimes do not overlap share bytes.

Lifetimes are intervals on a clock that ticks once per op, nested blocks in line. A value that a loop reads from outside
lives to the end of the loop. Writing a result straight into its final place (an output that shares memory with a
donated parameter, the carry of a loop) is allowed only when nobody reads the old content at or after that tick, except
for a kernel that reads each element before it writes the same one. Such a kernel's result takes the place of an operand
that nobody reads later: its lines are in the cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ops import OPS
from ferrule.passes.arena import ALIGN, Need, pack
from ferrule.program import ARENA, CONSTANT, OUTPUT, PARAM, Slot

BRANCHES = ("case", "if")


class Storage:
    """A piece of memory; `begin` and `end` are the first and last tick at which its content matters."""

    __slots__ = ("kind", "where", "size", "begin", "end", "slot", "values")

    def __init__(self, kind: int, size: int, begin: int, where: int = -1) -> None:
        self.kind, self.size, self.begin, self.end, self.where, self.slot = kind, size, begin, begin, where, -1
        self.values: list[Value] = []


@dataclass
class Plan:
    """Where everything lies. `before`, `inside` and `after` are copies (dst, src, bytes) around an op's execution."""

    slots: list[Slot] = field(default_factory=list)
    slot_of: dict[Value, int] = field(default_factory=dict)
    before: dict[Op, list[tuple[int, int, int]]] = field(default_factory=dict)
    at_end: dict[Block, list[tuple[int, int, int]]] = field(default_factory=dict)
    constants: bytes = b""
    arena_bytes: int = 0


def allocate(block: Block, aliases: Sequence[int], apart: bool = False) -> Plan:
    """Plans the memory of an entry block; `aliases[p]` is the output that parameter p is donated into, or negative.

    `apart`: independent ops may run at the same time, so temporaries are not to make one wait for another.
    """
    return _Allocator(block, aliases, apart).run()


def viewed(value: Value) -> Value:
    """The value whose memory a view shows."""
    while value.op is not None and value.op.name == "reshape":
        value = value.op.operands[0]
    return value


def _alone(op: Op, value: Value) -> bool:
    """Does an update read the memory of this operand, its target, as nothing else: neither by another operand nor, in
    its kernel, as its indices or as what it writes?"""
    if sum(viewed(v) is viewed(value) for v in op.operands) != 1:
        return False
    if op.name != "fusion":
        return True
    (target,) = (a for a, v in zip(op.regions[0].args, op.operands, strict=True) if viewed(v) is viewed(value))
    inner = op.regions[0].ops
    return sum(v is target for o in inner for v in (*o.operands, *(v for r in o.regions for v in r.free()))) == 1


class _Allocator:
    def __init__(self, block: Block, aliases: Sequence[int], apart: bool) -> None:
        self.block, self.apart = block, apart
        self.param_of_output = {k: p for p, k in enumerate(aliases) if k >= 0}
        self.clock: dict[Op, tuple[int, int]] = {}
        self.block_end: dict[Block, int] = {}
        self.last_use: dict[Value, int] = {}
        self.depth: dict[Value, int] = {}  # how many nested blocks enclose the value's definition
        self.depth_of_op: dict[Op, int] = {}
        self.home: dict[Value, Storage] = {}
        self.wanted: dict[Value, Storage] = {}
        self.reads: dict[Block, dict[Value, int]] = {}  # by region: when it last reads what a value shows
        self.former: dict[Value, Value] = {}  # by result of a branch: whose content its storage holds until then
        self.storages: list[Storage] = []
        self.copies_before: dict[Op, list[tuple[Storage, Storage, int]]] = {}
        self.copies_at_end: dict[Block, list[tuple[Storage, Storage, int]]] = {}
        self.constants: list[bytes] = []
        self.constant_bytes = 0

    def run(self) -> Plan:
        self._number(self.block, 1)
        self._uses(self.block, [])
        for i, arg in enumerate(self.block.args):
            self._bind(arg, self._storage(PARAM, arg, 0, i), 0)
        outputs = [self._storage(OUTPUT, v, 0, k) for k, v in enumerate(self.block.results)]
        owners = [
            self.block.args[p] if (p := self.param_of_output.get(k)) is not None else None for k in range(len(outputs))
        ]
        self._place(self.block, outputs, owners)
        return self._finish()

    # --- the clock ----------------------------------------------------------------------------------------------
    def _number(self, block: Block, tick: int) -> int:
        for op in block.ops:
            begin = tick
            tick += 1
            for region in self._regions(op):
                tick = self._number(region, tick)
            self.clock[op] = (begin, tick)
            tick += 1
        self.block_end[block] = tick
        return tick + 1

    @staticmethod
    def _regions(op: Op) -> Sequence[Block]:
        return op.regions if op.name in ("while", "case", "if") else ()

    def _uses(self, block: Block, loops: list[tuple[Block, int]]) -> None:
        """Last uses; `loops` are the enclosing nested blocks with the tick at which their op ends."""
        depth = len(loops)
        self.depth.update((a, depth) for a in block.args)

        def use(value: Value, tick: int) -> None:
            level = self.depth.get(value, 0)
            if level < depth:  # read from inside a nested block: it lives to the end of the op at its own level
                tick = max(tick, loops[level][1])
            self.last_use[value] = max(self.last_use.get(value, 0), tick)

        for op in block.ops:
            begin, end = self.clock[op]
            self.depth_of_op[op] = depth
            for value in op.operands:
                use(value, begin)
            for region in self._regions(op):
                self._uses(region, [*loops, (region, end)])
            self.depth.update((r, depth) for r in op.results)
        for value in block.results:
            use(value, self.block_end[block])
        for op in reversed(block.ops):
            if op.name == "reshape" and self.depth[op.operands[0]] == depth:  # a view keeps what it looks at alive
                source = op.operands[0]
                self.last_use[source] = max(self.last_use[source], self.last_use.get(op.result, 0))

    # --- storages -----------------------------------------------------------------------------------------------
    def _storage(self, kind: int, value: Value, begin: int, where: int = -1) -> Storage:
        size = value.type.nbytes if isinstance(value.type, Tensor) else 0
        storage = Storage(kind, size, begin, where)
        self.storages.append(storage)
        return storage

    def _bind(self, value: Value, storage: Storage, tick: int) -> None:
        self.home[value] = storage
        storage.values.append(value)
        storage.begin = min(storage.begin, tick)
        storage.end = max(storage.end, tick, self.last_use.get(value, 0))

    def _place(self, block: Block, targets: Sequence[Storage], owners: Sequence[Value | None]) -> None:
        """Places the block's values so that its results end up in `targets`.

        `owners[i]` is the value whose content `targets[i]` holds while the block runs (a loop's carry, a donated
        parameter), or None when it holds nothing.
        """
        self._want(block, targets, owners)
        for op in block.ops:
            self._op(block, op)
        self._copy_results(block, targets, owners)

    def _want(self, block: Block, targets: Sequence[Storage], owners: Sequence[Value | None]) -> None:
        """Decides which ops may write straight into a target, following updates and views back to the first writer."""
        own = {r for op in block.ops for r in op.results}
        for value, owner, target in zip(block.results, owners, targets, strict=False):
            if not isinstance(value.type, Tensor) or value not in own or value in self.wanted:
                continue
            overwritten: int | None = None  # when what has been followed so far begins to write
            branched: Value | None = None  # what has been followed goes on from here
            while True:
                op = value.op
                assert op is not None
                if op.name == "constant" or not self._is_free(block, owner, op, value):
                    break
                self.wanted[value] = target
                if branched is not None:
                    self.former[branched] = value
                    branched = None
                previous = op.operands[0] if op.name == "reshape" or op.attrs.get("update") else None
                if op.name == "while":
                    previous = op.operands[value.index]
                if op.name in BRANCHES:
                    if owner is not None:
                        self.former[value] = owner
                    branched, previous = value, self._continued(op, value.index)
                if op.name == "fusion" and op.attrs.get("update", 0) > 1:
                    break
                if op.name == "fusion" and previous is None and not self.apart:
                    previous = self._worn_out(op, value.index)
                if previous is None or previous not in own or previous in self.wanted:
                    break
                if op.name == "while" and op.operands.count(previous) > 1:
                    break
                if op.name != "reshape":  # what branches overwrite they may read until then
                    overwritten = self.clock[op][op.name in BRANCHES]
                if overwritten is not None and self.last_use[previous] > overwritten:
                    break  # also what a view shows, which others may read longer than they read the view
                if op.attrs.get("update") and not _alone(op, previous):
                    break
                value = previous

    def _is_free(self, block: Block, owner: Value | None, op: Op, value: Value) -> bool:
        """May an op of this block write `value` over `owner`?"""
        if owner is None:
            return True
        last = self._last_read(block, owner, self.depth_of_op[op])
        begin, end = self.clock[op]
        if last < begin:
            return True
        if op.name in BRANCHES:  # each of them decides by itself where in it that may be
            return last <= end
        if last > begin:
            return False
        if op.name == "reshape":
            return viewed(op.operands[0]) is not viewed(owner)
        reads = [i for i, v in enumerate(op.operands) if viewed(v) is viewed(owner)]
        if op.name == "while":
            return reads == [value.index]
        if op.attrs.get("update"):
            return reads == [value.index] and _alone(op, op.operands[value.index])
        return op.name == "fusion" and all(reads_own_element(op, i, value.index) for i in reads)

    def _worn_out(self, op: Op, result: int) -> Value | None:
        """An operand that the kernel reads for the last time, element by element, so that the result may replace it."""
        elsewhere = read_elsewhere(op.regions[0])
        for value in op.operands:
            shown = viewed(value)
            if shown.op is None or shown.op.name == "constant" or self.last_use[shown] > self.clock[op][0]:
                continue
            places = [i for i, v in enumerate(op.operands) if viewed(v) is shown]
            if all(fits_own_element(op, i, result) and op.regions[0].args[i] not in elsewhere for i in places):
                return value
        return None

    def _last_read(self, block: Block, owner: Value, depth: int) -> int:
        """When a block at this depth reads a value for the last time; of one from outside nothing else counts."""
        if self.depth[owner] == depth:
            return self.last_use.get(owner, 0)
        if block not in self.reads:
            found = self.reads[block] = {}
            for op in block.ops:
                begin, end = self.clock[op]
                found |= {viewed(v): begin for v in op.operands}
                found |= {viewed(v): end for region in self._regions(op) for v in region.free()}
            found |= {viewed(v): self.block_end[block] for v in block.results}
        return self.reads[block].get(viewed(owner), 0)

    def _continued(self, op: Op, index: int) -> Value | None:
        """The one value from outside that branches give back, as it was or updated; None where there are several."""
        found, depth = set(), self.depth_of_op[op]
        for region in op.regions:
            value = region.results[index]
            while self.depth[value] > depth and value.op and value.index < value.op.attrs.get("update", 0):
                value = value.op.operands[value.index]
            if self.depth[value] <= depth:
                found.add(value)
        return found.pop() if len(found) == 1 else None

    def _op(self, block: Block, op: Op) -> None:
        begin, end = self.clock[op]
        match op.name:
            case "constant":
                self._constant(op)
            case "after_all" | "create_token":
                pass
            case "reshape":
                source = op.operands[0]
                storage = self.home[source]
                target = self.wanted.get(op.result)
                if target is not None and target is not storage:
                    self._bind(op.result, target, begin)
                    self.copies_before.setdefault(op, []).append((target, storage, storage.size))
                else:
                    self._bind(op.result, storage, begin)
            case "while":
                self._while(op)
            case "case" | "if":
                for result in op.results:
                    if isinstance(result.type, Tensor):
                        place = self.wanted.get(result) or self._taken_over(op, result)
                        self._bind(result, place or self._storage(ARENA, result, begin), begin)
                        self.home[result].end = max(self.home[result].end, end)  # written then, though nobody reads it
                targets = [self.home.get(r, _NOTHING) for r in op.results]
                for region in op.regions:
                    self._place(region, targets, [self.former.get(r) for r in op.results])
            case _:
                self._results(op)

    def _taken_over(self, op: Op, result: Value) -> Storage | None:
        """The storage of the value that branches go on from, where nobody else needs it."""
        begin, end = self.clock[op]
        value = self._continued(op, result.index)
        if value is None or self.last_use[value] > end:
            return None
        storage = self.home[value]
        if any(self.home.get(r) is storage for r in op.results):
            return None
        if not self._is_private(storage, value, begin, self.depth_of_op[op]):
            return None
        self.former[result] = value
        return storage

    def _results(self, op: Op) -> None:
        begin, _ = self.clock[op]
        updates = op.attrs.get("update", 0) if op.name == "fusion" else 0
        for i, result in enumerate(op.results):
            if not isinstance(result.type, Tensor):
                continue
            storage = self.wanted.get(result)
            if i < updates:
                source = op.operands[i]
                old = self.home[source]
                if storage is None:
                    dies = _alone(op, source) and self.last_use[source] <= begin
                    storage = old if dies and self._is_private(old, source, begin, self.depth_of_op[op]) else None
                if storage is None:
                    storage = self._storage(ARENA, result, begin)
                if storage is not old:
                    self.copies_before.setdefault(op, []).append((storage, old, storage.size))
            elif storage is None:
                storage = self._replaced(op, i) or self._storage(ARENA, result, begin)
            self._bind(result, storage, begin)
        for output, operand in op.attrs.get("aliases", ()):  # the call finds the operand's content in the result
            storage, old = self.home[op.results[output]], self.home[op.operands[operand]]
            self.copies_before.setdefault(op, []).append((storage, old, storage.size))

    def _replaced(self, op: Op, result: int) -> Storage | None:
        """The storage of an operand that the kernel reads for the last time where it writes a result."""
        if op.name != "fusion" or self.apart or (value := self._worn_out(op, result)) is None:
            return None
        storage = self.home[value]
        if any(self.wanted.get(r) is storage for r in op.results):  # a carry's, which goes on with that one
            return None
        free = self._is_private(storage, viewed(value), self.clock[op][0], self.depth_of_op[op])
        return storage if free else None

    def _is_private(self, storage: Storage, value: Value, tick: int, depth: int) -> bool:
        """Is `value` the last one alive in an arena storage of the same block, so that it may be overwritten?"""
        return (
            storage.kind == ARENA
            and value.op is not None
            and self.depth[value] == depth
            and all(v is value or self.last_use.get(v, 0) <= tick for v in storage.values)
        )

    def _constant(self, op: Op) -> None:
        import numpy as np

        data = np.ascontiguousarray(op.attrs["value"]).tobytes()
        storage = self._storage(CONSTANT, op.result, 0, self.constant_bytes)
        padding = -len(data) % ALIGN
        self.constants += [data, b"\0" * padding]
        self.constant_bytes += len(data) + padding
        self._bind(op.result, storage, 0)

    def _while(self, op: Op) -> None:
        begin, end = self.clock[op]
        cond, body = op.regions
        carries: list[Storage] = []
        for i, (value, result) in enumerate(zip(op.operands, op.results, strict=True)):
            if not isinstance(result.type, Tensor):
                carries.append(_NOTHING)
                continue
            old, storage = self.home[value], self.wanted.get(result)
            if storage is None:
                dies = self.last_use[value] <= begin and op.operands.count(value) == 1
                storage = (
                    old
                    if dies and self._is_private(old, value, begin, self.depth_of_op[op]) and old not in carries
                    else None
                )
            if storage is None:
                storage = self._storage(ARENA, result, begin)
            if storage is not old:
                self.copies_before.setdefault(op, []).append((storage, old, storage.size))
            carries.append(storage)
            self._bind(result, storage, begin)
            storage.end = max(storage.end, end)
            for region in (cond, body):
                self._bind(region.args[i], storage, begin)
        self._place(cond, [], [])
        self._place(body, carries, body.args)

    def _copy_results(self, block: Block, targets: Sequence[Storage], owners: Sequence[Value | None]) -> None:
        tick = self.block_end[block]
        moves = [
            (target, self.home[value], target.size)
            for value, target in zip(block.results, targets, strict=False)
            if target is not _NOTHING and isinstance(value.type, Tensor) and self.home[value] is not target
        ]
        overwritten = {id(target) for target, _, _ in moves}
        # An output may share memory with the parameter that is donated into it.
        overwritten |= {id(self.home[o]) for o, t in zip(owners, targets, strict=False) if o and self.home[o] is not t}
        first, last = [], []
        for target, source, size in moves:
            donated = self.param_of_output.get(target.where) if target.kind == OUTPUT else None
            own_param = source.kind == PARAM and donated == source.where
            if id(source) in overwritten and not own_param:
                # A parallel assignment (swap): through a temporary, so that no source is overwritten before it is read.
                temporary = Storage(ARENA, size, tick)
                self.storages.append(temporary)
                first.append((temporary, source, size))
                last.append((target, temporary, size))
            else:
                last.append((target, source, size))
        if first or last:
            self.copies_at_end[block] = [*first, *last]

    # --- addresses ----------------------------------------------------------------------------------------------
    def _finish(self) -> Plan:
        used = {id(s): s for s in self.home.values()}
        for moves in [*self.copies_before.values(), *self.copies_at_end.values()]:
            for target, source, _ in moves:
                used[id(target)], used[id(source)] = target, source
        plan = Plan(constants=b"".join(self.constants))
        ordered = [s for s in self.storages if id(s) in used or s.kind in (PARAM, OUTPUT)]
        temporary = sorted((s for s in ordered if s.kind == ARENA), key=lambda s: (s.begin, -s.size))
        offsets, plan.arena_bytes = pack(self._needs(temporary), self.apart)
        for storage, offset in zip(temporary, offsets, strict=True):
            storage.where = offset
        for storage in ordered:
            storage.slot = len(plan.slots)
            plan.slots.append(Slot(storage.kind, storage.where, storage.size))
        plan.slot_of = {v: s.slot for v, s in self.home.items() if s is not _NOTHING}
        plan.before = {op: _slots(moves) for op, moves in self.copies_before.items()}
        plan.at_end = {block: _slots(moves) for block, moves in self.copies_at_end.items()}
        return plan

    def _needs(self, storages: list[Storage]) -> list[Need]:
        if not self.apart:
            return [Need(s.size, s.begin, s.end) for s in storages]
        ops = self.block.ops
        ended: list[int] = []  # by op: those whose data it needs, directly or not, and the op itself
        touched: dict[Storage, int] = {}
        number = {op: i for i, op in enumerate(ops)}
        for i, op in enumerate(ops):
            before = 1 << i
            inside = op.regions if op.name != "fusion" else ()  # a kernel has its operands alone
            for value in [*op.operands, *(v for region in inside for v in region.free())]:
                if value.op in number:
                    before |= ended[number[value.op]]
            ended.append(before)
            for storage in self._touched_by(op):
                touched[storage] = touched.get(storage, 0) | 1 << i
        ended.append((1 << len(ops)) - 1)  # the copies at the end wait for all
        begins = [self.clock[op][0] for op in ops]
        writers = [max(bisect_right(begins, s.begin) - 1, 0) for s in storages]
        end = self.block_end[self.block]
        return [
            Need(s.size, s.begin, s.end, touched.get(s, 0), ended[len(ops) if s.begin >= end else writer])
            for s, writer in zip(storages, writers, strict=True)
        ]

    def _touched_by(self, op: Op) -> set[Storage]:
        """The storages that an op, with what is inside of it, reads or writes."""
        values = [*op.operands, *op.results]
        copies = [*self.copies_before.get(op, ())]
        found: set[Storage] = set()
        for region in self._regions(op):
            values += region.args
            copies += self.copies_at_end.get(region, ())
            for inner in region.ops:
                found |= self._touched_by(inner)
        found |= {self.home[v] for v in values if v in self.home}
        return found | {storage for target, source, _ in copies for storage in (target, source)}


_NOTHING = Storage(ARENA, 0, 0)


def _slots(moves: list[tuple[Storage, Storage, int]]) -> list[tuple[int, int, int]]:
    return [(target.slot, source.slot, size) for target, source, size in moves if size]


def reads_own_element(fusion: Op, operand: int, result: int) -> bool:
    """Does the kernel read `operand` only at the element of `result` that it writes? Then they may share memory."""
    region = fusion.regions[0]
    return fits_own_element(fusion, operand, result) and reads_pointwise(region, region.args[operand])


def fits_own_element(fusion: Op, operand: int, result: int) -> bool:
    """Does an element of the kernel's result take the place of one of the operand?"""
    arg, own = fusion.regions[0].args[operand], fusion.regions[0].results[result]
    return arg.dtype.itemsize == own.dtype.itemsize and arg.shape == own.shape


def reads_pointwise(block: Block, arg: Value) -> bool:
    """Is each element of a kernel's argument read only where the same element of its results is computed?"""
    return arg not in read_elsewhere(block)


def read_elsewhere(block: Block) -> set[Value]:
    """The values of a kernel of which a result needs other elements than the one at its own place."""
    own, elsewhere = set(block.results), set[Value]()
    for op in reversed(block.ops):
        at_own = OPS[op.name].elementwise and not own.isdisjoint(op.results)
        away = not elsewhere.isdisjoint(op.results)
        for value in (*op.operands, *(v for region in op.regions for v in region.free())):
            if at_own and value in op.operands and value.type.shape == op.results[0].type.shape:
                own.add(value)
                if not away:
                    continue
            elsewhere.add(value)
    return elsewhere
