"""Which dimensions of a kernel's results can be joined into one loop.

All elements of the result are numbered row-major. Each dimension of each value on the way down from the results is a
*digit* of that number, or None where it is something else. Where an access needs a digit by itself, the number has to
be cut at the digit's two ends; everything between two cuts is one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ferrule.codegen.index import strides
from ferrule.ir import Op, Value
from ferrule.ops import OPS


class Digit(NamedTuple):
    """(number // stride) % size. `whole`: the dimension is this; else it is as far from some place, up or down, as far
    as `even` goes: all the way, or in each of a few pieces."""

    stride: int
    size: int
    whole: bool = True
    even: bool = True


class Side(NamedTuple):
    """The loops that make a dimension of an argument, innermost ones first, and how (see `Digit`)."""

    loops: list[int]
    whole: bool
    even: bool


def viewed(value: Value) -> Value:
    """What the value is in another shape: the memory is the same."""
    while value.op is not None and value.op.name == "reshape":
        value = value.op.operands[0]
    return value


def joined(values: Sequence[Value], shape: Sequence[int], ends_at: Sequence[int] = ()) -> list[int]:
    """The sizes of the loops over values of this shape, outermost first (at least one).

    No loop crosses the outer end of the dimensions `ends_at`.
    """
    return loops(values, shape, ends_at)[0]


def loops(
    values: Sequence[Value], shape: Sequence[int], ends_at: Sequence[int] = ()
) -> tuple[list[int], list[tuple[Value, int]]]:
    """The sizes, and for the arguments that are read the number of the loop along which their memory is contiguous."""
    total = prod(shape)
    cuts = _Cuts(total)
    cuts.found.update(prod(shape[d:]) for d in ends_at)
    digits = tuple(map(Digit, strides(shape), shape))
    for value in values:
        cuts.visit(value, digits)
    ends = [1]
    for cut in sorted(cuts.found):
        if cut % ends[-1] == 0 and total % cut == 0 and cut not in (ends[-1], total):
            ends.append(cut)
    ends.append(total)
    sizes = [b // a for a, b in zip(ends, ends[1:], strict=False)][::-1]
    starts = ends[:-1][::-1]
    ends_of = [(v, dims[0]) for v, dims in cuts.leaves if dims]
    along = [(v, starts.index(d.stride)) for v, d in ends_of if d is not None and d.whole and d.stride in starts]
    return sizes, along


def orders(values: Sequence[Value], shape: Sequence[int], sizes: Sequence[int]) -> list[tuple[Value, list[Side]]]:
    """For each argument that is read, in the order of its memory: the loops of each dimension, innermost ones first.

    `sizes` are those that `loops` gives. The list ends at a dimension that is not a piece of the elements' number.
    """
    cuts = _Cuts(prod(shape))
    digits = tuple(map(Digit, strides(shape), shape))
    for value in values:
        cuts.visit(value, digits)
    starts = strides(sizes)
    found = []
    for value, dims in cuts.leaves:
        order = []
        for digit in dims:
            if digit is None:
                break
            inside = [d for d, start in enumerate(starts) if digit.stride <= start < digit.stride * digit.size]
            order.append(Side(inside[::-1], digit.whole, digit.even))
        found.append((value, order))
    return found


Digits = tuple[Digit | None, ...]


class _Cuts:
    def __init__(self, total: int) -> None:
        self.total = total
        self.found: set[int] = set()
        self.seen: set[tuple[Value, Digits]] = set()
        self.leaves: list[tuple[Value, list[Digit | None]]] = []  # arguments and their dimensions, innermost ones first

    def cut(self, digit: Digit | None) -> None:
        if digit is not None:
            self.found.update((digit.stride, digit.stride * digit.size))

    def run(self, digits: Sequence[Digit | None], shape: Sequence[int]) -> Digit | None:
        """The one digit that these digits make together; None, and cuts, when they do not."""
        merged: list[Digit | None] = []
        for digit, size in zip(digits, shape, strict=True):
            if size == 1:
                continue
            last = merged[-1] if merged else None
            if last and digit and last.whole and digit.whole and last.stride == digit.stride * digit.size:
                merged[-1] = Digit(digit.stride, last.size * digit.size)
            else:
                merged.append(digit)
        if len(merged) == 1:
            return merged[0]
        for digit in merged:
            self.cut(digit)
        return None

    def visit(self, value: Value, digits: Digits) -> None:
        """Goes down the expression from an element of `value` at these digits."""
        stack = [(value, digits)]
        while stack:
            value, digits = stack.pop()
            if (value, digits) in self.seen:
                continue
            self.seen.add((value, digits))
            argument = viewed(value)
            if argument.op is None:
                self.cut(self.run(digits, value.shape))
                long = [d for d, size in zip(reversed(digits), reversed(value.shape), strict=True) if size > 1]
                self.leaves.append((argument, long))
            elif value.op is not None:
                stack += self.step(value.op, digits)

    def step(self, op: Op, digits: Digits) -> list[tuple[Value, Digits]]:
        shape = op.results[0].shape
        if 0 in shape or any(0 in v.shape for v in op.operands):
            return []
        if op.name in OPS and OPS[op.name].elementwise:
            return [(v, digits) for v in op.operands if len(v.shape) == len(digits)]
        attrs = op.attrs
        match op.name:
            case "bitcast_convert" if shape == op.operands[0].shape:
                return [(op.operands[0], digits)]
            case "reshape":
                return [(op.operands[0], self.reshape(digits, shape, op.operands[0].shape))]
            case "broadcast_in_dim":
                x = op.operands[0]
                dims = attrs.get("broadcast_dimensions", ())
                return [(x, tuple(None if x.shape[i] == 1 else digits[d] for i, d in enumerate(dims)))]
            case "transpose":
                below: list[Digit | None] = [None] * len(shape)
                for d, source in enumerate(attrs["permutation"]):
                    below[source] = digits[d]
                return [(op.operands[0], tuple(below))]
            case "constant":
                return []
            case "iota":
                self.cut(digits[attrs["iota_dimension"]])
                return []
            case "slice" | "pad" | "reverse" | "concatenate" | "dynamic_slice" | "dynamic_update_slice":
                return self.same_rank(op, digits)
            case "gather":
                return self.gather(op, digits)
            case "reduce":
                x = op.operands[0]
                kept = iter(digits)
                below = [None if d in attrs["dimensions"] else next(kept) for d in range(len(x.shape))]
                return [(v, tuple(below)) for v in op.operands[: len(op.operands) // 2]]
        for digit in digits:
            self.cut(digit)
        return []

    def gather(self, op: Op, digits: Digits) -> list[tuple[Value, Digits]]:
        """Dimensions of which slices have all are one after the other as in the operand."""
        dims, sizes, x = op.attrs["dimension_numbers"], op.attrs["slice_sizes"], op.operands[0]
        apart = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
        at = dict(zip([d for d in range(len(x.shape)) if d not in apart], dims.offset_dims, strict=True))
        below: list[Digit | None] = [None] * len(x.shape)
        for d, place in at.items():
            if sizes[d] == x.shape[d]:
                below[d] = digits[place]
            else:
                self.cut(digits[place])
        batch = [digit for d, digit in enumerate(digits) if d not in dims.offset_dims]
        for digit in batch:
            self.cut(digit)
        return [(x, tuple(below))]

    def same_rank(self, op: Op, digits: Digits) -> list[tuple[Value, Digits]]:
        """Ops that leave most dimensions as they are."""
        found = []
        for value in op.operands:
            if len(value.shape) != len(digits) or not digits:
                continue
            below = []
            for d, digit in enumerate(digits):
                untouched = value.shape[d] == op.results[0].shape[d]
                if op.name == "pad":
                    untouched = untouched and op.attrs["edge_padding_low"][d] == 0
                if op.name == "reverse":
                    untouched = d not in op.attrs["dimensions"]
                if not untouched:
                    self.cut(digit)
                    digit = _part(op, d, digit) if digit is not None else None
                below.append(digit)
            found.append((value, tuple(below)))
        return found

    def reshape(self, digits: Digits, old: Sequence[int], new: Sequence[int]) -> Digits:
        """The digits of the operand's dimensions (`new`) from those of the result's (`old`)."""
        found: list[Digit | None] = []
        at = to = 0
        while at < len(old) or to < len(new):
            a, b = at, to
            size_a = size_b = 1
            while a == at and b == to or size_a != size_b:
                if (size_a <= size_b and a < len(old)) or b >= len(new):
                    size_a *= old[a]
                    a += 1
                else:
                    size_b *= new[b]
                    b += 1
            run = self.run(digits[at:a], old[at:a])
            apart = sum(n > 1 for n in new[to:b]) > 1
            if run is None or run.size != size_b or (apart and not run.whole):
                self.cut(run)
                found += [None] * (b - to)
            else:
                steps = zip(strides(new[to:b]), new[to:b], strict=True)
                found += [run._replace(stride=run.stride * step, size=size) for step, size in steps]
            at, to = a, b
        return tuple(found)


def _part(op: Op, d: int, digit: Digit) -> Digit | None:
    """What dimension d of an operand is where the op changes it."""
    steps, apart = op.attrs.get("strides"), op.attrs.get("interior_padding")
    if op.name == "slice" and steps and steps[d] != 1 or op.name == "pad" and apart and apart[d]:
        return None
    even = op.name in ("slice", "dynamic_slice", "reverse")
    return digit._replace(whole=False, even=digit.even and even)
