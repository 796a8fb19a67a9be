"""Made sides: the right side of a matrix product that is computed just for it is computed where the product packs it.

    %3 = fusion(%q, %scale) {… convert, multiply} : tensor<2048x5632xf32>
    %4 = library(%x, %3) {target = "gemm", …}

becomes library(%x, %q, %q, %scale), with the kernel as the call's last region: native/gemm_block.h has it compute some
rows and columns at a time, in a near cache, and multiplies them from there. Weights that are stored in few bits are so
read from memory as they are, and never written to it in the type in which they are multiplied.

The kernel's values are what they were: it is the same code.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen.block_kernel import fits
from ferrule.ir import Block, Op, Tensor, rewrite, tensor
from ferrule.ir.types import bf16, f32
from ferrule.passes.allocate import viewed
from ferrule.passes.finish import MOST
from ferrule.passes.operand_parts import readers
from ferrule.passes.simplify import eliminate_dead_code
from ferrule.targets.machine import Machine

# Elements of a side that does not stay in a cache, and its columns, which threads share.
LARGE, COLUMNS = 1 << 18, 512
# Columns that are computed at a time (native/gemm_block.h: kWideColumns), and bytes by which memory is asked ahead.
WIDE, AHEAD = 512, 8192
# Rows up to which f32's instructions are as good as others: for narrow floats, and, where there are tile registers,
# for these and for f32.
NARROW_ROWS, NARROW_ROWS_BESIDE_TILES, ROWS_BESIDE_TILES = 64, 16, 128


def made_sides(block: Block, machine: Machine) -> Block:
    """Returns the block, which must not be shared, with such products replaced."""
    users, kept = block.uses(), set(block.results)
    found = False
    for inner in (block, *(region for op in block.walk() if op.name != "fusion" for region in op.regions)):
        here = set(inner.ops)
        for op in inner.ops:
            if not _ours(op, machine):
                continue
            side = op.operands[1]
            kernel = viewed(side).op
            if kernel is None or kernel not in here or readers(viewed(side), users, kept) != [op]:
                continue
            if (region := _computed(kernel, op, machine)) is None:
                continue
            found = True
            op.operands[1] = kernel.operands[0]  # it stands for the side: a call has no operands that are nowhere
            op.operands += kernel.operands
            op.regions = [*op.regions, region]
            op.attrs = {**op.attrs, "attrs": op.attrs["attrs"] | {"made_of": len(kernel.operands)}}
    return eliminate_dead_code(block) if found else block


def columns(product: Op) -> int:
    """Of the matrix that is computed, as it would lie in memory."""
    attrs = product.attrs["attrs"]
    return int(attrs["n"] if attrs["b_strides"][2] == 1 else attrs["k"])


def ahead(product: Op) -> int:
    """How many elements further than what is read for the side memory is to be asked for. Some rows of a part of the
    columns are computed at a time, which processors do not foresee; or of the transpose whole rows."""
    widest = max((tensor(v).dtype.itemsize for v in product.regions[-1].args), default=1)
    if product.attrs["attrs"]["b_strides"][2] != 1:
        return AHEAD // widest
    return max(1, AHEAD // (WIDE * widest)) * columns(product)


def _ours(op: Op, machine: Machine) -> bool:
    """Is it a product whose right side is a whole large matrix, and which is as well formed by our f32 loops?"""
    if op.name != "library" or op.attrs["ffi"] or op.attrs["target"] != "gemm":
        return False
    attrs, side = op.attrs["attrs"], tensor(op.operands[1])
    m, n, k = attrs["m"], attrs["n"], attrs["k"]
    if attrs["batch"] != 1 or attrs.get("packed") or n < COLUMNS or k * n < LARGE:
        return False
    if side.size != k * n or list(attrs["b_strides"][1:]) not in ([n, 1], [1, k]):
        return False
    product = op.results[attrs.get("home", 0)]
    types = {tensor(v).dtype for v in (op.operands[0], op.operands[1], product)}
    if types == {f32}:
        return not machine.has_tiles or m <= ROWS_BESIDE_TILES
    return types <= {f32, bf16} and m <= (NARROW_ROWS_BESIDE_TILES if machine.has_tiles else NARROW_ROWS)


def _computed(kernel: Op, op: Op, machine: Machine) -> Block | None:
    """What the kernel computes, in f32; None where it cannot be computed block by block."""
    if kernel.name != "fusion" or len(kernel.results) != 1 or kernel.attrs.get("update"):
        return None
    if not kernel.operands or len(kernel.operands) + len(op.operands) + len(op.results) > MOST:
        return None
    if prod(kernel.result.shape) != tensor(op.operands[1]).size:
        return None
    region = rewrite(kernel.regions[0], lambda *_: None)
    (value,) = region.results
    if value.dtype != f32:
        wide = region.add("convert", [value], Tensor(value.shape, f32), {}, (), kernel.loc)
        region.results = [wide.result]
    return region if fits(region, columns(op), machine) else None
