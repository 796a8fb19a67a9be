"""Makers of elementwise ops."""

from __future__ import annotations

from draw import I1, Draw, Maker, maker

from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES, DType

UNARY = {
    **{"abs": "ifc", "negate": "iufc", "sign": "ifc", "not": "biu", "popcnt": "iu", "count_leading_zeros": "iu"},
    **dict.fromkeys(("ceil", "floor", "round_nearest_even", "round_nearest_afz", "is_finite"), "f"),
    **dict.fromkeys(("sqrt", "rsqrt", "exponential", "exponential_minus_one", "log", "log_plus_one"), "fc"),
    **dict.fromkeys(("logistic", "sine", "cosine", "tan", "tanh"), "fc"),
    **{"cbrt": "f", "real": "fc", "imag": "fc"},
}
CHLO_UNARY = ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma")
CHLO_UNARY += ("digamma", "square")
BINARY = {
    **{"add": "biufc", "subtract": "iufc", "multiply": "biufc", "maximum": "biuf", "minimum": "biuf"},
    **{"divide": "fc", "remainder": "f", "power": "f", "atan2": "f", "and": "biu", "or": "biu", "xor": "biu"},
    **dict.fromkeys(("shift_left", "shift_right_logical", "shift_right_arithmetic"), "iu"),
}
# Where a function's arguments come from when it gets new ones: its domain, and a little beyond.
DOMAIN = {
    **{"sqrt": (0.0, 50.0), "rsqrt": (0.01, 50.0), "log": (0.0, 20.0), "log_plus_one": (-0.9, 9.0)},
    **{"asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "atanh": (-1.0, 1.0), "erf_inv": (-1.0, 1.0), "acosh": (1.0, 30.0)},
    **{"lgamma": (0.1, 9.0), "digamma": (0.1, 9.0), "exponential": (-20.0, 20.0)},
}
LIGHT = ("add", "subtract", "multiply", "maximum", "minimum", "divide", "negate", "abs", "tanh", "exponential")
CHAINED = (*LIGHT, "logistic", "sine", "floor", "select")


def _result(name: str, x: Value) -> Tensor:
    if name == "is_finite":
        return Tensor(x.shape, I1)
    if name in ("abs", "real", "imag"):
        return Tensor(x.shape, x.dtype.part)
    return x.type  # type: ignore[return-value]


def _one(name: str, letters: str, narrowest: int = 0) -> Maker:
    def make(g: Draw) -> Value:
        x = g.operand(letters)
        if name in DOMAIN and x.op is None and g.chance(0.8):
            low, high = DOMAIN[name]
            x = g.new(x.type, low=low, high=high)  # type: ignore[arg-type]
        if x.dtype.is_float and x.dtype.bits < narrowest:
            x = g.convert(x, g.pick([DTYPES["f32"], DTYPES["bf16"], DTYPES["f16"]]))
        return g.add(name, [x], _result(name, x))

    return make


for _name, _letters in UNARY.items():
    maker(_name, group="elementwise", weight=1.6 if _name in LIGHT else 0.7)(_one(_name, _letters))
for _name in CHLO_UNARY:
    maker(_name, group="elementwise", weight=0.35)(_one(_name, "f", 16))


def second(g: Draw, x: Value) -> Value:
    """A value of x's type, or a smaller one that is broadcast to it."""
    if len(x.shape) and g.chance(0.3):
        dims = sorted(g.sample(range(len(x.shape)), g.int(0, len(x.shape) - 1)))
        small = g.like(Tensor(tuple(x.shape[d] for d in dims), x.dtype))
        return g.broadcast(small, x.shape, dims)
    return g.like(x.type)  # type: ignore[arg-type]


def _two(name: str, letters: str) -> Maker:
    def make(g: Draw) -> Value:
        x = g.operand(letters)
        if name == "power" and g.chance(0.7):
            x = g.new(x.type, low=0.0, high=8.0)  # type: ignore[arg-type]
        y = second(g, x)
        if g.chance(0.3):
            x, y = y, x
        return g.add(name, [x, y], x.type)

    return make


for _name, _letters in BINARY.items():
    maker(_name, group="elementwise", weight=3.0 if _name in LIGHT else 0.8)(_two(_name, _letters))


@maker("divide", "remainder", group="elementwise", weight=0.8)
def integer_division(g: Draw, name: str) -> Value:
    """Of integers. Division by zero and of the lowest value by -1 are up to the implementation."""
    x = g.operand("iu")
    most = (1 << (x.dtype.bits - (x.dtype.kind == "int"))) - 1
    y = second(g, x)
    one, mask = g.scalar_like(y, 1), g.scalar_like(y, most)
    y = g.add("and", [y, mask], y.type, keep=False)
    return g.add(name, [x, g.add("or", [y, one], y.type, keep=False)], x.type)


@maker("power", group="elementwise", weight=0.4)
def integer_power(g: Draw) -> Value:
    """Negative exponents as well: only 1 and -1 have a power then."""
    x = g.operand("iu")
    return g.add("power", [x, g.new(x.type, low=-2, high=6, bounded=True)], x.type)  # type: ignore[arg-type]


@maker("next_after", group="elementwise", weight=0.3)
def next_after(g: Draw) -> Value:
    """To the neighbouring number."""
    x = g.convert(g.operand("f"), g.pick([DTYPES[n] for n in ("f16", "bf16", "f32", "f64")]))
    return g.add("next_after", [x, second(g, x)], x.type)


@maker("mulhi", group="elementwise", weight=0.3)
def mulhi(g: Draw) -> Value:
    """The high half of a product."""
    x = g.convert(g.operand("iu"), g.pick([DTYPES[n] for n in ("i32", "ui32", "i16", "ui8", "i64", "ui64")]))
    return g.add("mulhi", [x, second(g, x)], x.type)


@maker("compare", group="elementwise", weight=2.5)
def compare(g: Draw) -> Value:
    """Of any type, by any rule."""
    x = g.operand("biufc")
    direction = g.pick(("EQ", "NE") if x.dtype.is_complex else ("EQ", "NE", "LT", "LE", "GT", "GE"))
    kind = {"bool": "UNSIGNED", "int": "SIGNED", "uint": "UNSIGNED"}.get(x.dtype.kind, "FLOAT")
    if x.dtype.is_float and g.chance(0.2):
        kind = "TOTALORDER"
    attrs = {"comparison_direction": direction, "compare_type": kind}
    return g.add("compare", [x, second(g, x)], Tensor(x.shape, I1), attrs)


def predicate(g: Draw, shape: tuple[int, ...]) -> Value:
    """A bool of this shape, often a fresh comparison."""
    values = [v for v in g.pool if v.shape == shape and not v.dtype.is_complex and v.dtype != I1]
    if not values or g.chance(0.3):
        return g.like(Tensor(shape, I1))
    x = g.pick(values)
    attrs = {"comparison_direction": g.pick(("LT", "GE", "NE")), "compare_type": "NOTYPE"}
    return g.add("compare", [x, g.like(x.type)], Tensor(shape, I1), attrs, keep=False)


@maker("select", group="elementwise", weight=3.0)
def select(g: Draw) -> Value:
    """By a predicate of the same shape, or one for all."""
    x = g.operand()
    shape = () if g.chance(0.15) else x.shape
    return g.add("select", [predicate(g, shape), x, second(g, x)], x.type)


@maker("clamp", group="elementwise", weight=1.0)
def clamp(g: Draw) -> Value:
    """Between scalars or arrays."""
    x = g.operand("iuf")
    bounds = [g.like(Tensor(() if g.chance(0.6) else x.shape, x.dtype)) for _ in range(2)]
    return g.add("clamp", [bounds[0], x, bounds[1]], x.type)


@maker("reduce_precision", group="elementwise", weight=0.6)
def reduce_precision(g: Draw) -> Value:
    """To the bits of another format, or any."""
    x = g.operand("f")
    exponent, mantissa = g.pick(((8, 7), (5, 10), (4, 3), (5, 2), (8, 23), (11, 52), (g.int(2, 11), g.int(1, 52))))
    return g.add("reduce_precision", [x], x.type, {"exponent_bits": exponent, "mantissa_bits": mantissa})


@maker("complex", group="elementwise", weight=0.6)
def complex_number(g: Draw) -> Value:
    """From two parts."""
    x = g.convert(g.operand("f"), g.pick([DTYPES["f32"], DTYPES["f32"], DTYPES["f64"]]))
    return g.add(
        "complex", [x, second(g, x)], Tensor(x.shape, DTYPES["complex<f32>" if x.dtype.bits == 32 else "complex<f64>"])
    )


def convertible(value: Value, to: DType) -> bool:
    """Conversions whose result StableHLO leaves open are not drawn: of floats that do not fit an integer type."""
    return not (to.is_int and (value.dtype.is_float or value.dtype.is_complex))


@maker("convert", group="elementwise", weight=2.5)
def convert(g: Draw) -> Value:
    """Between any two types; floats are brought into range before they become integers."""
    x = g.operand()
    to = g.dtype()
    if x.dtype.is_complex and not to.is_complex:
        x = g.add("real", [x], Tensor(x.shape, x.dtype.part), keep=False)
    if not convertible(x, to):
        low = -1 if to.kind == "int" else 0
        high = min(100, (1 << (to.bits - 1)) - 1)
        zero = g.scalar(x.dtype, 0)
        is_number = {"comparison_direction": "EQ", "compare_type": "FLOAT"}
        real = g.add("compare", [x, x], Tensor(x.shape, I1), is_number, keep=False)
        zeros = g.broadcast(zero, x.shape, ())
        x = g.add("select", [real, x, zeros], x.type, keep=False)
        x = g.add("clamp", [g.scalar(x.dtype, low), x, g.scalar(x.dtype, high)], x.type, keep=False)
    return g.add("convert", [x], Tensor(x.shape, to))


@maker("bitcast_convert", group="elementwise", weight=0.8)
def bitcast(g: Draw) -> Value:
    """To a type of the same width, to pieces, or pieces to a whole. Not to types with unused bits."""
    x = g.operand("iuf")
    old = x.dtype.bits
    others = [d for d in DTYPES.values() if d.kind in ("int", "uint", "float") and d.name in _BITS]
    if x.dtype.name not in _BITS:
        x = g.convert(x, DTYPES["bf16"])
        old = 16
    wider = [d for d in others if d.bits > old and x.shape and x.shape[-1] == d.bits // old]
    to = g.pick(wider or [d for d in others if d.bits <= old])
    if to.bits == old:
        shape = x.shape
    elif to.bits < old:
        shape = (*x.shape, old // to.bits)
    else:
        shape = x.shape[:-1]
    return g.add("bitcast_convert", [x], Tensor(shape, to))


_BITS = {"i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "bf16", "f32", "f64", "i4", "ui4"}


@maker("chain", group="pattern", weight=4.0)
def chain(g: Draw) -> Value:
    """Several elementwise ops one after the other on one value."""
    x = g.operand("f", zero=0.0)
    for _ in range(g.int(2, 6)):
        name = g.pick(CHAINED)
        if name in UNARY:
            x = g.add(name, [x], x.type)
        elif name == "select":
            x = g.add(name, [predicate(g, x.shape), x, second(g, x)], x.type)
        else:
            x = g.add(name, [x, second(g, x)], x.type)
    return x
