"""Collectives in a program of one device: each group has one member, so nothing moves.

More than one member needs targets that connect devices; that is Unsupported here, and said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import Op, Tensor, Type
from ferrule.ops.checks import attr, declared, declared_results, expect, operand_types, operands
from ferrule.ops.definition import Dims, Factors, Run, define, factors


def _group_size(op: Op) -> int:
    """The number of devices in a group; -1 pads groups of unequal size."""
    groups = np.asarray(attr(op, "replica_groups", np.zeros((1, 1), np.int64)))
    return int(groups.shape[-1]) if groups.ndim == 2 and groups.size else 1


def _alone(op: Op) -> None:
    size = _group_size(op)
    if size > 1:
        raise Unsupported(
            f"op {op.name!r} over {size} devices is not supported",
            where=op.loc,
            why="this version compiles programs for one device",
            fix="run with one device, or without sharding over several",
        )


def _infer_same(op: Op) -> Sequence[Type]:
    return operands(op)


def _infer_resized(op: Op, axis_name: str, grows: bool) -> Sequence[Type]:
    axis, size = attr(op, axis_name), _group_size(op)
    out = []
    for i, t in enumerate(operands(op)):
        expect(op, 0 <= axis < t.rank, f"{axis_name} = {axis} of {t}")
        shape = list(t.shape)
        expect(op, grows or shape[axis] % size == 0, f"dimension {axis} of {t} does not divide by {size}")
        shape[axis] = shape[axis] * size if grows else shape[axis] // size
        expect(op, declared(op, i).rank == t.rank, f"result {i} is {declared(op, i)} for {t}")
        out.append(Tensor(tuple(shape), t.dtype))
    return out


def _infer_all_to_all(op: Op) -> Sequence[Type]:
    split, join, count = attr(op, "split_dimension"), attr(op, "concat_dimension"), attr(op, "split_count")
    out = []
    for t in operands(op):
        expect(op, max(split, join) < t.rank, f"dimensions {split} and {join} of {t}")
        expect(op, t.shape[split] % count == 0, f"dimension {split} of {t} does not divide by {count}")
        shape = list(t.shape)
        shape[split] //= count
        shape[join] *= count
        out.append(Tensor(tuple(shape), t.dtype))
    return out


def _identity(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    _alone(op)
    return list(xs)


def _permute(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    pairs = np.asarray(attr(op, "source_target_pairs", ())).reshape(-1, 2)
    if prod(pairs.shape) and int(pairs.max()) > 0:
        raise Unsupported(
            f"op {op.name!r} between {int(pairs.max()) + 1} devices is not supported",
            where=op.loc,
            why="this version compiles programs for one device",
            fix="run with one device, or without sharding over several",
        )
    # a device that nobody sends to receives zeros
    return list(xs) if len(pairs) else [np.zeros_like(x) for x in xs]


# What passes/partition.py takes apart: a computation on parts, and the marks of the form without Shardy.
for _name in ("sdy.sharding_constraint", "sdy.reshard"):
    define(_name, infer=operand_types)
for _name in ("sdy.manual_computation", "ferrule.Sharding", "ferrule.SPMDFullToShardShape"):
    define(_name, infer=declared_results)
define("ferrule.SPMDShardToFullShape", infer=declared_results)
define("all_reduce", infer=_infer_same, evaluate=_identity)
define("cross-replica-sum", infer=_infer_same, evaluate=_identity)
define("collective_broadcast", infer=_infer_same, evaluate=_identity)
define("collective_permute", infer=_infer_same, evaluate=_permute, flops=0)
define("all_gather", infer=lambda op: _infer_resized(op, "all_gather_dim", True), evaluate=_identity, flops=0)
define("reduce_scatter", infer=lambda op: _infer_resized(op, "scatter_dimension", False), evaluate=_identity)
define("all_to_all", infer=_infer_all_to_all, evaluate=_identity, flops=0)


@factors("all_reduce", "collective_broadcast", "collective_permute", "all_gather", "reduce_scatter", "all_to_all")
def _collective_factors(op: Op) -> Factors:
    """Parts go between devices as wholes do, where those that meet have the same part of what else is split."""
    names = ("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension")
    whole = [int(op.attrs[name]) for name in names if name in op.attrs]
    first = [sum(len(v.shape) for v in op.operands[:i]) for i in range(len(op.operands))]
    dims: list[Dims] = []
    for at, value in zip(first, op.operands, strict=True):
        dims.append(tuple(None if d in whole else at + d for d in range(len(value.shape))))
    return Factors(dims, dims)
