"""Finish: the cpu's matrix products and convolutions carry the kernel that reads them.

A kernel that reads each element of a product only where it computes the same element of its results (a bias, an
activation, a residual, an optimizer's step) becomes part of the product's call: native/gemm_blocked.cc runs it on each
block of rows and columns when its sums are complete, while it is in the cache. The product itself is formed in a result
of the kernel that has its type, so that it takes no memory of its own; where there is none, or others read it, too, it
is the call's first result. A convolution whose features lie side by side is a product of positions and features, which
native/conv_windows.cc and conv_pointwise.cc finish in the same way, and other ways to compute one behind its end.

    %4 = library(%0, %1, %bias) {target = "gemm", attrs = {…, place = 0, home = 0, kept = False}} : tensor<64x128xf32> {
      (%p: tensor<64x128xf32>, %b: tensor<128xf32>): …    the kernel's operands; `place` is the product's number
    }

The kernel's values are what they were: it is the same code on the same rounded product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ferrule.codegen.block_kernel import fits
from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.passes.allocate import reads_pointwise, viewed
from ferrule.targets.machine import Machine

# Pointers that such a kernel may have (native/epilogue.h has the same number).
MOST = 24
# A kernel goes over the features of one position at a time; where there are fewer, its own loop over all is better.
FEATURES = 32


@dataclass
class _Join:
    product: Op
    place: int  # of the product among the kernel's operands
    home: int  # the result of the kernel in whose memory the product is formed; -1: a result of its own


@dataclass
class _Plan:
    joins: dict[Value, _Join] = field(default_factory=dict)  # by the kernel's first result
    gone: set[Value] = field(default_factory=set)  # results of products, and views of them, that nobody reads any more


def finish_products(block: Block, aliases: Sequence[int], machine: Machine) -> Block:
    """Returns the fused block with kernels moved into the products before them; `aliases` as in passes/allocate.py."""
    plan = _Plan()
    owners = {block.results[k]: block.args[p] for p, k in enumerate(aliases) if k >= 0}
    _search(block, owners, machine, plan)
    if not plan.joins:
        return block
    env: dict[Value, Value] = {}
    factors: dict[Value, list[Value]] = {}

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        first = op.results[0] if op.results else None
        if first in plan.gone:
            factors[first] = operands
            return [operands[0]]  # nobody reads it before the kernel is reached
        if first is None or (join := plan.joins.get(first)) is None:
            return None
        product = join.product.result
        rest = [v for i, v in enumerate(operands) if i != join.place]
        kept = [product.type] if join.home < 0 else []
        about = join.product.attrs["attrs"] | {"place": join.place, "home": max(join.home, 0), "kept": bool(kept)}
        new = out.add(
            "library",
            [*factors[product], *rest],
            [*kept, *(r.type for r in op.results)],
            {**join.product.attrs, "attrs": about},
            op.regions,
            op.loc,
        )
        if kept:
            env[product] = new.results[0]
        return new.results[len(kept) :]

    return rewrite(block, rule, env, ours=True, closed="fusion")


def _search(block: Block, owners: dict[Value, Value], machine: Machine, plan: _Plan) -> None:
    """Finds what can be joined; `owners[result]` is the value whose memory the block's result is to be written over."""
    position = {op: i for i, op in enumerate(block.ops)}
    readers: dict[Value, list[Op]] = {}
    for op in block.ops:
        inside = op.regions if op.name != "fusion" else ()  # a kernel has its operands alone
        for value in (*op.operands, *(v for r in inside for v in r.free())):
            readers.setdefault(value, []).append(op)
    behind = {viewed(result): owner for result, owner in owners.items()}
    for op in block.ops:
        if op.name == "fusion":
            _join(op, block, position, readers, behind, machine, plan)
        elif op.name == "while":
            cond, body = op.regions
            _search(cond, {}, machine, plan)
            _search(body, dict(zip(body.results, body.args, strict=True)), machine, plan)
        else:
            for region in op.regions:
                _search(region, {}, machine, plan)


def _join(
    kernel: Op,
    block: Block,
    position: dict[Op, int],
    readers: dict[Value, list[Op]],
    behind: dict[Value, Value],
    machine: Machine,
    plan: _Plan,
) -> None:
    if kernel.attrs.get("update") or len(kernel.operands) + len(kernel.results) > MOST:
        return
    region = kernel.regions[0]
    found = [(position[op], i) for i, v in enumerate(kernel.operands) if (op := viewed(v).op) in position and _ours(op)]
    for _, i in sorted(found, reverse=True):  # the last one: the others are complete before it begins
        operand = kernel.operands[i]
        source = viewed(operand)
        product = source.op
        assert product is not None
        views = _views(operand)
        if source in plan.gone or any(kernel in readers[v] for v in views[1:]):
            continue
        alone = all(readers[v] == [r] for v, r in zip(views, [kernel, *(v.op for v in views)], strict=False))
        alone = alone and not any(v in block.results for v in views)
        if not alone and (len(views) > 1 or any(position[r] < position[kernel] for r in readers[source])):
            continue
        if operand.shape != kernel.results[0].shape or not reads_pointwise(region, region.args[i]):
            continue
        if product.attrs["target"] == "conv" and operand is not source:
            continue  # the call reads its sizes from the shape
        if not fits(region, columns(product), machine):
            continue
        reads = {viewed(v) for v in (*product.operands, *kernel.operands)}
        if any(behind.get(r) in reads for r in (*kernel.results, *([source] if not alone else []))):
            continue  # the kernel would be written over what it reads, element by element; a product cannot
        homes = [k for k, r in enumerate(kernel.results) if r.dtype == source.dtype] if alone else []
        plan.joins[kernel.results[0]] = _Join(product, i, homes[0] if homes else -1)
        plan.gone.update(views)
        return


def columns(product: Op) -> int:
    """Of the matrix that the call computes (all those of a batch as one)."""
    return product.results[0].shape[-1] if product.attrs["target"] == "conv" else product.attrs["attrs"]["n"]


def _ours(op: Op | None) -> bool:
    """Is this a product that Ferrule's own loops do? (Narrow ones go to a library: native/gemm_library.cc.)"""
    if op is None or op.name != "library" or op.regions:
        return False
    if op.attrs["target"] != "gemm" and not (op.attrs["target"] == "conv" and _rows_of_features(op)):
        return False
    return all(isinstance(v.type, Tensor) and v.dtype.itemsize >= 4 for v in op.operands)


def _rows_of_features(conv: Op) -> bool:
    """Does a convolution's result have its features side by side, enough for a kernel over each position's?"""
    attrs, shape = conv.attrs["attrs"], conv.result.shape
    order = (attrs["output_batch_dimension"], *attrs["output_spatial_dimensions"], attrs["output_feature_dimension"])
    return order == tuple(range(len(shape))) and shape[-1] >= FEATURES


def _views(value: Value) -> list[Value]:
    """The value and those that it is a view of."""
    found = [value]
    while (op := found[-1].op) is not None and op.name == "reshape":
        found.append(op.operands[0])
    return found
