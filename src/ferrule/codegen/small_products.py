"""The schedule of small matrix products on a processor: a tile of sums in registers, then what follows elementwise.

across  lanes run along the columns: a row of the right side times an element of the left one, for each k. Where few
        sums are in work at once, each is added up in several parts, so that none waits for the one before it.
along   lanes run along k, where both sides are contiguous: the vectors of several sums are added up together.

A product with a matrix of one column is the transposed product of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ferrule.codegen.emitter import Emitter, Family, Lanes, parts, whole
from ferrule.codegen.index import ZERO, Index
from ferrule.codegen.lanes import bits_of, first_lanes
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.loop import grain
from ferrule.codegen.memory import shuffle
from ferrule.codegen.products import sum_type
from ferrule.codegen.scalar import compute_type, memory_type
from ferrule.ir import Block, DotDims, Op
from ferrule.ir.types import DType

# So many multiplications stand in a loop's body, at least.
BODY = 24
# So many sums have to be in work at once to hide the time that one addition takes.
CHAINS = 8
# A sum of so many products is formed in two parts, at least.
LONG = 16


class Product(NamedTuple):
    """batch × (m × k times k × n); `a` and `b` are the sides' strides in elements: batch, free dimension, k."""

    batch: int
    m: int
    n: int
    k: int
    a: tuple[int, int, int]
    b: tuple[int, int, int]

    @property
    def swapped(self) -> bool:
        return self.n == 1 and self.m > 1

    def in_order(self) -> Product:
        """The transposed product where that is the one with several columns."""
        return Product(self.batch, self.n, self.m, self.k, self.b, self.a) if self.swapped else self

    @property
    def way(self) -> str | None:
        """How it is done; None where neither lies right in memory."""
        p = self.in_order()
        if p.b[1] == 1:
            return "across"
        return "along" if p.a[2] == p.b[2] == 1 or p.k == 1 else None


def joined(dims: Sequence[int], shape: Sequence[int]) -> tuple[int, int] | None:
    """Size and stride of dimensions of a row-major array read as one, or None when no single stride walks them."""
    size, stride = 1, 0
    for d in reversed(dims):
        step = prod(shape[d + 1 :])
        if shape[d] == 1:
            continue
        if size == 1:
            size, stride = shape[d], step
        elif step == stride * size:
            size *= shape[d]
        else:
            return None
    return size, stride


def free_dims(rank: int, *bound: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if not any(d in group for group in bound)]


@lru_cache(1024)  # the layers of a network have the same
def product_of(left: Sequence[int], right: Sequence[int], dims: DotDims) -> Product | None:
    """The product of two row-major arrays of these shapes, where single strides walk each group of dimensions."""
    sides = []
    for shape, batch, contract in (
        (left, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (right, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    ):
        groups = [joined(g, shape) for g in (batch, free_dims(len(shape), batch, contract), contract)]
        if 0 in shape or any(g is None for g in groups):
            return None
        sides.append(groups)
    (a_batch, a_free, a_depth), (b_batch, b_free, b_depth) = sides
    assert a_batch and a_free and a_depth and b_batch and b_free and b_depth
    a = a_batch[1], a_free[1], a_depth[1]
    b = b_batch[1], b_free[1], b_depth[1]
    return Product(a_batch[0], a_free[0], b_free[0], a_depth[0], a, b)


def plan(block: Block) -> Op | None:
    """The product of a kernel that this schedule can do."""
    found = [op for op in block.ops if op.name == "dot_general"]
    if len(found) != 1:
        return None
    (op,) = found
    shape = op.result.shape
    if any(r.shape != shape for r in block.results) or any(v not in block.args for v in op.operands):
        return None
    p = product_of(op.operands[0].shape, op.operands[1].shape, op.attrs["dot_dimension_numbers"])
    kind = sum_type(op)
    narrow = bits_of(compute_type(kind)) < 32
    return None if p is None or p.way is None or narrow or kind.kind == "bool" else op


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, nanoseconds: float) -> tuple[int, int]:
    """Writes the product and what is computed from it; gives the grid (the batch) and the grain."""
    op = plan(block)
    assert op is not None
    p = product_of(op.operands[0].shape, op.operands[1].shape, op.attrs["dot_dimension_numbers"])
    assert p is not None
    writer = _Writer(family, block, op, p, outputs)

    def one(i: V, _: list[V]) -> list[V]:
        with family.at(1).scope():
            writer.matrix(Index(i, 0, 0, p.batch) if p.batch > 1 else ZERO)
        return []

    if p.batch == 1:
        one(i64(0), [])
    else:
        family.b.loop(begin, end, 1, [], one, "batch")
    return p.batch, grain(p.batch, nanoseconds)


class _Side(NamedTuple):
    """An operand: its element type, its strides, and the address that is reached so far."""

    dtype: DType
    strides: tuple[int, int, int]
    pointer: V

    @property
    def unit(self) -> str:
        unit = memory_type(self.dtype)
        return f"[2 x {unit}]" if self.dtype.is_complex else unit


class _Writer:
    def __init__(self, family: Family, block: Block, op: Op, p: Product, outputs: Sequence[V]) -> None:
        self.family, self.b, self.block, self.op, self.outputs = family, family.b, block, op, outputs
        self.p, self.swapped, self.way = p.in_order(), p.swapped, p.way
        self.kind = sum_type(op)
        lhs, rhs = op.operands
        pairs = [(rhs, p.b), (lhs, p.a)] if self.swapped else [(lhs, p.a), (rhs, p.b)]
        self.sides = [_Side(v.dtype, strides, family.pointers[v]) for v, strides in pairs]
        dims = op.attrs["dot_dimension_numbers"]
        left, right = lhs.shape, rhs.shape
        self.batch_shape = [left[d] for d in dims.lhs_batching_dimensions]
        bound = dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions
        self.row_shape = [left[d] for d in free_dims(len(left), *bound)]
        bound = dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions
        self.column_shape = [right[d] for d in free_dims(len(right), *bound)]
        # The registers that hold sums; as many as leave room for what is multiplied.
        self.registers = 24 if family.machine.vector_bytes == 64 else 12
        self.registers //= 2 if self.kind.is_complex else 1
        self.lanes = family.machine.vector_bytes * 8 // bits_of(compute_type(self.kind))

    # --- addresses and elements -----------------------------------------------------------------------------------
    def moved(self, side: _Side, *by: tuple[Index, int]) -> _Side:
        """The operand from (index · stride) elements further on."""
        ix = self.family.at(1).ix
        offset: Index = ZERO
        for index, stride in by:
            offset = ix.add(offset, ix.mul(index, stride))
        return side._replace(pointer=self.b.offset(side.pointer, side.unit, offset.base))

    def element(self, side: _Side, offset: int) -> Lanes:
        """One element, so many further on, in the sums' type."""
        em = self.family.at(1)
        mask, self.family.mask = self.family.mask, None
        lanes = em.s.convert(side.dtype, self.kind, em.load_at(side.pointer, side.dtype, _constant(offset, 0)))
        self.family.mask = mask
        return lanes

    def vector(self, side: _Side, offset: int, width: int) -> Lanes:
        """Neighbouring elements, in the sums' type."""
        if width == 1:
            return self.element(side, offset)
        em = self.family.at(width)
        return em.s.convert(side.dtype, self.kind, em.load_at(side.pointer, side.dtype, _constant(offset, 1)))

    # --- loops ----------------------------------------------------------------------------------------------------
    def matrix(self, batch: Index) -> None:
        """One product of the batch."""
        a, b = (self.moved(side, (batch, side.strides[0])) for side in self.sides)
        columns = self.across if self.way == "across" else self.along
        columns(batch, a, b)

    def over(self, count: int, unit: int, body: Callable[[Index, int], None]) -> None:
        """body(first, how many) for pieces of `unit`, and for the rest."""
        full = count - count % unit
        if full > unit:

            def step(i: V, _: list[V]) -> list[V]:
                with self.family.at(1).scope():
                    body(Index(i, 0, 0, full, unit), unit)
                return []

            self.b.loop(i64(0), i64(full), unit, [], step, "tiles")
        elif full:
            body(ZERO, unit)
        if full < count:
            body(self.family.at(1).ix.number(full), count - full)

    def along_k(
        self, a: _Side, b: _Side, step: int, sums: list[Lanes], more: Callable[[_Side, _Side, int, list[Lanes]], list]
    ) -> list[Lanes]:
        """more(a, b, k, sums) for k in pieces of `step` that lie within the first two sides; gives the sums."""
        full = self.p.k - self.p.k % step
        if full > step:

            def body(i: V, flat: list[V]) -> list[V]:
                with self.family.at(1).scope():
                    k = Index(i, 0, 0, full, step)
                    here = self.moved(a, (k, a.strides[2])), self.moved(b, (k, b.strides[2]))
                    return _flat(more(*here, step, self.rebuild(flat)))

            sums = self.rebuild(self.b.loop(i64(0), i64(full), step, _flat(sums), body, "k"))
        elif full:
            sums = more(a, b, step, sums)
        if full < self.p.k:
            k = self.family.at(1).ix.number(full)
            a, b = self.moved(a, (k, a.strides[2])), self.moved(b, (k, b.strides[2]))
            sums = more(a, b, self.p.k - full, sums)
        return sums

    def rebuild(self, flat: Sequence[V]) -> list[Lanes]:
        count = 2 if self.kind.is_complex else 1
        return [whole(self.kind, flat[i : i + count]) for i in range(0, len(flat), count)]

    # --- lanes across the columns -----------------------------------------------------------------------------------
    def across(self, batch: Index, a: _Side, b: _Side) -> None:
        width, n = self.lanes, self.p.n
        masks = self.family.machine.vector_bytes == 64
        while width > 1 and (width // 2 >= n or (width > n and not masks)):
            width //= 2
        vectors = n // width
        rows = self.p.m
        wide = 4 if vectors % 4 == 0 or vectors > 4 else vectors
        if rows > self.registers // wide and vectors % 2 == 0:
            wide = 2
        first = self.family.at(1).ix.number

        def panel(j: Index, count: int) -> None:
            self.rows(batch, a, self.moved(b, (j, b.strides[1])), j, count // width, width)

        if vectors:
            self.over(vectors * width, wide * width, panel)
        at, rest = vectors * width, n % width
        if rest and masks and (rest & (rest - 1) or width < self.lanes):
            self.family.mask = first_lanes(width, rest)
            self.rows(batch, a, self.moved(b, (first(at), b.strides[1])), first(at), 1, width)
            self.family.mask = None
            return
        while rest:
            width = 1 << (rest.bit_length() - 1)
            self.rows(batch, a, self.moved(b, (first(at), b.strides[1])), first(at), 1, width)
            at, rest = at + width, rest - width

    def rows(self, batch: Index, a: _Side, b: _Side, j: Index, vectors: int, width: int) -> None:
        """All rows of so many vectors of columns, in tiles."""
        most = min(self.registers // vectors, 12)
        tile = min(self.p.m, most)
        if self.p.m > most:
            tile = next((t for t in range(most, most // 2, -1) if self.p.m % t == 0), most)

        def body(i: Index, count: int) -> None:
            self.tile(batch, self.moved(a, (i, a.strides[1])), b, i, j, count, vectors, width)

        self.over(self.p.m, tile, body)

    def tile(self, batch: Index, a: _Side, b: _Side, i: Index, j: Index, rows: int, vectors: int, width: int) -> None:
        em, k = self.family.at(width), self.p.k
        chains = rows * vectors
        parallel = 1
        while parallel * chains < CHAINS and 2 * parallel <= k:
            parallel *= 2
        # Two sums of half as many products are closer to the whole than one, where there are registers for both.
        if parallel == 1 and k >= LONG and 2 * chains <= self.registers and self.kind.is_float:
            parallel = 2
        step = parallel * max(1, BODY // (chains * parallel))

        def more(a: _Side, b: _Side, count: int, sums: list[Lanes]) -> list[Lanes]:
            sums = list(sums)
            for k in range(count):
                right = [self.vector(b, k * b.strides[2] + v * width, width) for v in range(vectors)]
                for r in range(rows):
                    left = self.element(a, k * a.strides[2] + r * a.strides[1])
                    left = em.spread(left) if width > 1 else left
                    for v in range(vectors):
                        at = (k % parallel) * chains + r * vectors + v
                        sums[at] = em.s.fma(self.kind, left, right[v], sums[at])
            return sums

        sums = self.along_k(a, b, step, [em.s.const(self.kind, 0)] * (chains * parallel), more)
        sums = self.joined(em, sums, chains)
        for r in range(rows):
            for v in range(vectors):
                self.write(batch, i, r, j, v * width, width, sums[r * vectors + v])

    def joined(self, em: Emitter, sums: list[Lanes], chains: int) -> list[Lanes]:
        """The sums of `chains` results, each of which was added up in several parts."""
        while len(sums) > chains:
            half = len(sums) // 2
            sums = [em.s.add(self.kind, x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
        return sums

    # --- lanes along k ------------------------------------------------------------------------------------------------
    def along(self, batch: Index, a: _Side, b: _Side) -> None:
        width = self.lanes
        while width > 1 and width // 2 >= self.p.k:
            width //= 2
        most = 16 if self.family.machine.vector_bytes == 64 else 8
        most //= 2 if self.kind.is_complex else 1
        rows = min(self.p.m, 4)
        columns = 1 << ((most // rows).bit_length() - 1)
        columns = min(columns, self.lanes, 1 << (self.p.n.bit_length() - 1))
        if columns < self.p.n < 2 * columns:
            rows = min(self.p.m, most // columns)

        def some(j: Index, count: int) -> None:
            while count:  # sums go together by powers of two
                take = 1 << (count.bit_length() - 1)
                here = self.moved(b, (j, b.strides[1]))

                def body(i: Index, rows: int, here: _Side = here, j: Index = j, take: int = take) -> None:
                    self.dots(batch, self.moved(a, (i, a.strides[1])), here, i, j, rows, take, width)

                self.over(self.p.m, rows, body)
                j, count = self.family.at(1).ix.add(j, take), count - take

        self.over(self.p.n, columns, some)

    def dots(self, batch: Index, a: _Side, b: _Side, i: Index, j: Index, rows: int, columns: int, width: int) -> None:
        em = self.family.at(width)
        chains = rows * columns
        parallel = 1
        while parallel * chains < CHAINS and 2 * parallel * width <= self.p.k:
            parallel *= 2
        step = width * parallel * max(1, BODY // (chains * parallel))

        def more(a: _Side, b: _Side, count: int, sums: list[Lanes]) -> list[Lanes]:
            sums = list(sums)
            for number, k in enumerate(range(0, count, width)):
                size = min(width, count - k)
                left = [self.some(a, k + r * a.strides[1], size, width) for r in range(rows)]
                for c in range(columns):
                    right = self.some(b, k + c * b.strides[1], size, width)
                    for r in range(rows):
                        at = (number % parallel) * chains + r * columns + c
                        sums[at] = em.s.fma(self.kind, left[r], right, sums[at])
            return sums

        sums = self.along_k(a, b, step, [em.s.const(self.kind, 0)] * (chains * parallel), more)
        sums = self.joined(em, sums, chains)
        together = rows if chains <= width and rows & (rows - 1) == 0 else 1
        for r in range(0, rows, together):
            totals = self.totals(sums[r * columns : (r + together) * columns], width)
            for q in range(together):
                total = totals if together == 1 else self.piece(totals, q * columns, columns, columns * together)
                self.write(batch, i, r + q, j, 0, columns, total)

    def some(self, side: _Side, offset: int, size: int, width: int) -> Lanes:
        """`size` neighbouring elements, then zeros."""
        if size == width:
            return self.vector(side, offset, width)
        if self.family.machine.vector_bytes == 64:
            self.family.mask = first_lanes(width, size)
            found = self.vector(side, offset, width)
            self.family.mask = None
            return found
        found, at = self.family.at(width).s.const(self.kind, 0), 0
        while at < size:
            take = 1 << ((size - at).bit_length() - 1)
            found = self.put(found, self.vector(side, offset + at, take), at, take, width)
            at += take
        return found

    def put(self, into: Lanes, new: Lanes, at: int, count: int, width: int) -> Lanes:
        """The vector with other lanes from `at` on."""

        def one(old: V, new: V) -> V:
            if count == 1:
                return self.b.emit(old.type, f"insertelement {old}, {new}, i64 {at}")
            wide = shuffle(self.b, new, new, [lane if lane < count else 0 for lane in range(width)])
            order = [width + lane - at if at <= lane < at + count else lane for lane in range(width)]
            return shuffle(self.b, old, wide, order)

        return whole(self.kind, [one(x, y) for x, y in zip(parts(into), parts(new), strict=True)])

    def piece(self, lanes: Lanes, at: int, count: int, width: int) -> Lanes:
        if count == width:
            return lanes

        def one(v: V) -> V:
            if count == 1:
                return self.b.emit(v.type[1:-1].split(" x ")[1], f"extractelement {v}, i64 {at}")
            return shuffle(self.b, v, v, list(range(at, at + count)))

        return whole(self.kind, [one(v) for v in parts(lanes)])

    def totals(self, vectors: list[Lanes], width: int) -> Lanes:
        """The sum of each vector's lanes, as one vector; their number is a power of two, at most that of lanes or so.

        Two vectors become one with half of each one's sums in its lanes, and so on: additions and exchanges of lanes
        are shared, and the latter stay within 128 bits as long as they can.
        """
        if width < len(vectors):  # short vectors: those of a few at a time
            half = len(vectors) // 2
            low, high = self.totals(vectors[:half], width), self.totals(vectors[half:], width)
            return self.both(low, high, half)
        while width > len(vectors):
            width //= 2
            halves = [[self.piece(v, at, width, 2 * width) for v in vectors] for at in (0, width)]
            vectors = [self.add(width, x, y) for x, y in zip(*halves, strict=True)]
        block = min(width, 128 // bits_of(compute_type(self.kind)))
        unit = 1
        while len(vectors) > 1:
            low, high = _exchange(width, block, unit)
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self.add(width, self.mixed(x, y, low), self.mixed(x, y, high)) for x, y in pairs]
            unit *= 2
        return vectors[0]

    def both(self, low: Lanes, high: Lanes, count: int) -> Lanes:
        if count > 1:
            return self.mixed(low, high, list(range(2 * count)))

        def pair(x: V, y: V) -> V:
            first = self.b.emit(f"<2 x {x.type}>", f"insertelement <2 x {x.type}> poison, {x}, i64 0")
            return self.b.emit(first.type, f"insertelement {first}, {y}, i64 1")

        return whole(self.kind, [pair(x, y) for x, y in zip(parts(low), parts(high), strict=True)])

    def mixed(self, x: Lanes, y: Lanes, order: list[int]) -> Lanes:
        pairs = zip(parts(x), parts(y), strict=True)
        return whole(self.kind, [shuffle(self.b, u, v, order) for u, v in pairs])

    def add(self, width: int, x: Lanes, y: Lanes) -> Lanes:
        return self.family.at(width).s.add(self.kind, x, y)

    # --- results ------------------------------------------------------------------------------------------------------
    def write(self, batch: Index, i: Index, r: int, j: Index, c: int, width: int, total: Lanes) -> None:
        """Computes the results for lanes that begin at row i + r and column j + c, and stores them."""
        em: Emitter = self.family.at(width)
        with em.scope():
            one = self.family.at(1).ix
            row, column = one.add(i, r), one.add(j, c)
            high = min(column.high + width - 1, self.p.n)
            column = Index(column.base, 1 if width > 1 else 0, column.low, high, column.align)
            rows, columns = (self.column_shape, self.row_shape) if self.swapped else (self.row_shape, self.column_shape)
            split_rows, split_columns = em.ix.split(row, rows), em.ix.split(column, columns)
            place = (*split_columns, *split_rows) if self.swapped else (*split_rows, *split_columns)
            index = (*em.ix.split(batch, self.batch_shape), *place)
            em.remember(self.op.result, index, em.s.convert(self.kind, self.op.result.dtype, total))
            lanes = [em.value(value, index) for value in self.block.results]
            offset = em.ix.flatten(index, self.op.result.shape)
            for value, pointer, lane in zip(self.block.results, self.outputs, lanes, strict=True):
                em.store(pointer, value.dtype, offset, lane)


def _constant(offset: int, step: int) -> Index:
    return Index(i64(offset), step, offset, offset + 1 if step == 0 else offset + 65)


def _flat(values: Sequence[Lanes]) -> list[V]:
    return [p for lanes in values for p in parts(lanes)]


def _exchange(width: int, block: int, unit: int) -> tuple[list[int], list[int]]:
    """Which lanes of two vectors (those of the second are numbered from `width`) are added to which others.

    `unit` is the number of vectors that each of the two has the sums of already.
    """
    if unit < block:  # neighbours in a block of 128 bits
        half = [start + i for start in range(0, width, block) for i in range(0, block // 2, unit)]
        low = [g + i + side for g in half for side in (0, width) for i in range(unit)]
        high = [g + block // 2 + i + side for g in half for side in (0, width) for i in range(unit)]
        return low, high
    blocks, within = width // block, unit // block  # whole blocks
    kept = blocks // (2 * within)  # blocks that each sum has left after this
    low_blocks = [s * (2 * kept) + i for s in range(within) for i in range(kept)]
    high_blocks = [s * (2 * kept) + kept + i for s in range(within) for i in range(kept)]

    def lanes(order: list[int]) -> list[int]:
        return [side + g * block + i for side in (0, width) for g in order for i in range(block)]

    return lanes(low_blocks), lanes(high_blocks)
