"""Rows that begin anywhere in a line of memory, gone over by whole lines of the result.

A store across the end of a line takes as long as two. So the vectors of a row begin where its lines do, and what is
left at both ends is masked. Only such lines can go past the cache as well (codegen/streams.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.codegen import memory, streams
from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Index
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.streams import LINE
from ferrule.ir import Block, tensor
from ferrule.ir.types import bf16

# Rows of fewer lines have too much of them at their ends. So have, past the cache, rows of fewer than SLOW lines where
# masks are slow; an AMD processor without AVX-512 takes a masked store apart, which costs more than one across lines.
LONG_ROW, SLOW, APART = 8, 30, "znver"
# With more operations for an element, what is computed for the ends takes longer than stores across lines. Rounding to
# bf16 is more than that.
LIGHT = 8.0


def lanes(family: Family, block: Block, inner: int, flops: float, begins: Sequence[int] = ()) -> int:
    """How many lanes fill a line, if rows of `inner` elements that begin anywhere in one are better gone over by lines,
    or can go past the cache so; else 0. `flops`: operations for each element; `begins`: where else something begins."""
    machine, result = family.machine, tensor(block.results[0])
    masks = machine.triple.startswith("x86_64") and machine.vector_bytes >= 32
    if machine.grouped or not masks or len(block.results) != 1 or result.dtype.is_complex:
        return 0
    sizes = [result.dtype.itemsize, *(tensor(value).dtype.itemsize for value in block.args)]
    many, narrow = LINE // sizes[0], machine.vector_bytes < LINE
    if all(n % many == 0 for n in (inner, *begins)):
        return 0
    if inner < LONG_ROW * many or narrow and min(sizes) < memory.MASKED:
        return 0
    light = flops <= (0.0 if result.dtype == bf16 else LIGHT) and not (narrow and machine.cpu.startswith(APART))
    return many if light or past_the_cache(family, block, many, inner) else 0


def past_the_cache(family: Family, block: Block, many: int, inner: int) -> int:
    """The alignment of lines that are to go past the cache; 0 if they are not."""
    if family.machine.vector_bytes < LINE and inner < SLOW * many:
        return 0
    return LINE if streams.alignment(family, block, many, inner, alone=True) == LINE else 0


def span(
    family: Family,
    width: int,
    wide: int,
    before: Index,
    first: V,
    last: V,
    bounds: tuple[int, int],
    body: Callable[[Emitter, Index], None],
) -> None:
    """`body(emitter, index)` for index in [first, last) of a row that has so many elements `before` it in the result:
    masked up to the next line of `width` elements, then `wide` lines at once, then one, and masked again. `bounds` is
    what is known of the index.
    """
    b, em = family.b, family.at(width)
    ramp = V(f"<{width} x i64>", f"<{', '.join(f'i64 {lane}' for lane in range(width))}>")

    def masked(at: V, lanes: V) -> None:
        def some() -> list[V]:
            mask = b.compare("icmp slt", ramp, b.splat(lanes, width))
            with em.scope(), em.masked(mask):
                body(em, Index(at, 1, *bounds))
            return []

        b.branch(b.compare("icmp ne", lanes, i64(0)), some)

    def vectors(start: V, count: int) -> V:
        many, step = family.at(count * width), count * width

        def vector(i: V, _: list[V]) -> list[V]:
            with many.scope():
                body(many, Index(i, 1, *bounds))
            return []

        left = b.binary("sub", last, start)
        stop = b.binary("sub", last, b.binary("and", left, i64(step - 1)))
        b.loop(start, stop, step, [], vector, "lines")
        return stop

    begin = b.binary("add", before.base, first)
    head = b.binary("and", b.binary("sub", i64(0), begin), i64(width - 1))
    length = b.binary("sub", last, first)
    head = b.select(b.compare("icmp slt", head, length), head, length)
    masked(first, head)
    place = b.binary("add", first, head)
    for count in (wide, 1) if wide > 1 else (1,):
        place = vectors(place, count)
    masked(place, b.binary("sub", last, place))
