"""Element expressions of windowed reductions: reduce_window and select_and_scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from ferrule.codegen.emitter import Emitter, Key, Lanes
from ferrule.codegen.index import Component, Cond, Index
from ferrule.codegen.llvm import V
from ferrule.codegen.reduce import combiner
from ferrule.ir import Op
from ferrule.ir.types import DType, f32, i1, i32, i64

# What `ops.reduction` reads from the attributes: window, strides, base and window dilations, padding.
Window = tuple[tuple, tuple, tuple, tuple, tuple]

# The windows around an element are gone through one by one, not in a loop, up to so many.
WRITTEN_OUT = 16


def over(
    em: Emitter,
    sizes: Sequence[int],
    init: Sequence[Lanes],
    dtypes: Sequence[DType],
    body: Callable[[list[Index], list[Lanes]], Sequence[Lanes]],
) -> list[Lanes]:
    """Nested loops over an index space, row-major, with values carried along."""

    def level(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
        if len(at) == len(sizes):
            return body(at, carried)
        if sizes[len(at)] == 1:
            return level([*at, Index(V("i64", "0"), 0, 0, 1, 0)], carried)
        return em.loop(sizes[len(at)], carried, lambda i, c: level([*at, i], c), dtypes)

    return list(level([], list(init)))


def _source(
    em: Emitter, index: Sequence[Component], at: Sequence[Component], shape: Sequence[int], attrs: Window
) -> tuple[Cond, list[Component]]:
    """Where position `at` of the window of output `index` lies in the operand, and whether it is an element of it."""
    _, strides, base, dilation, padding = attrs
    inside: Cond = 0 not in shape
    place: list[Component] = []
    for d, size in enumerate(shape):
        spot = em.ix.add(em.ix.mul(index[d], strides[d]), em.ix.mul(at[d], dilation[d]))
        spot = em.ix.sub(spot, padding[d][0])
        inside = em.ix.both(inside, em.ix.inside(spot, 0, (size - 1) * base[d] + 1))
        spot, rest = em.ix.divmod(spot, base[d])
        inside = em.ix.both(inside, em.ix.is_zero(rest))
        place.append(em.ix.within(spot, 0, size))
    return inside, place


def window_element(em: Emitter, op: Op, k: int, index: Key, attrs: Window) -> Lanes:
    """reduce_window: the elements of the window, in order; padding counts as the initial value."""
    count, dtypes = len(op.operands) // 2, [r.dtype for r in op.results]
    combine, unrounded = combiner(op.regions[0], dtypes)
    carried_types = [f32] if unrounded else dtypes
    shape = op.operands[0].shape

    def init(i: int) -> Lanes:
        value = op.operands[count + i]
        return em.s.convert(value.dtype, dtypes[i], em.value(value, ()))

    inits = [init(i) for i in range(count)]

    def step(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
        inside, place = _source(em, index, at, shape, attrs)

        def read(i: int) -> Lanes:
            value = op.operands[i]
            return em.s.convert(value.dtype, dtypes[i], em.value(value, place))

        found = [em.choose(inside, dtypes[i], lambda i=i: read(i), lambda i=i: inits[i]) for i in range(count)]  # type: ignore[misc]
        return combine(em, carried, found)

    results: Sequence[Lanes] = inits
    if prod(attrs[0]) > WRITTEN_OUT:
        results = over(em, attrs[0], inits, carried_types, step)
    else:
        for at in product(*map(range, attrs[0])):
            results = step([em.ix.number(a) for a in at], list(results))
    if unrounded:
        results = [em.s.round(dtypes[0], results[0])]
    for value, lanes in zip(op.results, results, strict=True):
        em.remember(value, index, lanes)
    return results[k]


def scattered_element(em: Emitter, op: Op, index: Key, attrs: Window) -> Lanes:
    """select_and_scatter, seen from an element of the operand: of every window that contains it, find which element
    the window selects; where it is this one, the window's source value is combined in."""
    window, strides, _, _, padding = attrs
    x, source, dtype = op.operands[0], op.operands[1], op.result.dtype
    ones = tuple(1 for _ in window)
    plain: Window = (window, strides, ones, ones, padding)
    start = em.s.convert(op.operands[2].dtype, dtype, em.operand(op, 2, ()))
    if len(op.operands) == 4:
        return _from_chosen(em, op, index, attrs, start)

    def from_window(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
        # windows in the order of the source: the last position in the window belongs to the first window
        at_window = [em.ix.sub(em.ix.mul(a, -1), 1 - w) for a, w in zip(at, window, strict=True)]
        exists: Cond = True
        place: list[Component] = []
        for d, size in enumerate(source.shape):
            spot = em.ix.sub(em.ix.add(index[d], padding[d][0]), at_window[d])
            exists = em.ix.both(exists, em.ix.inside(spot, 0, (size - 1) * strides[d] + 1))
            spot, rest = em.ix.divmod(spot, strides[d])
            exists = em.ix.both(exists, em.ix.is_zero(rest))
            place.append(em.ix.within(spot, 0, size))

        def combined() -> Lanes:
            mine = em.ix.flatten(at_window, window)
            chosen = selected(place)
            value = em.s.convert(source.dtype, dtype, em.value(source, place))
            here = em.s.compare("EQ", i64, chosen, em.ix.lanes(mine))
            (new,) = em.inline(op.regions[1], [carried[0], value])
            return em.s.select(here, new, carried[0])

        return [em.choose(exists, dtype, combined, lambda: carried[0])]

    def selected(place: Sequence[Component]) -> Lanes:
        """The position in its window, row-major, of the element that a window selects (-1: it has none)."""

        def step(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
            best, chosen = carried
            inside, spot = _source(em, place, at, x.shape, plain)

            def compare() -> Lanes:
                value = em.value(x, spot)
                (keep,) = em.inline(op.regions[0], [best, value])
                none = em.s.compare("LT", i64, chosen, em.s.const(i64, 0))
                take = em.s.or_(i1, none, em.s.not_(i1, keep))
                position = em.ix.lanes(em.ix.flatten(at, window))
                return (em.s.select(take, value, best), em.s.select(take, position, chosen))

            if inside is False:
                return carried
            if inside is True:
                return compare()
            if inside.type == "i1":
                flat = em.b.branch(inside, lambda: em.guarded(lambda: list(compare())), lambda: [best, chosen])
                return flat
            with em.masked(inside):
                news = compare()
            return [em.s.select(inside, new, old) for new, old in zip(news, carried, strict=True)]

        first = [em.s.const(x.dtype, 0), em.s.const(i64, -1)]
        return over(em, window, first, [x.dtype, i64], step)[1]

    return over(em, window, [start], [dtype], from_window)[0]


def _from_chosen(em: Emitter, op: Op, index: Key, attrs: Window, start: Lanes) -> Lanes:
    """As above, where operand 3 holds the number of the element that each window selects (passes/windows.py).

    Only windows near the element are looked at; one that does not contain it has selected another one.
    """
    window, strides, _, _, padding = attrs
    x, source, chosen, dtype = op.operands[0], op.operands[1], op.operands[3], op.result.dtype
    mine = em.ix.lanes(em.ix.flatten(index, x.shape))
    mine = em.b.cast("trunc", mine, em.s.type(i32))
    counts = [-(-w // s) for w, s in zip(window, strides, strict=True)]

    def from_window(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
        exists: Cond = True
        place: list[Component] = []
        for d, size in enumerate(source.shape):
            last, _ = em.ix.divmod(em.ix.add(index[d], padding[d][0]), strides[d])
            spot = em.ix.add(em.ix.sub(last, counts[d] - 1), at[d])
            exists = em.ix.both(exists, em.ix.inside(spot, 0, size))
            place.append(em.ix.within(spot, 0, size))

        def combined() -> Lanes:
            value = em.s.convert(source.dtype, dtype, em.value(source, place))
            here = em.s.compare("EQ", i32, em.value(chosen, place), mine)
            (new,) = em.inline(op.regions[1], [carried[0], value])
            return em.s.select(here, new, carried[0])

        return [em.choose(exists, dtype, combined, lambda: carried[0])]

    if prod(counts) > WRITTEN_OUT:
        return over(em, counts, [start], [dtype], from_window)[0]
    total: Lanes = start
    for at in product(*map(range, counts)):
        (total,) = from_window([em.ix.number(a) for a in at], [total])
    return total
