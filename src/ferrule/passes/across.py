"""Reductions and transpositions of transposed arrays as what is done with the arrays as they lie.

`x.T.max(1)` reads a column for each of its results, an element of each line of memory at a time; `x.max(0)` reads rows.
Elementwise ops and reshapes in between are done in memory's order, too, and what is left of the transposition is done
with the results. `jnp.swapaxes` around what works along the last dimension, as in `jnp.packbits`, comes so; where
nothing is reduced, as in `jnp.unpackbits`, the two transpositions meet. This comes after match, which looks for
attention in the order in which it was written, and for what its own calls leave of the transposes around LAPACK's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ops import OPS
from ferrule.passes.simplify import simplify

# Beyond so many ops it is not looked where an operand comes from.
_DEPTH = 12

Order = tuple[int, ...]
# Ops that keep dimensions, and those of their attributes that have an entry for each.
_PERMUTED = {
    "pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
    "slice": ("start_indices", "limit_indices", "strides"),
}


def in_order(block: Block) -> Block:
    """Returns the block with those reductions and transpositions replaced, and simplified where there are any."""
    if all(op.name != "transpose" for op in block.walk()):
        return block
    found = False

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        nonlocal found
        results = None
        if op.name == "reduce":
            results = _of_reduce(out, op, operands)
        elif op.name == "transpose":
            results = _of_transpose(out, op, operands)
        found |= results is not None
        return results

    block = rewrite(block, rule, ours=True)
    return simplify(block, ours=True) if found else block


def _of_reduce(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """The results of a reduction in memory's order and of transposes, where it would read across memory."""
    arrays, starts = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    order = next((found for v in arrays if (found := _order(v, _DEPTH)) is not None), None)
    if order is None or not _across(arrays[0].shape, order):
        return None
    turned = _Turned(out, op)
    if not all(turned.possible(v, order, _DEPTH) for v in arrays):
        return None
    sources = [turned.make(v, order) for v in arrays]
    taken = sorted(order[d] for d in op.attrs["dimensions"])
    left = [d for d in range(len(order)) if d not in taken]
    shape = tuple(sources[0].shape[d] for d in left)
    attrs = op.attrs | {"dimensions": tuple(taken)}
    types = [Tensor(shape, r.dtype) for r in op.results]
    results = out.add("reduce", [*sources, *starts], types, attrs, op.regions, op.loc).results
    back = {"permutation": tuple(left.index(order[d]) for d in range(len(order)) if order[d] in left)}
    return [
        out.add("transpose", [v], [r.type], back, (), op.loc).result for v, r in zip(results, op.results, strict=True)
    ]


def _of_transpose(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
    """What is computed of transposed arrays and then transposed back, as computed of the arrays."""
    (value,) = operands
    order = tuple(int(d) for d in np.argsort(op.attrs["permutation"]))
    turned = _Turned(out, op)
    if not turned.possible(value, order, _DEPTH) or not turned.meets or not turned.straight:
        return None
    return [turned.make(value, order)]


def _across(shape: Sequence[int], order: Order) -> bool:
    """Whether the last dimension that has a length is another one in memory."""
    long = [d for d in range(len(shape)) if shape[d] > 1]
    return bool(long) and max(order[d] for d in long) != order[long[-1]]


def _order(value: Value, depth: int) -> Order | None:
    """The permutation by which `value` is a transposed array, if a transpose is behind it."""
    op = value.op
    if op is None or not depth:
        return None
    if op.name == "transpose":
        return tuple(op.attrs["permutation"])
    if op.name in _PERMUTED:
        return _order(op.operands[0], depth - 1)
    if op.name == "reshape":
        inner = _order(op.operands[0], depth - 1)
        return None if inner is None else _reshaped(op.operands[0].shape, value.shape, inner)
    if op.name in OPS and OPS[op.name].elementwise:
        for operand in op.operands:
            if operand.shape == value.shape and (found := _order(operand, depth - 1)) is not None:
                return found
    return None


def _reshaped(old: Sequence[int], new: Sequence[int], order: Order) -> Order | None:
    """The permutation by which the reshape of a transposed array is a transposed reshape.

    Dimensions that are split or merged must be neighbours in the array, and in the same order.
    """
    groups = _groups(old, new)
    if groups is None:
        return None
    starts: dict[int, range] = {}
    for before, after in groups:
        if any(order[d] != order[before[0]] + i for i, d in enumerate(before)):
            return None
        starts[order[before[0]]] = after
    result, place = [0] * len(new), 0
    for _, after in sorted(starts.items()):
        for d in after:
            result[d] = place
            place += 1
    return tuple(result)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]] | None:
    """Runs of dimensions of two shapes with the same elements, none of which is empty."""
    found, i, k = list[tuple[range, range]](), 0, 0
    while i < len(old) and k < len(new):
        first, start = i, k
        a, b = old[i], new[k]
        i, k = i + 1, k + 1
        while a != b:
            if a < b and i < len(old):
                a, i = a * old[i], i + 1
            elif b < a and k < len(new):
                b, k = b * new[k], k + 1
            else:
                return None
        found.append((range(first, i), range(start, k)))
    # Dimensions of one element at an end go with their neighbours.
    if not found or prod(old[i:]) != 1 or prod(new[k:]) != 1:
        return None
    before, after = found[-1]
    found[-1] = range(before.start, len(old)), range(after.start, len(new))
    return found


def _spread(op: Op, order: Order) -> tuple[Value, tuple[int, ...]]:
    """What a broadcast in the given order is of, and its dimensions; a transposition of it is one of these."""
    (source,), dims = op.operands, [order[d] for d in op.attrs["broadcast_dimensions"]]
    if source.op is not None and source.op.name == "transpose":
        dims = [dims[i] for i in np.argsort(source.op.attrs["permutation"])]
        source = source.op.operands[0]
    return source, tuple(dims)


class _Turned:
    """Writes values so that `value` is the transposition of what is written, by a given order."""

    def __init__(self, out: Block, like: Op) -> None:
        self.out, self.like = out, like
        self.made: dict[tuple[Value, Order], Value] = {}
        self.known: dict[tuple[Value, Order], bool] = {}
        # Whether a transposition goes, and no array of some size is spread across memory.
        self.meets, self.straight = False, True

    def possible(self, value: Value, order: Order, depth: int) -> bool:
        """Whether that needs no transposition of a large array."""
        key = value, order
        if key not in self.known:
            self.known[key] = self._possible(value, order, depth)
        return self.known[key]

    def _possible(self, value: Value, order: Order, depth: int) -> bool:
        op = value.op
        if op is None or not depth:
            return False
        match op.name:
            case "transpose":
                self.meets |= tuple(op.attrs["permutation"]) == order
                return tuple(op.attrs["permutation"]) == order
            case "broadcast_in_dim":
                source, dims = _spread(op, order)
                long = [d for d, n in zip(dims, source.shape, strict=True) if n > 1]
                self.meets |= source is not op.operands[0] and long == sorted(long)
                self.straight &= long == sorted(long)
                return source.type.size < value.type.size  # type: ignore[union-attr]
            case "pad" | "slice":
                return self.possible(op.operands[0], order, depth - 1)
            case "constant":
                return not any(op.attrs["value"].strides)
            case "iota":
                return True
            case "reshape":
                (source,) = op.operands
                inner = _reshaped(value.shape, source.shape, order)
                return inner is not None and self.possible(source, inner, depth - 1)
        if op.name not in OPS or not OPS[op.name].elementwise or op.regions:
            return False
        arrays = [v for v in op.operands if v.shape == value.shape]
        return len(arrays) + sum(v.shape == () for v in op.operands) == len(op.operands) and all(
            self.possible(v, order, depth - 1) for v in arrays
        )

    def make(self, value: Value, order: Order) -> Value:
        key = value, order
        if key not in self.made:
            self.made[key] = self._make(value, order)
        return self.made[key]

    def _make(self, value: Value, order: Order) -> Value:
        op = value.op
        assert op is not None
        shape = tuple(value.shape[d] for d in np.argsort(order))
        operands, attrs = op.operands, dict(op.attrs)
        match op.name:
            case "transpose":
                return op.operands[0]
            case "broadcast_in_dim":
                source, attrs["broadcast_dimensions"] = _spread(op, order)
                operands = [source]
            case "pad" | "slice":
                back = np.argsort(order)
                attrs |= {n: tuple(attrs[n][d] for d in back) for n in _PERMUTED[op.name] if attrs.get(n)}
                operands = [self.make(operands[0], order), *operands[1:]]
            case "constant":
                attrs["value"] = np.broadcast_to(attrs["value"].reshape(-1)[:1].reshape(()), shape)
            case "iota":
                attrs["iota_dimension"] = order[attrs["iota_dimension"]]
            case "reshape":
                inner = _reshaped(value.shape, operands[0].shape, order)
                assert inner is not None
                operands = [self.make(operands[0], inner)]
            case _:
                operands = [self.make(v, order) if v.shape == value.shape else v for v in operands]
        return self.out.add(op.name, operands, [Tensor(shape, value.dtype)], attrs, (), self.like.loc).result
