"""Finds attention in a graph: softmax(f(Q Kᵀ)) V, and writes the runtime's call for it (native/attention.cc).

Everything is followed by axes (axes.py), down to values that lie in memory anyway, which the call reads with strides.
Masks that compare two positions are bands, and need no memory at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, splat
from ferrule.ir.types import bf16, f32
from ferrule.passes.axes import Axis, Labels, View, after, factor, flat, fresh, joined, look, moves, split
from ferrule.passes.softmax import Band, Mask, Softmax, conditions, find_softmax, is_divided, plain
from ferrule.targets.machine import Machine

FLOATS = ("f32", "bf16", "f16")
# Measured: where separate kernels are as fast, they stay. All are numbers of pairs of a row and a key.
SMALLEST, SMALLEST_IN_ALL = 2048, 1 << 14
# Of few rows, the call goes through keys and values once; of some, it fills its vectors with less than they hold.
FEW_ROWS, SOME_ROWS, SMALLEST_OF_FEW = 4, 12, 128
# For bf16 the library of the separate products has instructions that the call lacks.
SMALLEST_BF16, SMALLEST_BF16_BANDED, SMALLEST_BF16_OF_FEW = 1 << 20, 1 << 14, 512
# With a gradient: seven products instead of six, for the memory of the logits.
SMALLEST_GRADIENT, SMALLEST_GRADIENT_BANDED, SMALLEST_GRADIENT_BF16 = 1 << 18, 1 << 16, 1 << 21
# With tile registers, where the probabilities are bf16: of fewer rows, half of a tile would be empty.
SMALLEST_TILED, SMALLEST_GRADIENT_TILED = 32 * 32, 64 * 64


@dataclass
class Add:
    bias: View


@dataclass
class Choose:
    mask: Mask | Band
    value: float


@dataclass
class Scale:
    value: float


@dataclass
class Tanh:
    """A soft limit of the logits, between two scales."""


Step = Add | Choose | Scale | Tanh


@dataclass(eq=False)
class Attention:
    """One attention that was found; `op` is the last op that the call stands for."""

    dot: Op
    op: Op
    labels: Labels  # of op's result
    q: View
    k: View
    v: View
    scale: float
    steps: list[Step]
    softmax: Softmax
    depth: tuple[Axis, ...]
    width: tuple[Axis, ...]
    key: Axis
    row: Axis | None
    batch: list[Axis]
    inside: set[Op] = field(default_factory=set)
    done: list[Op] = field(default_factory=list)  # what was done to the logits, first op first
    statistics: bool = False
    tiles: bool = False  # the processor has registers for its products

    @property
    def narrow(self) -> bool:
        """Does the program round the probabilities to bf16?"""
        return all(v.dtype == bf16 for v in self.dot.operands)


def find_attention(dot: Op, uses: dict[Value, list[Op]], machine: Machine) -> Attention | None:
    dims = dot.attrs["dot_dimension_numbers"]
    if dot.result.dtype.name not in FLOATS or any(v.dtype.name not in FLOATS for v in dot.operands):
        return None
    sides = (
        (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    )
    for this in (0, 1):
        value, (_, contracting) = dot.operands[this], sides[this]
        if not is_divided(value):
            continue
        labels = fresh(value.shape)
        keys = [axis for d in contracting for axis in labels[d]]
        if len(keys) != 1:
            continue
        softmax = find_softmax(value, labels, keys[0])
        if softmax is None:
            continue
        found = _attention(dot, this, sides, labels, keys[0], softmax, uses)
        if found is None:
            continue
        brain = all(view.value.dtype == bf16 for view in (found.q, found.k, found.v))
        found.tiles = machine.has_tiles and brain and found.narrow
        if large_enough(found):
            return found
    return None


def _attention(
    dot: Op, this: int, sides: Any, labels: Labels, key: Axis, softmax: Softmax, uses: dict[Value, list[Op]]
) -> Attention | None:
    seen = set(softmax.seen)
    chain = _steps(softmax.logits, softmax.labels, key, seen)
    if chain is None:
        return None
    logits, logit_labels, steps, done = chain
    products = _operands(logits, logit_labels)
    if products is None or key.parts is not None:
        return None
    q_view, k_view, depth = products
    if key in flat(q_view.labels):
        q_view, k_view = k_view, q_view
    if key in flat(q_view.labels) or key not in flat(k_view.labels):
        return None
    # The other operand of the second product.
    other = dot.operands[1 - this]
    batching, contracting = sides[1 - this]
    v_labels = list(fresh(other.shape))
    for d, mine in zip(batching, sides[this][0], strict=True):
        v_labels[d] = labels[mine]
    for d, mine in zip(contracting, sides[this][1], strict=True):
        v_labels[d] = labels[mine]
    free = [d for d in range(len(other.shape)) if d not in batching and d not in contracting]
    width = tuple(axis for d in free for axis in v_labels[d])
    v_view = look(other, tuple(v_labels))
    mine_free = [d for d in range(len(labels)) if d not in sides[this][0] and d not in sides[this][1]]
    result = [labels[d] for d in sides[this][0]]
    for side in (0, 1):
        result += [labels[d] for d in mine_free] if side == this else [v_labels[d] for d in free]
    op, result_labels = tail(dot, tuple(result), uses)
    if v_view is None or any(v.value.dtype.name not in FLOATS for v in (q_view, k_view, v_view)):
        return None
    # The queries that one block of rows holds: the positions that a mask speaks of, else the longest axis.
    known = {id(a) for a in flat(k_view.labels)}
    rows = [a for a in flat(labels) if id(a) not in known and a is not key]
    banded = {id(s.mask.row): s.mask.row for s in steps if isinstance(s, Choose) and isinstance(s.mask, Band)}
    row = next(iter(banded.values())) if banded else max(rows, key=lambda a: a.size, default=None)
    if len(banded) > 1 or (row is not None and row.parts is not None):
        return None
    # What several heads of queries share comes last: a gradient is added up over it.
    batch = sorted((a for a in flat(labels) if a is not key and a is not row), key=lambda a: id(a) not in known)
    scale = q_view.scale * k_view.scale
    while steps and isinstance(first := steps[0], Scale):
        scale *= first.value
        steps = steps[1:]
    a = Attention(
        dot, op, result_labels, q_view, k_view, v_view, scale, steps, softmax, depth, width, key, row, batch,
        seen | {logits}, done,
    )  # fmt: skip
    return a if attributes(a) is not None else None


def large_enough(a: Attention) -> bool:
    """Is the call faster than what it replaces?"""
    rows, members = a.row.size if a.row is not None else 1, prod(axis.size for axis in a.batch)
    pairs, narrow = rows * a.key.size, a.k.value.dtype != f32
    if rows <= FEW_ROWS:
        return pairs >= (SMALLEST_BF16_OF_FEW if narrow else SMALLEST_OF_FEW)
    if rows < SOME_ROWS or members * pairs < SMALLEST_IN_ALL:
        return False
    if not narrow or a.tiles:
        return pairs >= (SMALLEST_TILED if a.tiles else SMALLEST)
    reads = any(isinstance(s, Add) or (isinstance(s, Choose) and not isinstance(s.mask, Band)) for s in a.steps)
    return pairs >= (SMALLEST_BF16_BANDED if banded(a) else SMALLEST_BF16 * (1 + reads))


def worth_a_gradient(a: Attention) -> bool:
    """The same, when the gradient is in the program, too."""
    pairs, narrow = (a.row.size if a.row is not None else 1) * a.key.size, a.k.value.dtype != f32
    if a.tiles:
        return pairs >= SMALLEST_GRADIENT_TILED
    if banded(a):
        return pairs >= SMALLEST_GRADIENT_BANDED * (1 + 3 * narrow)
    return pairs >= (SMALLEST_GRADIENT_BF16 if narrow else SMALLEST_GRADIENT)


def banded(a: Attention) -> bool:
    """About half of the logits or more are masked by their positions, and left out."""
    return any(isinstance(s, Choose) and isinstance(s.mask, Band) for s in a.steps)


def tail(dot: Op, labels: Labels, uses: dict[Value, list[Op]]) -> tuple[Op, Labels]:
    """The last of the ops that only arrange the result, or round it: the call writes their result at once."""
    op = dot
    while len(readers := uses.get(op.result, [])) == 1 and (moves(readers[0]) or _rounds(readers[0])):
        found = after(readers[0], labels)
        if found is None:
            break
        op, labels = readers[0], found
    return op, labels


def _rounds(op: Op) -> bool:
    return op.name == "convert" and op.operands[0].dtype == f32 and op.result.dtype.name in FLOATS


Chain = tuple[Op, Labels, list[Step], list[Op]]


def _steps(value: Value, labels: Labels, key: Axis, seen: set[Op]) -> Chain | None:
    """The product that the logits come from, labels of its result, and what is done to it, first step first."""
    here = set[Op]()
    found = plain(value, labels, here)
    if found is None or (op := found[0].op) is None:
        return None
    value, labels = found
    if op.name == "dot_general":
        seen |= here
        return op, labels, [], []
    here.add(op)
    if (known := factor(op)) is not None:
        tries: list[tuple[Value, list[Step] | None]] = [(known[0], [Scale(known[1])])]
    elif op.name == "tanh":
        tries = [(op.operands[0], [Tanh()])]
    elif op.name == "add":
        a, b = op.operands
        tries = [(a, None), (b, None)]
    elif op.name == "select":
        a, b = op.operands[1:]
        tries = [(v, None) for v, w in ((a, b), (b, a)) if splat(w) is not None and splat(v) is None]
    else:
        return None
    for source, steps in tries:
        inner = _steps(source, labels, key, here)
        if inner is None:
            continue
        if steps is None:
            steps = _added(op, source, labels) if op.name == "add" else _chosen(op, source, labels, key)
        if steps is None:
            return None
        seen |= here
        return inner[0], inner[1], inner[2] + steps, [*inner[3], op]
    return None


def _added(op: Op, source: Value, labels: Labels) -> list[Step] | None:
    a, b = op.operands
    bias = b if source is a else a
    view = look(bias, labels)
    return [Add(view)] if view is not None and view.value.dtype.name in FLOATS else None


def _chosen(op: Op, source: Value, labels: Labels, key: Axis) -> list[Step] | None:
    test, yes, no = op.operands
    value, drop = (float(splat(no)), False) if source is yes else (float(splat(yes)), True)  # type: ignore[arg-type]
    if value != value:
        return None
    masks = conditions(test, labels if test.shape else (), key, drop)
    return [Choose(mask, value) for mask in masks] if masks is not None else None


def _operands(dot: Op, labels: Labels) -> tuple[View, View, tuple[Axis, ...]] | None:
    """Both sides of the product of queries and keys, by the labels of its result; the axes that it sums over."""
    dims = dot.attrs["dot_dimension_numbers"]
    if any(v.dtype.name not in FLOATS for v in dot.operands) or dot.result.dtype.name not in ("f32", "bf16"):
        return None
    sums = [fresh((dot.operands[0].shape[d],))[0] for d in dims.lhs_contracting_dimensions]
    views, at = [], len(dims.lhs_batching_dimensions)
    for value, batching, contracting in (
        (dot.operands[0], dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (dot.operands[1], dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    ):
        found: list[tuple[Axis, ...]] = [()] * len(value.shape)
        for i, d in enumerate(batching):
            found[d] = labels[i]
        for i, d in enumerate(contracting):
            found[d] = sums[i]
        for d in range(len(value.shape)):
            if d not in batching and d not in contracting:
                found[d] = labels[at]
                at += 1
        view = look(value, tuple(found), scaled=True)
        if view is None:
            return None
        views.append(view)
    return views[0], views[1], tuple(axis for dim in sums for axis in dim)


# --- the call ---------------------------------------------------------------------------------------------------
def bits(x: float) -> int:
    """A float as the runtime reads it from an integer attribute; what f32 does not hold is infinite."""
    with np.errstate(over="ignore"):
        return int(np.float32(x).view(np.int32))


def placed(labels: Labels) -> dict[Axis, int]:
    """Row-major strides of a value with these labels."""
    strides, step = {}, 1
    for axis in reversed(flat(labels)):
        strides[axis] = step
        step *= axis.size
    return strides


def view_numbers(
    strides: dict[Axis, int], offset: int, a: Attention, rows: Sequence[Axis], columns: Sequence[Axis]
) -> tuple[int, ...] | None:
    row, column = joined(rows, [strides]), joined(columns, [strides])
    if row is None or column is None:
        return None
    return (offset, row[1][0], column[1][0], *(strides.get(axis, 0) for axis in a.batch))


# As native/attention_shape.h numbers them; a mask that is a band is the next one.
_KINDS: dict[type[Step], int] = {Scale: 0, Add: 1, Choose: 2, Tanh: 4}


def attributes(a: Attention) -> tuple[dict[str, Any], list[Value]] | None:
    """The call's attributes but for its result, and its operands; None when some array is not within strides."""
    (q_offset, q), (k_offset, k), (v_offset, v) = a.q.strides(), a.k.strides(), a.v.strides()
    rows = [a.row] if a.row is not None else []
    depth, width = joined(a.depth, [q, k]), joined(a.width, [v])
    if depth is None or width is None:
        return None
    known = {*a.batch, *rows, a.key, *split(a.depth), *split(a.width)}
    if any(axis not in known for table in (q, k, v) for axis in table):
        return None
    numbers = {
        "q": view_numbers(q, q_offset, a, rows, a.depth),
        "k": view_numbers(k, k_offset, a, [a.key], a.depth),
        "v": view_numbers(v, v_offset, a, [a.key], a.width),
    }
    operands, steps = [a.q.value, a.k.value, a.v.value], list[int]()
    nothing = (0,) * (3 + len(a.batch))
    for step in a.steps:
        view = step.bias if isinstance(step, Add) else None
        drop, low, high = 0, 0, 0
        if isinstance(step, Choose) and isinstance(step.mask, Mask):
            drop = int(step.mask.drop)
            view = look(step.mask.value, step.mask.labels)
            if view is None:
                return None
        elif isinstance(step, Choose) and isinstance(step.mask, Band):
            low, high = step.mask.low, step.mask.high
        where: tuple[int, ...] | None = nothing
        number = 0
        if view is not None:
            offset, strides = view.strides()
            if any(axis not in known for axis in strides):
                return None
            where, number = view_numbers(strides, offset, a, rows, [a.key]), len(operands)
            operands.append(view.value)
        if where is None:
            return None
        kind, value = _KINDS[type(step)], 0.0 if isinstance(step, Add | Tanh) else step.value
        kind += isinstance(step, Choose) and view is None
        steps += [kind, bits(value), number, drop, low, high, *where]
    if None in numbers.values():
        return None
    about = {
        "batch": tuple(axis.size for axis in a.batch),
        "rows": a.row.size if a.row is not None else 1,
        "keys": a.key.size,
        "depth": depth[0],
        "width": width[0],
        "scale": bits(a.scale),
        "narrow": int(a.narrow),
        "steps": tuple(steps),
        **numbers,
    }
    return about, operands


def emit(out: Block, a: Attention, env: dict[Value, Value]) -> tuple[Value, list[Value]]:
    """Adds the call; returns what stands for the result of `a.op`, and the call's own results."""
    found = attributes(a)
    assert found is not None, "find_attention has checked"
    about, operands = found
    result = Result(a.op, a.labels, a.width)
    rows = [a.row] if a.row is not None else []
    about["out"] = result.numbers(a, rows)
    types = [result.type()]
    if a.statistics:
        types.append(Tensor((2, prod(about["batch"]), about["rows"]), f32))
    call = {"target": "attention", "ffi": False, "attrs": about}
    values = out.add("library", [env.get(v, v) for v in operands], types, call, (), a.dot.loc).results
    return result.arranged(out, values[0]), values


@dataclass
class Result:
    """A result of a call that stands for the result of `op`: the features of a head are adjacent in it."""

    op: Op
    labels: Labels
    last: tuple[Axis, ...]

    def order(self) -> list[Axis]:
        axes, last = flat(self.labels), split(self.last)
        return [a for a in axes if a not in last] + [a for a in axes if a in last]

    def straight(self) -> bool:
        return list(flat(self.labels)) == self.order()

    def type(self) -> Tensor:
        shape = self.op.result.shape if self.straight() else tuple(axis.size for axis in self.order())
        return Tensor(shape, self.op.result.dtype)

    def numbers(self, a: Attention, rows: Sequence[Axis]) -> tuple[int, ...] | None:
        return view_numbers(placed(tuple((axis,) for axis in self.order())), 0, a, rows, self.last)

    def arranged(self, out: Block, value: Value) -> Value:
        """The value as the op has it."""
        if self.straight():
            return value
        axes, order = flat(self.labels), self.order()
        permutation = tuple(order.index(axis) for axis in axes)
        type = Tensor(tuple(axis.size for axis in axes), value.dtype)
        value = out.add("transpose", [value], [type], {"permutation": permutation}, (), self.op.loc).result
        return out.add("reshape", [value], [self.op.result.type], {}, (), self.op.loc).result
