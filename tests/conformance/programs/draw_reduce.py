"""Makers of reductions, windows, sorts and maps: ops with a body."""

from __future__ import annotations

from math import prod

import numpy as np
from draw import I1, Draw, maker

from ferrule.ir import Block, Tensor, Value
from ferrule.ir.types import DTYPES, DType

_KINDS = {
    "bool": ("and", "or", "xor"),
    "int": ("add", "multiply", "maximum", "minimum", "and", "or", "xor"),
    "uint": ("add", "multiply", "maximum", "minimum", "and", "or", "xor"),
    "float": ("add", "add", "multiply", "maximum", "minimum"),
    "complex": ("add", "multiply"),
}


def neutral(kind: str, dtype: DType) -> np.ndarray:
    """What changes nothing; bodies with another initial value depend on how often it is applied."""
    if dtype.kind == "bool":
        return np.array(kind == "and")
    if dtype.is_int:
        bits = dtype.bits - (dtype.kind == "int")
        least, most = (-(1 << bits) if dtype.kind == "int" else 0), (1 << bits) - 1
        every = -1 if dtype.kind == "int" else most
        number = {"add": 0, "multiply": 1, "maximum": least, "minimum": most, "and": every, "or": 0, "xor": 0}[kind]
        return np.array(number, np.int64 if dtype.kind == "int" else np.uint64).astype(dtype.numpy)
    number = {"add": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}[kind]
    return np.array(number, np.complex128 if dtype.is_complex else np.float64).astype(dtype.numpy)


def reduced(g: Draw, x: Value, kind: str, dims: tuple[int, ...], keep: bool = True) -> Value:
    """A reduction by one op."""
    shape = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    init = g.constant(neutral(kind, x.dtype))
    out = Tensor(shape, x.dtype)
    return g.add("reduce", [x, init], [out], {"dimensions": dims}, [g.body_of(kind, x.dtype)], keep=keep)[0]


def some_dims(g: Draw, x: Value) -> tuple[int, ...]:
    rank = len(x.shape)
    return tuple(sorted(g.sample(range(rank), g.int(0 if g.chance(0.05) else min(1, rank), rank))))


@maker("reduce", group="reduction", weight=4.0)
def reduce(g: Draw) -> Value:
    """By one op; the initial value is the neutral one, or any where that makes no difference in order."""
    x = g.operand(low=0 if g.chance(0.03) else 1)
    kind = g.pick(_KINDS[x.dtype.kind])
    if kind == "multiply" and (x.dtype.is_float or x.dtype.is_complex):
        x = g.like(x.type, old=0.2, low=0.5, high=1.5)  # type: ignore[arg-type]
    dims = some_dims(g, x)
    if g.chance(0.15):
        shape = tuple(s for d, s in enumerate(x.shape) if d not in dims)
        init = g.like(Tensor((), x.dtype), special=False)
        body = g.body_of(kind, x.dtype)
        return g.add("reduce", [x, init], [Tensor(shape, x.dtype)], {"dimensions": dims}, [body])[0]
    return reduced(g, x, kind, dims)


@maker("reduce_several", group="reduction", weight=1.5)
def reduce_several(g: Draw) -> list[Value]:
    """Two or three operands at once, each by an op of its own."""
    x = g.operand(low=1)
    values = [x, *(g.like(Tensor(x.shape, g.dtype())) for _ in range(g.int(1, 2)))]
    kinds = [g.pick(_KINDS[v.dtype.kind]) for v in values]
    body = Block([Tensor((), v.dtype) for v in values] * 2)
    half = len(values)
    body.results = [
        body.add(k, [body.args[i], body.args[half + i]], Tensor((), values[i].dtype)).result
        for i, k in enumerate(kinds)
    ]
    inits = [g.constant(neutral(k, v.dtype)) for k, v in zip(kinds, values, strict=True)]
    dims = some_dims(g, x)
    shape = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    return g.add("reduce", [*values, *inits], [Tensor(shape, v.dtype) for v in values], {"dimensions": dims}, [body])


@maker("argmax", group="reduction", weight=1.5)
def argmax(g: Draw) -> list[Value]:
    """The largest (or smallest) value and where it stands, as JAX writes it."""
    x = g.operand("iuf", 1, 4, zero=0.0)
    d = g.int(0, len(x.shape) - 1)
    number = DTYPES[g.pick(("i32", "i64", "ui32"))]
    places = g.add("iota", [], Tensor(x.shape, number), {"iota_dimension": d}, keep=False)
    larger = g.chance(0.6)
    v, n = Tensor((), x.dtype), Tensor((), number)
    body = Block([v, n, v, n])
    a, i, b, j = body.args
    bit = Tensor((), I1)

    def compare(left: Value, right: Value, direction: str) -> Value:
        attrs = {"comparison_direction": direction, "compare_type": "NOTYPE"}
        return body.add("compare", [left, right], bit, attrs).result

    wins = compare(a, b, "GT" if larger else "LT")
    if x.dtype.is_float:
        wins = body.add("or", [wins, compare(a, a, "NE")], bit).result
    ties = body.add("and", [compare(a, b, "EQ"), compare(i, j, "LT")], bit).result
    first = body.add("or", [wins, ties], bit).result
    body.results = [body.add("select", [wins, a, b], v).result, body.add("select", [first, i, j], n).result]
    inits = [g.constant(neutral("maximum" if larger else "minimum", x.dtype)), g.scalar(number, 0)]
    shape = tuple(s for k, s in enumerate(x.shape) if k != d)
    out = [Tensor(shape, x.dtype), Tensor(shape, number)]
    return g.add("reduce", [x, places, *inits], out, {"dimensions": (d,)}, [body])


@maker("reduce_body", group="reduction", weight=0.8)
def reduce_body(g: Draw) -> Value:
    """A body of several ops that is associative, so exact in any order."""
    x = g.operand("u", 1, 4)
    kind = Tensor((), x.dtype)
    body = Block([kind, kind])
    a, b = body.args
    most = (1 << x.dtype.bits) - 1
    if g.chance(0.5):  # saturating addition is associative
        total = body.add("add", [a, b], kind).result
        attrs = {"comparison_direction": "LT", "compare_type": "UNSIGNED"}
        over = body.add("compare", [total, a], Tensor((), I1), attrs).result
        top = body.add("constant", [], kind, {"value": np.array(most, np.uint64).astype(x.dtype.numpy)}).result
        body.results = [body.add("select", [over, top, total], kind).result]
    else:  # x + y + x·y is associative in modular arithmetic
        product = body.add("multiply", [a, b], kind).result
        total = body.add("add", [a, b], kind).result
        body.results = [body.add("add", [total, product], kind).result]
    dims = some_dims(g, x)
    shape = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    init = g.constant(np.zeros((), x.dtype.numpy))
    return g.add("reduce", [x, init], [Tensor(shape, x.dtype)], {"dimensions": dims}, [body])[0]


def window_size(size: int, window: int, step: int, base: int, spread: int, low: int, high: int) -> int:
    """How many windows fit in a dimension."""
    full = low + (0 if size == 0 else (size - 1) * base + 1) + high
    reach = (window - 1) * spread + 1
    return 0 if full <= 0 or reach > full else (full - reach) // step + 1


@maker("reduce_window", group="reduction", weight=2.5)
def reduce_window(g: Draw) -> Value | list[Value]:
    """Pooling of every kind, cumulative sums among it."""
    x = g.operand("iufc", 1, 4)
    kind = g.pick(_KINDS[x.dtype.kind])
    if kind == "multiply" and (x.dtype.is_float or x.dtype.is_complex):
        x = g.like(x.type, old=0.2, low=0.5, high=1.5)  # type: ignore[arg-type]
    rank = len(x.shape)
    window, strides, base, spread = [1] * rank, [1] * rank, [1] * rank, [1] * rank
    padding = [(0, 0)] * rank
    if g.chance(0.3):
        d = g.int(0, rank - 1)
        size = max(1, x.shape[d])
        window[d], padding[d] = size, g.pick(((size - 1, 0), (0, size - 1)))
    else:
        for d in g.sample(range(rank), g.int(1, min(2, rank))):
            window[d] = g.int(1, 4)
            strides[d] = g.int(1, 3) if g.chance(0.5) else 1
            base[d], spread[d] = (g.int(2, 3) if g.chance(0.15) else 1 for _ in range(2))
            low, high = (g.int(0, 3) if g.chance(0.5) else 0 for _ in range(2))
            if g.chance(0.1):
                low = -min(1, x.shape[d])
            padding[d] = (low, high)
    shape = tuple(window_size(s, window[d], strides[d], base[d], spread[d], *padding[d]) for d, s in enumerate(x.shape))
    if prod(shape) * prod(window) > 2 * g.work:
        return reduce(g)
    attrs = {"window_dimensions": tuple(window), "window_strides": tuple(strides), "base_dilations": tuple(base)}
    attrs |= {"window_dilations": tuple(spread), "padding": tuple(padding)}
    init = g.constant(neutral(kind, x.dtype))
    if g.chance(0.15):
        y = g.like(Tensor(x.shape, g.dtype("iu")))
        other = g.pick(_KINDS[y.dtype.kind])
        body = Block([Tensor((), v.dtype) for v in (x, y)] * 2)
        body.results = [
            body.add(k, [body.args[i], body.args[i + 2]], Tensor((), v.dtype)).result
            for i, (k, v) in enumerate(((kind, x), (other, y)))
        ]
        inits = [init, g.constant(neutral(other, y.dtype))]
        out = [Tensor(shape, x.dtype), Tensor(shape, y.dtype)]
        return g.add("reduce_window", [x, y, *inits], out, attrs, [body])
    return g.add("reduce_window", [x, init], [Tensor(shape, x.dtype)], attrs, [g.body_of(kind, x.dtype)])[0]


@maker("select_and_scatter", group="reduction", weight=0.8)
def select_and_scatter(g: Draw) -> Value:
    """The gradient of pooling."""
    x = g.operand("if", 1, 4, zero=0.0)
    rank = len(x.shape)
    window, strides, padding = [1] * rank, [1] * rank, [(0, 0)] * rank
    for d in g.sample(range(rank), g.int(1, min(2, rank))):
        window[d] = g.int(1, max(1, min(3, x.shape[d])))
        strides[d] = g.int(1, 3)
        padding[d] = (g.int(0, window[d] - 1), g.int(0, window[d] - 1)) if g.chance(0.4) else (0, 0)
    shape = tuple(window_size(s, window[d], strides[d], 1, 1, *padding[d]) for d, s in enumerate(x.shape))
    source = g.like(Tensor(shape, x.dtype))
    select = g.comparator([x.dtype], 0, g.pick(("GE", "GE", "LE", "GT")))
    attrs = {"window_dimensions": tuple(window), "window_strides": tuple(strides), "padding": tuple(padding)}
    init = g.constant(neutral("add", x.dtype))
    regions = [select, g.body_of("add", x.dtype)]
    return g.add("select_and_scatter", [x, source, init], x.type, attrs, regions)


@maker("sort", group="sort", weight=2.0)
def sort(g: Draw) -> list[Value]:
    """By one key or two, rising or falling, of one to three operands; stable, so that there is one answer."""
    x = g.operand("iuf", 1, 4)
    d = g.int(0, len(x.shape) - 1)
    values = [x, *(g.like(Tensor(x.shape, g.dtype())) for _ in range(g.int(0, 2)))]
    kind = "TOTALORDER" if x.dtype.is_float else "NOTYPE"
    direction = g.pick(("LT", "GT"))
    dtypes = [v.dtype for v in values]
    if len(values) > 1 and not dtypes[1].is_complex and g.chance(0.4):
        body = _two_keys(g, dtypes, direction)
    else:
        body = g.comparator(dtypes, 0, direction, kind)
    attrs = {"dimension": d - (len(x.shape) if g.chance(0.2) else 0), "is_stable": True}
    return g.add("sort", values, [v.type for v in values], attrs, [body])


def _two_keys(g: Draw, dtypes: list[DType], direction: str) -> Block:
    """By the first key, and by the second where the first are equal."""
    body = Block([Tensor((), t) for t in dtypes for _ in range(2)])
    a0, b0, a1, b1 = body.args[:4]
    bit = Tensor((), I1)

    def compare(left: Value, right: Value, how: str) -> Value:
        total = left.dtype.is_float
        attrs = {"comparison_direction": how, "compare_type": "TOTALORDER" if total else "NOTYPE"}
        return body.add("compare", [left, right], bit, attrs).result

    first, same, then = compare(a0, b0, direction), compare(a0, b0, "EQ"), compare(a1, b1, g.pick(("LT", "GT")))
    body.results = [body.add("or", [first, body.add("and", [same, then], bit).result], bit).result]
    return body


@maker("top_k", group="sort", weight=0.8)
def top_k(g: Draw) -> list[Value]:
    """The largest values of the last dimension and where they stand."""
    x = g.operand("iuf", 1, 3, zero=0.0)
    if x.dtype.bits < 8 or x.dtype.is_float and x.dtype.bits < 16:
        x = g.convert(x, DTYPES["f32"])
    k = g.int(1, x.shape[-1])
    shape = (*x.shape[:-1], k)
    return g.add("top_k", [x], [Tensor(shape, x.dtype), Tensor(shape, DTYPES["i32"])], {"k": k})


@maker("map", group="reduction", weight=0.6)
def map_(g: Draw) -> Value:
    """A body of a few scalar ops over one to three operands."""
    x = g.operand("iuf")
    values = [x, *(g.like(x.type) for _ in range(g.int(0, 2)))]  # type: ignore[arg-type]
    kind = Tensor((), x.dtype)
    body = Block([kind] * len(values))
    pool = list(body.args)
    for _ in range(g.int(1, 3)):
        name = g.pick(("add", "multiply", "maximum", "subtract", "minimum"))
        pool.append(body.add(name, [g.pick(pool), g.pick(pool)], kind).result)
    body.results = [pool[-1]]
    return g.add("map", values, x.type, {"dimensions": tuple(range(len(x.shape)))}, [body])
