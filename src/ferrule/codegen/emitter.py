"""Element expressions: what element `index` of a value is, by recursion over the block of a kernel.

Elementwise ops take lane values, structural ops ask for elements of their operands at other indices; both rules stand
with the op in `ferrule.ops`. Values are remembered per (value, index), so that a value used twice is computed once.
What is the same in all lanes is computed once as a scalar.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.codegen import memory
from ferrule.codegen.counted import counted
from ferrule.codegen.index import Component, Cond, Index, Indexer, Part
from ferrule.codegen.lanes import split
from ferrule.codegen.llvm import Builder, V
from ferrule.codegen.one_side import chosen
from ferrule.codegen.runs import viewed
from ferrule.codegen.scalar import Scalars
from ferrule.errors import Unsupported
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType, bf16
from ferrule.ops import OPS
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from ferrule.codegen.short_rows import Columns
    from ferrule.codegen.teams import Team
    from ferrule.codegen.tiles_device import Square

Lanes = Any  # V, or a pair of V for complex types
Key = tuple[Component, ...]


def parts(lanes: Lanes) -> list[V]:
    """The operands that make up a lane value."""
    return [lanes] if isinstance(lanes, V) else list(lanes)


def whole(dtype: DType, operands: Sequence[V]) -> Lanes:
    """The lane value made of these operands."""
    return tuple(operands) if dtype.is_complex else operands[0]


def is_uniform(index: Sequence[Component]) -> bool:
    return all((c.of if isinstance(c, Part) else c).step == 0 for c in index)


@dataclass
class Tile:
    """A square of `width` rows of `width` lanes, whose rows are computed one after the other in straight-line code.

    A value whose memory is contiguous across the rows, not along the lanes, is read as `width` contiguous vectors and
    transposed in registers. `row` is the index component of the row in work, `first` that of the first one.
    """

    width: int
    first: Index
    row: Index
    number: int
    depth: int
    vectors: dict[tuple[Value, Key], list[list[V]]] = field(default_factory=dict)


@dataclass
class Family:
    """What the emitters of one function share, whatever their number of lanes."""

    b: Builder
    machine: Machine
    pointers: dict[Value, V]
    known: dict[tuple[str, ...], V] = field(default_factory=dict)
    members: dict[int, Emitter] = field(default_factory=dict)
    mask: V | None = None  # the lanes that are computed, in code that runs for some lanes only
    varying: set[Value] = field(default_factory=set)  # values of inlined regions: they differ from lane to lane
    tile: Tile | None = None  # set while a square of elements is computed at once
    columns: Columns | None = None  # set while each lane has a row of a tile (codegen/short_rows.py)
    folded: Columns | None = None  # set while reductions are of all columns at once (codegen/column_folds.py)
    depth: int = 0  # how many scopes enclose what is emitted now
    group_size: int = 1  # on devices: work-items per group, set by the schedule
    square: Square | None = None  # on devices: the square of elements that a group reads together
    alike: dict[Op, list[Op]] = field(default_factory=dict)  # reductions that one loop does, for each of them
    kept: dict[Value, V] = field(default_factory=dict)  # values that a reduction writes where they are read again
    fetched: Value | None = None  # an argument whose elements are asked for only (codegen/fetch_ahead.py)
    ahead: int = 0  # so many elements after what is read of large arguments is asked for (codegen/fetch_ahead.py)
    asked: set[Value] | None = None  # arguments that were asked for, in a kernel that reads them more than once
    paired: int = 0  # vectors of so many bf16 are read in pairs (codegen/pairs.py)
    stream: int = 0  # stores go past the cache; they are aligned to this many bytes (codegen/streams.py)
    results: list[Value] = field(default_factory=list)  # what the kernel writes, and how often values are read for it
    uses: Counter[Value] | None = None
    team: Team | None = None  # on devices: the work-items that do reductions together, while all of them come there

    def at(self, width: int) -> Emitter:
        """The emitter for this many lanes."""
        if width not in self.members:
            self.members[width] = Emitter(self, width)
        return self.members[width]


class Emitter:
    """Emits elements for `width` lanes. `s` does arithmetic, `ix` index arithmetic, `b` writes instructions."""

    def __init__(self, family: Family, width: int) -> None:
        self.family, self.width, self.b = family, width, family.b
        self.s = Scalars(family.b, width, family.machine.converts_f16)
        self.ix = Indexer(family.b, width, family.known)
        self.memo: dict[tuple[Value, Key], Lanes] = {}

    # --- values ---------------------------------------------------------------------------------------------------
    def operand(self, op: Op, i: int, index: Sequence[Component]) -> Lanes:
        """Element `index` of operand i."""
        return self.value(op.operands[i], index)

    def value(self, value: Value, index: Sequence[Component]) -> Lanes:
        """Element `index` of a value."""
        key = (value, tuple(index))
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._compute(value, key[1])
        return found

    def remember(self, value: Value, index: Sequence[Component], lanes: Lanes) -> None:
        """Records an element that was computed along with another one."""
        self.memo[value, tuple(index)] = lanes

    def _compute(self, value: Value, index: Key) -> Lanes:
        if self.width > 1 and value not in self.family.varying and is_uniform(index):
            return self.spread(self.family.at(1).value(value, index))
        op, pointers = value.op, self.family.pointers
        if op is not None and op.name == "reshape" and value not in pointers and (base := viewed(value)) in pointers:
            pointers[value] = pointers[base]  # read where it lies, by an index that nothing takes apart
        if op is None or value in pointers:
            return self.load(value, index)
        rule = OPS[op.name].element if op.name in OPS else None
        if rule is None:
            raise Unsupported(f"op {op.name!r} cannot be part of a kernel", where=op.loc, why="it has no element rule")
        if op.name == "select" and (lanes := chosen(self, op, index)) is not None:
            return lanes
        if OPS[op.name].elementwise:
            rank = len(index)
            values = [self.value(v, index if len(v.shape) == rank else ()) for v in op.operands]
            return rule(self.s, op, *values)
        return rule(self, op, value.index, index)

    def spread(self, lanes: Lanes) -> Lanes:
        """A scalar lane value in every lane."""
        if isinstance(lanes, V):
            if lanes.ref[0] == "%":
                return self.ix.splat(lanes)
            return V(f"<{self.width} x {lanes.type}>", f"splat ({lanes})")
        return tuple(self.spread(part) for part in lanes)

    def inline(self, block: Block, args: Sequence[Lanes]) -> list[Lanes]:
        """The results of a region of scalars, applied to lane values. It may use values from outside."""
        own = [*block.args, *(r for op in block.walk() for r in op.results)]
        self.family.varying.update(own)
        self.memo.update(((a, ()), lanes) for a, lanes in zip(block.args, args, strict=True))
        results = [self.value(v, ()) for v in block.results]
        for value in own:
            self.memo.pop((value, ()), None)
        return results

    def index_of(self, op: Op, i: int, index: Sequence[Component], low: int, high: int) -> Index:
        """Operand i at `index`, an integer, as an index component limited to low ≤ value ≤ high."""
        return self.ix.clamp(self.integer(op, i, index, (low, high)), low, high)

    def integer(self, op: Op, i: int, index: Sequence[Component], limits: tuple[int, int] | None = None) -> Index:
        """Operand i at `index`, an integer, as an index component (values beyond i64's range become its largest).

        `limits`: it may be limited to these, where that is cheaper before it is made wider.
        """
        value = op.operands[i]
        if (known := counted(self, value, index)) is not None:
            return known
        dtype = tensor(value).dtype
        alone = self.width > 1 and value not in self.family.varying and is_uniform(index)
        em = self.family.at(1) if alone else self
        lanes = em.value(value, index)
        unsigned = dtype.kind != "int"
        if dtype.bits < 64:
            size = 8 if dtype.bits < 8 else dtype.bits
            kind = "i64" if em.width == 1 else f"<{em.width} x i64>"
            if f"i{size}" not in lanes.type and dtype.bits > 1:
                raise AssertionError(lanes)
            limit = 1 << (dtype.bits if unsigned else dtype.bits - 1)
            low, high = (0 if unsigned else -limit), limit
            if limits and em.width > 1 and dtype.kind == "int" and low <= limits[0] <= limits[1] < high:
                number = em.s.num(lanes)
                lanes = number.intrinsic("smax", limits[0]).intrinsic("smin", limits[1]).v
                low, high = limits[0], limits[1] + 1
            key = ("zext" if unsigned else "sext", lanes.type, lanes.ref, kind)
            if key not in self.family.known:
                self.family.known[key] = self.b.cast(key[0], lanes, kind)
            lanes = self.family.known[key]
        elif unsigned:
            top = em.b.splat(V("i64", str(1 << 62)), em.width)
            name = f"llvm.umin.{'i64' if em.width == 1 else f'v{em.width}i64'}"
            lanes, low, high = self.b.call(lanes.type, name, lanes, top), 0, (1 << 62) + 1
        else:
            low, high = -(1 << 63), 1 << 63
        return Index(lanes, 0 if em.width == 1 else None, low, high)

    # --- memory ---------------------------------------------------------------------------------------------------
    def load(self, value: Value, index: Sequence[Component]) -> Lanes:
        """Reads an argument of the kernel."""
        if value is self.family.fetched:
            from ferrule.codegen.fetch_ahead import touch

            touch(self, value, self.ix.flatten(index, value.shape))
            return self.s.const(tensor(value).dtype, 0)
        square = self.family.square
        if square is not None:
            self.family.square = None
            found = square.load(self, value, tuple(index), lambda: self.load(value, index))
            self.family.square = square
            if found is not None:
                return found
        columns = self.family.columns
        if columns is not None and columns.width == self.width:
            found = columns.load(self, value, tuple(index))
            if found is not None:
                return found
        tile = self.family.tile
        if tile is not None and tile.width == self.width and tile.depth == self.family.depth:
            found = self._transposed(tile, value, tuple(index))
            if found is not None:
                return found
        offset = self.ix.flatten(index, value.shape)
        if self.family.ahead:
            from ferrule.codegen.fetch_ahead import ask

            ask(self, value, offset)
        return self.load_at(self.family.pointers[value], tensor(value).dtype, offset)

    def load_at(self, pointer: V, dtype: DType, offset: Index) -> Lanes:
        """Reads the elements at an offset."""
        if self.width > 1 and offset.step == 0:
            return self.spread(self.family.at(1).load_at(pointer, dtype, offset))
        if self.family.paired == self.width > 1 and dtype == bf16 and offset.step == 1:
            from ferrule.codegen.pairs import load

            return load(self.b, pointer, offset.base, self.width)
        raw = memory.load(self.ix, pointer, dtype, offset, self._mask())
        return tuple(raw) if dtype.is_complex else self.s.from_memory(dtype, raw[0])

    def _transposed(self, tile: Tile, value: Value, index: Key) -> Lanes | None:
        """Reads from a tile; None if the value does not lie across it."""
        inner = self.ix.innermost(index, value.shape)
        if self.family.mask is not None or inner is None:
            return None
        upwards, first = 1, tile.first
        if inner != tile.row:
            apart = self.ix.apart(inner, tile.row) if isinstance(inner, Index) and inner.step == 0 else None
            if apart is None:
                return None
            upwards, rest = apart
            # What is read downwards begins with the last row. All rows have to find the same first one.
            first = self.ix.add(self.ix.mul(tile.first, upwards), rest)
            first = self.ix.add(first, 0 if upwards > 0 else 1 - tile.width)
            first = first._replace(low=0, high=tensor(value).size, align=1)

        def from_first(c: Component) -> Component:
            if c == inner:
                return first
            return c._replace(of=tile.first) if isinstance(c, Part) and c.of == tile.row else c

        dtype = tensor(value).dtype
        key = (value, tuple(from_first(c) for c in index))
        if key not in tile.vectors:
            if tile.number and inner != tile.row:
                return None  # the first row does not read here, where there may be nothing
            offset = self.ix.flatten(key[1], value.shape)
            if offset.step in (0, 1):
                return None
            tile.vectors[key] = memory.load_transposed(self.ix, self.family.pointers[value], dtype, offset)
        raw = tile.vectors[key][tile.number if upwards > 0 else tile.width - 1 - tile.number]
        return tuple(raw) if dtype.is_complex else self.s.from_memory(dtype, raw[0])

    def _mask(self) -> V | None:
        """The mask for this number of lanes; code for another number runs if any lane is on."""
        mask = self.family.mask
        if mask is None or mask.type == f"<{self.width} x i1>":
            return mask
        key = ("any", mask.ref)
        if key not in self.family.known:
            lanes = mask.type[1:].split(" x ")[0]
            self.family.known[key] = self.b.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", mask)
        return self.ix.splat(self.family.known[key]) if self.width > 1 else self.family.known[key]

    def store(self, pointer: V, dtype: DType, offset: Index, lanes: Lanes) -> None:
        """Writes the elements at an offset."""
        raw = list(lanes) if dtype.is_complex else [self.s.to_memory(dtype, lanes)]
        memory.store(self.ix, pointer, dtype, offset, raw, self._mask(), self.family.stream)

    def copy(self, dtype: DType, source: V, at: Index, target: V, to: Index) -> None:
        """Moves elements as they lie in memory."""
        raw = memory.load(self.ix, source, dtype, at, self._mask())
        memory.store(self.ix, target, dtype, to, raw, self._mask(), self.family.stream)

    def table(self, values: np.ndarray, dtype: DType, index: Sequence[Component]) -> Lanes:
        """An element of an array that is stored with the code."""
        raw = np.ascontiguousarray(values).tobytes()
        name = f"@c_{hashlib.sha256(raw).hexdigest()[:24]}"
        if name not in self.b.globals:
            text = "".join(f"\\{byte:02X}" for byte in raw)
            kind = f"private unnamed_addr {self.b.dialect.constant_pointer[4:]} constant"
            self.b.globals[name] = f'{name} = {kind} [{len(raw)} x i8] c"{text}", align 64'
        return self.load_at(V(self.b.dialect.constant_pointer, name), dtype, self.ix.flatten(index, values.shape))

    # --- control flow ---------------------------------------------------------------------------------------------
    @contextmanager
    def scope(self) -> Iterator[None]:
        """For code that does not run always, or runs many times: what it computes is forgotten after."""
        family = self.family
        known, memos = dict(family.known), {w: dict(m.memo) for w, m in family.members.items()}
        family.depth += 1
        try:
            yield
        finally:
            family.depth -= 1
            family.known.clear()
            family.known.update(known)
            for width, member in family.members.items():
                member.memo = memos.get(width, {})

    @contextmanager
    def masked(self, mask: V) -> Iterator[None]:
        """Within, only the lanes that the mask names are computed (and none of the others is read or written)."""
        family = self.family
        outer = family.mask
        with self.scope():
            family.mask = mask
            if outer is not None:
                family.mask = outer  # before it is asked for: its lanes are to stay out
                wider = family.at(split(mask.type)[1])._mask()
                assert wider is not None
                family.mask = self.b.binary("and", wider, mask)
            try:
                yield
            finally:
                family.mask = outer

    def choose(self, cond: Cond, dtype: DType, yes: Callable[[], Lanes], no: Callable[[], Lanes]) -> Lanes:
        """One of two lane values; the one that is not chosen is not computed (its memory may not exist)."""
        if isinstance(cond, bool):
            return yes() if cond else no()
        if cond.type == "i1":
            return whole(dtype, self.b.branch(cond, lambda: self._alone(yes), lambda: self._alone(no)))
        with self.masked(cond):
            left = parts(yes())
        negated = self.ix.negate(cond)
        assert isinstance(negated, V)
        with self.masked(negated):
            right = parts(no())
        return whole(dtype, [self.b.select(cond, a, b) for a, b in zip(left, right, strict=True)])

    def _alone(self, compute: Callable[[], Lanes]) -> list[V]:
        with self.scope():
            return parts(compute())

    def guarded(self, compute: Callable[[], list[Lanes]]) -> list[Lanes]:
        """Runs a branch's body: what it computes is forgotten after."""
        with self.scope():
            return compute()

    def loop(
        self,
        count: int,
        init: Sequence[Lanes],
        body: Callable[[Index, list[Lanes]], Sequence[Lanes]],
        dtypes: Sequence[DType],
        first: int = 0,
        span: tuple[V, V] | None = None,
    ) -> list[Lanes]:
        """`for i in range(first, count)`, or over a span within, with lane values carried along."""

        def rebuild(flat: Sequence[V]) -> list[Lanes]:
            rest = list(flat)
            return [whole(d, [rest.pop(0) for _ in range(2 if d.is_complex else 1)]) for d in dtypes]

        def step(i: V, carried: list[V]) -> list[V]:
            with self.scope():
                return [p for lanes in body(Index(i, 0, first, count), rebuild(carried)) for p in parts(lanes)]

        flat = [p for lanes in init for p in parts(lanes)]
        begin, end = span or (V("i64", str(first)), V("i64", str(count)))
        return rebuild(self.b.loop(begin, end, 1, flat, step))
