"""Which dimensions of a kernel's results can be joined into one loop.

All elements of the result are numbered row-major. Each dimension of each value on the way down from the results is a
*digit* (stride, size) of that number, or None where it is something else. Where an access needs a digit by itself, the
number has to be cut at the digit's two ends; everything between two cuts is one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.index import strides
from ferrule.ir import Op, Value
from ferrule.ops import OPS

Digit = tuple[int, int] | None


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
    digits: tuple[Digit, ...] = tuple(zip(strides(shape), shape, strict=True))
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
    along = [(v, starts.index(d[0])) for v, d in ends_of if d is not None and d[0] in starts]
    return sizes, along


def orders(values: Sequence[Value], shape: Sequence[int], sizes: Sequence[int]) -> list[tuple[Value, list[list[int]]]]:
    """For each argument that is read, in the order of its memory: the loops of each dimension, innermost ones first.

    `sizes` are those that `loops` gives. The list ends at a dimension that is not a piece of the elements' number.
    """
    cuts = _Cuts(prod(shape))
    digits: tuple[Digit, ...] = tuple(zip(strides(shape), shape, strict=True))
    for value in values:
        cuts.visit(value, digits)
    starts = strides(sizes)
    found = []
    for value, dims in cuts.leaves:
        order = []
        for digit in dims:
            if digit is None:
                break
            inside = [d for d, start in enumerate(starts) if digit[0] <= start < digit[0] * digit[1]]
            order.append(inside[::-1])
        found.append((value, order))
    return found


class _Cuts:
    def __init__(self, total: int) -> None:
        self.total = total
        self.found: set[int] = set()
        self.seen: set[tuple[Value, tuple[Digit, ...]]] = set()
        self.leaves: list[tuple[Value, list[Digit]]] = []  # arguments and their dimensions, the innermost ones first

    def cut(self, digit: Digit) -> None:
        if digit is not None:
            self.found.update((digit[0], digit[0] * digit[1]))

    def run(self, digits: Sequence[Digit], shape: Sequence[int]) -> Digit:
        """The one digit that these digits make together; None, and cuts, when they do not."""
        merged: list[Digit] = []
        for digit, size in zip(digits, shape, strict=True):
            if size == 1:
                continue
            last = merged[-1] if merged else None
            if last is not None and digit is not None and last[0] == digit[0] * digit[1]:
                merged[-1] = (digit[0], last[1] * digit[1])
            else:
                merged.append(digit)
        if len(merged) == 1:
            return merged[0]
        for digit in merged:
            self.cut(digit)
        return None

    def visit(self, value: Value, digits: tuple[Digit, ...]) -> None:
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

    def step(self, op: Op, digits: tuple[Digit, ...]) -> list[tuple[Value, tuple[Digit, ...]]]:
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
                below: list[Digit] = [None] * len(shape)
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
            case "reduce":
                x = op.operands[0]
                kept = iter(digits)
                below = [None if d in attrs["dimensions"] else next(kept) for d in range(len(x.shape))]
                return [(v, tuple(below)) for v in op.operands[: len(op.operands) // 2]]
        for digit in digits:
            self.cut(digit)
        return []

    def same_rank(self, op: Op, digits: tuple[Digit, ...]) -> list[tuple[Value, tuple[Digit, ...]]]:
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
                below.append(digit if untouched else None)
            found.append((value, tuple(below)))
        return found

    def reshape(self, digits: tuple[Digit, ...], old: Sequence[int], new: Sequence[int]) -> tuple[Digit, ...]:
        """The digits of the operand's dimensions (`new`) from those of the result's (`old`)."""
        found: list[Digit] = []
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
            if run is None or run[1] != size_b:
                self.cut(run)
                found += [None] * (b - to)
            else:
                found += [(run[0] * s, n) for s, n in zip(strides(new[to:b]), new[to:b], strict=True)]
            at, to = a, b
        return tuple(found)
