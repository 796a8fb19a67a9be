"""Asking for memory before it is read.

Rows that indices choose, runs of a transposed array: processors foresee the next element, not the next row. Large
arrays that are read in order: processors foresee the next lines, but stop at the end of a page and begin anew in the
next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Component, Index
from ferrule.codegen.llvm import V
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType

# So far ahead in bytes; rows shorter than LINE are single elements rather.
AHEAD, LINE = 4096, 64
# Of runs that a scatter updates so many bytes are asked for at a time.
RUNS = 2048
# Smaller arrays may lie in the caches of the cores; kernels of more operations per element do not wait for memory.
LARGE, BUSY = 8 << 20, 64
# Processors that read in order faster unasked (measured: docs/measurements.md).
FORESEEING = frozenset({"znver4"})
Fetch = Callable[[Emitter, Sequence[Component]], None]


def contiguous(op: Op) -> bool:
    """A gather of slices whose elements are neighbours in the operand as in the result."""
    if op.name != "gather" or not op.operands[0].shape:
        return False
    dims, last = op.attrs["dimension_numbers"], len(op.operands[0].shape) - 1
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    return last not in gone and len(op.result.shape) - 1 in dims.offset_dims


@contextmanager
def asking(family: Family, elements: int) -> Iterator[None]:
    """Within, what lies so many elements further than what is read of large arguments is asked for."""
    idle = family.machine.grouped or family.machine.cpu in FORESEEING
    before, family.ahead = family.ahead, 0 if idle else elements
    try:
        yield
    finally:
        family.ahead = before


def in_order(block: Block) -> bool:
    """Is what comes next in memory read next? Not in rows that indices choose."""
    return not any(op.name == "gather" for op in block.ops)


def distance(values: Sequence[Value]) -> int:
    """How many elements of these a loop over all of them is to look ahead; 0 when none of them is large."""
    sizes = [tensor(v).dtype.itemsize for v in values if tensor(v).nbytes >= LARGE]
    return AHEAD // max(sizes) if sizes else 0


def ask(em: Emitter, value: Value, offset: Index) -> None:
    """Where an argument is about to be read at an offset, asks for what will be read later."""
    family, size = em.family, tensor(value).dtype.itemsize
    nbytes = em.width * size
    if offset.step != 1 or family.mask is not None or nbytes < LINE or tensor(value).nbytes < LARGE:
        return
    if family.asked is not None:
        if value in family.asked:
            return
        family.asked.add(value)
    start = em.b.offset(family.pointers[value], f"[{size} x i8]", offset.base)
    em.b.declares["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    for line in range(0, nbytes, LINE):  # past the end of an array nothing happens
        place = em.b.emit("ptr", f"getelementptr i8, {start}, i64 {family.ahead * size + line}")
        em.b.do(f"call void @llvm.prefetch.p0({place}, i32 0, i32 3, i32 1)")


def rows(family: Family, block: Block, sizes: Sequence[int]) -> Fetch | None:
    """What asks for the elements some rows after those at an index of the loops; None where nothing is to be gained."""
    shape = block.results[0].shape
    found = [op for op in block.ops if contiguous(op) and op.result.shape == shape]
    if family.machine.grouped or len(found) != 1 or len(sizes) != 2:
        return None
    nbytes = sizes[1] * tensor(found[0].result).dtype.itemsize
    if nbytes < LINE or tensor(found[0].result).dtype.is_complex:
        return None
    return partial(_fetch, found[0].result, found[0].operands[0], sizes, max(1, AHEAD // nbytes))


def _fetch(
    value: Value, source: Value, sizes: Sequence[int], distance: int, em: Emitter, at: Sequence[Component]
) -> None:
    ix = em.ix
    row = ix.clamp(ix.add(at[0], distance), 0, sizes[0] - 1)
    index = ix.reshape((row, at[1]), sizes, value.shape)
    with em.scope():
        em.family.fetched = source
        em.value(value, index)
        em.family.fetched = None


def runs(block: Block, along: Sequence[tuple[Value, int]], sizes: Sequence[int]) -> Fetch | None:
    """What asks for runs of large arguments that are read in another order than they lie in memory, some runs ahead.

    What lies AHEAD bytes after such a run is not what is read next.
    """
    last = len(sizes) - 1
    turned = {op.operands[0] for op in block.ops if op.name == "transpose"}
    found = [v for v, loop in along if v in turned and loop == last and tensor(v).nbytes >= LARGE]
    if last < 2 or not found or any(op.regions for op in block.ops) or not in_order(block):
        return None
    nbytes = sizes[last] * max(tensor(v).dtype.itemsize for v in found)
    if not LINE <= nbytes < AHEAD or any(tensor(v).dtype.is_complex for v in found):
        return None
    loop, distance = last - 1, AHEAD // nbytes
    while loop and sizes[loop] < 4 * distance:
        distance = -(-distance // sizes[loop])
        loop -= 1
    return partial(_fetch_run, block.results, list(dict.fromkeys(found)), sizes, loop, distance)


def _fetch_run(
    results: Sequence[Value],
    sources: Sequence[Value],
    sizes: Sequence[int],
    loop: int,
    distance: int,
    em: Emitter,
    at: Sequence[Component],
) -> None:
    if em.width == 1:  # a row's rest: its line was asked for
        return
    ix, later = em.ix, list(at)
    later[loop] = ix.clamp(ix.add(at[loop], distance), 0, sizes[loop] - 1)
    for source in sources:
        with em.scope():
            em.family.fetched = source
            for value in results:
                em.value(value, ix.reshape(later, sizes, value.shape))
            em.family.fetched = None


def rows_ahead(value: Value, nbytes: int) -> int:
    """How many rows ahead runs of so many bytes are asked for, which indices choose in an array; 0: not at all."""
    if nbytes < LINE or tensor(value).nbytes < LARGE or tensor(value).dtype.is_complex:
        return 0
    return max(1, RUNS // nbytes)


def ask_run(em: Emitter, pointer: V, dtype: DType, offset: Index, nbytes: int) -> None:
    """Asks for the beginning of a run that is to be read and written."""
    start = em.b.offset(pointer, f"[{dtype.itemsize} x i8]", offset.base)
    em.b.declares["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    for line in range(0, min(nbytes, RUNS), LINE):  # then processors foresee the rest
        place = em.b.emit("ptr", f"getelementptr i8, {start}, i64 {line}")
        em.b.do(f"call void @llvm.prefetch.p0({place}, i32 1, i32 3, i32 1)")


def touch(em: Emitter, source: Value, offset: Index) -> None:
    """Asks for the lines at an offset."""
    if offset.step is None:  # every lane elsewhere
        return
    b, dtype = em.b, tensor(source).dtype
    start = b.offset(em.family.pointers[source], f"[{dtype.itemsize} x i8]", offset.base)
    b.declares["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    for line in range(0, em.width * dtype.itemsize, LINE):
        place = b.emit("ptr", f"getelementptr i8, {start}, i64 {line}")
        b.do(f"call void @llvm.prefetch.p0({place}, i32 0, i32 3, i32 1)")
