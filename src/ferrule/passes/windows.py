"""Windows: reductions over windows of an array in several steps, where each element's own loop would repeat much.

* A long window along one dimension (a sliding maximum or sum of a thousand elements) is the end of one block and the
  beginning of the next, where blocks are as long as windows: running totals of the blocks from both ends, and one
  operation for each result. A large window along several dimensions is one along each.
* A window over an array with gaps as long as itself holds one element.
* `select_and_scatter` (the gradient of max pooling) first finds the element that each window selects, once, not for
  each element that lies in the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from ferrule.codegen.scan import direction
from ferrule.codegen.windows import WRITTEN_OUT
from ferrule.ir import Block, Op, Tensor, Value, inline, rewrite, splat, tensor
from ferrule.ir import types as t
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid
from ferrule.ops.checks import per_axis
from ferrule.targets.machine import Machine

# From this length on a window is worth running totals. One along several dimensions is one along each where it holds so
# many elements for each that windows begin at; the second is for rows of few channels.
LONG, LARGE, FEW = 64, 3, 2
# Unless its elements are in few windows only.
SHARED = 4
# One kernel reads windows of so few elements faster than two go over memory, each operation that makes an element being
# one more: sums of 32 bits and more; other monoids, which are several instructions, with registers of 64 bytes and with
# shorter ones, and of rows of few channels. What is more to compute is written first.
SUMS, SUMS_FEW, OTHERS, FEW_OTHERS = 18, 15, (9, 4), (4, 0)
CHANNELS, DEAR = 64, 8
# Windows of fewer elements in all are not worth more than one kernel.
WORTH = 1 << 14
# Rows of the last dimension that are shorter leave lanes of vectors empty.
NARROW = 8
IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})
NEUTRAL = {"add": 0.0, "multiply": 1.0}


def windows(block: Block, machine: Machine | None = None, ours: bool = False) -> Block:
    """Returns the block with long windows, and what is scattered to selected elements, in steps; `ours` as in
    `rewrite`."""
    if (machine is not None and machine.grouped) or not block.holds("reduce_window", "select_and_scatter"):
        return block
    wide = machine is None or machine.vector_bytes >= 64

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op.name == "select_and_scatter":
            return _selected(out, op, operands)
        if op.name == "reduce_window":
            return _repeated(out, op, operands) or _sliding(out, op, operands, wide)
        return None

    return rewrite(rewrite(block, rule, ours=ours), _narrow, ours=True)


# ---- long windows ----------------------------------------------------------------------------------------------------


def _sliding(out: Block, op: Op, operands: list[Value], wide_registers: bool) -> Sequence[Value] | None:
    kind, x = monoid(op.regions[0]), operands[0]
    shape, rank = x.shape, len(x.shape)
    window = tuple(op.attrs["window_dimensions"])
    if kind is None or len(operands) != 2 or not rank or 0 in op.result.shape or direction(op) is not None:
        return None
    if (
        not WORTH <= prod(window) * tensor(op.result).size
        or max(shape) >= 1 << 30
        or op.result.dtype != x.dtype
        or x.dtype.bits < 8
    ):
        return None
    if any(v != 1 for name in ("base_dilations", "window_dilations") for v in per_axis(op, name, rank, 1)):
        return None
    if x.dtype.is_complex or not _repeatable(kind, operands[1]):
        return None
    along = [d for d in range(rank) if window[d] > 1]
    strides, padding = per_axis(op, "window_strides", rank, 1), per_axis(op, "padding", rank, (0, 0))
    counts = op.result.shape
    long = [d for d in along if window[d] >= LONG and counts[d] * window[d] >= SHARED * shape[d]]
    large = FEW if shape[-1] <= NARROW else LARGE
    dtype = x.dtype
    if not long and (len(along) < 2 or prod(window) < large * prod(strides)):
        return None
    if not long and _at_once(kind, x, prod(window), wide_registers):
        return None
    wide = t.f32 if kind in NEUTRAL and dtype.is_float and dtype.bits < 32 else dtype

    def converted(value: Value, to: t.DType) -> Value:
        return value if value.dtype == to else out.add("convert", [value], [Tensor(value.shape, to)], loc=op.loc).result

    step = _Steps(out, op, kind, wide, converted(operands[1], wide))
    if wide != dtype:
        init = np.asarray(splat(operands[1])).astype(wide.numpy).reshape(())
        step.init = out.add("constant", [], [Tensor((), wide)], {"value": init}, loc=op.loc).result
    x = converted(x, wide)
    for d in sorted(range(rank), key=lambda d: -strides[d]):  # what makes the array smaller comes first
        if window[d] == 1 and strides[d] == 1 and tuple(padding[d]) == (0, 0):
            continue
        along_it = step.long if d in long else step.short
        x = along_it(x, d, window[d], strides[d], tuple(padding[d]))
    return [converted(x, dtype)]


def _at_once(kind: str, x: Value, count: int, wide_registers: bool) -> bool:
    """Does one kernel read windows of so many elements as fast as two kernels, one along each dimension?"""
    channels = x.shape[-1]
    if x.dtype.bits < 32 or count > WRITTEN_OUT:
        return False
    if kind == "add":
        most = SUMS if channels > NARROW else SUMS_FEW
    else:
        most = (OTHERS if channels >= CHANNELS else FEW_OTHERS)[0 if wide_registers else 1]
    cost, stack = 0.0, [x]
    while stack and cost < DEAR:
        value = stack.pop()
        if value.op is None or value.shape != x.shape:
            continue
        if value.op.name == "transpose" and channels <= NARROW:
            return False
        if value.op.name in OPS and OPS[value.op.name].elementwise:
            cost += OPS[value.op.name].flops
            stack += value.op.operands
    return count * (1 + cost if cost < DEAR else 1) <= most


def _repeatable(kind: str, init: Value) -> bool:
    """May the initial value be combined in any number of times?"""
    if kind in IDEMPOTENT:
        return splat(init) is not None
    value = splat(init)
    return kind in NEUTRAL and init.dtype.kind != "bool" and value is not None and bool(value == NEUTRAL[kind])


class _Steps:
    """Windows along one dimension."""

    def __init__(self, out: Block, op: Op, kind: str, dtype: t.DType, init: Value) -> None:
        self.out, self.op, self.kind, self.dtype, self.init = out, op, kind, dtype, init
        self.body = Block([Tensor((), dtype)] * 2)
        self.body.results = [self.body.add(kind, self.body.args, [Tensor((), dtype)], loc=op.loc).result]

    def add(self, name: str, operands: Sequence[Value], shape: Sequence[int], dtype: t.DType, **attrs: object) -> Value:
        return self.out.add(name, operands, [Tensor(tuple(shape), dtype)], attrs, loc=self.op.loc).result

    def short(self, x: Value, d: int, window: int, stride: int, padding: tuple[int, int]) -> Value:
        """As one op."""
        rank = len(x.shape)
        count = (x.shape[d] + sum(padding) - window) // stride + 1
        attrs = {
            "window_dimensions": _at(rank, d, window, 1),
            "window_strides": _at(rank, d, stride, 1),
            "padding": _at(rank, d, padding, (0, 0)),
        }
        shape = _at(rank, d, count, None, x.shape)
        regions = [rewrite(self.body, lambda *_: None, {})]
        return self.out.add(
            "reduce_window", [x, self.init], [Tensor(shape, self.dtype)], attrs, regions, self.op.loc
        ).result

    def long(self, x: Value, d: int, window: int, stride: int, padding: tuple[int, int]) -> Value:
        """By running totals of blocks as long as the window, from both ends."""
        rank, size = len(x.shape), x.shape[d]
        count = (size + sum(padding) - window) // stride + 1
        last = (count - 1) * stride
        blocks = -(-(last + window) // window)
        whole = _at(rank, d, blocks * window, None, x.shape)
        edges = {
            "edge_padding_low": _at(rank, d, padding[0], 0),
            "edge_padding_high": _at(rank, d, blocks * window - size - padding[0], 0),
            "interior_padding": (0,) * rank,
        }
        if whole != x.shape or padding[0]:
            x = self.add("pad", [x, self.init], whole, self.dtype, **edges)
        cut = (*x.shape[:d], blocks, window, *x.shape[d + 1 :])
        x = self.add("reshape", [x], cut, self.dtype)
        found = []
        for backward in (True, False):
            attrs = {
                "window_dimensions": _at(rank + 1, d + 1, window, 1),
                "padding": _at(rank + 1, d + 1, (0, window - 1) if backward else (window - 1, 0), (0, 0)),
            }
            regions = [rewrite(self.body, lambda *_: None, {})]
            total = self.out.add("reduce_window", [x, self.init], [x.type], attrs, regions, self.op.loc).result
            total = self.add("reshape", [total], whole, self.dtype)
            first = 0 if backward else window - 1
            attrs = {
                "start_indices": _at(rank, d, first, 0),
                "limit_indices": _at(rank, d, first + last + 1, None, whole),
                "strides": _at(rank, d, stride, 1),
            }
            found.append(self.add("slice", [total], _at(rank, d, count, None, whole), self.dtype, **attrs))
        end, beginning = found
        shape = end.shape
        both = self.add(self.kind, [end, beginning], shape, self.dtype)
        if self.kind in IDEMPOTENT:
            return both
        # A window that is a block is its own end and beginning.
        number = self.add("iota", [], (count,), t.i32, iota_dimension=0)
        rest = self.add("remainder", [number, self._number(window // gcd(window, stride), count)], (count,), t.i32)
        alone = self.add("compare", [rest, self._number(0, count)], (count,), t.i1, comparison_direction="EQ")
        alone = self.add("broadcast_in_dim", [alone], shape, t.i1, broadcast_dimensions=(d,))
        return self.add("select", [alone, end, both], shape, self.dtype)

    def _number(self, value: int, count: int) -> Value:
        return self.add("constant", [], (count,), t.i32, value=np.broadcast_to(np.int32(value), (count,)))


def _at(rank: int, d: int, value: object, rest: object, others: Sequence[int] = ()) -> tuple:
    return tuple(value if i == d else (others[i] if others else rest) for i in range(rank))


# ---- one element a window --------------------------------------------------------------------------------------------


def _repeated(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    """Windows as long as the dilation of what they go over (the gradient of a mean over parts of an image) hold one
    element each: the elements are repeated, and what no window had is the initial value."""
    kind, x, rank = monoid(op.regions[0]), operands[0], len(operands[0].shape)
    if kind is None or len(operands) != 2 or op.result.dtype != x.dtype or 0 in op.result.shape:
        return None
    init = operands[1]
    if x.dtype.is_complex or not _repeatable(kind, init):
        return None
    window, padding = tuple(op.attrs["window_dimensions"]), per_axis(op, "padding", rank, (0, 0))
    base = tuple(per_axis(op, "base_dilations", rank, 1))
    padded = x.op
    if padded is not None and padded.name == "pad" and set(base) == {1} and _same_number(padded.operands[1], init):
        x = padded.operands[0]
        base = tuple(n + 1 for n in padded.attrs["interior_padding"])
        more = zip(padded.attrs["edge_padding_low"], padded.attrs["edge_padding_high"], strict=True)
        padding = tuple((low + a, high + b) for (low, high), (a, b) in zip(padding, more, strict=True))
    steps = (*per_axis(op, "window_strides", rank, 1), *per_axis(op, "window_dilations", rank, 1))
    if window == (1,) * rank or base != window or any(n != 1 for n in steps):
        return None
    # Of the array of repetitions a result lacks what is below zero here, and has the initial value where it is above.
    low = [before - (n - 1) for n, (before, _) in zip(window, padding, strict=True)]
    high = [behind - (n - 1) for n, (_, behind) in zip(window, padding, strict=True)]
    whole = [size * n for size, n in zip(x.shape, window, strict=True)]
    starts, limits = [max(0, -n) for n in low], [size + min(0, n) for size, n in zip(whole, high, strict=True)]
    if any(end <= begin for begin, end in zip(starts, limits, strict=True)):
        return None

    def add(name: str, values: Sequence[Value], shape: Sequence[int], **attrs: object) -> Value:
        return out.add(name, values, [Tensor(tuple(shape), x.dtype)], attrs, loc=op.loc).result

    apart: list[int] = []
    kept: list[int] = []
    for size, n in zip(x.shape, window, strict=True):
        kept.append(len(apart))
        apart += [size, n] if n > 1 else [size]
    start = add("broadcast_in_dim", [init], x.shape, broadcast_dimensions=())
    found = add(kind, [start, x], x.shape)  # of a zero its sign
    found = add("broadcast_in_dim", [found], apart, broadcast_dimensions=tuple(kept))
    found = add("reshape", [found], whole)
    if min(*low, *high) < 0:
        shape = [end - begin for begin, end in zip(starts, limits, strict=True)]
        cut = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": (1,) * rank}
        found = add("slice", [found], shape, **cut)
    if max(*low, *high) > 0:
        edges = [tuple(max(0, n) for n in side) for side in (low, high)]
        wide = {"edge_padding_low": edges[0], "edge_padding_high": edges[1], "interior_padding": (0,) * rank}
        found = add("pad", [found, init], op.result.shape, **wide)
    return [found]


def _same_number(a: Value, b: Value) -> bool:
    x, y = splat(a), splat(b)
    return x is not None and y is not None and x.tobytes() == y.tobytes()


# ---- rows of few channels --------------------------------------------------------------------------------------------


def _narrow(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    """The last two dimensions as one, where there is no window along them, or where the last is shorter than a vector:
    a neighbour along the other is a row of it away, which is a dilation of the window."""
    shape = operands[0].shape if operands else ()
    if op.name != "reduce_window" or len(shape) < 2 or 0 in shape or direction(op) is not None:
        return None
    if any(region.free() for region in op.regions):
        return None
    rank, few = len(shape), shape[-1]
    window, padding = tuple(op.attrs["window_dimensions"]), per_axis(op, "padding", rank, (0, 0))
    strides, base = per_axis(op, "window_strides", rank, 1), per_axis(op, "base_dilations", rank, 1)
    dilation = per_axis(op, "window_dilations", rank, 1)
    if (window[-2] > 1 and few > NARROW) or (strides[-2], base[-2]) != (1, 1) or max(shape) >= 1 << 30:
        return None
    if (window[-1], strides[-1], base[-1], *padding[-1]) != (1, 1, 1, 0, 0):
        return None

    def joined(of: Value, shape: Sequence[int]) -> Value:
        whole = Tensor((*shape[:-2], shape[-2] * shape[-1]), of.dtype)
        return out.add("reshape", [of], [whole], loc=op.loc).result

    count = len(operands) // 2
    results = op.results[0].type.shape
    attrs = {
        "window_dimensions": window[:-1],
        "window_strides": strides[:-1],
        "base_dilations": base[:-1],
        "window_dilations": (*dilation[:-2], dilation[-2] * few),
        "padding": (*padding[:-2], tuple(p * few for p in padding[-2])),
    }
    kinds = [Tensor((*results[:-2], results[-2] * few), r.dtype) for r in op.results]
    regions = [rewrite(r, lambda *_: None, {}) for r in op.regions]
    xs = [*(joined(x, x.shape) for x in operands[:count]), *operands[count:]]
    found = out.add("reduce_window", xs, kinds, attrs, regions, op.loc).results
    return [out.add("reshape", [v], [r.type], loc=op.loc).result for v, r in zip(found, op.results, strict=True)]


# ---- selected elements -----------------------------------------------------------------------------------------------


def _selected(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    x, source = operands[0], operands[1]
    window, size = tuple(op.attrs["window_dimensions"]), tensor(x).size
    select = op.regions[0]
    if len(operands) != 3 or prod(window) * tensor(source).size < WORTH or size >= 1 << 31 or select.free():
        return None
    if x.dtype.is_complex or any(low < 0 for low, _ in per_axis(op, "padding", len(window), (0, 0))):
        return None
    scalar, number = Tensor((), x.dtype), Tensor((), t.i32)
    flat = out.add("iota", [], [Tensor((size,), t.i32)], {"iota_dimension": 0}, loc=op.loc).result
    positions = out.add("reshape", [flat], [Tensor(x.shape, t.i32)], loc=op.loc).result
    inits = [
        out.add("constant", [], [kind], {"value": np.asarray(value).astype(kind.dtype.numpy)}, loc=op.loc).result
        for kind, value in ((scalar, 0), (number, -1))
    ]
    body = Block([scalar, number, scalar, number])
    best, chosen, value, place = body.args
    truth = Tensor((), t.i1)
    zero = body.add("constant", [], [number], {"value": np.zeros((), np.int32)}, loc=op.loc).result

    def test(name: str, *values: Value, **attrs: object) -> Value:
        return body.add(name, values, [truth], attrs, loc=op.loc).result

    (keep,) = inline(body, select, [best, value], {})
    none = test("compare", chosen, zero, comparison_direction="LT")
    exists = test("compare", place, zero, comparison_direction="GE")  # padding is never selected
    take = test("and", exists, test("or", none, test("not", keep)))
    body.results = [
        body.add("select", [take, new, old], [new.type], loc=op.loc).result
        for new, old in ((value, best), (place, chosen))
    ]
    attrs = {
        "window_dimensions": window,
        "window_strides": per_axis(op, "window_strides", len(window), 1),
        "padding": per_axis(op, "padding", len(window), (0, 0)),
    }
    kinds = [Tensor(source.shape, x.dtype), Tensor(source.shape, t.i32)]
    found = out.add("reduce_window", [x, positions, *inits], kinds, attrs, [body], op.loc)
    regions = [rewrite(r, lambda *_: None, {}) for r in op.regions]
    return out.add(
        "select_and_scatter", [*operands, found.results[1]], op.result.type, op.attrs, regions, op.loc
    ).results
