"""Makers of what models are made of: normalisations, softmax, products with an epilogue, shared expressions."""

from __future__ import annotations

from draw import Draw, maker
from draw_elementwise import second
from draw_math import dot_general
from draw_reduce import reduced

from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES


def _spread(g: Draw, x: Value, over: Value, dims: tuple[int, ...]) -> Value:
    """A reduction's result broadcast back over the reduced dimensions."""
    return g.broadcast(x, over.shape, [d for d in range(len(over.shape)) if d not in dims])


def _dims(g: Draw, x: Value) -> tuple[int, ...]:
    rank = len(x.shape)
    return (rank - 1,) if g.chance(0.7) else (g.int(0, rank - 1),)


@maker("softmax", group="pattern", weight=1.5)
def softmax(g: Draw) -> Value:
    """exp(x - max) over its sum."""
    x = g.operand("f", 1, 4, zero=0.0)
    dims = _dims(g, x)
    top = reduced(g, x, "maximum", dims, keep=False)
    moved = g.add("subtract", [x, _spread(g, top, x, dims)], x.type, keep=False)
    power = g.add("exponential", [moved], x.type, keep=g.chance(0.2))
    total = reduced(g, power, "add", dims, keep=g.chance(0.2))
    return g.add("divide", [power, _spread(g, total, x, dims)], x.type)


@maker("layer_norm", group="pattern", weight=1.5)
def layer_norm(g: Draw) -> Value:
    """Centred and scaled to unit variance, perhaps computed in f32."""
    x = g.operand("f", 1, 4, zero=0.0)
    source = x.dtype
    if source.bits < 32 and g.chance(0.6):
        x = g.convert(x, DTYPES["f32"])
    dims = _dims(g, x)
    count = 1
    for d in dims:
        count *= x.shape[d]
    scale = g.broadcast(g.scalar(x.dtype, 1.0 / count), tuple(s for d, s in enumerate(x.shape) if d not in dims), ())
    mean = g.add("multiply", [reduced(g, x, "add", dims, keep=False), scale], scale.type, keep=False)
    centred = g.add("subtract", [x, _spread(g, mean, x, dims)], x.type, keep=False)
    square = g.add("multiply", [centred, centred], x.type, keep=False)
    variance = g.add("multiply", [reduced(g, square, "add", dims, keep=False), scale], scale.type, keep=False)
    small = g.broadcast(g.scalar(x.dtype, 0.125), scale.shape, ())
    inverse = g.add("rsqrt", [g.add("add", [variance, small], scale.type, keep=False)], scale.type, keep=False)
    y = g.add("multiply", [centred, _spread(g, inverse, x, dims)], x.type, keep=False)
    y = g.add("add", [g.add("multiply", [y, second(g, y)], y.type, keep=False), second(g, y)], y.type, keep=False)
    return g.keep(g.convert(y, source))


@maker("dot_epilogue", group="pattern", weight=2.0)
def dot_epilogue(g: Draw) -> Value:
    """A product, a bias, an activation."""
    y = dot_general(g)
    if not isinstance(y, Value) or not y.dtype.is_float:
        return y
    y = g.add("add", [y, second(g, y)], y.type, keep=False)
    if g.chance(0.4):
        return g.add("maximum", [y, g.broadcast(g.scalar(y.dtype, 0.0), y.shape, ())], y.type)
    return g.add(g.pick(("tanh", "logistic", "exponential")), [y], y.type)


@maker("reduce_epilogue", group="pattern", weight=2.0)
def reduce_epilogue(g: Draw) -> Value:
    """A producer, a reduction of it, something elementwise of the result."""
    x = g.operand("f", 1, 4)
    x = g.add(g.pick(("multiply", "add", "subtract")), [x, second(g, x)], x.type, keep=g.chance(0.3))
    rank = len(x.shape)
    dims = tuple(sorted(g.sample(range(rank), g.int(1, rank))))
    y = reduced(g, x, g.pick(("add", "maximum", "add", "minimum")), dims, keep=g.chance(0.3))
    return g.add(g.pick(("multiply", "subtract", "maximum")), [y, second(g, y)], y.type)


@maker("twice", group="pattern", weight=1.0)
def twice(g: Draw) -> Value:
    """The same expression two times, used together."""
    x = g.operand("iuf")
    y = second(g, x)
    name = g.pick(("add", "subtract", "multiply"))
    a, b = (g.add(name, [x, y], x.type, keep=False) for _ in range(2))
    return g.add(g.pick(("add", "subtract", "maximum")), [a, b], x.type)


@maker("moved", group="pattern", weight=1.5)
def moved(g: Draw) -> Value:
    """A transpose between elementwise ops and reshapes."""
    x = g.operand("iuf", 2, 4)
    order = tuple(g.shuffled(range(len(x.shape))))
    x = g.add("negate", [x], x.type, keep=g.chance(0.3))
    y = g.add("transpose", [x], Tensor(tuple(x.shape[d] for d in order), x.dtype), {"permutation": order}, keep=False)
    y = g.add(g.pick(("add", "multiply", "maximum")), [y, second(g, y)], y.type, keep=g.chance(0.3))
    return g.add("reshape", [y], Tensor((y.type.size,), y.dtype))


@maker("rotary", group="pattern", weight=0.7)
def rotary(g: Draw) -> Value:
    """Halves of the last dimension, one of them negated, put together again the other way round."""
    x = g.operand("f", 1, 3, zero=0.0)
    size = x.shape[-1]
    if size < 2:
        return x
    half, rank = size // 2, len(x.shape)

    def part(start: int, stop: int) -> Value:
        first = (*[0] * (rank - 1), start)
        attrs = {"start_indices": first, "limit_indices": (*x.shape[:-1], stop), "strides": (1,) * rank}
        return g.add("slice", [x], Tensor((*x.shape[:-1], stop - start), x.dtype), attrs, keep=False)

    low, high = part(0, half), part(half, size)
    high = g.add("negate", [high], high.type, keep=False)
    y = g.add("concatenate", [high, low], x.type, {"dimension": rank - 1}, keep=False)
    return g.add("add", [x, g.add("multiply", [y, second(g, y)], y.type, keep=False)], x.type)
