"""The row schedule of a processor: a thread has a row, does the reductions along it, then computes its elements.

What the reductions read again lies in the nearest cache; only operands and results go through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen import short_rows, streams, whole_lines
from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import ZERO, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.loop import grain, registers, span
from ferrule.codegen.reduce import LANES_FROM, runs_along_lanes
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import bf16, f16, f32, f64
from ferrule.ops import OPS

# Operations per element from which a value is kept rather than computed twice.
COSTLY = 8
# Bytes of the longest row that is kept beside its result, on a thread's stack.
LONGEST = 1 << 18


def plan(block: Block) -> bool:
    """Is this a kernel over rows: are all its reductions along the rows of its results?"""
    shape = block.results[0].shape
    found = [op for op in block.ops if op.name == "reduce"]
    if not found or not shape or 0 in shape or any(r.shape != shape for r in block.results):
        return False
    last = (len(shape) - 1,)
    return all(
        op.operands[0].shape == shape
        and tuple(op.attrs["dimensions"]) == last
        and (runs_along_lanes(op) or shape[-1] < LANES_FROM)
        for op in found
    )


def _kept(block: Block) -> list[tuple[Value, Op]]:
    """Values that are costly, summed up, and read again: each waits in the result's memory from its reduction on, until
    the next one, which is computed of it, takes its place. Where the result goes past the cache, a row of them waits on
    the stack.

    That memory must be nobody else's: of an operand that a reduction reads it is not (passes/allocate.py). And each
    element must be read only where it is overwritten.
    """
    found: list[tuple[Value, Op]] = []
    if len(block.results) != 1:
        return found
    result = block.results[0]
    reductions = [op for op in block.ops if op.name == "reduce"]
    if any(a.shape == result.shape and not any(_reads(r, a) for r in reductions) for a in block.args):
        return found
    for op in block.ops:
        if op.regions or len(op.results) != 1 or op.name == "reduce" or op.result is result:
            continue
        if op.result.type != result.type or result.dtype not in (f32, f64, bf16, f16):
            continue
        readers = [user for user in block.ops if op.result in user.operands]
        converted = [user for user in readers if user.name == "convert"]  # narrow floats are added up as f32
        readers += [user for user in block.ops if any(c.result in user.operands for c in converted)]
        summed = [user for user in readers if user.name == "reduce"]
        again = len(readers) > len(summed) + len(converted)
        if len(summed) != 1 or not again or _cost(op.result, [v for v, _ in found]) < COSTLY:
            continue
        if not _read_in_place(block, op.result):
            continue
        if not found or _takes_over(block, reductions, *found[-1], op.result, summed[0]):
            found.append((op.result, summed[0]))
    return found


def _before(family: Family, row: V, place: Index, itemsize: int) -> V:
    """An array's address if its elements from `place` on were those of a row. It is computed as a number: LLVM takes an
    element's address for one within the row."""
    b = family.b
    start = b.binary("mul", place.base, i64(itemsize))
    return b.cast("inttoptr", b.binary("sub", b.cast("ptrtoint", row, "i64"), start), "ptr")


def _cost(value: Value, kept: Sequence[Value]) -> float:
    """Operations per element, from what is kept or has one value for a row."""
    cost, stack, seen = 0.0, [value], set[Value](kept)
    while stack:
        v = stack.pop()
        if v not in seen and v.op is not None and v.op.name != "reduce" and v.shape == value.shape:
            seen.add(v)
            cost += OPS[v.op.name].flops
            stack += v.op.operands
    return cost


def _takes_over(block: Block, reductions: list[Op], old: Value, before: Op, new: Value, at: Op) -> bool:
    """Does nothing read `old`, kept since the reduction `before`, but through `new` once the reduction `at` is done?"""
    place = reductions.index(at)
    if reductions.index(before) >= place or len(at.results) > 1:
        return False
    return not any(_reads(op, old, through=False, past=new) for op in reductions[place + 1 :]) and not any(
        v is old or (v.op is not None and _reads(v.op, old, through=False, past=new)) for v in block.results
    )


def _read_in_place(block: Block, value: Value) -> bool:
    """Do the results, apart from what they have of reductions, need each element of the value for the same one only?"""
    needed, own = set(block.results), set(block.results)
    for op in reversed(block.ops):
        if op.name == "reduce" or needed.isdisjoint(op.results):
            continue
        at_own = OPS[op.name].elementwise and not own.isdisjoint(op.results)
        for v in [*op.operands, *(free for region in op.regions for free in region.free())]:
            needed.add(v)
            if at_own and v.shape == op.results[0].shape:
                own.add(v)
            elif v is value or (v.op is not None and _reads(v.op, value, through=False)):
                return False
    return True


def _after_reductions(block: Block) -> list[Op]:
    """The ops of the elements, without what a row has one of."""
    shape = block.results[0].shape
    return [op for op in block.ops if op.name != "reduce" and any(v.shape == shape for v in op.results)]


def _reads(op: Op, value: Value, through: bool = True, past: Value | None = None) -> bool:
    """Does the op need the value, directly or not? Without `through`: other than by reductions. `past`: or by this."""
    stack, seen = list(op.operands) if through or op.name != "reduce" or past else [], set[Value]()
    while stack:
        v = stack.pop()
        if v is value:
            return True
        if v not in seen and v is not past and v.op is not None and (through or v.op.name != "reduce"):
            seen.add(v)
            stack += v.op.operands
    return False


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, nanoseconds: float) -> tuple[int, int]:
    """Writes the loop over rows; gives the grid and the grain."""
    shape = block.results[0].shape
    rows, columns = prod(shape[:-1]), shape[-1]
    bits = [max(8, bits_of(compute_type(v.dtype))) for op in block.ops for v in op.results if v.shape == shape]
    bits += [max(8, bits_of(compute_type(v.dtype))) for v in block.args if v.shape == shape]
    width = family.machine.vector_bytes * 8 // max(bits, default=32)
    while width > 1 and width // 2 >= columns:
        width //= 2
    wide = registers(_after_reductions(block), width, columns, rows * columns)

    kept, itemsize = _kept(block), tensor(block.results[0]).dtype.itemsize
    past = streams.alignment(family, block, width if columns % (wide * width) else wide * width, columns)
    lines = 0
    if not past:
        lines = whole_lines.lanes(family, block, columns, sum(OPS[op.name].flops for op in _after_reductions(block)))
        past = lines and whole_lines.past_the_cache(family, block, lines, columns)
    short = short_rows.finished(block, family.machine)
    if kept and columns * itemsize > LONGEST:
        past = 0
    beside: V | None = None
    if kept and past and short is None:
        beside = family.b.emit("ptr", f"alloca [{columns * itemsize} x i8], align 64")

    def compute(row: Index) -> None:
        em = family.at(1)
        family.asked = set()  # rows are asked for where they are read first
        with em.scope():
            outer = tuple(em.ix.split(row, shape[:-1]))
            waiting, home = list(kept), outputs[0]
            if beside is not None and family.stream:
                home = _before(family, beside, em.ix.flatten((*outer, ZERO), shape), itemsize)
            if waiting:
                family.kept[waiting[0][0]] = home
            with streams.kept_in_cache(family):
                for op in block.ops:  # what a row has one of
                    for value in op.results:
                        if value.shape == shape[:-1]:
                            em.value(value, outer)
                        elif value.shape == (*shape[:-1], 1):
                            em.value(value, (*outer, ZERO))
                    if waiting and op is waiting[0][1]:
                        value, _ = waiting.pop(0)
                        family.pointers[value] = family.kept.pop(value)
                        if waiting:
                            family.kept[waiting[0][0]] = home

            def elements(wide: Emitter, column: Index) -> None:
                index = (*outer, column)
                lanes = [wide.value(value, index) for value in block.results]
                offset = wide.ix.flatten(index, shape)
                for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
                    wide.store(pointer, value.dtype, offset, lane)

            if lines:
                before, many = family.at(1).ix.flatten((*outer, ZERO), shape), max(1, wide * width // lines)
                whole_lines.span(family, lines, many, before, i64(0), i64(columns), (0, columns), elements)
            else:
                span(family, width, ZERO, i64(columns), columns, elements, wide)
            for value, _ in kept:  # elsewhere, and where stores are others, it is not there yet
                del family.pointers[value]

    if short is not None:
        grid = short_rows.emit(family, block, *short, outputs, begin, end, compute)
        return grid, grain(grid, nanoseconds)

    def iteration(i: V, _: list[V]) -> list[V]:
        compute(Index(i, 0, 0, rows))
        return []

    def write() -> int:
        if rows == 1:
            iteration(i64(0), [])
        else:
            family.b.loop(begin, end, 1, [], iteration, "rows")
        return rows

    grid = streams.either(family, [family.pointers[a] for a in block.args], outputs, past, write)
    return grid, grain(grid, nanoseconds)
