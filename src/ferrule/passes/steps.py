"""Steps: what a value of a loop's body is in all iterations, as one array with a dimension more, the first.

Known are values that are cut from an outer array by the loop's counter, and what is computed from such and from what
does not change: with the same ops, all iterations at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ferrule.ir import UNKNOWN, Block, DotDims, Op, Tensor, Value, rewrite
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.passes.count import number, step_of, trips_of
from ferrule.passes.simplify import has_effects
from ferrule.passes.slices import elementwise

# Loops of more iterations are not looked at: their indices are followed one by one.
LONGEST = 1 << 16
# The most bytes of what is computed for all iterations at once.
BYTES = 1 << 26
MOVES = frozenset({"reshape", "transpose", "broadcast_in_dim"})
_KNOWN = MOVES | {"slice", "pad", "concatenate", "reverse", "dot_general", "reduce"}


@dataclass(frozen=True)
class Stack:
    """A value in all iterations; `order` is 1, or -1 when the last iteration comes first."""

    value: Value
    order: int


@dataclass(frozen=True)
class Place:
    """Where an iteration reads or writes a part of an array: along `dim`, iteration t at first + order * t."""

    dim: int
    first: int
    order: int


def cheap(op: Op) -> bool:
    """Is it one operation for each element?"""
    return elementwise(op) and OPS[op.name].flops <= 1 and op.result.dtype.is_float


def in_place(op: Op) -> bool:
    """Does the op only add or drop dimensions of size 1, or regroup them?"""
    if op.name == "broadcast_in_dim" and prod(op.result.shape) == prod(op.operands[0].shape):
        long = [d for d, n in zip(op.attrs["broadcast_dimensions"], op.operands[0].shape, strict=True) if n != 1]
        return long == sorted(long)
    return op.name == "reshape"


class Steps:
    """A loop with a known number of iterations."""

    def __init__(self, loop: Op, starts: Sequence[Value], trips: int) -> None:
        self.loop, self.trips = loop, trips
        self.body = body = loop.regions[1]
        self.inside = {*body.args, *(r for op in body.ops for r in op.results)}
        self.counter: tuple[Value, int, int] | None = None  # a carry, where it starts, and what is added to it
        self.series: dict[Value, np.ndarray | None] = {}
        for i, (arg, start) in enumerate(zip(body.args, starts, strict=True)):
            if not isinstance(arg.type, Tensor) or arg.shape or not arg.dtype.is_int:
                continue
            first, step = number(start), step_of(body, i)
            if first is None or step is None:
                continue
            wide = [first + step * t for t in range(trips)]
            limits = np.iinfo(arg.dtype.numpy) if arg.dtype.itemsize * 8 == arg.dtype.bits else None
            if limits is None or min(wide) < limits.min or max(wide) > limits.max:
                continue
            self.series[arg] = np.asarray(wide, arg.dtype.numpy)
            if step in (1, -1) and trips <= limits.max and self.counter is None:
                self.counter = arg, first, step
        self.users = body.uses()
        for v in body.results:
            self.users.setdefault(v, []).append(RESULT)

    def numbers(self, value: Value) -> np.ndarray | None:
        """A scalar in each iteration, when that is known."""
        if value not in self.series:
            self.series[value] = self._numbers(value)
        return self.series[value]

    def _numbers(self, value: Value) -> np.ndarray | None:
        if not isinstance(value.type, Tensor) or value.shape or value.dtype.kind not in ("int", "uint", "bool"):
            return None
        op = value.op
        if op is not None and op.name == "constant":
            return np.full(self.trips, op.attrs["value"], value.dtype.numpy)
        if op is None or value not in self.inside or not elementwise(op):
            return None
        reads = [found for v in op.operands if (found := self.numbers(v)) is not None]
        if len(reads) < len(op.operands):
            return None
        long = [Value(Tensor((self.trips,), v.dtype)) for v in op.operands]
        probe = Op(op.name, long, [Tensor((self.trips,), value.dtype)], op.attrs, (), op.loc)
        evaluate = OPS[op.name].evaluate
        if evaluate is None:
            return None
        with np.errstate(all="ignore"):
            (found,) = evaluate(probe, reads, _no_region)
        return np.asarray(found, value.dtype.numpy)

    def place(self, whole: Value, window: Sequence[int], starts: Sequence[Value]) -> Place | None:
        """Where iterations read or write, when each has the next part of size 1 along one dimension, and all else."""
        dims = [d for d, size in enumerate(window) if size != whole.shape[d]]
        if len(dims) != 1 or window[dims[0]] != 1:
            return None
        found = self.numbers(starts[dims[0]])
        if found is None:
            return None
        # Indices are moved inside the bounds; the largest ones fit into no signed number.
        last = whole.shape[dims[0]] - 1
        at = np.clip(
            np.minimum(found, np.uint64(last)) if found.dtype == np.uint64 else found.astype(np.int64), 0, last
        )
        at = at.astype(np.int64)
        order = int(at[1] - at[0])
        if order not in (1, -1) or not np.array_equal(at, at[0] + order * np.arange(self.trips)):
            return None
        return Place(dims[0], int(at[0]), order)

    def written(self, k: int) -> tuple[Op, Place] | None:
        """The update that writes carry k in the iterations part by part, all of it, and nobody reads it in the loop."""
        cond, body = self.loop.regions
        value, arg = body.results[k], body.args[k]
        op = value.op
        if op is None or value not in self.inside or op.name != "dynamic_update_slice" or op.operands[0] is not arg:
            return None
        if self.users.get(arg) != [op] or self.users[value] != [RESULT] or reads(cond, cond.args[k]):
            return None
        place = self.place(arg, op.operands[1].shape, op.operands[2:])
        return (op, place) if place is not None and arg.shape[place.dim] == self.trips else None


# Stands for the results of a body among the readers of a value.
RESULT = Op("return", [], [])


def steps_of(loop: Op, starts: Sequence[Value]) -> Steps | None:
    """The loop, when it has a known number of iterations and a counter that goes by one."""
    trips = trips_of(loop)
    if trips is None or not 2 <= trips <= LONGEST:
        return None
    steps = Steps(loop, starts, trips)
    return steps if steps.counter is not None else None


def reads(block: Block, value: Value) -> bool:
    """Does the block read the value?"""
    return value in block.results or any(
        value in op.operands or any(reads(r, value) for r in op.regions) for op in block.ops
    )


def _no_region(*_: object) -> list[np.ndarray]:
    raise AssertionError("ops with regions are not evaluated here")


class Lifter:
    """Adds to `out`, outside of the loop, ops that give values of the loop's body in all iterations.

    `known` are stacks that there are already, by the value that they have of each iteration; `most` is how many bytes
    a value of all iterations may have.
    """

    def __init__(
        self, steps: Steps, out: Block, known: dict[Value, Stack] | None = None, most: float | None = None
    ) -> None:
        self.steps, self.out, self.most = steps, out, BYTES if most is None else most
        self.stacks: dict[Value, Stack | None] = {**(known or {})}
        self.same: dict[Value, Value | None] = {}

    def fixed(self, value: Value) -> Value | None:
        """The value outside of the loop, when it is the same in all iterations."""
        if value not in self.steps.inside:
            return value
        if value not in self.same:
            self.same[value] = self._fixed(value)
        return self.same[value]

    def _fixed(self, value: Value) -> Value | None:
        op = value.op
        if op is None or op.regions or len(op.results) != 1 or has_effects(op) or not isinstance(value.type, Tensor):
            return None
        if op.name != "constant" and (op.name not in OPS or OPS[op.name].element is None):
            return None
        found = [self.fixed(v) for v in op.operands]
        if any(v is None for v in found):
            return None
        return self.out.add(op.name, found, [value.type], op.attrs, (), op.loc).result  # type: ignore[arg-type]

    def lift(self, value: Value) -> Stack | None:
        """The value in all iterations; None when that is not known, or it is the same in all."""
        if value not in self.stacks:
            self.stacks[value] = self._lift(value) if value in self.steps.inside else None
        return self.stacks[value]

    def _lift(self, value: Value) -> Stack | None:
        op = value.op
        if op is None or len(op.results) != 1 or not isinstance(value.type, Tensor):
            return None
        if op.name == "dynamic_slice":
            return self._cut(op)
        if op.name not in _KNOWN and not elementwise(op) or value.type.nbytes * self.steps.trips > self.most:
            return None
        if any(self.lift(v) is None and self.fixed(v) is None for v in op.operands):
            return None
        if not any(self.lift(v) for v in op.operands) or any(
            f in self.steps.inside for r in op.regions for f in r.free()
        ):
            return None
        orders = {s.order for v in op.operands if (s := self.lift(v))}
        order = orders.pop() if len(orders) == 1 else 1
        found = self._computed(op, order)
        return Stack(found, order) if found is not None else None

    def _add(
        self, op: Op, name: str, operands: Sequence[Value], shape: Sequence[int], attrs: dict | None = None
    ) -> Value:
        type = Tensor(tuple(shape), op.result.dtype)
        regions = [rewrite(r, lambda *_: None) for r in op.regions] if name == op.name else ()
        return self.out.add(name, operands, [type], attrs or {}, regions, op.loc).result

    def _cut(self, op: Op) -> Stack | None:
        """Slices of an outer array."""
        steps, whole = self.steps, self.fixed(op.operands[0])
        if whole is None:
            return None
        place = steps.place(op.operands[0], op.attrs["slice_sizes"], op.operands[1:])
        if place is None:
            return None
        low = place.first if place.order == 1 else place.first - steps.trips + 1
        dim, rank = place.dim, len(whole.shape)
        shape = [steps.trips if d == dim else size for d, size in enumerate(whole.shape)]
        attrs = {
            "start_indices": tuple(low if d == dim else 0 for d in range(rank)),
            "limit_indices": tuple(low + steps.trips if d == dim else size for d, size in enumerate(whole.shape)),
            "strides": (1,) * rank,
        }
        value = self._add(op, "slice", [whole], shape, attrs)
        return Stack(self.in_front(op, value, dim, op.result.shape), place.order)

    def in_front(self, op: Op, value: Value, dim: int, shape: Sequence[int]) -> Value:
        """Dimension `dim` as the first one, and the rest as `shape` says."""
        order = (dim, *(d for d in range(len(value.shape)) if d != dim))
        if dim:
            permuted = [value.shape[d] for d in order]
            value = self._add(op, "transpose", [value], permuted, {"permutation": order})
        return self._add(op, "reshape", [value], [value.shape[0], *shape])

    def ordered(self, stack: Stack, order: int) -> Value:
        """The stack in the order that is asked for."""
        if stack.order == order:
            return stack.value
        attrs = {"dimensions": (0,)}
        return self.out.add("reverse", [stack.value], [stack.value.type], attrs, (), UNKNOWN).result

    def _spread(self, op: Op, value: Value, shape: Sequence[int], order: int) -> Value:
        """An operand in all iterations, also when it is always the same, or a scalar beside arrays."""
        stack = self.lift(value)
        trips = self.steps.trips
        if stack is not None:
            found = self.ordered(stack, order)
            dims = tuple(range(len(value.shape) + 1)) if value.shape == tuple(shape) else (0,)
        else:
            found = self.fixed(value)  # type: ignore[assignment]
            dims = tuple(range(1, len(value.shape) + 1))
        if found.shape == (trips, *shape):
            return found
        type = Tensor((trips, *shape), value.dtype)
        return self.out.add("broadcast_in_dim", [found], [type], {"broadcast_dimensions": dims}, (), op.loc).result

    def _computed(self, op: Op, order: int) -> Value | None:
        trips, shape = self.steps.trips, op.result.shape
        whole = (trips, *shape)
        if op.name == "dot_general":
            return self._dot(op, order)
        if op.name == "concatenate":
            parts = [self._spread(op, v, v.shape, order) for v in op.operands]
            return self._add(op, "concatenate", parts, whole, {"dimension": op.attrs["dimension"] + 1})
        if elementwise(op):
            return self._add(op, op.name, [self._spread(op, v, shape, order) for v in op.operands], whole, op.attrs)
        first, *others = op.operands
        stack = self.lift(first)
        if stack is None or any(self.fixed(v) is None for v in others):
            return None
        source, rest = self.ordered(stack, order), [v for o in others if (v := self.fixed(o)) is not None]
        match op.name:
            case "reshape":
                attrs = {}
            case "transpose":
                attrs = {"permutation": (0, *(d + 1 for d in op.attrs["permutation"]))}
            case "broadcast_in_dim" if in_place(op):
                return self._add(op, "reshape", [source], whole)
            case "broadcast_in_dim":
                attrs = {"broadcast_dimensions": (0, *(d + 1 for d in op.attrs["broadcast_dimensions"]))}
            case "reverse":
                attrs = {"dimensions": tuple(d + 1 for d in op.attrs["dimensions"])}
            case "slice":
                attrs = {
                    "start_indices": (0, *op.attrs["start_indices"]),
                    "limit_indices": (trips, *op.attrs["limit_indices"]),
                    "strides": (1, *op.attrs["strides"]),
                }
            case "pad":
                names = ("edge_padding_low", "edge_padding_high", "interior_padding")
                attrs = {name: (0, *op.attrs[name]) for name in names}
            case _:  # reduce
                if len(op.operands) != 2:
                    return None
                attrs = {**op.attrs, "dimensions": tuple(d + 1 for d in op.attrs["dimensions"])}
        return self._add(op, op.name, [source, *rest], whole, attrs)

    def _dot(self, op: Op, order: int) -> Value:
        """One product for all iterations: they are a free dimension of one side, or, of both, a batch."""
        left, right = (self.lift(v) for v in op.operands)
        dims: DotDims = op.attrs["dot_dimension_numbers"]
        lb, rb, lc, rc = (
            *(dims.lhs_batching_dimensions, dims.rhs_batching_dimensions),
            *(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions),
        )
        more = lambda group: tuple(d + 1 for d in group)  # noqa: E731
        whole = (self.steps.trips, *op.result.shape)
        if left is not None and right is not None:
            new = DotDims((0, *more(lb)), (0, *more(rb)), more(lc), more(rc))
            return self._add(
                op, op.name, [self.ordered(left, order), self.ordered(right, order)], whole,
                {**op.attrs, "dot_dimension_numbers": new},
            )  # fmt: skip
        stacked, other = (op.operands[0], op.operands[1]) if left is not None else (op.operands[1], op.operands[0])
        a, b = self.ordered(self.lift(stacked), order), self.fixed(other)  # type: ignore[arg-type]
        assert b is not None
        if left is not None:
            new = DotDims(more(lb), rb, more(lc), rc)
        else:  # the side with the iterations first, so that they are the slowest dimension
            new = DotDims(more(rb), lb, more(rc), lc)
        batch = len(lb)
        mine = len(stacked.shape) - batch - len(lc)
        sizes = op.result.shape
        ours, theirs = (sizes[batch : batch + mine], sizes[batch + mine :])
        if left is None:
            theirs, ours = (sizes[batch : len(sizes) - mine], sizes[len(sizes) - mine :])
        attrs = {**op.attrs, "dot_dimension_numbers": new}
        value = self._add(op, op.name, [a, b], (*sizes[:batch], self.steps.trips, *ours, *theirs), attrs)
        ends = list(range(batch + 1, batch + 1 + mine)), list(range(batch + 1 + mine, len(value.shape)))
        last = [*ends[0], *ends[1]] if left is not None else [*ends[1], *ends[0]]
        permutation = (batch, *range(batch), *last)
        if permutation == tuple(range(len(whole))):
            return value
        return self._add(op, "transpose", [value], whole, {"permutation": permutation})


def index(block: Block, steps: Steps, counter: Value, order: int) -> Value:
    """Adds to the loop's body the number of the iteration, or, for order -1, of those that are left."""
    assert steps.counter is not None
    _, first, step = steps.counter
    last = steps.trips - 1
    if step == order:
        start = first if step == 1 else first - last
        if start == 0:
            return counter
        operands = [counter, constant(block, start, counter.dtype)]
    else:
        operands = [constant(block, first + last if step == 1 else first, counter.dtype), counter]
    return block.add("subtract", operands, [counter.type], {}, (), UNKNOWN).result


def constant(block: Block, value: int, dtype: DType) -> Value:
    attrs = {"value": np.asarray(value, dtype.numpy)}
    return block.add("constant", [], [Tensor((), dtype)], attrs, (), UNKNOWN).result
