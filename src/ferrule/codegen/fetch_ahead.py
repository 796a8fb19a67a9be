"""Rows that indices choose: processors foresee the next element, not the next row, so code asks for that ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Component, Index
from ferrule.ir import Block, Op, Value, tensor

# So far ahead in bytes; rows shorter than LINE are single elements rather.
AHEAD, LINE = 4096, 64
Fetch = Callable[[Emitter, Sequence[Component]], None]


def contiguous(op: Op) -> bool:
    """A gather of slices whose elements are neighbours in the operand as in the result."""
    if op.name != "gather" or not op.operands[0].shape:
        return False
    dims, last = op.attrs["dimension_numbers"], len(op.operands[0].shape) - 1
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    return last not in gone and len(op.result.shape) - 1 in dims.offset_dims


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


def touch(em: Emitter, source: Value, offset: Index) -> None:
    """Asks for the lines at an offset."""
    b, dtype = em.b, tensor(source).dtype
    start = b.offset(em.family.pointers[source], f"[{dtype.itemsize} x i8]", offset.base)
    b.declares["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    for line in range(0, em.width * dtype.itemsize, LINE):
        place = b.emit("ptr", f"getelementptr i8, {start}, i64 {line}")
        b.do(f"call void @llvm.prefetch.p0({place}, i32 0, i32 3, i32 1)")
