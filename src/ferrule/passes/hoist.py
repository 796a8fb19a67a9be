"""Hoist: what a loop's body computes anew in each iteration from the same values is computed once, before the loop.

That pays for products, reductions and their like, and for elementwise functions that cost more than reading their
result; a cheap expression is left to the kernels that it is part of. (That a carry is only handed on is found by
passes/simplify.py.)
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value, copy_ops, rewrite
from ferrule.ops import OPS
from ferrule.passes.simplify import has_effects, simplify

# Ops that are worth it however small they are; libraries' calls that depend on nothing but their operands.
LONG = frozenset(
    {
        *("dot", "dot_general", "convolution", "reduce", "reduce_window", "select_and_scatter", "gather", "scatter"),
        *("sort", "top_k", "fft", "cholesky", "triangular_solve", "rng_bit_generator", "map"),
    }
)
CALLS = frozenset(
    {
        *(
            "gemm",
            "conv",
            "fft",
            "sort",
            "topk",
            "cholesky",
            "triangular_solve",
            "lu",
            "eigh",
            "svd",
            "geqrf",
            "householder_product",
            "ormqr",
            "ferrule.lu_permutation",
        ),
        *("gemm.ragged", "dnnl.matmul", "dnnl.conv"),
    }
)
# Operations per element from which an elementwise function is dearer than reading its result; and the most bytes that
# one value may keep occupied for the whole loop.
COSTLY, BYTES = 4.0, 1 << 26


def hoist(block: Block) -> Block:
    """Returns the block, the invariant work of its loops before them."""
    if not block.holds("while"):
        return block
    found = False

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        nonlocal found
        if op.name != "while" or op.attrs.get("trips", 2) < 2:
            return None
        cond, body = op.regions
        moved = _moved(body)
        if not moved:
            return None
        found = True
        env: dict[Value, Value] = {}
        copy_ops(out, moved, env)
        rest = Block(a.type for a in body.args)
        env.update(zip(body.args, rest.args, strict=True))
        gone = set(moved)
        copy_ops(rest, (inner for inner in body.ops if inner not in gone), env)
        rest.results = [env.get(v, v) for v in body.results]
        types = [r.type for r in op.results]
        return out.add("while", operands, types, op.attrs, [cond, rest], op.loc).results

    hoisted = rewrite(block, rule)
    return simplify(hoisted, ours=True) if found else block


def _moved(body: Block) -> list[Op]:
    """The ops to compute before the loop, in order."""
    inside = {*body.args, *(r for op in body.ops for r in op.results)}
    fixed: dict[Op, None] = {}  # those that depend on nothing that changes
    for op in body.ops:
        reads = _reads(op)
        if all(v not in inside for v in reads) and not has_effects(op) and _plain(op):
            fixed[op] = None
            inside.difference_update(op.results)
    chosen: set[Op] = set()
    for op in fixed:
        if not all(isinstance(r.type, Tensor) and r.type.nbytes <= BYTES for r in op.results):
            continue
        # what follows elementwise goes along
        follows = _elementwise(op) and any(v.op in chosen and v.shape == op.result.shape for v in op.operands)
        if follows or _worth(op):
            chosen.add(op)
    needed, stack = set[Op](), list(chosen)
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [v.op for v in _reads(op) if v.op in fixed]
    return [op for op in fixed if op in needed]


def _reads(op: Op) -> list[Value]:
    return [*op.operands, *(v for region in op.regions for v in region.free())]


def _elementwise(op: Op) -> bool:
    return op.name in OPS and OPS[op.name].elementwise and len(op.results) == 1


def _plain(op: Op) -> bool:
    if op.name == "library":
        return not op.attrs["ffi"] and op.attrs["target"] in CALLS
    return (
        op.name in LONG
        or op.name in ("constant", "optimization_barrier")
        or (op.name in OPS and OPS[op.name].element is not None)
    )


def _worth(op: Op) -> bool:
    if op.attrs.get("hoisted"):
        return True
    if op.name in LONG or op.name == "library":
        return any(v.op is None or v.op.name != "constant" for v in op.operands)
    return _elementwise(op) and bool(op.result.shape) and OPS[op.name].flops >= COSTLY
