"""The operands of a matrix product as memory has them: groups of dimensions, each with one stride."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, DotDims, Op, Tensor, Value


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d], step = step, step * max(1, shape[d])
    return tuple(strides)


def join(dims: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Size and stride of the dimensions read as one (first slowest), or None when no single stride walks them."""
    size, stride = 1, 0
    if any(shape[d] == 0 for d in dims):
        return 0, 1
    for d in reversed(dims):
        if shape[d] == 1:
            continue
        if size == 1:
            size, stride = shape[d], strides[d]
        elif strides[d] == stride * size:
            size *= shape[d]
        else:
            return None
    return size, stride


class Side:
    """One operand of a dot: its dimensions in the groups batch, free, contracting, looked at through transposes."""

    def __init__(self, value: Value, batch: Sequence[int], contract: Sequence[int]) -> None:
        free = [d for d in range(len(value.shape)) if d not in batch and d not in contract]
        self.value, self.batch, self.contract, self.free = value, list(batch), list(contract), free
        while (op := self.value.op) is not None and op.name == "transpose":
            order = op.attrs["permutation"]
            self.value = op.operands[0]
            self.batch, self.contract, self.free = (
                [order[d] for d in g] for g in (self.batch, self.contract, self.free)
            )

    def view(self) -> tuple[tuple[int, int], ...] | None:
        """(size, stride) of batch, free and contracting, or None when the memory order does not allow it."""
        shape, strides = self.value.shape, strides_of(self.value.shape)
        parts = [join(g, shape, strides) for g in (self.batch, self.free, self.contract)]
        found = tuple(part for part in parts if part is not None)
        return found if len(found) == len(parts) else None

    def make_dense(self, out: Block, op: Op) -> None:
        order = tuple(self.batch + self.free + self.contract)
        type = Tensor(tuple(self.value.shape[d] for d in order), self.value.dtype)
        self.value = out.add("transpose", [self.value], [type], {"permutation": order}, (), op.loc).result
        b, f = len(self.batch), len(self.free)
        self.batch, self.free = list(range(b)), list(range(b, b + f))
        self.contract = list(range(b + f, len(order)))


def sides(lhs: Value, rhs: Value, dims: DotDims) -> tuple[Side, Side]:
    """Both operands. The order of the contracted dimensions is free as long as both agree: it is the left one's in
    memory."""
    a = Side(lhs, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions)
    b = Side(rhs, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions)
    order = sorted(range(len(a.contract)), key=lambda i: a.contract[i])
    a.contract, b.contract = ([side.contract[i] for i in order] for side in (a, b))
    return a, b
