"""How many dimensions of a call of LAPACK number its matrices: such a batch is cut into parts for the threads."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Op, Tensor, Value


def batch_dims(op: Op) -> int | None:
    """The leading dimensions that number matrices in all operands and results, also in memory; None if unknown.

    JAX says so itself. A handler treats one matrix like another, so each part of a batch is a batch.
    """
    said = op.attrs.get("mhlo.frontend_attributes")
    if not op.attrs["call_target_name"].startswith("lapack_") or not isinstance(said, dict):
        return None
    try:
        count = int(said["num_batch_dims"])
    except (KeyError, ValueError):
        return None
    values: Sequence[Value] = (*op.operands, *op.results)
    if count < 0 or not all(isinstance(v.type, Tensor) and v.shape[:count] == values[0].shape[:count] for v in values):
        return None
    layouts = [tuple(x) for key in ("operand_layouts", "result_layouts") for x in op.attrs.get(key) or ()]
    slowest = tuple(reversed(range(count)))
    return count if all(x[len(x) - count :] == slowest for x in layouts) else None
