"""Epilogue: what is added to a library product becomes part of the call.

A bias or a residual behind a "dnnl.matmul" costs a kernel and a pass over memory; the library adds it while the result
is in registers (native/sycl/library_call.h says what it takes). Only f32: a narrower result would be rounded once where
the program rounds it twice. Activations stay kernels: oneDNN's relu makes 0 of NaN, and its tanh and erf are less exact
than ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir.types import f32

MOST = 4  # steps of one epilogue


def attach_epilogues(block: Block) -> Block:
    """Returns the block with additions moved into the products before them, which are left without readers."""
    uses: Counter[Value] = Counter(block.results)
    for op in block.walk():
        uses.update(op.operands)
        for region in op.regions:
            uses.update(region.results)

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op.name != "add":
            return None
        for i, value in enumerate(operands):
            product = value.op
            if uses[op.operands[i]] != 1 or product is None or not _extensible(product) or product not in out.ops:
                continue
            added = _added(operands[1 - i], product)
            if added is None:
                continue
            attrs = dict(product.attrs["attrs"])
            attrs["epilogue"] = ",".join(filter(None, (attrs.get("epilogue", ""), "add")))
            about = {**product.attrs, "attrs": attrs}
            return out.add(
                "library", [*product.operands, added], [r.type for r in product.results], about, (), op.loc
            ).results
        return None

    return rewrite(block, rule)


def _extensible(op: Op) -> bool:
    if op.name != "library" or op.attrs["target"] != "dnnl.matmul" or op.result.dtype != f32:
        return False
    return op.attrs["attrs"].get("epilogue", "").count(",") + 1 < MOST


def _added(other: Value, product: Op) -> Value | None:
    """What the library may add to the product when the program adds `other`; None when nothing."""
    shape = product.result.shape
    source = other.op
    if source is not None and source.name == "broadcast_in_dim":
        (bias,) = source.operands
        along_rows = source.attrs["broadcast_dimensions"] == (len(shape) - 1,)
        one_column_dim = shape[-1] == product.attrs["attrs"]["n"] and bias.type == Tensor(shape[-1:], f32)
        return bias if along_rows and one_column_dim else None
    # Something that lies in memory anyway; what could be computed on the way would have to be written first.
    return other if source is None or source.name == "library" else None
