"""Pair: two products, along one dimension and along another, are one call of the cpu's runtime.

    %2 = library(%w, %x) {target = "gemm", batch = 4, m = 224, n = 3200, k = 100, …} : tensor<4x224x100x32xf32>
    %3 = library(%v, %2) {target = "gemm", batch = 896, m = 224, n = 32, k = 100, …} : tensor<4x224x224x32xf32>

So images are resized, the first dimension before the second or after it (passes/middle_dots.py). Where channels come
first, the product along the last dimension is one of all rows with the weights as its right side: `right` says so for
%2, `then_right` for %3. Where the weights turn out to be mostly zeros, native/gemm_pair.cc takes what it needs of %2
from a cache; where they do not, the products come one after the other, and the call's second result is memory for %2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    firsts: dict[Op, tuple[Op, bool, bool]] = {}  # by the second, and whose weights are the right side
    gone: set[Value] = set()
    for inner in _blocks(block):
        here = set(inner.ops)
        for op in inner.ops:
            if (found := _first(op)) is None or (product := found[0]) not in here or product in firsts:
                continue
            views = _views(op.operands[0 if found[2] else 1], product)
            if all(len(readers[v]) == 1 and v not in kept for v in views):
                firsts[op] = found
                gone.update(views)
    if not firsts:
        return block
    factors: dict[Value, list[Value]] = {}  # of the first products

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        first = op.results[0] if op.results else None
        if first in gone:
            if op.name == "library":
                factors[first] = operands
            return [operands[0]]  # nobody reads it before the second product is reached
        if op not in firsts:
            return None
        product, *rights = firsts[op]
        attrs = dict(product.attrs["attrs"]) | {f"then_{name}": value for name, value in op.attrs["attrs"].items()}
        attrs |= {"right": int(rights[0]), "then_right": int(rights[1])}
        about = {**op.attrs, "target": "gemm.pair", "attrs": attrs}
        types = [op.result.type, product.result.type]
        operands = [*factors[product.result][:: -1 if rights[0] else 1], operands[1 if rights[1] else 0]]
        return out.add("library", operands, types, about, (), op.loc).results[:1]

    return rewrite(block, rule, ours=True, closed="fusion")


def _blocks(block: Block) -> list[Block]:
    found = [block]
    for op in block.ops:
        if op.name != "fusion":
            found += [inner for region in op.regions for inner in _blocks(region)]
    return found


def _first(op: Op) -> tuple[Op, bool, bool] | None:
    """The first product, if the op is a second one, and whether the weights of both are their right sides."""
    if not _plain(op):
        return None
    for then_right in (False, True):
        product = viewed(op.operands[0 if then_right else 1]).op
        if product is None or not _plain(product):
            continue
        for right in (False, True):
            first, second = (
                _by_rows(p.attrs["attrs"]) if turned else p.attrs["attrs"]
                for p, turned in ((product, right), (op, then_right))
            )
            if first is not None and second is not None and _follow(first, second):
                return product, right, then_right
    return None


def _by_rows(product: dict[str, Any]) -> dict[str, Any] | None:
    """The product as one of its right side, the weights, and each row of the left one."""
    if product["batch"] != 1:
        return None
    (_, a_row, a_col), (b_batch, b_row, b_col) = product["a_strides"], product["b_strides"]
    sizes = {"batch": product["m"], "m": product["n"], "n": 1, "k": product["k"]}
    return {**sizes, "a_strides": (b_batch, b_col, b_row), "b_strides": (a_row, a_col, 1)}


def _follow(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Does the second product take rows of the first one as matrices, or matrices of it as rows?"""
    k, n = second["k"], second["n"]
    if min(first["m"], first["k"], second["m"], k) < LEAST or first["a_strides"][0] or second["a_strides"][0]:
        return False
    by_row = first["n"] == k * n and second["batch"] == first["batch"] * first["m"]
    by_matrix = n == first["m"] * first["n"] and first["batch"] == second["batch"] * k
    return (by_row or by_matrix) and first["b_strides"][2] == 1 and tuple(second["b_strides"]) == (k * n, n, 1)


def _views(value: Value, product: Op) -> list[Value]:
    """From what is read to the product's result."""
    found = [value]
    while (view := found[-1].op) is not product:
        assert view is not None
        found.append(view.operands[0])
    return found


def _plain(op: Op) -> bool:
    """A product without a kernel behind it, of one real type."""
    if op.name != "library" or op.attrs["target"] != "gemm" or op.regions or op.attrs["attrs"].get("packed"):
        return False
    return op.result.dtype in (f32, f64) and all(v.dtype == op.result.dtype for v in op.operands)
