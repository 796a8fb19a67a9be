"""Makers of control flow: loops whose trip counts come from data, branches, calls; their bodies are drawn too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draw import I1, Draw, maker

from ferrule.ir import Block, Tensor, Value
from ferrule.ir.types import DTYPES

I32 = DTYPES["i32"]
Steps = Callable[[Draw, int], None]
_steps: list[Steps] = []


def set_steps(steps: Steps) -> None:
    """The function that draws a number of random ops (in `generate`, which knows all makers)."""
    _steps[:] = [steps]


def _some_ops(g: Draw, most: int) -> None:
    _steps[0](g, g.int(0, most))


def coerced(g: Draw, kind: Tensor, candidates: Sequence[Value]) -> Value:
    """A value of this type out of those that were drawn, converted or cut to fit."""
    found = [v for v in candidates if v.type == kind]
    if found:
        return found[-1]
    same = [v for v in candidates if v.shape == kind.shape and _goes(v, kind)]
    if same:
        return g.convert(same[-1], kind.dtype)
    return g.like(kind)


def _goes(v: Value, kind: Tensor) -> bool:
    if v.dtype.is_complex and not kind.dtype.is_complex:
        return False
    return not (kind.dtype.is_int and v.dtype.is_float)


def _types(g: Draw, count: int) -> list[Tensor]:
    values = [g.operand(high=3) for _ in range(count)]
    return [v.type for v in values]  # type: ignore[misc]


@maker("while", group="control", weight=2.0)
def while_(g: Draw) -> list[Value]:
    """A counted loop; where it starts, and often where it ends, comes from data."""
    carried = [g.operand(high=3) for _ in range(g.int(1, 3))]
    kinds = [v.type for v in carried]
    start = g.like(Tensor((), I32), old=0, low=-2, high=3, bounded=True)
    from_data = g.chance(0.5)
    values, types = [start, *carried], [Tensor((), I32), *kinds]
    if from_data:
        values.append(g.like(Tensor((), I32), old=0, low=0, high=6, bounded=True))
        types.append(Tensor((), I32))
    captures = g.chance(0.4)
    with g.region(types, captures=False) as condition:
        i = condition.args[0]
        last = condition.args[-1] if from_data else g.scalar(I32, g.int(0, 6))
        attrs = {"comparison_direction": "LT", "compare_type": "SIGNED"}
        condition.results = [g.add("compare", [i, last], Tensor((), I1), attrs)]
    with g.region(types, captures=captures) as body:
        i, state = body.args[0], body.args[1 : 1 + len(carried)]
        before = len(g.pool)
        _some_ops(g, 4)
        drawn = g.pool[before:]
        after = [coerced(g, v.type, [*state, *drawn]) for v in state]  # type: ignore[arg-type]
        if len(after) > 1 and g.chance(0.2):
            after = _rotated(after)
        body.results = [g.add("add", [i, g.scalar(I32, 1)], i.type), *after, *body.args[1 + len(carried) :]]
    return g.add("while", values, types, {}, [condition, body])


def _rotated(values: list[Value]) -> list[Value]:
    """Carries that change places, where the types allow it."""
    if values[0].type == values[1].type:
        return [values[1], values[0], *values[2:]]
    return values


@maker("scan", group="control", weight=1.5)
def scan(g: Draw) -> list[Value]:
    """A loop over the rows of an array that writes a row of the result in each turn."""
    x = g.operand("biuf", 1, 3, zero=0)
    rows, row = min(x.shape[0], 6), Tensor(x.shape[1:], x.dtype)
    out_type = Tensor((rows, *x.shape[1:]), x.dtype)
    state, out = g.like(row), g.broadcast(g.scalar(x.dtype, 0), out_type.shape, ())
    types = [Tensor((), I32), row, out_type]
    inside = g.chance(0.5)
    if not inside:
        types.append(x.type)  # type: ignore[arg-type]
    with g.region(types, captures=False) as condition:
        attrs = {"comparison_direction": "LT", "compare_type": "SIGNED"}
        last = g.scalar(I32, rows)
        condition.results = [g.add("compare", [condition.args[0], last], Tensor((), I1), attrs)]
    with g.region(types, captures=inside) as body:
        i, carry, filled = body.args[:3]
        source = x if inside else body.args[3]
        zero = g.scalar(I32, 0)
        at = [i, *[zero] * (len(x.shape) - 1)]
        one = Tensor((1, *row.shape), x.dtype)
        piece = g.add("dynamic_slice", [source, *at], one, {"slice_sizes": one.shape}, keep=False)
        piece = g.add("reshape", [piece], row)
        before = len(g.pool)
        op = "xor" if x.dtype == I1 else g.pick(("add", "maximum", "minimum"))
        new = g.add(op, [carry, piece], row)
        _some_ops(g, 2)
        new = coerced(g, row, [new, *(v for v in g.pool[before:] if v.type == row)])
        written = g.add("reshape", [new if g.chance(0.7) else carry], one, keep=False)
        place = at
        if g.chance(0.3):  # from the end
            place = [g.add("subtract", [g.scalar(I32, rows - 1), i], i.type, keep=False), *at[1:]]
        filled = g.add("dynamic_update_slice", [filled, written, *place], out_type, keep=False)
        body.results = [g.add("add", [i, g.scalar(I32, 1)], i.type), new, filled, *body.args[3:]]
    values = [g.scalar(I32, 0), state, out, *([] if inside else [x])]
    return g.add("while", values, types, {}, [condition, body])


def _branch(g: Draw, kinds: Sequence[Tensor]) -> Block:
    with g.region([]) as block:
        before = len(g.pool)
        _some_ops(g, 3)
        drawn = g.pool[before:]
        block.results = [coerced(g, k, drawn) for k in kinds]
    return block


@maker("if", group="control", weight=1.5)
def if_(g: Draw) -> list[Value]:
    """By a bool from data."""
    kinds = _types(g, g.int(1, 2))
    return g.add("if", [g.like(Tensor((), I1))], kinds, {}, [_branch(g, kinds) for _ in range(2)])


@maker("case", group="control", weight=1.2)
def case(g: Draw) -> list[Value]:
    """One to four branches; an index out of range takes the last."""
    kinds = _types(g, g.int(1, 2))
    count = g.int(1, 4)
    index = g.like(Tensor((), I32), old=0, low=-1, high=count, bounded=True)
    return g.add("case", [index], kinds, {}, [_branch(g, kinds) for _ in range(count)])


@maker("call", group="control", weight=1.0)
def call(g: Draw) -> list[Value]:
    """Of a new function, or once more of one that is there."""
    if g.functions and g.chance(0.4):
        name = g.pick(sorted(g.functions))
        body = g.functions[name]
    else:
        name = f"f{len(g.functions)}"
        kinds = _types(g, g.int(1, 3))
        g.functions[name] = Block()  # holds the name while the body is drawn
        with g.region(kinds, captures=False) as body:
            before = len(g.pool)
            _some_ops(g, 4)
            drawn = g.pool[before:] or g.pool
            body.results = [g.pick(drawn) for _ in range(g.int(1, 2))]
        g.functions[name] = body
    if not body.results:
        return []
    operands = [g.like(a.type) for a in body.args]  # type: ignore[arg-type]
    return g.add("func.call", operands, [r.type for r in body.results], {"callee": name})  # type: ignore[misc]
