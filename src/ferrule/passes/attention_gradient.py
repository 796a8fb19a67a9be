"""Finds the gradient of an attention that is in the same graph, and writes the runtime's call for it.

With P the probabilities, G the gradient of the result and * by elements:
    dV = Pᵀ G,  dP = G Vᵀ,  dS = P * (dP - rowsum(dP * P)),  dQ = dS K,  dK = dSᵀ Q.
JAX differentiates softmax as a division of E = exp(…) by its sum l: dS = (dP / l + r) * E, r = -rowsum(dP / l² * E).
What the logits went through on their way comes back in the reverse order: masks with 0, scales as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ferrule.ir import Block, Op, Value, splat
from ferrule.ir.types import bf16
from ferrule.passes.attention import Attention, Result, attributes, bits, tail, view_numbers
from ferrule.passes.axes import Axis, Labels, View, after, factor, flat, look, moves, same, split
from ferrule.passes.softmax import plain, reduced, source, spread


@dataclass(eq=False)
class Gradient:
    """The three products that give gradients, by queries, keys and values, and how their results are laid out."""

    attention: Attention
    slope: View  # the gradient of attention's result
    parts: list[Result]
    dots: list[Op]
    post: float
    inside: set[Op] = field(default_factory=set)


Users = dict[Value, list[Op]]


def readers(value: Value, labels: Labels, uses: Users, seen: set[Op]) -> Iterator[tuple[Op, Value, Labels]]:
    """The ops that read the value, or another arrangement or precision of it, with what they read."""
    for op in uses.get(value, ()):
        if source(op) is not value or (op.name == "broadcast_in_dim" and not moves(op)):
            yield op, value, labels
        elif (found := after(op, labels)) is not None:
            seen.add(op)
            yield from readers(op.result, found, uses, seen)


def find_gradient(a: Attention, uses: Users) -> Gradient | None:
    softmax = a.softmax
    seen: set[Op] = set()
    for op, value, labels in readers(softmax.exponential, softmax.exponential_labels, uses, set()):
        if op.name != "multiply" or op.operands[0] is op.operands[1]:
            continue
        here: set[Op] = {op}
        other = op.operands[1] if op.operands[0] is value else op.operands[0]
        gradient = _slopes(a, other, labels, here)
        if gradient is None:
            continue
        # The arrangements of the exponentials on the way to their readers go, too.
        for _ in readers(softmax.exponential, softmax.exponential_labels, uses, seen):
            pass
        return _parts(a, op, labels, gradient, uses, seen | here)
    return None


def _slopes(a: Attention, value: Value, labels: Labels, seen: set[Op]) -> tuple[Value, Labels] | None:
    """dP, when the value is dP / l - rowsum(dP / l² * E)."""
    found = plain(value, labels, seen)
    if found is None or (op := found[0].op) is None or op.name != "add":
        return None
    seen.add(op)
    for left, right in (op.operands, op.operands[::-1]):
        here: set[Op] = set()
        first = plain(left, found[1], here)
        if first is None or (divide := first[0].op) is None or divide.name != "divide":
            continue
        here.add(divide)
        slope = plain(divide.operands[0], first[1], here)
        if slope is None or not _is_total(a, divide.operands[1], first[1], here):
            continue
        if _is_mean(a, right, found[1], slope, here):
            seen |= here
            return slope
    return None


def _is_total(a: Attention, value: Value, labels: Labels, seen: set[Op]) -> bool:
    """Is it the sum of the exponentials of each row?"""
    found = spread(value, labels, seen)
    return found is not None and found[0] is a.softmax.total and same(found[1], a.softmax.total_labels)


def _is_mean(a: Attention, value: Value, labels: Labels, slope: tuple[Value, Labels], seen: set[Op]) -> bool:
    """Is it -rowsum(slope / l² * E)?"""
    negative = False
    while True:
        found = spread(value, labels, seen)
        if found is None or (op := found[0].op) is None:
            return False
        value, labels = found
        if op.name == "negate":
            negative = not negative
            value = op.operands[0]
        else:
            break
        seen.add(op)
    summed = reduced(value, labels, a.key, "add", seen)
    if summed is None or not negative:
        return False
    factors = list(_factors(*summed, seen))
    if len(factors) != 3:
        return False
    exponential = (a.softmax.exponential, a.softmax.exponential_labels)
    left = [f for f in factors if not _equal(f, exponential)]
    left = [f for f in left if not _equal(f, slope)]
    return len(left) == 1 and _is_square(a, *left[0], seen)


def _equal(a: tuple[Value, Labels], b: tuple[Value, Labels]) -> bool:
    return a[0] is b[0] and same(a[1], b[1])


def _factors(value: Value, labels: Labels, seen: set[Op]) -> Iterator[tuple[Value, Labels]]:
    found = plain(value, labels, seen)
    if found is None:
        return
    value, labels = found
    if (op := value.op) is not None and op.name == "multiply":
        seen.add(op)
        for operand in op.operands:
            yield from _factors(operand, labels, seen)
    else:
        yield value, labels


def _is_square(a: Attention, value: Value, labels: Labels, seen: set[Op]) -> bool:
    """Is it 1 / l²?"""
    found = spread(value, labels, seen)
    if found is None or (divide := found[0].op) is None or divide.name != "divide":
        return False
    one = splat(divide.operands[0])
    below = spread(divide.operands[1], found[1], seen)
    if one is None or float(one) != 1 or below is None or (square := below[0].op) is None or square.name != "multiply":
        return False
    seen |= {divide, square}
    return all(_is_total(a, v, below[1], seen) for v in square.operands)


@dataclass
class Partner:
    """What a product does with a matrix of logits' size: its other operand, and its result."""

    other: View
    sums: list[Axis]
    labels: Labels


def partner(dot: Op, value: Value, labels: Labels, free: Sequence[Axis], scaled: bool) -> Partner | None:
    """The other side of a product of `value`, whose own free dimension runs over `free`."""
    if dot.name != "dot_general" or (dot.operands[0] is value) == (dot.operands[1] is value):
        return None
    dims = dot.attrs["dot_dimension_numbers"]
    sides = [
        (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    ]
    this = 0 if dot.operands[0] is value else 1
    other = dot.operands[1 - this]
    found: list[tuple[Axis, ...]] = [()] * len(other.shape)
    for mine, its in zip(sides[this], sides[1 - this], strict=True):
        for d, e in zip(mine, its, strict=True):
            found[e] = labels[d]
    rest = [e for e in range(len(other.shape)) if e not in sides[1 - this][0] and e not in sides[1 - this][1]]
    long = [e for e in rest if other.shape[e] != 1]
    if len(long) != len(free) or [other.shape[e] for e in long] != [axis.size for axis in free]:
        return None
    for e, axis in zip(long, free, strict=True):
        found[e] = (axis,)
    view = look(other, tuple(found), scaled)
    mine_free = [d for d in range(len(labels)) if d not in sides[this][0] and d not in sides[this][1]]
    result = [labels[d] for d in sides[this][0]]
    for side in (0, 1):
        result += [labels[d] for d in mine_free] if side == this else [found[e] for e in rest]
    sums = [axis for d in sides[this][1] for axis in split(labels[d])]
    return Partner(view, sums, tuple(result)) if view is not None else None


def _parts(
    a: Attention, op: Op, labels: Labels, slope: tuple[Value, Labels], uses: Users, seen: set[Op]
) -> Gradient | None:
    depth, width = split(a.depth), split(a.width)
    if a.row is None or len(depth) > 1 or len(width) > 1:
        return None
    # dP is a product of the gradient of the result and the values.
    dot = slope[0].op
    if dot is None or dot.name != "dot_general":
        return None
    seen.add(dot)
    gradient = _gradient(a, dot, slope[1], width)
    if gradient is None:
        return None
    # The gradient by the logits goes back through what was done to them.
    post, value = 1.0, op.result
    for step in reversed(a.done):
        if step.name == "add":
            continue
        here: set[Op] = set()
        found = list(readers(value, labels, uses, here))
        if len(found) != 1:
            return None
        reader, read, labels = found[0]
        if (known := factor(reader)) is not None and known[0] is read:
            mine = factor(step)
            if mine is None or not np.isclose(mine[1], known[1], rtol=1e-6):
                return None
            post *= known[1]
        elif reader.name == "select" and step.name == "select":
            kept = [i for i in (1, 2) if splat(step.operands[i]) is None]
            if reader.operands[kept[0]] is not read or not _same_test(step.operands[0], reader.operands[0]):
                return None
            zero = splat(reader.operands[3 - kept[0]])
            if zero is None or float(zero) != 0:
                return None
        else:
            return None
        seen |= here | {reader}
        value = reader.result
    products = list(readers(value, labels, uses, seen))
    parts: dict[str, tuple[Op, Partner]] = {}
    for reader, read, at in products:
        if reader.name != "dot_general":
            return None
        found_part = partner(reader, read, at, depth, True)
        if found_part is None:
            return None
        if a.key in found_part.sums and found_part.other.same(a.k):
            parts["q"] = reader, found_part
        elif a.row in found_part.sums and found_part.other.same(a.q):
            parts["k"] = reader, found_part
        else:
            return None
    # Of the probabilities there are two products: attention's own, and the gradient by the values.
    for reader, read, at in readers(a.softmax.value, a.softmax.value_labels, uses, seen):
        if reader is a.dot:
            continue
        found_part = partner(reader, read, at, width, False)
        if found_part is None or a.row not in found_part.sums or not found_part.other.same(gradient):
            return None
        parts["v"] = reader, found_part
    if len(parts) != 3 or len(products) != 2:
        return None
    ordered = [parts[name] for name in "qkv"]
    results = [
        Result(*tail(reader, part.labels, uses), last)
        for (reader, part), last in zip(ordered, (a.depth, a.depth, a.width), strict=True)
    ]
    found_gradient = Gradient(a, gradient, results, [reader for reader, _ in ordered], post, seen)
    return found_gradient if _arguments(found_gradient) is not None else None


def _same_test(a: Value, b: Value) -> bool:
    while a is not b and moves(a.op) and a.op is not None:
        a = a.op.operands[0]
    while a is not b and moves(b.op) and b.op is not None:
        b = b.op.operands[0]
    return a is b


def _gradient(a: Attention, dot: Op, labels: Labels, width: Sequence[Axis]) -> View | None:
    """The gradient of the result, from the product of it and the values whose result has these labels."""
    dims = dot.attrs["dot_dimension_numbers"]
    sides = (
        (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    )
    views, at = [], len(sides[0][0])
    for value, (batching, contracting) in zip(dot.operands, sides, strict=True):
        found: list[tuple[Axis, ...]] = [()] * len(value.shape)
        for i, d in enumerate(batching):
            found[d] = labels[i]
        long = [d for d in contracting if value.shape[d] != 1]
        if [value.shape[d] for d in long] != [axis.size for axis in width]:
            return None
        for d, axis in zip(long, width, strict=True):
            found[d] = (axis,)
        for d in range(len(value.shape)):
            if d not in batching and d not in contracting:
                found[d] = labels[at]
                at += 1
        view = look(value, tuple(found))
        if view is None:
            return None
        views.append(view)
    others = [v for v in views if not v.same(a.v)]
    return others[0] if len(others) == 1 and others[0].value.dtype.name in ("f32", "bf16", "f16") else None


Arguments = tuple[dict[str, object], list[Value]]


def _arguments(gradient: Gradient) -> Arguments | None:
    """The call's attributes but for those of attention's own result, and its operands."""
    a = gradient.attention
    found = attributes(a)
    if found is None or a.row is None:
        return None
    about, operands = found
    (_, q), (_, k), (_, v) = a.q.strides(), a.k.strides(), a.v.strides()
    shared = [axis for axis in a.batch if axis not in k]
    own = [axis for axis in a.batch if axis in k]
    # Keys and values lack the same axes, and those come last.
    if a.batch != own + shared or any((axis in v) == (axis in shared) for axis in a.batch):
        return None
    if any(axis not in q for axis in a.batch) or any(
        axis in flat(r.labels) for axis in shared for r in gradient.parts[1:]
    ):
        return None
    offset, strides = gradient.slope.strides()
    if any(axis not in {*a.batch, a.row, *split(a.width)} for axis in strides):
        return None
    known = {
        "g": view_numbers(strides, offset, a, [a.row], a.width),
        "dq": gradient.parts[0].numbers(a, [a.row]),
        "dk": gradient.parts[1].numbers(a, [a.key]),
        "dv": gradient.parts[2].numbers(a, [a.key]),
    }
    if None in known.values():
        return None
    sharing = 1
    for axis in shared:
        sharing *= axis.size
    factors = {"q_factor": bits(gradient.post * a.k.scale), "k_factor": bits(gradient.post * a.q.scale)}
    return about | known | factors | {"sharing": sharing}, operands


def emit_gradient(out: Block, gradient: Gradient, env: dict[Value, Value], own: Sequence[Value]) -> list[Value]:
    """Adds the call; returns what stands for the results of the three products. `own` are attention's results."""
    found = _arguments(gradient)
    assert found is not None, "find_gradient has checked"
    about, operands = found
    a = gradient.attention
    about["out"] = Result(a.op, a.labels, a.width).numbers(a, [a.row] if a.row is not None else [])
    q_dot, k_dot, v_dot = gradient.dots
    about["narrow"] = int(all(v.dtype == bf16 for v in v_dot.operands))
    about["rounded_slopes"] = int(all(v.dtype == bf16 for dot in (q_dot, k_dot) for v in dot.operands))
    call = {"target": "attention_backward", "ffi": False, "attrs": about}
    reads = [env.get(v, v) for v in (*operands, gradient.slope.value)] + list(own)
    types = [part.type() for part in gradient.parts]
    values = out.add("library", reads, types, call, (), gradient.dots[0].loc).results
    return [part.arranged(out, value) for part, value in zip(gradient.parts, values, strict=True)]
