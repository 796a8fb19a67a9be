"""Pair: two products, along one dimension and along another, are one call of the cpu's runtime.

    %2 = library(%w, %x) {target = "gemm", batch = 4, m = 224, n = 3200, k = 100, …} : tensor<4x224x100x32xf32>
    %3 = library(%v, %2) {target = "gemm", batch = 896, m = 224, n = 32, k = 100, …} : tensor<4x224x224x32xf32>

So images are resized, the first dimension before the second or after it (passes/middle_dots.py). Where the weights
turn out to be mostly zeros, native/gemm_pair.cc takes what it needs of %2 from a cache; where they do not, the products
come one after the other, and the call's second result is memory for %2.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Value, rewrite
from ferrule.ir.types import f32, f64
from ferrule.passes.allocate import viewed

# Weights of fewer rows or columns are not looked at (native/gemm_terms.h has the same number).
LEAST = 32


def pair_products(block: Block) -> Block:
    """Returns the block with such products joined."""
    readers: dict[Value, list[Op]] = {}
    kept: set[Value] = set()
    for inner in _blocks(block):
        kept.update(inner.results)
        for op in inner.ops:
            for value in op.operands:
                readers.setdefault(value, []).append(op)
    firsts: dict[Op, Op] = {}  # by the second
    gone: set[Value] = set()
    for inner in _blocks(block):
        here = set(inner.ops)
        for op in inner.ops:
            views = _views_of_first(op)
            if not views or (product := views[-1].op) not in here or product in firsts:
                continue
            if all(len(readers[v]) == 1 and v not in kept for v in views):
                firsts[op] = product
                gone.update(views)
    if not firsts:
        return block
    factors: dict[Value, list[Value]] = {}

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        first = op.results[0] if op.results else None
        if first in gone:
            if op.name == "library":
                factors[first] = operands
            return [operands[0]]  # nobody reads it before the second product is reached
        if (product := firsts.get(op)) is None:
            return None
        attrs = product.attrs["attrs"] | {f"then_{name}": value for name, value in op.attrs["attrs"].items()}
        about = {**op.attrs, "target": "gemm.pair", "attrs": attrs}
        types = [op.result.type, product.result.type]
        operands = [*factors[product.result], operands[0]]
        return out.add("library", operands, types, about, (), op.loc).results[:1]

    return rewrite(block, rule, ours=True, closed="fusion")


def _blocks(block: Block) -> list[Block]:
    found = [block]
    for op in block.ops:
        if op.name != "fusion":
            found += [inner for region in op.regions for inner in _blocks(region)]
    return found


def _views_of_first(op: Op) -> list[Value]:
    """What the op, a second product, reads of a first one: views of its result, which is the last of them."""
    if not _plain(op):
        return []
    product = viewed(op.operands[1]).op
    if product is None or not _plain(product):
        return []
    first, second = (p.attrs["attrs"] for p in (product, op))
    k, n = second["k"], second["n"]
    if min(first["m"], first["k"], second["m"], k) < LEAST or first["a_strides"][0] or second["a_strides"][0]:
        return []
    by_row = first["n"] == k * n and second["batch"] == first["batch"] * first["m"]
    by_matrix = n == first["m"] * first["n"] and first["batch"] == second["batch"] * k
    if not (by_row or by_matrix) or first["b_strides"][2] != 1 or tuple(second["b_strides"]) != (k * n, n, 1):
        return []
    found = [op.operands[1]]
    while (view := found[-1].op) is not product:
        assert view is not None
        found.append(view.operands[0])
    return found


def _plain(op: Op) -> bool:
    """A product without a kernel behind it, of one real type."""
    if op.name != "library" or op.attrs["target"] != "gemm" or op.regions or op.attrs["attrs"].get("packed"):
        return False
    return op.result.dtype in (f32, f64) and all(v.dtype == op.result.dtype for v in op.operands)
