"""Loads and stores of lanes: contiguous, reversed, one address for all, or an address per lane; masked or not.

What is read and written here is the *storage* type of an element: an integer of the element's size for booleans,
integers and narrow floats, else the LLVM type itself. A complex number is two storage values next to each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.dialect import GroupDialect
from ferrule.codegen.index import Index, Indexer
from ferrule.codegen.lanes import bits_of, suffix
from ferrule.codegen.llvm import Builder, V, vector
from ferrule.codegen.scalar import memory_type
from ferrule.ir.types import DType


def shuffle(b: Builder, a: V, c: V, lanes: Sequence[int]) -> V:
    """The elements with these numbers among those of `a`, then of `c`."""
    scalar = a.type[1:-1].split(" x ")[1]
    picks = ", ".join(f"i32 {lane}" for lane in lanes)
    return b.emit(f"<{len(lanes)} x {scalar}>", f"shufflevector {a}, {c}, <{len(lanes)} x i32> <{picks}>")


def _addresses(ix: Indexer, pointer: V, type: str, offset: Index, scale: int, extra: int) -> V:
    """One address per lane: element offset * scale + extra of the storage type."""
    lanes = ix.lanes(ix.add(ix.mul(offset, scale), extra))
    return ix.b.emit(f"<{ix.width} x ptr>", f"getelementptr inbounds {type}, {pointer}, {lanes}")


def _ones(width: int) -> V:
    return V(f"<{width} x i1>", "splat (i1 true)")


def _call(b: Builder, type: str, name: str, kinds: str, *args: str) -> V:
    b.declares[name] = f"declare {type} @{name}({kinds})"
    text = f"call {type} @{name}({', '.join(args)})"
    if type == "void":
        b.do(text)
        return V("void", "")
    return b.emit(type, text)


def masked_load(b: Builder, type: str, address: V, align: int, mask: V) -> V:
    name = f"llvm.masked.load.{suffix(type)}.p0"
    place = f"ptr align {align} {address.ref}"
    return _call(b, type, name, f"ptr, {mask.type}, {type}", place, str(mask), f"{type} zeroinitializer")


def masked_store(b: Builder, value: V, address: V, align: int, mask: V) -> None:
    name = f"llvm.masked.store.{suffix(value.type)}.p0"
    place = f"ptr align {align} {address.ref}"
    _call(b, "void", name, f"{value.type}, ptr, {mask.type}", str(value), place, str(mask))


def _gather(b: Builder, type: str, addresses: V, align: int, mask: V) -> V:
    name = f"llvm.masked.gather.{suffix(type)}.v{suffix(mask.type)[1:].split('i')[0]}p0"
    place = f"{addresses.type} align {align} {addresses.ref}"
    return _call(b, type, name, f"{addresses.type}, {mask.type}, {type}", place, str(mask), f"{type} zeroinitializer")


def _double(b: Builder, mask: V, width: int) -> V:
    """Each lane of the mask twice, for the two parts of complex numbers."""
    return shuffle(b, mask, mask, [lane // 2 for lane in range(2 * width)])


def load(ix: Indexer, pointer: V, dtype: DType, offset: Index, mask: V | None = None) -> list[V]:
    """The storage values of the elements at `offset`: one vector, or two for complex types.

    Lanes that the mask switches off are not read. With one lane, or the same offset in all, the result is a scalar (and
    the mask, if any, an i1: an element that is switched off is replaced by the first one, which must exist).
    """
    b, type, width = ix.b, memory_type(dtype), ix.width
    count = 2 if dtype.is_complex else 1
    align = dtype.part.itemsize
    if width == 1 or offset.step == 0:
        place = offset.base
        if mask is not None:
            place = b.select(mask, place, V("i64", "0"))
        address = ix.address(pointer, f"[{count} x {type}]" if count > 1 else type, place)
        first = b.load(type, address, align)
        return [first] if count == 1 else [first, b.load(type, b.offset(address, type, V("i64", "1")), align)]
    lanes = vector(type, width)
    if offset.step in (1, -1):
        start = offset.base if offset.step == 1 else ix.add(Index(offset.base, 0, 0, 1 << 62), 1 - width).base
        address = b.offset(pointer, f"[{count} x {type}]" if count > 1 else type, start)
        order = list(range(width)) if offset.step == 1 else list(range(width))[::-1]
        many = vector(type, width * count)
        if mask is None:
            raw = b.load(many, address, align)
        else:
            flags = mask if offset.step == 1 else shuffle(b, mask, mask, order)
            raw = masked_load(b, many, address, align, flags if count == 1 else _double(b, flags, width))
        if count == 2:
            return [shuffle(b, raw, raw, [2 * lane + part for lane in order]) for part in range(2)]
        return [raw if offset.step == 1 else shuffle(b, raw, raw, order)]
    near = offset.step is not None and abs(offset.step) * count <= NEAR
    if near and width >= 4 and not isinstance(b.dialect, GroupDialect) and (mask is None or align >= MASKED):
        places = [ix.add(ix.mul(offset, count), part) for part in range(count)]
        return [_every(ix, pointer, type, place, align, mask) for place in places]
    pick = not b.dialect.gathers and b.picked < PICKED
    if mask is None and dtype.itemsize in (4, 8) and width >= 4 and pick:
        b.picked += 1
        return [_pick(ix, pointer, type, ix.add(ix.mul(offset, count), part), align) for part in range(count)]
    flags = mask if mask is not None else _ones(width)
    return [
        _gather(b, lanes, _addresses(ix, pointer, type, offset, count, part), align, flags) for part in range(count)
    ]


# Up to this distance all that lies between a vector's elements is read with them.
NEAR = 8
# AVX2 has no masked loads of elements of fewer bytes.
MASKED = 4


def _every(ix: Indexer, pointer: V, type: str, offset: Index, align: int, mask: V | None = None) -> V:
    """Elements at an even, small distance, out of contiguous vectors that end with the last of them.

    Under a mask, what lies between them is not read either.
    """
    b, width, step = ix.b, ix.width, offset.step
    assert step is not None
    span = (width - 1) * abs(step) + 1
    first = ix.add(Index(offset.base, 0, 0, 1 << 62), (width - 1) * step if step < 0 else 0).base
    start = b.offset(pointer, type, first)
    starts = [min(number * width, span - width) for number in range(abs(step))]
    places = [lane * abs(step) for lane in range(width)][:: 1 if step > 0 else -1]

    def read(first: int) -> V:
        address = b.offset(start, type, V("i64", str(first)))
        if mask is None:
            return b.load(vector(type, width), address, align)
        lanes = {place - first: lane for lane, place in enumerate(places)}
        off = V(mask.type, "zeroinitializer")
        flags = shuffle(b, mask, off, [lanes.get(at, width) for at in range(width)])
        return masked_load(b, vector(type, width), address, align, flags)

    parts = [read(first) for first in starts]
    holder = [len(starts) - 1 if place >= starts[-1] else place // width for place in places]
    whole = parts[0]
    for number, part in enumerate(parts[1:], 1):
        picks = [
            width + place - starts[number] if held == number else (place if number == 1 and not held else lane)
            for lane, (place, held) in enumerate(zip(places, holder, strict=True))
        ]
        whole = shuffle(b, whole, part, picks)
    return whole


# A gather instruction reads one lane after the other, on most processors more slowly than plain loads do. These are
# many instructions: only so many gathers of a kernel are written like this.
PICKED = 12


def _pick(ix: Indexer, pointer: V, type: str, offset: Index, align: int) -> V:
    """The elements at an offset that is its own in each lane, by a load for each."""
    b = ix.b
    result = V(f"<{ix.width} x {type}>", "poison")
    for lane, address in enumerate(_each(ix, pointer, type, offset)):
        result = b.emit(result.type, f"insertelement {result}, {b.load(type, address, align)}, i64 {lane}")
    return result


def _each(ix: Indexer, pointer: V, type: str, offset: Index) -> list[V]:
    """The address of each lane, as scalars."""
    if offset.step is None:
        return [ix.b.offset(pointer, type, place) for place in each_place(ix, offset)]
    start = ix.b.offset(pointer, type, offset.base)
    return [ix.b.offset(start, type, V("i64", str(lane * offset.step))) for lane in range(ix.width)]


def each_place(ix: Indexer, offset: Index) -> list[V]:
    """The offset of each lane; small ones leave the vector register as 32 bits.

    Not two at once: LLVM 22 forgets to clear the upper half of 64 bits whose lower one is known to be small.
    """
    b, lanes = ix.b, ix.lanes(offset)
    if offset.low < 0 or offset.high > 1 << 31:
        return [b.emit("i64", f"extractelement {lanes}, i64 {lane}") for lane in range(ix.width)]
    narrow = b.cast("trunc", lanes, f"<{ix.width} x i32>")
    return [b.cast("zext", b.emit("i32", f"extractelement {narrow}, i64 {lane}"), "i64") for lane in range(ix.width)]


def load_transposed(ix: Indexer, pointer: V, dtype: DType, offset: Index) -> list[list[V]]:
    """For offset, offset + 1, …, as many as there are lanes: what `load` gives there, by contiguous loads and shuffles.

    Row l of the square holds what lane l reads.
    """
    b, type, width = ix.b, memory_type(dtype), ix.width
    count = 2 if dtype.is_complex else 1
    addresses = _each(ix, pointer, f"[{count} x {type}]" if count > 1 else type, offset)
    rows = [b.load(vector(type, width * count), address, dtype.part.itemsize) for address in addresses]
    rows = _exchanged(b, rows, width, count)
    if count == 1:
        return [[row] for row in rows]
    return [[shuffle(b, row, row, range(part, 2 * width, 2)) for part in range(2)] for row in rows]


def _exchanged(b: Builder, rows: list[V], width: int, unit: int = 1) -> list[V]:
    """Rows and lanes change places, in each run of as many lanes as there are rows (a power of two).

    A lane is `unit` numbers. Squares whose rows are whole registers change first within parts of 128 bits, then these
    change places: the instructions for that name no vector of picks, and LLVM finds them early.
    """
    count, part = len(rows), max(1, 128 // bits_of(rows[0].type) // unit)
    if count != width or count // part not in (2, 4):
        return _interleaved(b, rows, width, unit)
    inside = [_interleaved(b, rows[r : r + part], width, unit) for r in range(0, count, part)]
    around = [_across(b, [group[e] for group in inside], part * unit) for e in range(part)]
    return [around[e][at] for at in range(count // part) for e in range(part)]


def _across(b: Builder, rows: list[V], size: int) -> list[V]:
    """Two or four rows and as many parts of them, of `size` numbers, change places.

    Each result begins with parts of one vector and ends with parts of another.
    """

    def picked(x: V, y: V, parts: Sequence[int]) -> V:
        return shuffle(b, x, y, [part * size + i for part in parts for i in range(size)])

    if len(rows) == 2:
        return [picked(rows[0], rows[1], parts) for parts in ((0, 2), (1, 3))]
    halves = [[picked(x, y, parts) for x, y in (rows[:2], rows[2:])] for parts in ((0, 1, 4, 5), (2, 3, 6, 7))]
    return [picked(x, y, parts) for x, y in halves for parts in ((0, 2, 4, 6), (1, 3, 5, 7))]


def _interleaved(b: Builder, rows: list[V], width: int, unit: int) -> list[V]:
    """Rows and lanes change places, in log2(count) rounds: each pairs row i with row i + count / 2, lane by lane."""
    count = len(rows)
    runs = range(0, width, count)
    low = [run + lane // 2 + width * (lane % 2) for run in runs for lane in range(count)]
    high = [place + count // 2 for place in low]
    orders = [[unit * place + part for place in order for part in range(unit)] for order in (low, high)]
    for _ in range(count.bit_length() - 1):
        pairs = list(zip(rows[: count // 2], rows[count // 2 :], strict=True))
        rows = [shuffle(b, x, y, order) for x, y in pairs for order in orders]
    return rows


def load_columns(
    ix: Indexer, pointer: V, dtype: DType, offset: Index, pieces: Sequence[tuple[int, int]]
) -> list[list[V]]:
    """For each piece (first, count), `count` a power of two and no more than there are lanes: what `load` gives for
    offset + first, offset + first + 1, …"""
    b, type, width = ix.b, memory_type(dtype), ix.width
    places = _each(ix, pointer, type, offset)
    found = []
    for first, count in pieces:
        rows = []
        for row in range(count):
            starts = [b.offset(p, type, V("i64", str(first))) for p in places[row::count]]
            parts = [b.load(vector(type, count), start, dtype.itemsize) for start in starts]
            while len(parts) > 1:
                size = count * len(starts) // len(parts)
                parts = [shuffle(b, x, y, range(2 * size)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            rows += parts
        found.append(_exchanged(b, rows, width))
    return found


def store_columns(ix: Indexer, pointer: V, dtype: DType, offset: Index, columns: Sequence[V]) -> None:
    """Writes what `load_columns` reads."""
    b, type, width, count = ix.b, memory_type(dtype), ix.width, len(columns)
    assert offset.step is not None
    start = b.offset(pointer, type, offset.base)
    for row, lanes in enumerate(_exchanged(b, list(columns), width)):
        for run in range(0, width, count):
            part = lanes if count == width else shuffle(b, lanes, lanes, range(run, run + count))
            b.store(part, b.offset(start, type, V("i64", str((run + row) * offset.step))), dtype.itemsize)


def load_unmixed(ix: Indexer, pointer: V, dtype: DType, offset: Index, count: int) -> list[V]:
    """For offset, offset + 1, …, `count` of them, which is the offset's step: what `load` gives there."""
    b, type, width = ix.b, memory_type(dtype), ix.width
    start = b.offset(pointer, type, offset.base)
    parts = [
        b.load(vector(type, width), b.offset(start, type, V("i64", str(n * width))), dtype.itemsize)
        for n in range(count)
    ]
    found = []
    for column in range(count):
        wanted = [divmod(lane * count + column, width) for lane in range(width)]  # (part, its lane)
        whole = parts[0]
        for number, part in enumerate(parts[1:], 1):
            picks = [
                width + place if which == number else (place if number == 1 else at)
                for at, (which, place) in enumerate(wanted)
            ]
            whole = shuffle(b, whole, part, picks)
        found.append(whole)
    return found


def store(
    ix: Indexer, pointer: V, dtype: DType, offset: Index, values: list[V], mask: V | None = None, stream: int = 0
) -> None:
    """Writes storage values, as `load` reads them. A scalar store takes no mask.

    `stream`: vectors go past the cache; their places are aligned to this many bytes.
    """
    b, type, width = ix.b, memory_type(dtype), ix.width
    count, align = len(values), dtype.part.itemsize
    if width == 1:
        address = b.offset(pointer, f"[{count} x {type}]" if count > 1 else type, offset.base)
        for part, value in enumerate(values):
            b.store(value, b.offset(address, type, V("i64", str(part))), align)
        return
    if offset.step == 1:
        address = b.offset(pointer, f"[{count} x {type}]" if count > 1 else type, offset.base)
        whole, flags = values[0], mask
        if count == 2:
            order = [lane // 2 + width * (lane % 2) for lane in range(2 * width)]
            whole = shuffle(b, values[0], values[1], order)
            flags = None if mask is None else _double(b, mask, width)
        if flags is None:
            b.store(whole, address, min(stream, count * width * align) or align, stream > 0)
        else:
            masked_store(b, whole, address, align, flags)
        return
    if offset.step == -1 and mask is None and count == 1:
        start = ix.add(Index(offset.base, 0, 0, 1 << 62), 1 - width).base
        order = list(range(width))[::-1]
        b.store(shuffle(b, values[0], values[0], order), b.offset(pointer, type, start), align)
        return
    flags = mask if mask is not None else _ones(width)
    for part, value in enumerate(values):
        addresses = _addresses(ix, pointer, type, offset, count, part)
        name = f"llvm.masked.scatter.{suffix(value.type)}.v{width}p0"
        place = f"{addresses.type} align {align} {addresses.ref}"
        _call(b, "void", name, f"{value.type}, {addresses.type}, {flags.type}", str(value), place, str(flags))
