"""Fuse: groups ops into kernels.

Walks each block backwards and decides for every op whether its result is *materialized* (written to memory by a kernel
of its own) or computed inside each kernel that reads it. What comes out holds only

    fusion      one kernel; its region computes the results from the operands, `attrs["update"]` is true when it writes
                into operand 0 (dynamic_update_slice, scatter)
    reshape     another view of the same memory
    constant    data of the program
    library, while, case, if, and the ops that order side effects

The decision weighs recomputation against memory traffic: a value read by several kernels is computed again in each
when its expression costs less than RECOMPUTE operations per element and reads so few tensors that it is not worth one
of its own (the sum that runs through a network's layers is); else the kernels that read it are merged into one with
several results when they are loops over the same shape, and if that cannot be, the value is written to memory.
Reductions over the same dimensions of the same arrays become one kernel, which is one loop.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from math import prod

from ferrule.codegen.borders import SHORT
from ferrule.codegen.reduce import alike, runs_along_lanes
from ferrule.codegen.row_loop import COSTLY
from ferrule.codegen.scan import direction
from ferrule.errors import Unsupported
from ferrule.ir import Block, Op, Tensor, Value, inline, rewrite, splat, tensor
from ferrule.ops import OPS
from ferrule.ops.checks import per_axis
from ferrule.passes import row_kernels
from ferrule.passes.expand import indexes
from ferrule.passes.neighbours import FEW, Neighbours, in_rows
from ferrule.passes.reduce_parts import crosses
from ferrule.passes.simplify import has_effects
from ferrule.targets.machine import Machine

# Operations per element up to which a shared value is recomputed by each of its readers. A load and a store of one f32
# cost about as much as this many vector operations once the data is larger than the cache.
RECOMPUTE = 16.0
# A value of so many bytes is in a near cache when it is read: only this much is cheaper than to store and load it.
NEAR_BYTES, NEAR_RECOMPUTE = range(1 << 11, 1 << 18), 8.0
# Up to this cost a value is recomputed even where each element is read many times (through a broadcast).
LIGHT = 2.0
# Where it is read a few times (FEW), as often as a pixel has channels, what is computed again may cost this much for
# each element; a kernel with a row in each lane computes it once (codegen/interleave.py).
AGAIN = 128.0
# Parts of joined arrays up to this cost are not written to memory first: where they meet in a vector, all are computed.
# Long rows are cut where parts meet (codegen/borders.py).
JOINED, JOINED_IN_LONG = 8.0, 40.0
# An element that is picked from anywhere costs as much as several vector operations, where a tensor has so many that it
# counts; of a row of so many elements a lookup of the row.
PICKED, ROW, PICKED_FROM = RECOMPUTE + 1, LIGHT + 1, 1 << 12
# What the write of a tensor costs, in reads of one: the cache reads a line before it writes it.
WRITE = 1.5
# No kernel grows past this cost per element, so that the code stays small and compile time linear.
LIMIT = 400.0
# Running totals over lines of more elements are kernels of their own.
SUMMED = 8
# Larger splats are filled by a kernel rather than stored in the program.
STORED_SPLAT_BYTES = 1024

# Ops that loop over many operand elements for each result element.
HEAVY = frozenset(
    {
        *("reduce", "reduce_window", "select_and_scatter", "dot_general", "convolution", "rng_bit_generator"),
        *("map", "merge_runs", "loop", "running_total", "digit_counts", "digit_scatter", "scatter_tables"),
    }
)
# Those that read each element of their operands once; those with kernels of their own.
ONCE = frozenset({"running_total", "digit_counts", "digit_scatter", "scatter_tables"})
ALONE = ONCE | {"rng_bit_generator", "merge_runs", "loop"}
UPDATES = frozenset({"dynamic_update_slice", "scatter"})
BOUNDARY = frozenset(
    {"while", "case", "if", "library", "constant", "uninitialized", "after_all", "create_token", "optimization_barrier"}
)
# Layers of slices, paddings and joined arrays ask through each other for elements at ever more indices: what is not
# cheap and is asked for through more paths than these is written to memory.
PATHS = 8
# Reductions over the same arrays that one loop does, and of the kernels that reduce one those that are asked: the last.
ABREAST, ASKED = 4, 8
# Results that one kernel may have, and kernels looked at in search of a cycle before a merge is given up.
MERGE = 16
SEARCH = 300
_OWN = frozenset({0})  # an element is asked for at the kernel's own index
_NONE: frozenset[Op] = frozenset()
# What indices are made of that kernels know without memory (codegen/counted.py).
_COUNTED = frozenset(
    "iota constant broadcast_in_dim reshape convert concatenate select compare add subtract multiply".split()
)
# Ops that read elements a few times because each belongs to a short row of their result.
_SPREADING = frozenset({"broadcast_in_dim", "concatenate", "gather"})
_ELEMENTWISE = frozenset(name for name, definition in OPS.items() if definition.elementwise)
_POINTWISE = _ELEMENTWISE | {"broadcast_in_dim", "reshape"}
# A fusion: its results, the materialized values that it reads, and the ops that compute them.
Content = tuple[Sequence[Value], list[Value], list[Op]]


def fuse(block: Block, machine: Machine | None = None, ours: bool = False) -> Block:
    """Returns the block with every op in a kernel or a boundary op; nested regions too.

    `ours` says that nobody else needs the block: what one kernel alone computes is moved into it, not copied.
    """
    return _Fuser(block, {}, machine, ours).run()


def _closed(region: Block, op: Op) -> Block:
    """A copy of a library call's region (a comparator) that holds the constants it reads; it becomes a function."""
    out = Block(a.type for a in region.args)
    env: dict[Value, Value] = {}
    for value in region.free():
        if value.op is None or value.op.name != "constant":
            raise Unsupported(
                f"the region of a {op.attrs['target']!r} call uses a value from outside that is no constant",
                where=op.loc,
                why="the library runs it as a function of its arguments",
                fix="pass the value as one more operand",
            )
        env[value] = out.add("constant", [], [value.type], value.op.attrs, (), value.op.loc).result
    out.results = inline(out, region, out.args, env)
    return out


def _counted(value: Value) -> bool:
    """Are these indices made of `iota` and constants alone?"""
    stack, seen = [value], {value}
    while stack:
        op = stack.pop().op
        if op is None or op.name not in _COUNTED or (op.name == "constant" and splat(op.result) is None):
            return False
        stack += [v for v in op.operands if v not in seen]
        seen.update(op.operands)
    return True


def _inline_constant(value: Value) -> bool:
    """Constants that kernels hold as immediates."""
    return value.op is not None and value.op.name == "constant" and splat(value) is not None


class _Fuser:
    """Fuses one block. `kernel_of` maps the op of a materialized value to the kernel (its first op) it belongs to."""

    def __init__(self, block: Block, outer: dict[Value, Value], machine: Machine | None, ours: bool) -> None:
        self.block, self.ours = block, ours
        self.machine = machine  # None: kernels hold no reductions of their rows (passes/row_kernels.py)
        self.row_valued: set[Op] = set()  # fused ops with one value per row of their kernel
        self.passes: dict[Op, frozenset[Op]] = {}  # fused op → the reductions and kernels that go over its elements
        self.env = outer  # materialized values of the input → values of the output, shared with nested blocks
        self.inputs: dict[Op, list[Value]] = {}
        self.users: dict[Value, list[Op]] = {}
        self.readers: dict[Op, Sequence[Op]] = {}  # those of an op's results, each as often as it reads one
        self.position = {op: i for i, op in enumerate(block.ops)}
        self.escaping = set(block.results)
        self.roots: set[Value] = set()
        self.cost: dict[Value, float] = {}
        self.sources: dict[Value, frozenset[Value]] = {}  # tensors of its size that an expression is taken to read
        here = machine is not None and not machine.grouped
        self.neighbours = Neighbours() if here else None  # a GPU's lanes find single elements as fast
        self.parent: dict[Op, Op] = {}  # union-find over the root ops of kernels that were merged
        self.members: dict[Op, list[Op]] = {}  # kernel → its root ops, the first of the program first
        self.spans: list[tuple[int, int]] = []  # first and last ops of merged kernels; those that overlap are one
        self.homes: dict[Op, frozenset[Op]] = {}  # fused op → root ops of the kernels that compute it
        self.pointwise: dict[Op, bool] = {}  # is each element computed at the index of its kernel's result?
        self.sums_rows: set[Op] = set()  # reductions by whose results rows can be finished
        self.asked: dict[Op, frozenset[int]] = {}  # fused op → at which indices its element is computed in one kernel
        self.numbers: dict[tuple[Op, int, int], int] = {}  # those indices: through which op, which operand, from which
        self.moved: set[Op] = set()  # ops that one kernel alone computes: they become part of it
        self.closed: set[Op] = set()  # kernels that are no plain loops: nothing may be merged into them
        self.reduces: dict[Op, list[Op]] = {}  # kernels → the reductions that they do
        self.reducing: dict[Value, list[Op]] = {}  # large arrays → kernels that reduce them

    def run(self, carried: bool = False) -> Block:
        """`carried`: the block's results are its next arguments, those of a loop's body."""
        users = self.users
        for op in self.block.ops:
            inputs = self.inputs[op] = _inputs(op)
            for value in inputs:
                users.setdefault(value, []).append(op)
        for op in self.block.ops:
            cost = self._estimate(op)
            for result in op.results:
                self.cost[result] = cost
                self.sources[result] = self._sources_of(op, result)
            if self.neighbours:
                self.neighbours.note(op, op.name in BOUNDARY or op.name in UPDATES or op.name in HEAVY)
            one = len(op.results) == 1
            self.readers[op] = users.get(result, ()) if one else [u for r in op.results for u in users.get(r, ())]
        for op in reversed(self.block.ops):
            self._decide(op)
        if carried:
            self._join_carries()
        return self._build()

    # --- decisions ----------------------------------------------------------------------------------------------
    def _estimate(self, op: Op) -> float:
        """Operations per element, with everything that is not certain to be materialized counted in."""
        if op.name in BOUNDARY:
            return 0.0
        if op.name in UPDATES or op.name in ALONE or _running_total(op):
            return 1.0  # their readers load it
        definition = OPS.get(op.name)
        cost = definition.flops if definition else 1.0
        if self.machine and op.name == "reduce" and row_kernels.reduces_rows(op, self.machine):
            self.sums_rows.add(op)
            cost = 2 * LIGHT  # by a team of work-items, once for a row
        elif op.name in HEAVY:
            cost = max(cost, _size(op.operands[0]) / max(1, _size(op.results[0])))
        elif op.name == "gather" and _size(op.result) >= PICKED_FROM:
            cost = ROW if in_rows(op) else PICKED
        operands = op.operands
        # x times x needs x once. (Where large arrays are read, the limits were measured with both counted.)
        if op.name in _ELEMENTWISE and all(v in self.sources and not self.sources[v] for v in operands):
            operands = list(dict.fromkeys(operands))
        for value in operands:
            inner = self.cost.get(value, 1.0)
            if inner > LIGHT and isinstance(value.type, Tensor) and self._multiplicity(op, value) > 1:
                inner = 1.0  # it is read many times, hence from memory (see _may_fuse)
            elif inner >= COSTLY and self._waits(value):
                inner = 1.0
            elif op.name == "reduce" and value.op is not None and value.op.name == "reduce":
                inner = 1.0  # what is reduced again is in memory
            cost += inner if inner <= RECOMPUTE or len(self.users[value]) == 1 else 1.0
        return cost

    def _waits(self, value: Value) -> bool:
        """Is this a value that a kernel over rows sums up and keeps for what else reads it (codegen/row_loop.py)?"""
        users, machine = self.users[value], self.machine
        if machine is None or machine.grouped:
            return False
        return len(users) > 1 and any(u.name == "reduce" and row_kernels.reduces_rows(u, machine) for u in users)

    def _sources_of(self, op: Op, result: Value) -> frozenset[Value]:
        """The tensors of about this size that a kernel reads which computes the value."""
        if op.name in BOUNDARY or op.name in HEAVY or op.name in UPDATES or not isinstance(result.type, Tensor):
            return frozenset() if _inline_constant(result) else frozenset([result])
        found: set[Value] = set()
        for value in op.operands:
            if isinstance(value.type, Tensor):
                known, readers = self.sources.get(value), len(self.users[value])
                # What is dear and has several readers is in memory, unless they are one kernel.
                dear = self.cost.get(value, 0.0) > RECOMPUTE and readers > 1 and len(known or ()) < 2
                if known is None or dear or _worth_storing(len(known), readers):
                    found.add(value)
                else:
                    found |= known
        size = result.type.size
        if op.name in ("slice", "dynamic_slice") and 2 * size <= _size(op.operands[0]):
            return frozenset([result])  # no more is read
        return frozenset([v for v in found if 2 * _size(v) >= size])

    def _decide(self, op: Op) -> None:
        if op.name in BOUNDARY:
            self.roots.update(r for r in op.results if not _inline_constant(r))
            return
        if op.name in ALONE or _running_total(op):
            self._make_root(op)
            return
        homes = self._homes_of(op)
        if self.machine and self._fits_rows(op, homes, self.machine):
            self.homes[op], self.pointwise[op] = homes, False
            self.row_valued.add(op)
            if op.name == "reduce":
                self.closed.update(homes)
            return
        if not self._may_fuse(op):
            self._make_root(op)
            return
        if op.name not in HEAVY and _worth_storing(len(self.sources[op.results[0]]), len(homes)):
            self._make_root(op)
            return
        if op.name == "transpose" and self._crosses_lanes(op, homes):
            self._make_root(op)
            return
        pointwise = self._joins_pointwise(op)
        cost = self.cost[op.results[0]]
        self.passes[op] = self._passes_over(op)
        near = len(homes) > 1 and self._better_near(op)
        if cost > RECOMPUTE and len(self.passes[op]) > 1:
            self._make_root(op, homes if near else frozenset())
            return
        if op.name in HEAVY:
            if len(homes) > 1 or not pointwise or any(h in self.closed and not self._beside(op, h) for h in homes):
                self._make_root(op)
                return
            self.closed.update(homes)
            for home in homes:
                self._reduces(op, home)
        elif cost > RECOMPUTE and (len(homes) > 1 or (not pointwise and len(self._asked_for(op)) > PATHS)):
            if not (pointwise and self._merge(homes)):
                self._make_root(op, homes if near else frozenset())
                return
            homes = self._homes_of(op)
        elif near:
            if not (pointwise and self._merge(homes)):
                self._make_root(op, homes)
                return
            homes = self._homes_of(op)
        self.homes[op], self.pointwise[op] = homes, pointwise
        self.asked[op] = self._asked_for(op)

    def _asked_for(self, op: Op) -> frozenset[int]:
        """At which indices its kernel wants an element of the op, as numbers, PATHS and one of them at most.

        What reads it element by element asks at its own indices, anything else through a new path for each of its own.
        """
        readers = self.readers[op]
        if len(readers) == 1 and readers[0].name in _ELEMENTWISE:
            return self.asked.get(readers[0], _OWN)  # kernels' own ops have none
        found: set[int] = set()
        for result in op.results:
            for user in self.users.get(result, ()):
                known = _OWN if user in self.parent else self.asked.get(user, _OWN)
                if user.name not in _ELEMENTWISE:
                    ways = [i for i, v in enumerate(user.operands) if v is result]
                    known = frozenset(
                        self.numbers.setdefault((user, i, n), len(self.numbers) + 1) for i in ways for n in known
                    )
                found |= known
        return frozenset(sorted(found)[: PATHS + 1])

    def _fits_rows(self, op: Op, homes: frozenset[Op], machine: Machine) -> bool:
        """Has the op one value for each row of the one kernel that reads it, where it is read for whole rows?"""
        if len(homes) != 1 or not self.escaping.isdisjoint(op.results):
            return False
        (home,) = homes
        members = self.members[home]
        shape = members[0].results[0].type.shape
        if op.results[0].type.shape == shape:
            return False
        if op.name == "reduce":
            if op not in self.sums_rows or op.operands[0].type.shape != shape:
                return False
        elif not row_kernels.row_valued(op, shape, machine):
            return False
        if any(m.name not in _ELEMENTWISE or r.type.shape != shape for m in members for r in m.results):
            return False
        users = set(self.readers[op])
        if any(u.name in BOUNDARY or any(v in op.results for r in u.regions for v in r.free()) for u in users):
            return False
        return all(u in self.row_valued or (u in self.homes and row_kernels.spreads(u, shape)) for u in users)

    def _passes_over(self, op: Op) -> frozenset[Op]:
        """The reductions of rows, and the kernels, each of which computes the elements of `op` for itself."""
        readers = self.readers[op]
        if len(readers) == 1 and (only := readers[0]) in self.homes and only not in self.row_valued:
            return self.passes[only]
        found: set[Op] = set()
        for user in readers:
            if user in self.row_valued:
                found.update([user] if user.name == "reduce" else [])
            elif user in self.parent:
                found.add(self._find(user))
            else:
                found |= self.passes.get(user, frozenset())
        return frozenset(found)

    def _crosses_lanes(self, op: Op, homes: frozenset[Op]) -> bool:
        """Would a reduction along its vectors read the transposed array across memory, a line for each element?

        Elementwise kernels go over such an array in squares.
        """
        if self.machine is None or self.machine.grouped or not crosses(op):
            return False
        if all(u.name == "gather" and op.result is u.operands[0] for u in self.readers[op]):
            return False  # elements that are picked lie anywhere
        return any(kernel.name == "reduce" and runs_along_lanes(kernel) for kernel in (*homes, *self._passes_over(op)))

    def _better_near(self, op: Op) -> bool:
        """Is the op itself, on the cpu, so dear that a small value is not to be computed twice?"""
        here = self.machine is not None and not self.machine.grouped
        return here and OPS[op.name].flops > NEAR_RECOMPUTE and tensor(op.results[0]).nbytes in NEAR_BYTES

    def _make_root(self, op: Op, among: frozenset[Op] = frozenset()) -> None:
        """`among`: kernels of which one that reads the value at its own index is to write it."""
        self.roots.update(op.results)
        self.parent[op] = op
        self.members[op] = [op]
        self.pointwise[op] = True
        if op.name in UPDATES or op.name in HEAVY:
            self.closed.add(op)
            self._reduces(op, op)
        elif op.results and self._joins_pointwise(op):
            # The kernels that read this value at the same index can write it as well: one pass over memory less.
            for home in sorted(self._homes_of(op), key=self.position.__getitem__):  # sets have no order of their own
                if home is not self._find(op):
                    self._merge(frozenset({home, self._find(op)}))
        elif op.results and among:
            for home in sorted(among, key=self.position.__getitem__):
                if self._merge(frozenset({home, op})):
                    break

    def _find(self, op: Op) -> Op:
        while self.parent[op] is not op:
            op = self.parent[op]
        return op

    def _homes_of(self, op: Op) -> frozenset[Op]:
        """The kernels that read the results of `op`, as things stand."""
        readers = self.readers[op]
        if len(readers) == 1:
            (user,) = readers
            if user in self.parent:
                return frozenset((self._find(user),))
            homes = self.homes.get(user, _NONE)
            return homes if all(self.parent[h] is h for h in homes) else frozenset(map(self._find, homes))
        found: set[Op] = set()
        for user in readers:
            if user in self.parent:
                found.add(self._find(user))
            elif user in self.homes:
                found.update(map(self._find, self.homes[user]))
        return frozenset(found)

    def _joins_pointwise(self, op: Op) -> bool:
        """Is each element needed only where the reading kernel computes the same element of its result?"""
        shape = op.results[0].type.shape
        readers = self.readers[op]
        for user in readers:
            if user.name not in _ELEMENTWISE or not self.pointwise.get(user, False):
                return False
            for result in user.results:
                if result.type.shape != shape:
                    return False
        return bool(readers)

    def _may_fuse(self, op: Op) -> bool:
        value = op.results[0]
        readers = self.readers[op]
        users = readers if len(readers) == 1 else set(readers)
        if op.name in UPDATES or not users or not isinstance(value.type, Tensor):
            return False
        if not self.escaping.isdisjoint(op.results):
            return False
        for user in users:
            if user.name in BOUNDARY:
                return False
            if user.name == "dot_general" and self.machine and not self.machine.grouped:
                return False  # a product reads each element many times
        if op.name == "iota":
            # what an update overwrites is in memory
            return not any(u.name in UPDATES and value in u.operands[: _targets(u)] for u in users)
        cost = self.cost[value]
        if cost > LIMIT:
            return False
        for user in users:
            if self.neighbours and self.neighbours.better_written(user, value):
                return False
            if cost <= LIGHT and not user.regions and user.name not in UPDATES:
                continue
            for result in op.results:
                if result not in self.inputs[user]:
                    continue
                if user.name in UPDATES and (
                    result in user.operands[: _targets(user)] or self._reads_target(result, user)
                ):
                    return False
                if result not in user.operands:
                    return False  # read by a nested function: a plain load there
                if self._read_too_often(user, result, cost):
                    return False
        return True

    def _read_too_often(self, user: Op, value: Value, cost: float) -> bool:
        """Is a value of this cost to be written to memory, so often does `user` read each element?"""
        if cost <= LIGHT or (often := self._multiplicity(user, value)) <= 1:
            return False
        if user.name == "reduce_window" and cost * (often - 1) <= RECOMPUTE:
            return False
        if user.name == "gather" and value is user.operands[1] and _counted(value):
            return False
        if often > FEW or cost * (often - 1) > AGAIN or len(self.asked.get(user, _OWN)) > 1:
            return True
        return not self._goes_over_pixels(user, often)

    def _goes_over_pixels(self, user: Op, channels: float) -> bool:
        """Do the kernels that `user` is part of compute so many channels, the first or the last dimension, which may
        share what each pixel has one of?"""
        if user.name not in _SPREADING:
            return False
        for home in map(self._find, self._kernels_of(user)):
            if home.name == "dynamic_update_slice":
                shape = home.operands[1].shape
            elif home in self.closed:
                return False
            else:
                shape = self.members[home][0].results[0].type.shape
            if not shape or channels not in (shape[0], shape[-1]):
                return False
        return True

    def _merge(self, kernels: frozenset[Op]) -> bool:
        """Makes one kernel with several results, when all are plain loops over one shape and no cycle arises."""
        shapes = {self.members[k][0].results[0].type.shape for k in kernels}
        if len(shapes) > 1 or any(k in self.closed for k in kernels):
            return False
        if sum(len(self.members[k]) for k in kernels) > MERGE:
            return False
        first, *others = sorted(kernels, key=lambda k: self.position[k])
        for other in others:
            if self._path_around(first, other) or self._path_around(other, first):
                return False
            if not (self._reads_pointwise(first, other) and self._reads_pointwise(other, first)):
                return False
            self._join(first, other)
        return True

    def _join(self, first: Op, second: Op) -> None:
        """Makes two kernels one, known by the earlier one."""
        self.parent[second] = first
        self.members[first] += self.members.pop(second)
        begin, end = self.position[first], max(self.position[m] for m in self.members[first])
        at = bisect_left(self.spans, begin, key=lambda span: span[1])
        upto = bisect_right(self.spans, end, lo=at, key=lambda span: span[0])
        among = [(begin, end), *self.spans[at:upto]]
        self.spans[at:upto] = [(min(a for a, _ in among), max(b for _, b in among))]

    def _beside(self, op: Op, kernel: Op) -> bool:
        """Can a kernel do this reduction in the same loop as those that it does, over elements of the same arrays?"""
        others = self.reduces.get(kernel, ())
        if op.name != "reduce" or self.machine is None or self.machine.grouped or not 0 < len(others) < ABREAST:
            return False
        made = [v for v in (o.operands[0] for o in (op, *others)) if v.op is None or v.op.name != "reduce"]
        cost = sum(self.cost.get(v, 0.0) for v in made)  # for an element
        if cost > LIMIT or not all(alike(op, o) for o in others):
            return False
        return any(not self._elements_of(op).isdisjoint(self._elements_of(o)) for o in others)

    def _elements_of(self, reduce: Op) -> frozenset[Value]:
        """The large arrays that a reduction's elements are computed from; another reduction's results are its own."""
        value = reduce.operands[0]
        found = frozenset[Value]()
        for source in self.sources.get(value) or (value,):
            op = source.op
            again = op is not None and op.name == "reduce" and op in self.position
            found |= self._elements_of(op) if op is not None and again else {source}
        return found

    def _reduces(self, op: Op, kernel: Op) -> None:
        """Notes that a kernel does a reduction. Another one that reads the same arrays becomes part of it."""
        if op.name != "reduce":
            return
        kernel = self._find(kernel)
        others = {self._find(o): None for v in self._elements_of(op) for o in self.reducing.get(v, ())[-ASKED:]}
        mine = len(self.reduces.get(kernel, ()))
        for other in others:
            first, second = sorted((kernel, other), key=self.position.__getitem__)
            few = first is not second and mine + len(self.reduces[other]) < ABREAST
            if few and self._beside(op, other) and self._apart(first, second):
                self._join(first, second)
                self.reduces[first] = [*self.reduces.pop(first, ()), *self.reduces.pop(second, ())]
                kernel = first
                break
        self.reduces.setdefault(kernel, []).append(op)
        for value in self._elements_of(op):
            self.reducing.setdefault(value, []).append(kernel)

    def _apart(self, first: Op, second: Op) -> bool:
        """Does neither of two kernels of one shape need what the other computes?"""
        shapes = {m.results[0].type.shape for k in (first, second) for m in self.members[k]}
        ways = ((first, second), (second, first))
        return len(shapes) == 1 and not any(b in self._successors(a) or self._path_around(a, b) for a, b in ways)

    def _reads_pointwise(self, source: Op, reader: Op) -> bool:
        """Where `reader` reads results of `source` it does so at its own index (or not at all)."""
        for member in self.members[source]:
            for user in (u for r in member.results for u in self.users.get(r, ())):
                inside = (
                    {self._find(user)} if user in self.parent else {self._find(h) for h in self.homes.get(user, ())}
                )
                if reader in inside and not (
                    user.name in _ELEMENTWISE
                    and self.pointwise.get(user)
                    and user.results[0].type.shape == member.results[0].type.shape
                ):
                    return False
        return True

    def _successors(self, node: Op) -> set[Op]:
        """The kernels and boundary ops that read what `node` (a kernel or a boundary op) writes."""
        found: set[Op] = set()
        for member in self.members.get(node, [node]):
            for user in self.readers[member]:
                if user in self.parent:
                    found.add(self._find(user))
                elif user in self.homes:
                    found.update(map(self._find, self.homes[user]))
                else:
                    found.add(user)
        return found

    def _join_carries(self) -> None:
        """Merges kernels that write next values of carries and read each other's present ones: apart, only one of them
        could write over what it reads, and the other value would be copied in each iteration."""
        written: dict[Op, list[Value]] = {}
        readers: dict[Value, set[Op]] = {}
        for carry, result in zip(self.block.args, self.block.results, strict=True):
            if result.op in self.parent and self._own_place(carry):
                written.setdefault(result.op, []).append(carry)
                readers[carry] = {k for u in self.users.get(carry, ()) for k in self._kernels_of(u)}
        for op, carries in written.items():
            for reader in sorted({k for c in carries for k in readers[c]}, key=self.position.__getitem__):
                mine, other = self._find(op), self._find(reader)
                back = {self._find(k) for m in self.members[other] for c in written.get(m, ()) for k in readers[c]}
                if mine is not other and mine in back:
                    self._merge(frozenset({mine, other}))

    def _kernels_of(self, op: Op) -> Collection[Op]:
        return (op,) if op in self.parent else self.homes.get(op, _NONE)

    def _own_place(self, value: Value) -> bool:
        """Is the value read at the index of what its readers compute only?"""
        users = self.users.get(value, ())
        shape = value.type.shape if isinstance(value.type, Tensor) else None
        return all(u.name in _ELEMENTWISE and self.pointwise.get(u) and u.results[0].type.shape == shape for u in users)

    def _path_around(self, source: Op, target: Op) -> bool:
        """Is there a way from `source` to `target` through another kernel? (Gives up, saying yes, when it is long.)"""
        last = max(self.position[m] for m in self.members[target])
        # From what comes later there is a way back only through kernels that have ops on both sides.
        at = bisect_left(self.spans, last, key=lambda span: span[1])
        if at < len(self.spans) and self.spans[at][0] <= last:
            last = self.spans[at][1]
        stack = [n for n in self._successors(source) if n not in (source, target)]
        seen = set(stack)
        while stack:
            if len(seen) > SEARCH:
                return True
            node = stack.pop()
            for onward in self._successors(node):
                if onward is target:
                    return True
                if onward not in seen and onward is not source and self.position[onward] <= last:
                    seen.add(onward)
                    stack.append(onward)
        return False

    def _reads_target(self, value: Value, update: Op) -> bool:
        """Does the expression of `value` read the tensor that `update` overwrites?"""
        targets = set(update.operands[: _targets(update)])
        stack, seen = [value], set()
        while stack:
            v = stack.pop()
            if v in targets:
                return True
            if v in seen or v.op is None or v.op not in self.position or v.op.name in BOUNDARY:
                continue
            seen.add(v)
            stack += v.op.operands
        return False

    def _multiplicity(self, user: Op, value: Value) -> float:
        """How often each element of `value` is evaluated by one evaluation of all elements of `user`."""
        if user.name in _ELEMENTWISE and value.type.shape == user.results[0].type.shape:
            return 1
        if user.name in HEAVY:
            if user.name == "reduce":
                return 1 if value in user.operands[: len(user.operands) // 2] else LIMIT
            if user.name == "reduce_window" and value.op is not None and value.op.name in _POINTWISE:
                return _overlap(user) if value in user.operands[: len(user.operands) // 2] else LIMIT
            return 1 if user.name in ONCE else LIMIT  # overlapping windows, repeated rows
        if user.name == "dynamic_update_slice":
            return 1 if value is user.operands[1] else _size(user.operands[1])
        if user.name == "scatter":
            return LIMIT if value is user.operands[_targets(user)] else 1
        if user.name == "gather" and value is user.operands[0]:
            return 1 if self.neighbours and self.neighbours.better_picked(user, value) else LIMIT
        if user.name in ("concatenate", "pad") and value.shape and self.cost[value] <= self._joined(user, value):
            if not any(user.attrs.get("interior_padding", ())):  # in every vector there is something of all parts
                return 1
        if user.name == "concatenate" and user.result not in self.escaping:
            readers = self.users.get(user.result, ())
            if readers and all(indexes(u, user) for u in readers):  # a place is made of one element of each part
                return max(prod(u.attrs["slice_sizes"]) for u in readers)
        reads = value.shape[-1] if user.name == "gather" and value.shape else 1
        return reads * _size(user.results[0]) / max(1, _size(value))

    def _joined(self, user: Op, part: Value) -> float:
        """Up to which cost a part of this joined array is computed where that is read."""
        kept = self.machine is None or self.machine.grouped
        kept = kept or any(len(self.users.get(v, ())) > 1 for v in (part, user.result))  # it would be computed twice
        return JOINED if kept or tensor(user.result).shape[-1] < SHORT else JOINED_IN_LONG

    # --- construction -------------------------------------------------------------------------------------------
    def _build(self) -> Block:
        out = Block(a.type for a in self.block.args)
        self.env.update(zip(self.block.args, out.args, strict=True))
        order = self._order()
        kernels = {node: self._contents(node) for node in order if node.name not in BOUNDARY}
        if self.ours:
            often = Counter(op for contents in kernels.values() for _, _, ops in contents for op in ops)
            # constants go by others, too: `_get` stores them
            self.moved = {op for op, times in often.items() if times == 1 and op in self.position and op.operands}
        for node in order:
            if node.name == "optimization_barrier":
                self.env.update((r, self._get(out, v)) for r, v in zip(node.results, node.operands, strict=True))
            elif node.name in BOUNDARY:
                self._boundary(out, node)
            else:
                self._kernel(out, node, kernels.pop(node))
        out.results = [self._get(out, v) for v in self.block.results]
        if self.ours:
            self.block.ops = [op for op in self.block.ops if op not in self.moved]
        return out

    def _order(self) -> list[Op]:
        """Kernels and boundary ops so that each comes after what it reads, else in the order of the program."""
        nodes = [op for op in self.block.ops if op.name in BOUNDARY or self.members.get(op)]
        place = {n: max([self.position[m] for m in self.members.get(n, (n,))]) for n in nodes}
        waiting = dict.fromkeys(nodes, 0)
        after: dict[Op, set[Op]] = {}
        previous = None
        for node in nodes:
            after[node] = self._successors(node) - {node}
            if has_effects(node):
                if previous is not None:
                    after[previous].add(node)
                previous = node
        for onward in after.values():
            for node in onward:
                waiting[node] += 1
        ready = [(place[n], self.position[n]) for n in nodes if not waiting[n]]
        heapq.heapify(ready)
        order = []
        while ready:
            node = self.block.ops[heapq.heappop(ready)[1]]
            order.append(node)
            for reader in after[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, (place[reader], self.position[reader]))
        assert len(order) == len(nodes), "fusion made a cycle"
        return order

    def _get(self, out: Block, value: Value) -> Value:
        """The output value for a materialized input value; immediates are stored on demand."""
        if value in self.env:
            return self.env[value]
        assert value.op is not None and _inline_constant(value), value
        if value.type.nbytes <= STORED_SPLAT_BYTES:  # type: ignore[union-attr]
            return out.add("constant", [], [value.type], value.op.attrs, (), value.op.loc).result
        return _fusion(out, [value], [], [value.op], value.op).result

    def _boundary(self, out: Block, op: Op) -> None:
        if op.name == "constant" and _inline_constant(op.result):
            return
        operands = [self._get(out, v) for v in op.operands]
        regions = [self._region(r, op) for r in op.regions]
        new = out.add(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc)
        self.env.update(zip(op.results, new.results, strict=True))

    def _region(self, region: Block, op: Op) -> Block:
        if op.name == "library":
            return _closed(region, op)
        carried = op.name == "while" and region is op.regions[1]
        return _Fuser(region, self.env, self.machine, self.ours).run(carried)

    def _contents(self, kernel: Op) -> list[Content]:
        """What the fusions compute that a kernel becomes: one, but for ops whose results one kernel cannot write."""
        results = [r for m in self.members[kernel] for r in m.results]
        if len(results) > 1:
            results = [r for r in results if not self._is_inner(r, kernel)]
        groups = [[r] for r in results] if kernel.name == "rng_bit_generator" else [results]
        if kernel.name == "loop":  # a kernel's results have one shape
            shapes = dict.fromkeys(r.type.shape for r in results)
            groups = [[r for r in results if r.type.shape == shape] for shape in shapes]
            groups = [g for g in groups if any(self.users.get(r) or r in self.escaping for r in g)]
        return [(group, *self._leaves(kernel, group)) for group in groups]

    def _is_inner(self, value: Value, kernel: Op) -> bool:
        """Does nobody but its own kernel, which others have joined since, read a value that was to be written?"""
        users = self.users.get(value, ())
        if not users or value in self.escaping:
            return False
        return all((k := self._kernels_of(u)) and all(self._find(h) is kernel for h in k) for u in users)

    def _kernel(self, out: Block, kernel: Op, contents: Sequence[Content]) -> None:
        if kernel.name == "reshape" and len(self.members[kernel]) == 1:
            source = kernel.operands[0]
            if source in self.env:
                self.env[kernel.result] = out.add("reshape", [self.env[source]], [kernel.result.type]).result
                self.moved.discard(kernel)
                return
        for group, leaves, ops in contents:
            new = _fusion(out, group, leaves, ops, kernel, [self._get(out, v) for v in leaves], self.moved)
            self.env.update(zip(group, new.results, strict=True))

    def _leaves(self, kernel: Op, group: Sequence[Value]) -> tuple[list[Value], list[Op]]:
        """The materialized values that the kernel reads; an update's targets come first, each as often as it is one.
        And the ops that compute `group` from them, each after what it reads."""
        targets = kernel.operands[: _targets(kernel)] if kernel.name in UPDATES else []
        found: dict[Value, None] = dict.fromkeys(targets)
        seen: set[Value | Op] = set()
        ops: list[Op] = []
        stack: list[Value | Op] = list(reversed(group))
        while stack:
            top = stack.pop()
            if isinstance(top, Op):  # what it reads is there
                ops.append(top)
                continue
            if top in seen:
                continue
            seen.add(top)
            op = top.op
            if op is None or op not in self.position:
                inside = _inline_constant(top) or (op is not None and op.name == "iota" and top not in self.env)
            elif op in self.parent:
                inside = self._find(op) is kernel
            else:
                inside = top not in self.roots
            if not inside:
                found[top] = None
            elif op not in seen:
                assert op is not None
                seen.add(op)
                stack.append(op)
                stack += reversed(self.inputs[op] if op in self.inputs else op.operands)
        return [*targets, *list(found)[len(set(targets)) :]], ops


def _running_total(op: Op) -> bool:
    """Has the op the scan schedule, in which each element goes on from the one before, and lines worth it? In another
    kernel each would be summed from the beginning."""
    return op.name == "reduce_window" and prod(op.attrs["window_dimensions"]) > SUMMED and direction(op) is not None


def _overlap(op: Op) -> float:
    """How many of a reduce_window's windows an element of its operand is in, those in the middle."""
    rank = len(op.attrs["window_dimensions"])
    strides = per_axis(op, "window_strides", rank, 1)
    return prod(max(1.0, w / s) for w, s in zip(op.attrs["window_dimensions"], strides, strict=True))


def _worth_storing(sources: int, readers: int) -> bool:
    """Is writing a value once and reading it so often less than reading what it is made of each time?"""
    return readers > 1 and sources * readers > sources + WRITE + readers


def _size(value: Value) -> int:
    return value.type.size  # type: ignore[union-attr]


def _targets(update: Op) -> int:
    """How many leading operands an update op overwrites."""
    return 1 if update.name == "dynamic_update_slice" else (len(update.operands) - 1) // 2


def _inputs(op: Op) -> list[Value]:
    return [*op.operands, *(v for r in op.regions for v in r.free())] if op.regions else op.operands


def _fusion(
    out: Block,
    group: Sequence[Value],
    leaves: Sequence[Value],
    ops: Sequence[Op],
    op: Op,
    operands: Sequence[Value] = (),
    moved: Collection[Op] = (),
) -> Op:
    """Adds the fusion op that computes `group` from `leaves` by `ops`, copies of them but for those that are `moved`;
    `operands` are the leaves' values in `out`."""
    region = Block(v.type for v in leaves)
    env = dict(zip(leaves, region.args, strict=True))
    for inner in ops:
        if inner in moved:
            inner.operands = [env.get(v, v) for v in inner.operands]
            if inner.regions:
                inner.regions = [rewrite(r, lambda *_: None, env, ours=True) for r in inner.regions]
            region.ops.append(inner)
        else:
            regions = [rewrite(r, lambda *_: None, dict(env)) for r in inner.regions]
            reads = [env.get(v, v) for v in inner.operands]
            new = Op(inner.name, reads, [r.type for r in inner.results], inner.attrs, regions, inner.loc)
            region.ops.append(new)
            for old, fresh in zip(inner.results, new.results, strict=True):
                env.setdefault(old, fresh)
    region.results = [env.get(v, v) for v in group]
    update = op.name in UPDATES
    attrs = {"update": _targets(op)} if update else {}
    return out.add("fusion", operands, [v.type for v in group], attrs, [region], op.loc)
