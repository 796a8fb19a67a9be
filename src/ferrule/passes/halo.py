"""Halo: what was cut along a split dimension, as stencils cut it, and is put back where it came from.

`u[2:] - 2 * u[1:-1] + u[:-2]` has two rows less than `u`, which no number of devices divides. Such a value is kept as a
window of an array of the size from which it was cut, in that array's parts: what lies outside of the window is
anything. Slices move the window (neighbours exchange the rows that go over), elementwise ops keep it, and padding or
an update of a slice makes a whole array of it again. Whatever else is asked for is cut from the gathered array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, tensor
from ferrule.ir.types import i1, i32
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid, returned_argument, starts_with_identity, uniform
from ferrule.passes.division import Division
from ferrule.passes.shards import Held, Window, size_of
from ferrule.passes.slices import cut
from ferrule.stablehlo.tiling import Tiling, whole


class Halo(Division):
    """Division, and windows."""

    def in_window(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """Computes an op on windows, if it cuts a split dimension or reads a window and can do with it."""
        way = _WAYS.get(op.name)
        if way is None and op.name in OPS and OPS[op.name].elementwise and len(op.results) == 1 and not op.regions:
            way = Halo.on_windows
        return way is not None and way(self, op, out, classes)

    def keep_window(self, op: Op, window: Window, out: Block, classes: np.ndarray, weight: int) -> bool:
        self.held[op.result] = Held(out, classes, window=window, weight=weight, loc=op.loc)
        return True

    def keep_parts(self, op: Op, tiling: Tiling, part: Value, out: Block, classes: np.ndarray, weight: int) -> bool:
        held = self.held[op.result] = Held(out, classes, main=tiling, weight=weight, loc=op.loc)
        held.keep(tiling, part)
        return True

    # --- windows --------------------------------------------------------------------------------------------------
    def window_of(self, value: Value) -> Window | None:
        """A value in parts as a window that is all of it, or its window."""
        held = self.held[value]
        if held.window is not None:
            return held.window
        tiling = self.settled(value)
        if tiling is None:
            return None
        return Window(tiling, value.shape, (0,) * len(value.shape), self.part(value, tiling, "a value"))

    def moved_to(self, window: Window, starts: Sequence[int], op: Op, out: Block, classes: np.ndarray) -> Window:
        """The window at other places of the split dimensions."""
        part = window.part
        for d, (now, then) in enumerate(zip(window.starts, starts, strict=True)):
            by = (now - then) % window.shape[d] if window.tiling.counts[d] > 1 else 0
            part = self.rolled_by(out, part, window.tiling, d, by, op, classes)
        return replace(window, starts=tuple(starts), part=part)

    def inside(self, window: Window, sizes: Sequence[int], op: Op, out: Block) -> Value:
        """Where the window's elements lie in each device's part of the array."""
        kind = tensor(window.part)
        flags = Tensor(kind.shape, i1)
        found: Value | None = None
        for d, (start, size) in enumerate(zip(window.starts, sizes, strict=True)):
            if window.tiling.counts[d] == 1 or size == window.shape[d]:
                continue
            places = Tensor(kind.shape, i32)
            index = out.add("iota", [], places, {"iota_dimension": d}, loc=op.loc).result
            first = self.number(out, window.tiling.index[:, d] * kind.shape[d], op.loc)
            first = out.add("broadcast_in_dim", [first], places, {"broadcast_dimensions": ()}, loc=op.loc).result
            index = out.add("add", [index, first], places, loc=op.loc).result
            for limit, direction in ((start, "GE"), (start + size, "LT")):
                filled = {"value": np.broadcast_to(np.array(limit, np.int32), kind.shape)}
                bound = out.add("constant", [], places, filled, loc=op.loc).result
                about = {"comparison_direction": direction, "compare_type": "SIGNED"}
                flag = out.add("compare", [index, bound], flags, about, loc=op.loc).result
                found = flag if found is None else out.add("and", [found, flag], flags, loc=op.loc).result
        if found is None:
            found = out.add("constant", [], flags, {"value": np.broadcast_to(np.True_, kind.shape)}, loc=op.loc).result
        return found

    # --- ops ------------------------------------------------------------------------------------------------------
    def sliced(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        (source,) = op.operands
        if self.held[source].window is None and self.held[source].main is None:
            return False
        starts, limits = op.attrs["start_indices"], op.attrs["limit_indices"]
        steps = op.attrs.get("strides", (1,) * len(starts))
        window = self.window_of(source)
        if window is None:
            return False
        split = [d for d, n in enumerate(window.tiling.counts) if n > 1]
        size = op.result.shape
        if any(steps[d] != 1 or 2 * size[d] < window.shape[d] for d in split):
            return False
        if self.held[source].window is None and all(size[d] == window.shape[d] for d in split):
            return False
        # Where the slice begins in the array, and where it is to begin: in the middle, so that all cuts meet there.
        begins = tuple(window.starts[d] + starts[d] if d in split else 0 for d in range(len(size)))
        middle = tuple((window.shape[d] - size[d]) // 2 if d in split else 0 for d in range(len(size)))
        part = window.part
        low = [0 if d in split else n for d, n in enumerate(starts)]
        high = [part.shape[d] if d in split else n for d, n in enumerate(limits)]
        part = cut(out, part, low, high, steps, op)
        shape = tuple(window.shape[d] if d in split else size[d] for d in range(len(size)))
        window = self.moved_to(Window(window.tiling, shape, begins, part), middle, op, out, classes)
        return self.keep_window(op, window, out, classes, self.held[source].weight)

    def on_windows(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        held = [self.held[v] for v in op.operands]
        first = next((h.window for h in held if h.window is not None), None)
        if first is None:
            return False
        shape = op.result.shape
        kind = Tensor(first.part.shape, op.result.dtype)
        operands = []
        for value, one in zip(op.operands, held, strict=True):
            if value.shape != shape or not shape:
                operands.append(self.whole(value))
            elif one.window is not None and one.window.like(first):
                operands.append(self.moved_to(one.window, first.starts, op, out, classes).part)
            else:
                operands.append(self.around(value, first, op, out))
        part = out.add(op.name, operands, kind, op.attrs, (), op.loc).result
        weight = max(h.weight for h in held if h.window is not None)
        return self.keep_window(op, replace(first, part=part), out, classes, weight)

    def around(self, value: Value, window: Window, op: Op, out: Block) -> Value:
        """Each device's part of an array of a window's size that has a value in the window's place."""
        kind = Tensor(window.part.shape, value.dtype)
        if (element := uniform(value)) is not None:
            filled = {"value": np.broadcast_to(element, kind.shape)}
            return out.add("constant", [], kind, filled, loc=op.loc).result
        nothing = {"value": np.zeros((), value.dtype.numpy)}
        zero = out.add("constant", [], Tensor((), value.dtype), nothing, loc=op.loc).result
        edges = {
            "edge_padding_low": window.starts,
            "edge_padding_high": tuple(
                n - start - size for n, start, size in zip(window.shape, window.starts, value.shape, strict=True)
            ),
            "interior_padding": (0,) * len(window.shape),
        }
        padded = Tensor(window.shape, value.dtype)
        large = out.add("pad", [self.whole(value), zero], padded, edges, loc=op.loc).result
        return self.cut(out, large, window.tiling, "a value", op.loc)

    def padded(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        source, value = op.operands
        window = self.held[source].window
        if window is None:
            return False
        low, high = tuple(op.attrs["edge_padding_low"]), tuple(op.attrs["edge_padding_high"])
        inner = tuple(op.attrs.get("interior_padding", (0,) * len(low)))
        split = [d for d, n in enumerate(window.tiling.counts) if n > 1]
        if any(inner[d] or min(low[d], high[d]) < 0 or op.result.shape[d] != window.shape[d] for d in split):
            return False
        at = tuple(low[d] if d in split else 0 for d in range(len(low)))
        window = self.moved_to(window, at, op, out, classes)
        edge = self.whole(value)
        here = self.inside(window, source.shape, op, out)
        kind = tensor(window.part)
        filled = out.add("broadcast_in_dim", [edge], kind, {"broadcast_dimensions": ()}, loc=op.loc).result
        part = out.add("select", [here, window.part, filled], kind, loc=op.loc).result
        edges = {
            "edge_padding_low": tuple(0 if d in split else n for d, n in enumerate(low)),
            "edge_padding_high": tuple(0 if d in split else n for d, n in enumerate(high)),
            "interior_padding": inner,
        }
        made = Tensor(window.tiling.local(op.result.shape, "a value"), kind.dtype)
        if made != kind:
            part = out.add("pad", [part, edge], made, edges, loc=op.loc).result
        return self.keep_parts(op, window.tiling, part, out, classes, self.held[source].weight)

    def updated(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """`u.at[1:-1].set(w)` and `.add(w)`, as an update of a slice or as a scatter of one window."""
        scatter = op.name == "scatter"
        if len(op.results) != 1:
            return False
        base, update = op.operands[0], op.operands[2 if scatter else 1]
        window = self.held[update].window
        starts = _one_place(op) if scatter else _numbers(op.operands[2:])
        if window is None or starts is None or base.dtype != update.dtype:
            return False
        adds = scatter and monoid(op.regions[0]) == "add"
        if scatter and not adds and returned_argument(op.regions[0]) != 1:
            return False
        shape, size = base.shape, update.shape
        fits = all(0 <= a <= n - s for a, n, s in zip(starts, shape, size, strict=True))
        if not fits or any(n > 1 and window.shape[d] != shape[d] for d, n in enumerate(window.tiling.counts)):
            return False
        split = [d for d, n in enumerate(window.tiling.counts) if n > 1]
        window = self.moved_to(window, tuple(a if d in split else 0 for d, a in enumerate(starts)), op, out, classes)
        old = self.part(base, window.tiling, "a value")
        kind, new = tensor(old), window.part
        places = [0 if d in split else a for d, a in enumerate(starts)]
        ends = [a + n for a, n in zip(places, new.shape, strict=True)]
        here = cut(out, old, places, ends, [1] * len(places), op)
        if adds:
            new = out.add("add", [here, new], new.type, loc=op.loc).result
        new = out.add("select", [self.inside(window, size, op, out), new, here], new.type, loc=op.loc).result
        if new.type != kind:
            numbers = [
                out.add("constant", [], Tensor((), i32), {"value": np.array(a, np.int32)}, loc=op.loc).result
                for a in places
            ]
            new = out.add("dynamic_update_slice", [old, new, *numbers], kind, loc=op.loc).result
        weight = max(self.held[base].weight, self.held[update].weight)
        return self.keep_parts(op, window.tiling, new, out, classes, weight)

    def reduced(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """A reduction of all of a window's split dimensions: what lies outside of it is the operation's identity."""
        if len(op.operands) != 2:
            return False
        source, init = op.operands
        window = self.held[source].window
        gone = tuple(op.attrs["dimensions"])
        if window is None or not starts_with_identity(op.regions[0], init):
            return False
        if any(n > 1 and d not in gone for d, n in enumerate(window.tiling.counts)):
            return False
        kind = tensor(window.part)
        start = self.whole(init)
        filled = out.add("broadcast_in_dim", [start], kind, {"broadcast_dimensions": ()}, loc=op.loc).result
        here = self.inside(window, source.shape, op, out)
        part = out.add("select", [here, window.part, filled], kind, loc=op.loc).result
        regions = [self.region(r, classes) for r in op.regions]
        value = out.add("reduce", [part, start], op.result.type, op.attrs, regions, op.loc).result
        tiling = window.tiling
        terms = whole(len(op.result.shape), self.partitions).with_terms(tiling.tile, tiling.tiles)
        by = str(monoid(op.regions[0]))
        if by == "add":
            return self.keep_parts(op, terms, value, out, classes, size_of(op.result))
        self.finish(op, [self.combined(out, value, terms, by, classes, op.loc)], out, classes)
        return True


_WAYS = {
    "slice": Halo.sliced,
    "pad": Halo.padded,
    "dynamic_update_slice": Halo.updated,
    "scatter": Halo.updated,
    "reduce": Halo.reduced,
}


def _known(value: Value, depth: int = 6) -> np.ndarray | None:
    """The elements of a small array that the program says."""
    op = value.op
    if op is None or op.regions or tensor(value).size > 16 or depth == 0:
        return None
    if op.name not in ("constant", "broadcast_in_dim", "concatenate", "reshape", "convert"):
        return None
    found = [_known(v, depth - 1) for v in op.operands]
    operands = [x for x in found if x is not None]
    rule = OPS[op.name].evaluate
    if rule is None or len(operands) < len(found):
        return None
    return np.asarray(rule(op, operands, lambda *_: [])[0])


def _numbers(values: Sequence[Value]) -> tuple[int, ...] | None:
    found = [_known(v) for v in values]
    return None if any(x is None for x in found) else tuple(int(x) for x in found if x is not None)


def _one_place(op: Op) -> tuple[int, ...] | None:
    """Where a scatter of a single window of all dimensions puts it."""
    dims = op.attrs["scatter_dimension_numbers"]
    indices, rank = op.operands[1], len(op.operands[0].shape)
    if len(indices.shape) != 1 or dims.index_vector_dim != 0 or dims.inserted_window_dims or dims.input_batching_dims:
        return None
    found = _known(indices)
    if found is None or dims.update_window_dims != tuple(range(rank)):
        return None
    starts = [0] * rank
    for d, start in zip(dims.scatter_dims_to_operand_dims, found.tolist(), strict=True):
        starts[d] = int(start)
    return tuple(starts)
