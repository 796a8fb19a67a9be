"""Argmax: reductions of numbers together with what counts them.

* What is counted in 64 bits is counted in 32 where that is enough: vectors hold as many counters as values then.
* One over many elements that has few results is done in parts, which threads share. Each part counts from 0, so that
  its counters are an iota as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir.types import i32, i64
from ferrule.ops.starts import Start, counters, counts_in_parts, lane_starts


def argmax(out: Block, op: Op, operands: list[Value], few: int, least: int, parts: int) -> Sequence[Value] | None:
    """The same results, computed so; None for other reductions, and where nothing is to be gained.

    A reduction that has at most `few` results of at least `least` elements each is done in up to 2 · `parts` parts.
    """
    start, order = lane_starts(op), counters(op)
    if start is None or not start.is_init or len(order) != 1 or len(operands) != 4:
        return None
    (dim,) = op.attrs["dimensions"]
    shape = operands[0].shape
    size, results = shape[dim], prod(shape) // max(1, shape[dim])
    body = _in_32_bits(op, start, order[0], size)
    count = 0
    if results <= few and size >= least and counts_in_parts(op, order[0]):
        count = next((n for n in range(2 * parts, 3, -1) if size % n == 0), 0)
    if body is None and not count:
        return None
    return _Argmax(out, op, operands, start, order[0], body).results(dim, count)


def _in_32_bits(op: Op, start: Start, order: int, size: int) -> Block | None:
    """The body with counters of 32 bits, if they have 64 and it only compares and chooses them."""
    body, first = op.regions[0], int(start.values[order])
    if op.results[order].dtype != i64 or size >= 1 << 31 or not -(1 << 31) <= first < 1 << 31:
        return None
    numbers = {body.args[order], body.args[order + 2]}
    new = Block([Tensor((), i32) if arg in numbers else arg.type for arg in body.args])
    found = dict(zip(body.args, new.args, strict=True))
    for inner in body.ops:
        types = [r.type for r in inner.results]
        if numbers & set(inner.operands):
            if inner.name == "select" and set(inner.operands[1:]) <= numbers:
                numbers.update(inner.results)
                types = [Tensor((), i32)]
            elif inner.name != "compare" or not set(inner.operands) <= numbers:
                return None
        made = new.add(inner.name, [found[v] for v in inner.operands], types, inner.attrs, (), inner.loc)
        found.update(zip(inner.results, made.results, strict=True))
    if [v in numbers for v in body.results] != [i == order for i in range(2)]:
        return None
    new.results = [found[v] for v in body.results]
    return new


class _Argmax:
    """Writes the reductions that one becomes."""

    def __init__(
        self, out: Block, op: Op, operands: list[Value], start: Start, order: int, narrow: Block | None
    ) -> None:
        self.out, self.op, self.order, self.body = out, op, order, narrow or op.regions[0]
        self.types = [i32 if narrow and i == order else r.dtype for i, r in enumerate(op.results)]
        self.inputs, self.inits = operands[:2], operands[2:]
        if narrow:
            first = np.asarray(start.values[order], np.int32)
            self.inits[order] = self._add("constant", [], Tensor((), i32), value=first)

    def _add(self, name: str, operands: Sequence[Value], type: Tensor, **attrs: object) -> Value:
        return self.out.add(name, operands, [type], attrs, (), self.op.loc).result

    def _iota(self, shape: tuple[int, ...], dim: int) -> Value:
        return self._add("iota", [], Tensor(shape, self.types[self.order]), iota_dimension=dim)

    def _reduce(self, inputs: Sequence[Value], dim: int) -> list[Value]:
        shape = (*inputs[0].shape[:dim], *inputs[0].shape[dim + 1 :])
        empty: dict[Value, Value] = {}
        types = [Tensor(shape, d) for d in self.types]
        attrs = self.op.attrs | {"dimensions": (dim,)}
        body = rewrite(self.body, lambda *_: None, empty)
        return self.out.add("reduce", [*inputs, *self.inits], types, attrs, [body], self.op.loc).results

    def results(self, dim: int, parts: int) -> list[Value]:
        """Of a reduction along `dim`, in so many parts or, where there are none, in one."""
        values, shape = self.inputs[1 - self.order], self.inputs[0].shape
        if parts:
            length = shape[dim] // parts
            wide = (*shape[:dim], parts, length, *shape[dim + 1 :])
            view = self._add("reshape", [values], Tensor(wide, values.dtype))
            found = self._reduce(self._inputs(view, self._iota(wide, dim + 1)), dim + 1)
            counter = found[self.order]
            step = np.broadcast_to(np.asarray(length, counter.dtype.numpy), counter.shape)
            scale = self._add("constant", [], Tensor(counter.shape, counter.dtype), value=step)
            first = self._add("multiply", [self._iota(counter.shape, dim), scale], Tensor(counter.shape, counter.dtype))
            number = self._add("add", [counter, first], Tensor(counter.shape, counter.dtype))
            total = self._reduce(self._inputs(found[1 - self.order], number), dim)
        else:
            total = self._reduce(self._inputs(values, self._iota(shape, dim)), dim)
        ends = zip(total, self.op.results, strict=True)
        return [v if v.dtype == r.dtype else self._add("convert", [v], Tensor(v.shape, r.dtype)) for v, r in ends]

    def _inputs(self, values: Value, counters: Value) -> list[Value]:
        return [counters, values] if self.order == 0 else [values, counters]
