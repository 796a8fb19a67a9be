"""Argmax: reductions of numbers together with what counts them.

* What is counted in 64 bits is counted in 32 where that is enough: vectors hold as many counters as values then.
* One over many elements that has few results is done in parts, which threads share. Each part counts from 0, so that
  its counters are an iota as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite, tensor
from ferrule.ir.types import i32, i64
from ferrule.ops.starts import Start, counters, counts_in_parts, lane_starts
from ferrule.passes.reduce_parts import FEW, SPLIT_FROM, is_line, part_of, parts_of


def argmax(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    """The same results, computed so; None for other reductions, and where nothing is to be gained."""
    start, order = lane_starts(op), counters(op)
    if start is None or not start.is_init or len(order) != 1 or len(operands) != 4:
        return None
    (dim,) = op.attrs["dimensions"]
    shape = operands[0].shape
    size, results = shape[dim], prod(shape) // max(1, shape[dim])
    body = _in_32_bits(op, start, order[0], size)
    in_parts = results <= FEW and size >= SPLIT_FROM and counts_in_parts(op, order[0])
    if body is None and not in_parts and not is_line(shape, dim):
        return None
    return _Argmax(out, op, operands, start, order[0], body).results(dim, in_parts)


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
        return [*self.out.add("reduce", [*inputs, *self.inits], types, attrs, [body], self.op.loc).results]

    def results(self, dim: int, in_parts: bool) -> list[Value]:
        """Of a reduction along `dim`, in parts or in one."""
        values, size = self.inputs[1 - self.order], self.inputs[0].shape[dim]
        if is_line(values.shape, dim):
            values = self._add("reshape", [values], Tensor(values.shape[: dim + 1], values.dtype))
        count, part = parts_of(size) if in_parts else (0, 0)
        if not in_parts:
            total = self._along(values, dim)
        elif count * part == size:
            total = self._reduce(self._of_parts(values, dim, count), dim)
        else:
            found = self._of_parts(part_of(self.out, self.op, values, dim, 0, count * part), dim, count)
            last = self._along(part_of(self.out, self.op, values, dim, count * part, size), dim)
            last[self.order] = self._by("add", last[self.order], count * part)
            total = self._reduce([self._after(v, w, dim) for v, w in zip(found, last, strict=True)], dim)
        return [self._as(v, r) for v, r in zip(total, self.op.results, strict=True)]

    def _as(self, value: Value, result: Value) -> Value:
        if value.shape != result.shape:
            value = self._add("reshape", [value], Tensor(result.shape, value.dtype))
        return value if value.dtype == result.dtype else self._add("convert", [value], tensor(result))

    def _along(self, values: Value, dim: int) -> list[Value]:
        return self._reduce(self._inputs(values, self._iota(values.shape, dim)), dim)

    def _of_parts(self, values: Value, dim: int, count: int) -> list[Value]:
        """The results of that many parts, in place of `dim`, counted from the first one's first element."""
        shape, part = values.shape, values.shape[dim] // count
        wide = (*shape[:dim], count, part, *shape[dim + 1 :])
        view = self._add("reshape", [values], Tensor(wide, values.dtype))
        found = self._along(view, dim + 1)
        counter = found[self.order]
        first = self._by("multiply", self._iota(counter.shape, dim), part)
        found[self.order] = self._add("add", [counter, first], Tensor(counter.shape, counter.dtype))
        return found

    def _by(self, name: str, value: Value, number: int) -> Value:
        kind = Tensor(value.shape, value.dtype)
        other = self._add("constant", [], kind, value=np.broadcast_to(np.asarray(number, kind.dtype.numpy), kind.shape))
        return self._add(name, [value, other], kind)

    def _after(self, found: Value, last: Value, dim: int) -> Value:
        """The results of parts with those of the rest behind them."""
        shape = found.shape
        one = self._add("reshape", [last], Tensor((*shape[:dim], 1, *shape[dim + 1 :]), last.dtype))
        whole = Tensor((*shape[:dim], shape[dim] + 1, *shape[dim + 1 :]), found.dtype)
        return self._add("concatenate", [found, one], whole, dimension=dim)

    def _inputs(self, values: Value, counters: Value) -> list[Value]:
        return [counters, values] if self.order == 0 else [values, counters]
