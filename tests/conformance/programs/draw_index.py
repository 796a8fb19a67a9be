"""Makers of gather and scatter, with any dimension numbers."""

from __future__ import annotations

from math import prod

from draw import Draw, Impossible, maker
from draw_shape import INDEX_TYPES

from ferrule.ir import Block, GatherDims, ScatterDims, Tensor, Value
from ferrule.ir.types import DTYPES


class _Plan:
    """Which dimensions of x are indexed, which are batches, and how the indices are laid out."""

    def __init__(self, g: Draw, x: Value, room: int) -> None:
        rank = len(x.shape)
        dims = g.shuffled(range(rank))
        self.shared = sorted(dims[: g.int(1, min(2, rank))]) if g.chance(0.2) and rank > 1 else []
        rest = [d for d in dims if d not in self.shared]
        self.mapped = rest[: g.int(0 if g.chance(0.05) else min(1, len(rest)), len(rest))]
        if g.chance(0.7):
            self.mapped.sort()
        # dimensions that vanish from the window have size 1 in it
        self.gone = sorted(
            d for d in range(rank) if d not in self.shared and g.chance(0.6 if d in self.mapped else 0.05)
        )
        self.sizes = []
        for d, size in enumerate(x.shape):
            if d in self.gone or d in self.shared:
                self.sizes.append(min(1, size) if size else 0)
            elif d in self.mapped:
                self.sizes.append(g.int(min(1, size), size) if g.chance(0.7) else size)
            else:
                self.sizes.append(size)
        if any(not x.shape[d] for d in self.gone):
            raise Impossible("a slice of size 1 of nothing")
        self.window = [self.sizes[d] for d in range(rank) if d not in self.gone and d not in self.shared]
        batch = [x.shape[d] for d in self.shared]
        room = max(1, room // max(1, prod(s for s in (*self.window, *batch) if s)))
        for _ in range(g.int(0 if self.shared else 0, 2)):
            batch.append(g.dim(max(1, min(room, 12)), zero=0.01))
            room = max(1, room // max(1, batch[-1]))
        order = g.shuffled(range(len(batch))) if g.chance(0.3) else list(range(len(batch)))
        self.batch = [batch[i] for i in order]
        places = [order.index(i) for i in range(len(self.shared))]
        if len(self.mapped) == 1 and g.chance(0.3):
            self.vector_dim, shape = len(self.batch), list(self.batch)
        else:
            self.vector_dim = len(self.batch) if g.chance(0.7) else g.int(0, len(self.batch))
            shape = [*self.batch[: self.vector_dim], len(self.mapped), *self.batch[self.vector_dim :]]
            places = [p + (p >= self.vector_dim) for p in places]
        self.shared_places = places
        most = max([x.shape[d] for d in self.mapped], default=1)
        dtype = DTYPES[g.pick(INDEX_TYPES)]
        out_of_range = g.chance(0.35)
        low, high = (
            (-2, most + 2)
            if out_of_range
            else (0, max(0, min([x.shape[d] - self.sizes[d] for d in self.mapped], default=0)))
        )
        self.indices = g.like(Tensor(tuple(shape), dtype), old=0.1, low=low, high=high, bounded=True)
        # where the window's dimensions stand among those of the result
        total = len(self.batch) + len(self.window)
        self.offsets = (
            sorted(g.sample(range(total), len(self.window))) if g.chance(0.5) else list(range(len(self.batch), total))
        )
        window, rows = list(self.window), list(self.batch)
        self.shape = tuple(window.pop(0) if i in self.offsets else rows.pop(0) for i in range(total))


@maker("gather", group="index", weight=3.0)
def gather(g: Draw) -> Value:
    """Windows at indices from data; out of range they are clamped."""
    x = g.operand(low=0 if g.chance(0.03) else 1, high=4)
    p = _Plan(g, x, 1000)
    numbers = GatherDims(
        tuple(p.offsets), tuple(p.gone), tuple(p.shared), tuple(p.shared_places), tuple(p.mapped), p.vector_dim
    )
    attrs = {"dimension_numbers": numbers, "slice_sizes": tuple(p.sizes), "indices_are_sorted": False}
    return g.add("gather", [x, p.indices], Tensor(p.shape, x.dtype), attrs)


@maker("scatter", group="index", weight=3.0)
def scatter(g: Draw) -> Value | list[Value]:
    """Windows combined into an array at indices from data; those that do not fit are left out."""
    x = g.operand(low=0 if g.chance(0.03) else 1, high=4)
    p = _Plan(g, x, 500)
    numbers = ScatterDims(
        tuple(p.offsets), tuple(p.gone), tuple(p.shared), tuple(p.shared_places), tuple(p.mapped), p.vector_dim
    )
    attrs = {"scatter_dimension_numbers": numbers, "indices_are_sorted": False, "unique_indices": False}
    kinds = {"bool": ("and", "or", "xor"), "float": ("add", "multiply", "maximum", "minimum")}
    names = kinds.get(
        x.dtype.kind, ("add", "multiply") if x.dtype.is_complex else ("add", "multiply", "maximum", "and")
    )
    updates = g.like(Tensor(p.shape, x.dtype))
    if g.chance(0.15):
        y = g.like(Tensor(x.shape, g.dtype("iuf")))
        more = g.like(Tensor(p.shape, y.dtype))
        body = Block([Tensor((), v.dtype) for v in (x, y)] * 2)
        body.results = [
            body.add(name, [body.args[i], body.args[i + 2]], Tensor((), v.dtype)).result
            for i, (name, v) in enumerate(((names[0], x), ("maximum", y)))
        ]
        return g.add("scatter", [x, y, p.indices, updates, more], [x.type, y.type], attrs, [body])
    if g.chance(0.35):
        body = Block([Tensor((), x.dtype)] * 2)
        # which of several updates of one place wins is up to the implementation
        x, updates = _same_update(g, x, updates)
        body.results = [body.args[1]]
    else:
        body = g.body_of(g.pick(names), x.dtype)
    return g.add("scatter", [x, p.indices, updates], [x.type], attrs, [body])[0]


def _same_update(g: Draw, x: Value, updates: Value) -> tuple[Value, Value]:
    """Updates that are all equal, so that their order does not show."""
    scalar = g.like(Tensor((), x.dtype))
    return x, g.broadcast(scalar, updates.shape, ())


@maker("embedding", group="index", weight=1.5)
def embedding(g: Draw) -> Value:
    """Rows of a table by token, as models do."""
    x = g.operand("f", 2, 2, zero=0)
    rows, width = x.shape
    count = g.int(1, 20)
    index = g.new(Tensor((count, 1), DTYPES["i32"]), low=0, high=rows - 1, bounded=True)
    numbers = GatherDims((1,), (0,), (), (), (0,), 1)
    attrs = {"dimension_numbers": numbers, "slice_sizes": (1, width), "indices_are_sorted": False}
    return g.add("gather", [x, index], Tensor((count, width), x.dtype), attrs)
