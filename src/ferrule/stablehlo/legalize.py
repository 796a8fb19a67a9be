"""A module as it was read → a module of core StableHLO ops and the CHLO ops that Ferrule does natively.

A composite is an op by name with a decomposition. Where Ferrule has the op, as with erf, the name wins; every other
composite becomes a call of its decomposition, which the importer inlines. Old spellings (dot, broadcast) become the
ops that replaced them. Dynamic and quantized programs never come here: `read` has them rewritten while it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrule.errors import FerruleError, InvalidArgument, Unsupported
from ferrule.ir import Block, DotDims, GatherDims, Module, Op, Tensor, tensor
from ferrule.stablehlo.check import MALFORMED

# CHLO ops for which one expression, or one library call, is better than the decomposition.
NATIVE = {"erf", "erfc", "erf_inv", "acos", "acosh", "asin", "asinh", "atan", "atanh", "sinh", "cosh", "tan"}
NATIVE |= {"square", "mulhi", "lgamma", "digamma", "next_after", "top_k", "bessel_i1e"}

# Composites that Ferrule's rules for JAX write, for which the runtime has a call of the same name, on the host.
CALLS = {"ferrule.lu_permutation"}


def known_natively(name: str) -> bool:
    """True if Ferrule's op table can compute the CHLO op `name` (without prefix) itself."""
    from ferrule.ops import OPS  # here, since the MLIR worker imports this package and needs no ops

    found = OPS.get(name)
    if found is None:
        return False
    return found.element is not None or (found.evaluate is not None and not found.elementwise)


def legalize(module: Module, calls: bool = True) -> Module:
    """Rewrites the module's ops in place and returns it. Without `calls`, on a device, which would have to wait for the
    host, the composites in CALLS are what they are composed of."""
    # `exp2` is no op of CHLO; Ferrule's rules for JAX name it.
    native = {f"chlo.{name}" for name in NATIVE if known_natively(name)} | {"ferrule.exp2"}
    if calls:
        native |= CALLS
    for function in module.functions.values():
        _block(function.body, native)
    return module


def _block(block: Block, native: set[str]) -> None:
    added: dict[int, Sequence[Op]] = {}
    for at, op in enumerate(block.ops):
        if op.name == "composite":
            _composite(op, native)
        elif op.name in _OLD:
            before = _OLD[op.name](op)
            if before:
                added[at] = before
        for region in op.regions:
            _block(region, native)
    for at in reversed(added):
        block.ops[at:at] = added[at]


def _composite(op: Op, native: set[str]) -> None:
    name, decomposition = op.attrs.get("name"), op.attrs["decomposition"]
    if name in native & CALLS:
        op.name, op.attrs, op.regions = "custom_call", {"call_target_name": name}, []
        return
    # The decompositions of most complex functions are sound at branch cuts and infinities; there is nothing to gain.
    # Those of sinh and cosh are not: they subtract two exponentials.
    is_complex = any(isinstance(v.type, Tensor) and v.type.dtype.is_complex for v in op.operands)
    if name in native and (not is_complex or name in ("chlo.sinh", "chlo.cosh")):
        op.name, op.attrs = str(name).split(".", 1)[1], dict(op.attrs.get("composite_attributes") or {})
        if _well_typed(op):
            return
    op.name, op.attrs, op.regions = "call", {"callee": decomposition}, []


def _well_typed(op: Op) -> bool:
    """True if Ferrule's own op takes these operands; the composite may be more general."""
    from ferrule.ops import lookup

    infer = lookup(op).infer
    try:
        return infer is not None and list(infer(op)) == [r.type for r in op.results]
    except (FerruleError, *MALFORMED):
        return False


# What became of old spellings. Each changes the op in place, but not its attributes, which it shares with others, and
# may return ops to put before it.


def _without(attrs: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != name}


def _dot(op: Op) -> None:
    left, right = (tensor(v) for v in op.operands)
    if not left.rank or not right.rank:
        raise InvalidArgument("dot of a scalar", where=op.loc)
    op.name = "dot_general"
    op.attrs = {**op.attrs, "dot_dimension_numbers": DotDims((), (), (left.rank - 1,), (0,))}


def _broadcast(op: Op) -> None:
    sizes, dims = len(op.attrs["broadcast_sizes"]), len(op.result.shape)
    op.name = "broadcast_in_dim"
    op.attrs = {**_without(op.attrs, "broadcast_sizes"), "broadcast_dimensions": tuple(range(sizes, dims))}


def _create_token(op: Op) -> None:
    op.name = "after_all"


def _sort(op: Op) -> None:
    if op.attrs["dimension"] < 0:
        op.attrs = {**op.attrs, "dimension": op.attrs["dimension"] + len(op.operands[0].shape)}


def _dimension_size(op: Op) -> None:
    dimension, shape = op.attrs["dimension"], op.operands[0].shape
    if not 0 <= dimension < len(shape):
        raise InvalidArgument(f"get_dimension_size of dimension {dimension} of {op.operands[0].type}", where=op.loc)
    op.name, op.operands = "constant", []
    op.attrs = {"value": np.array(shape[dimension], np.int32)}


def _einsum(op: Op) -> Sequence[Op]:
    """A product of two tensors by letters, as in NumPy: dot_general, and a transpose if the order differs."""
    config = op.attrs["einsum_config"].replace(" ", "")
    left, right = (tensor(v) for v in op.operands)
    inputs, _, out = config.partition("->")
    a, _, b = inputs.partition(",")
    letters = [a, b, out]
    if any(len(set(part)) != len(part) for part in letters) or (len(a), len(b)) != (left.rank, right.rank):
        raise Unsupported(f"einsum {config!r} is not supported", where=op.loc, why="it repeats or hides dimensions")
    batch = [c for c in a if c in b and c in out]
    summed = [c for c in a if c in b and c not in out]
    order = batch + [c for c in a if c not in b] + [c for c in b if c not in a]
    if sorted(order) != sorted(out):
        raise Unsupported(f"einsum {config!r} is not supported", where=op.loc, why="it sums over a single operand")
    dims = DotDims(*(tuple(s.index(c) for c in group) for group in (batch, summed) for s in (a, b)))
    sizes = dict(zip(a + b, left.shape + right.shape, strict=True))
    attrs = {**_without(op.attrs, "einsum_config"), "dot_dimension_numbers": dims}
    if order == list(out):
        op.name, op.attrs = "dot_general", attrs
        return ()
    product = Tensor(tuple(sizes[c] for c in order), tensor(op.result).dtype)
    dot = Op("dot_general", op.operands, [product], attrs, loc=op.loc)
    op.name, op.operands, op.attrs = "transpose", dot.results, {"permutation": tuple(order.index(c) for c in out)}
    return (dot,)


def _torch_index_select(op: Op) -> None:
    source, index = (tensor(v) for v in op.operands)
    dim, batch = op.attrs["dim"], op.attrs["batch_dims"]
    if not 0 <= batch <= dim < source.rank or batch > index.rank:
        raise InvalidArgument(f"torch_index_select of dimension {dim} of {source}", where=op.loc)
    shared = tuple(range(batch))
    after = dim + index.rank - batch
    offsets = (*range(batch, dim), *range(after, after + source.rank - dim - 1))
    sizes = tuple(1 if d == dim or d < batch else size for d, size in enumerate(source.shape))
    numbers = GatherDims(offsets, (dim,), shared, shared, (dim,), index.rank)
    op.name = "gather"
    op.attrs = {"dimension_numbers": numbers, "slice_sizes": sizes, "indices_are_sorted": False}


_OLD: dict[str, Callable[[Op], Sequence[Op] | None]] = {
    "dot": _dot,
    "broadcast": _broadcast,
    "create_token": _create_token,
    "sort": _sort,
    "get_dimension_size": _dimension_size,
    "einsum": _einsum,
    "torch_index_select": _torch_index_select,
}
