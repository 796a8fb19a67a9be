"""What does not stay in the cache is written past it: a plain store reads the line first, a third of all traffic.

Whoever reads such a result next would not find it in the cache anyway: what was read beside it has taken its place. In
an operand's own memory the line is there already, and the store would only throw it out; whether a result lies there is
seen when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.codegen import memory
from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Index
from ferrule.codegen.llvm import V, i64
from ferrule.ir import Block, tensor
from ferrule.ops import OPS

# A kernel that reads and writes as much as the last cache holds leaves a result there only if it is the smaller part.
SHARE = 0.25
# Beyond so many operations for an element memory is not what a kernel waits for.
BUSY = 64
# Bytes of a line, and of the shortest register.
LINE, SHORTEST = 64, 16
# Rows of fewer lines have too much of them at their ends, where masks are slow sooner.
LONG_ROW, LONG_ROW_SLOW = 8, 30


def alignment(
    family: Family, block: Block, width: int, inner: int, whole_lines: bool = False, alone: bool = False
) -> int:
    """If stores are to go past the cache, the alignment of all of `width` lanes in rows of `inner` elements; else 0.

    `whole_lines`: stores of less than a line are not followed by the rest of it. `alone`: no row follows the first.
    """
    machine = family.machine
    if machine.grouped or not machine.triple.startswith("x86_64") or sum(OPS[op.name].flops for op in block.ops) > BUSY:
        return 0
    found, most = LINE, max(tensor(value).size for value in block.results)
    # Of an operand no more is read than one element for each of the result.
    moved = sum(min(tensor(v).size, most) * tensor(v).dtype.itemsize for v in (*block.args, *block.results))
    if moved < machine.cache_bytes:
        return 0
    for value in block.results:
        size = tensor(value).dtype.itemsize
        if tensor(value).nbytes < SHARE * machine.cache_bytes:
            return 0
        found = min(found, width * size & -(width * size))
        least = LINE if whole_lines else max(SHORTEST, machine.vector_bytes // 2)  # LLVM takes others apart
        if not alone and inner * size % found or found < least:
            return 0
    return found


def in_lines(family: Family, block: Block, inner: int) -> int:
    """How many lanes fill a line, if the whole lines of rows that begin anywhere in one are to go past the cache; else
    0. What is left at both ends of a row is masked."""
    if len(block.results) != 1 or block.results[0].dtype.is_complex:
        return 0
    sizes = [tensor(value).dtype.itemsize for value in (*block.results, *block.args)]
    lanes = LINE // sizes[0]
    slow = family.machine.vector_bytes < LINE
    if slow and min(sizes) < memory.MASKED or inner < (LONG_ROW_SLOW if slow else LONG_ROW) * lanes:
        return 0
    return lanes if alignment(family, block, lanes, inner, alone=True) == LINE else 0


def span_in_lines(
    family: Family, width: int, wide: int, before: Index, size: int, body: Callable[[Emitter, Index], None]
) -> None:
    """`body(emitter, index)` for index in [0, size), whose first element has so many `before` it in the result: masked
    up to the next line of `width` elements, then `wide` lines at once, then one, and masked again."""
    b, em = family.b, family.at(width)
    head = b.binary("and", b.binary("sub", i64(0), before.base), i64(width - 1))
    ramp = V(f"<{width} x i64>", f"<{', '.join(f'i64 {lane}' for lane in range(width))}>")

    def masked(at: V, lanes: V) -> None:
        def some() -> list[V]:
            mask = b.compare("icmp slt", ramp, b.splat(lanes, width))
            with em.scope(), em.masked(mask):
                body(em, Index(at, 1, 0, size))
            return []

        b.branch(b.compare("icmp ne", lanes, i64(0)), some)

    def vectors(start: V, count: int) -> V:
        many, step = family.at(count * width), count * width

        def vector(i: V, _: list[V]) -> list[V]:
            with many.scope():
                body(many, Index(i, 1, 0, size))
            return []

        left = b.binary("sub", i64(size), start)
        stop = b.binary("sub", i64(size), b.binary("and", left, i64(step - 1)))
        b.loop(start, stop, step, [], vector, "lines")
        return stop

    masked(i64(0), head)
    place = head
    for count in (wide, 1) if wide > 1 else (1,):
        place = vectors(place, count)
    masked(place, b.binary("sub", i64(size), place))


def either(family: Family, pointers: Sequence[V], outputs: Sequence[V], align: int, write: Callable[[], int]) -> int:
    """`write` emits the loops, twice: with stores past the cache, and plain ones."""
    if not align:
        return write()
    b = family.b
    grid = 0
    usable = V("i1", "true")
    for output in outputs:
        address = b.cast("ptrtoint", output, "i64")
        rest = b.binary("and", address, i64(align - 1))
        usable = b.binary("and", usable, b.compare("icmp eq", rest, i64(0)))
        for pointer in pointers:
            usable = b.binary("and", usable, b.compare("icmp ne", pointer, output))

    def past() -> list[V]:
        nonlocal grid
        family.stream = align
        with family.at(1).scope():
            grid = write()
        family.stream = 0
        # Threads that are told of the end must see what was written.
        b.call("void", "llvm.x86.sse.sfence")
        return []

    def plain() -> list[V]:
        with family.at(1).scope():
            write()
        return []

    b.branch(usable, past, plain)
    return grid
