"""A module as it was read → a module of core StableHLO ops and the CHLO ops that Ferrule does natively.

A composite is an op by name with a decomposition. Where Ferrule has the op, as with erf, the name wins; every other
composite becomes a call of its decomposition, which the importer inlines. Old spellings (dot, broadcast) become the
ops that replaced them. Dynamic and quantized programs never come here: `read` has them rewritten while it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ferrule.errors import InvalidArgument
from ferrule.ir import DotDims, Module, Op, Tensor

# CHLO ops for which one expression, or one library call, is better than the decomposition.
NATIVE = frozenset(
    "erf erfc erf_inv acos acosh asin asinh atan atanh sinh cosh tan square mulhi lgamma digamma next_after top_k".split()
)


def known_natively(name: str) -> bool:
    """True if Ferrule's op table can compute the CHLO op `name` (without prefix) itself."""
    from ferrule.ops import OPS

    found = OPS.get(name)
    if found is None:
        return False
    return found.element is not None or (found.evaluate is not None and not found.elementwise)


def legalize(module: Module) -> Module:
    """Rewrites the module's ops in place and returns it."""
    native = {f"chlo.{name}" for name in NATIVE if known_natively(name)}
    for function in module.functions.values():
        for op in function.body.walk():
            if op.name == "composite":
                _composite(op, native)
            elif op.name in _OLD:
                _OLD[op.name](op)
    return module


def _composite(op: Op, native: set[str]) -> None:
    name = op.attrs.get("name")
    # The decompositions of complex functions are sound at branch cuts and infinities; there is nothing to gain.
    if name in native and not any(isinstance(v.type, Tensor) and v.type.dtype.is_complex for v in op.operands):
        op.name, op.attrs = str(name).removeprefix("chlo."), dict(op.attrs.get("composite_attributes") or {})
        return
    op.name, op.attrs = "call", {"callee": op.attrs["decomposition"]}
    op.regions = []


def _dot(op: Op) -> None:
    left, right = op.operands
    if not (isinstance(left.type, Tensor) and isinstance(right.type, Tensor) and left.type.rank and right.type.rank):
        raise InvalidArgument("dot of something that is not a vector or matrix", where=op.loc)
    op.name = "dot_general"
    op.attrs["dot_dimension_numbers"] = DotDims((), (), (left.type.rank - 1,), (0,))


def _broadcast(op: Op) -> None:
    sizes = op.attrs.pop("broadcast_sizes")
    op.name = "broadcast_in_dim"
    op.attrs["broadcast_dimensions"] = tuple(range(len(sizes), len(op.result.shape)))


def _create_token(op: Op) -> None:
    op.name = "after_all"


def _dimension_size(op: Op) -> None:
    dimension, shape = op.attrs["dimension"], op.operands[0].shape
    if not 0 <= dimension < len(shape):
        raise InvalidArgument(f"get_dimension_size of dimension {dimension} of {op.operands[0].type}", where=op.loc)
    op.name, op.operands = "constant", []
    op.attrs = {"value": np.array(shape[dimension], np.int32)}


_OLD: dict[str, Callable[[Op], None]] = {
    "dot": _dot,
    "broadcast": _broadcast,
    "create_token": _create_token,
    "get_dimension_size": _dimension_size,
}
