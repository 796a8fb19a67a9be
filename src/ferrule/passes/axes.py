"""Axes: which dimension of one value is which dimension of another, through reshapes, transposes and broadcasts.

Each dimension of a value is labelled by the axes that it runs over, slowest first: one of size 1 by none, one that a
reshape has merged by several. Two values of a chain of ops hold the same elements at the same places when their labels
are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from ferrule.ir import Op, Value, splat


class Axis:
    """What an index runs over. A reshape that splits it gives it two parts; from then on it stands for them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[Axis, Axis] | None = None


Labels = tuple[tuple[Axis, ...], ...]


def fresh(shape: Sequence[int]) -> Labels:
    return tuple(() if size == 1 else (Axis(size),) for size in shape)


def split(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes with those that were split replaced by their parts."""
    found: list[Axis] = []
    for axis in axes:
        found += [axis] if axis.parts is None else split(axis.parts)
    return tuple(found)


def flat(labels: Labels) -> tuple[Axis, ...]:
    return tuple(axis for dim in labels for axis in split(dim))


def same(a: Labels, b: Labels) -> bool:
    return len(a) == len(b) and all(split(x) == split(y) for x, y in zip(a, b, strict=True))


def _regroup(axes: Sequence[Axis], shape: Sequence[int]) -> Labels | None:
    """Labels of the dimensions of a reshape, in whose row-major order the axes come; axes are split where needed."""
    left, labels = list(axes), []
    for size in shape:
        dim: list[Axis] = []
        while (have := prod(a.size for a in dim)) < size:
            if not left or size % have:
                return None
            axis = left.pop(0)
            want = size // have
            if axis.size > want:
                if axis.size % want:
                    return None
                axis.parts = (Axis(want), Axis(axis.size // want))
                axis, rest = axis.parts
                left.insert(0, rest)
            dim.append(axis)
        if have != size:
            return None
        labels.append(tuple(dim))
    return tuple(labels) if not left else None


def before(op: Op, labels: Labels) -> Labels | None:
    """Labels of the operand of a reshape, transpose, broadcast or elementwise op whose result has these labels."""
    match op.name:
        case "reshape":
            return _regroup(flat(labels), op.operands[0].shape)
        case "transpose":
            found: list[tuple[Axis, ...]] = [()] * len(labels)
            for dim, source in enumerate(op.attrs["permutation"]):
                found[source] = labels[dim]
            return tuple(found)
        case "broadcast_in_dim":
            sizes, dims = op.operands[0].shape, op.attrs["broadcast_dimensions"]
            return tuple(() if size == 1 else labels[dim] for size, dim in zip(sizes, dims, strict=True))
    return labels


def after(op: Op, labels: Labels) -> Labels | None:
    """The reverse: labels of the result of an op that `moves` its operand."""
    match op.name:
        case "reshape":
            return _regroup(flat(labels), op.result.shape)
        case "transpose":
            return tuple(labels[d] for d in op.attrs["permutation"])
        case "broadcast_in_dim":
            found: list[tuple[Axis, ...]] = [()] * len(op.result.shape)
            for dim, label in zip(op.attrs["broadcast_dimensions"], labels, strict=True):
                found[dim] = label
            return tuple(found)
    return labels


def moves(op: Op | None) -> bool:
    """Does the op give the elements of its operand in another arrangement, each once?"""
    if op is None or op.name not in ("reshape", "transpose", "broadcast_in_dim"):
        return False
    return prod(op.result.shape) == prod(op.operands[0].shape)


@dataclass
class View:
    """A value in memory, `scale` times of which is looked at; labels, first index and step of each dimension."""

    value: Value
    labels: Labels
    scale: float = 1.0
    starts: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def strides(self) -> tuple[int, dict[Axis, int]]:
        """The offset of the first element, and the distance of elements along each axis; along others it is 0."""
        offset, found, stride = 0, {}, 1
        for dim in reversed(range(len(self.value.shape))):
            offset += self.starts[dim] * stride
            step = stride * self.steps[dim]
            for axis in reversed(split(self.labels[dim])):
                found[axis] = step
                step *= axis.size
            stride *= self.value.shape[dim]
        return offset, found

    def same(self, other: View) -> bool:
        if self.value is not other.value or self.scale != other.scale:
            return False
        return self.starts == other.starts and self.steps == other.steps and same(self.labels, other.labels)


def look(value: Value, labels: Labels, scaled: bool = False) -> View | None:
    """What lies in memory when everything that only arranges elements is taken off, and factors where `scaled`."""
    view = View(value, labels, 1.0, [0] * len(labels), [1] * len(labels))
    while (op := view.value.op) is not None:
        cut = any(view.starts) or any(s != 1 for s in view.steps) or len(view.starts) != len(view.value.shape)
        source = op.operands[0] if op.operands else None
        if op.name == "convert" and source is not None and source.dtype.name in ("bf16", "f16"):
            if op.result.dtype.name != "f32":
                break
            view.value = source
        elif scaled and (known := factor(op)) is not None:
            view.value, by = known
            view.scale *= by
        elif op.name == "slice":
            view.starts = [
                a + b * s for a, b, s in zip(op.attrs["start_indices"], view.starts, op.attrs["strides"], strict=True)
            ]
            view.steps = [a * b for a, b in zip(op.attrs["strides"], view.steps, strict=True)]
            view.value = op.operands[0]
        elif op.name == "transpose":
            order = op.attrs["permutation"]
            at = {source: dim for dim, source in enumerate(order)}
            view.labels = tuple(view.labels[at[d]] for d in range(len(order)))
            view.starts = [view.starts[at[d]] for d in range(len(order))]
            view.steps = [view.steps[at[d]] for d in range(len(order))]
            view.value = op.operands[0]
        elif op.name in ("reshape", "broadcast_in_dim") and not cut:
            found = before(op, view.labels)
            if found is None:
                return None
            view.labels, view.value = found, op.operands[0]
            view.starts, view.steps = [0] * len(found), [1] * len(found)
        else:
            break
    return view


def factor(op: Op) -> tuple[Value, float] | None:
    """x and c, when the op is c * x or x / c."""
    if op.name not in ("multiply", "divide") or not op.result.dtype.is_float:
        return None
    a, b = op.operands
    if (by := splat(b)) is not None:
        return (a, float(by)) if op.name == "multiply" else (a, 1.0 / float(by)) if float(by) else None
    if op.name == "multiply" and (by := splat(a)) is not None:
        return b, float(by)
    return None


def joined(axes: Sequence[Axis], strides: Sequence[dict[Axis, int]]) -> tuple[int, list[int]] | None:
    """Size and strides of axes read as one, or None when one of the arrays has no single stride along them."""
    axes = [a for a in split(axes) if a.size > 1]
    for table in strides:
        for outer, inner in zip(axes, axes[1:], strict=False):
            if table.get(outer, 0) != table.get(inner, 0) * inner.size:
                return None
    return prod(a.size for a in axes), [table.get(axes[-1], 0) if axes else 0 for table in strides]
