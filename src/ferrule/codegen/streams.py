"""What does not stay in the cache is written past it: a plain store reads the line first, a third of all traffic.

Whoever reads such a result next would not find it in the cache anyway: what was read beside it has taken its place. In
an operand's own memory the line is there already, and the store would only throw it out; whether a result lies there is
seen when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ferrule.codegen.emitter import Family
from ferrule.codegen.llvm import V, i64
from ferrule.ir import Block, tensor
from ferrule.ops import OPS

# A kernel that reads and writes as much as the last cache holds leaves a result there only if it is the smaller part.
SHARE = 0.25
# Beyond so many operations for an element memory is not what a kernel waits for.
BUSY = 64
# Bytes of a line, and of the shortest register.
LINE, SHORTEST = 64, 16


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


@contextmanager
def kept_in_cache(family: Family) -> Iterator[None]:
    """Stores are plain ones inside, whatever is around."""
    stream, family.stream = family.stream, 0
    try:
        yield
    finally:
        family.stream = stream


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
