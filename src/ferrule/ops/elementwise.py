"""Elementwise ops: element i of the result is a scalar function of the operands' elements i.

`select` and `clamp` also take scalars (rank 0) where the result has a shape; such an operand stands for all elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ferrule.ir import Op, Tensor, Type
from ferrule.ir.types import i1
from ferrule.ops import numerics as n
from ferrule.ops.checks import attr, expect, kinds, operands, reject, same_type
from ferrule.ops.definition import Evaluate, define, element
from ferrule.ops.samples import FLOATS, SHAPES, Sample, corners, data, dtypes, pairs, samples

if TYPE_CHECKING:
    from ferrule.codegen.llvm import V
    from ferrule.codegen.scalar import Lane, Scalars

# ---- type rules --------------------------------------------------------------------------------------------------


def _same(letters: str, count: int) -> Callable[[Op], Sequence[Type]]:
    def infer(op: Op) -> Sequence[Type]:
        types = operands(op, count)
        kinds(op, letters, *types)
        return [same_type(op, *types)]

    return infer


def _infer_abs(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kinds(op, "iufc", t)
    return [Tensor(t.shape, t.dtype.part)]


def _infer_short_float(op: Op) -> Sequence[Type]:
    """What f64 lanes are wide enough for; the others' decomposition is as good."""
    (t,) = operands(op, 1)
    kinds(op, "f", t)
    expect(op, t.dtype.bits <= 32, f"{op.name} of {t.dtype}: only its decomposition is implemented")
    return [t]


def _infer_is_finite(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kinds(op, "f", t)
    return [Tensor(t.shape, i1)]


def _infer_compare(op: Op) -> Sequence[Type]:
    t = same_type(op, *operands(op, 2))
    direction, kind = attr(op, "comparison_direction"), attr(op, "compare_type", "NOTYPE")
    expect(op, direction in _COMPARE, f"comparison_direction {direction!r} is unknown")
    if kind == "TOTALORDER":
        kinds(op, "f", t)
    if t.dtype.is_complex and direction not in ("EQ", "NE"):
        reject(op, f"{direction} of {t.dtype}", "complex numbers have no order; only EQ and NE are defined")
    return [Tensor(t.shape, i1)]


def _infer_select(op: Op) -> Sequence[Type]:
    pred, yes, no = operands(op, 3)
    expect(op, yes == no, f"the two values differ: {yes} and {no}")
    expect(op, pred.dtype == i1, f"the predicate is {pred}, not i1")
    expect(op, pred.shape in ((), yes.shape), f"the predicate {pred} fits neither a scalar nor {yes}")
    return [yes]


def _infer_clamp(op: Op) -> Sequence[Type]:
    low, x, high = operands(op, 3)
    for bound in (low, high):
        expect(op, bound.dtype == x.dtype, f"a bound is {bound} and the operand {x}")
        expect(op, bound.shape in ((), x.shape), f"a bound {bound} fits neither a scalar nor {x}")
    return [x]


def _infer_reduce_precision(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kinds(op, "f", t)
    expect(op, attr(op, "exponent_bits") >= 1, "exponent_bits must be 1 or more")
    expect(op, attr(op, "mantissa_bits") >= 0, "mantissa_bits must be 0 or more")
    return [t]


# ---- meaning -----------------------------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    **{"EQ": np.equal, "NE": np.not_equal, "LT": np.less},
    **{"LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal},
}


def _map(formula: Callable[..., np.ndarray]) -> Evaluate:
    return lambda op, xs, run: [formula(*xs)]


def _by_kind(**formulas: Callable[..., np.ndarray]) -> Evaluate:
    """One formula per element kind; `number` serves the kinds that are not named."""

    def evaluate(op: Op, xs: Sequence[np.ndarray], run: object) -> Sequence[np.ndarray]:
        d = n.dtype_of(xs[0])
        kind = "integer" if d.is_int else d.kind
        return [formulas.get(kind, formulas.get("number", n.exact(np.positive)))(*xs)]

    return evaluate


def _abs(x: np.ndarray) -> np.ndarray:
    d = n.dtype_of(x)
    with n.silent():
        if d.is_complex:
            return n.narrow(np.abs(n.precise(x)), d.part)
        return n.narrow(np.abs(n.widen(x)), d)


def _bool(ufunc: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *xs: np.asarray(ufunc(*xs))


def _bitwise(ufunc: Callable[..., np.ndarray]) -> Evaluate:
    return _map(lambda *xs: n.narrow(ufunc(*map(n.widen, xs)), n.dtype_of(xs[0])))


def _compare(op: Op, xs: Sequence[np.ndarray], run: object) -> Sequence[np.ndarray]:
    x, y = xs
    if attr(op, "compare_type", "NOTYPE") == "TOTALORDER":
        x, y = n.total_order_key(x), n.total_order_key(y)
    else:
        x, y = n.widen(x), n.widen(y)
    with n.silent():
        return [np.asarray(_COMPARE[attr(op, "comparison_direction")](x, y))]


def _complex_atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)) if np.iscomplexobj(x) else np.arctan2(y, x)


def _complex_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x / y


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(x):
        return np.power(x, y)
    plain = np.exp(y * np.log(x))
    return np.where(y == 0, 1, np.where((x == 0) & (y.real > 0), 0, plain))


def _cbrt(x: np.ndarray) -> np.ndarray:
    return np.exp(np.log(x) / 3) if np.iscomplexobj(x) else np.cbrt(x)


def _next_after(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    d = n.dtype_of(x)
    if d.bits >= 32:
        with n.silent():
            return np.asarray(np.nextafter(x, y))
    bits, a, b = n.bits_of(x).astype(np.int64), n.widen(x), n.widen(y)
    sign_bit, one = 1 << (d.bits - 1), np.int64(1)
    grow = (b > a) == (a > 0)
    step = np.where(a == 0, one | np.where(b < 0, sign_bit, 0), np.where(grow, bits + 1, bits - 1))
    out = np.where(a == b, n.bits_of(y).astype(np.int64), step).astype(n.bits_of(x).dtype).view(d.numpy)
    return np.where(np.isnan(a) | np.isnan(b), np.array(np.nan, np.float32).astype(d.numpy), out)


def _special(name: str) -> Callable[..., np.ndarray]:
    """A SciPy special function on f64; SciPy is imported when the first one is folded."""

    def apply(x: np.ndarray) -> np.ndarray:
        from scipy import special

        return np.asarray(getattr(special, name)(np.asarray(x, np.float64)))

    return apply


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or too large
        return math.inf


def _libm(function: Callable[[float], float]) -> Callable[..., np.ndarray]:
    """A function of the C library on f64: where SciPy has one too, this is the more exact."""
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(np.asarray(x, np.float64)), np.float64)


# ---- one operand -------------------------------------------------------------------------------------------------

define("abs", infer=_infer_abs, evaluate=_map(_abs), elementwise=True)
define("negate", infer=_same("iufc", 1), evaluate=_map(n.exact(np.negative)), elementwise=True)
define("sign", infer=_same("ifc", 1), evaluate=_map(n.sign), elementwise=True)
define("ceil", infer=_same("f", 1), evaluate=_map(n.exact(np.ceil)), elementwise=True)
define("floor", infer=_same("f", 1), evaluate=_map(n.exact(np.floor)), elementwise=True)
define("round_nearest_even", infer=_same("f", 1), evaluate=_map(n.exact(np.rint)), elementwise=True)
define("round_nearest_afz", infer=_same("f", 1), evaluate=_map(n.exact(n.round_away)), elementwise=True)
define(
    "is_finite", infer=_infer_is_finite, evaluate=_map(lambda x: np.asarray(np.isfinite(n.widen(x)))), elementwise=True
)
define("popcnt", infer=_same("iu", 1), evaluate=_map(n.count_ones), elementwise=True)
define("count_leading_zeros", infer=_same("iu", 1), evaluate=_map(n.count_leading_zeros), elementwise=True)
define("not", infer=_same("biu", 1), evaluate=_bitwise(np.invert), elementwise=True)
define(
    "reduce_precision",
    infer=_infer_reduce_precision,
    evaluate=lambda op, xs, run: [n.reduce_precision(xs[0], op.attrs["exponent_bits"], op.attrs["mantissa_bits"])],
    elementwise=True,
)


def _math(
    name: str, formula: Callable[..., np.ndarray], letters: str = "fc", operands: int = 1, flops: float = 10
) -> None:
    define(name, infer=_same(letters, operands), evaluate=_map(n.rounded(formula)), elementwise=True, flops=flops)


_math("sqrt", np.sqrt, flops=4)
_math("rsqrt", lambda x: 1 / np.sqrt(x), flops=4)
_math("cbrt", _cbrt)
_math("exponential", np.exp)
_math("exponential_minus_one", np.expm1)
_math("log", np.log)
_math("log_plus_one", np.log1p)
_math("logistic", n.logistic)
_math("sine", np.sin)
_math("cosine", np.cos)
_math("tan", np.tan)
_math("tanh", np.tanh)
_math("sinh", np.sinh)
_math("cosh", np.cosh)
_math("asin", np.arcsin)
_math("acos", np.arccos)
_math("atan", np.arctan)
_math("asinh", np.arcsinh)
_math("acosh", np.arccosh)
_math("atanh", np.arctanh)
_math("erf", _libm(math.erf), "f")
_math("erfc", _libm(math.erfc), "f")
_math("erf_inv", _special("erfinv"), "f")
_math("lgamma", _libm(_lgamma), "f", flops=30)
_math("digamma", _special("digamma"), "f", flops=30)
_math("square", np.square, "fc", flops=1)

_math("exp2", np.exp2, "f")
define(
    "bessel_i1e",
    infer=_infer_short_float,
    evaluate=_map(n.rounded(_special("i1e"))),
    elementwise=True,
    flops=30,
)

# ---- two operands ------------------------------------------------------------------------------------------------

define(
    "add",
    infer=_same("biufc", 2),
    evaluate=_by_kind(bool=_bool(np.logical_or), number=n.exact(np.add)),
    elementwise=True,
)
define("subtract", infer=_same("iufc", 2), evaluate=_map(n.exact(np.subtract)), elementwise=True)
define(
    "multiply",
    infer=_same("biufc", 2),
    evaluate=_by_kind(bool=_bool(np.logical_and), complex=n.rounded(np.multiply), number=n.exact(np.multiply)),
    elementwise=True,
)
define(
    "divide",
    infer=_same("iufc", 2),
    evaluate=_by_kind(integer=n.exact(n.int_divide), complex=n.rounded(_complex_divide), number=n.exact(np.divide)),
    elementwise=True,
    flops=4,
)
define(
    "remainder",
    infer=_same("iuf", 2),
    evaluate=_by_kind(integer=n.exact(n.int_remainder), number=n.exact(np.fmod)),
    elementwise=True,
    flops=8,
)
define("maximum", infer=_same("biufc", 2), evaluate=_map(n.choose(larger=True)), elementwise=True)
define("minimum", infer=_same("biufc", 2), evaluate=_map(n.choose(larger=False)), elementwise=True)
define(
    "power",
    infer=_same("iufc", 2),
    evaluate=_by_kind(integer=n.exact(n.int_power), number=n.rounded(_power)),
    elementwise=True,
    flops=20,
)
_math("atan2", _complex_atan2, "fc", operands=2, flops=20)
define("and", infer=_same("biu", 2), evaluate=_bitwise(np.bitwise_and), elementwise=True)
define("or", infer=_same("biu", 2), evaluate=_bitwise(np.bitwise_or), elementwise=True)
define("xor", infer=_same("biu", 2), evaluate=_bitwise(np.bitwise_xor), elementwise=True)
define("shift_left", infer=_same("iu", 2), evaluate=_map(n.shift("left")), elementwise=True)
define("shift_right_logical", infer=_same("iu", 2), evaluate=_map(n.shift("logical")), elementwise=True)
define("shift_right_arithmetic", infer=_same("iu", 2), evaluate=_map(n.shift("arithmetic")), elementwise=True)
define("mulhi", infer=_same("iu", 2), evaluate=_map(n.multiply_high), elementwise=True)
define("next_after", infer=_same("f", 2), evaluate=_map(_next_after), elementwise=True)
define("compare", infer=_infer_compare, evaluate=_compare, elementwise=True)

# ---- three operands ----------------------------------------------------------------------------------------------

define(
    "select",
    infer=_infer_select,
    evaluate=_map(lambda pred, yes, no: np.asarray(np.where(pred, yes, no))),
    elementwise=True,
)
define(
    "clamp",
    infer=_infer_clamp,
    evaluate=_map(lambda low, x, high: n.choose(larger=False)(n.choose(larger=True)(low, x), high)),
    elementwise=True,
)
# A product and a sum, rounded once where the machine can; passes/contract.py makes it.
define(
    "multiply_add",
    infer=_same("f", 3),
    evaluate=_map(n.rounded(lambda a, b, c: a * b + c)),
    elementwise=True,
    flops=2,
    internal=True,
)
# x, a divisor, and one over it: passes/quotients.py.
define(
    "quotient",
    infer=_same("f", 3),
    evaluate=_map(n.exact(lambda x, by, inverse: np.divide(x, by))),
    elementwise=True,
    flops=4,
    internal=True,
)

# ---- code --------------------------------------------------------------------------------------------------------


@element("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor", "mulhi")
def _element_binary(s: Scalars, op: Op, a: Lane, b: Lane) -> Lane:
    method = {
        **{"add": s.add, "subtract": s.sub, "multiply": s.mul, "divide": s.div, "remainder": s.rem},
        **{"maximum": s.max, "minimum": s.min, "and": s.and_, "or": s.or_, "xor": s.xor, "mulhi": s.mulhi},
    }[op.name]
    return method(op.operands[0].dtype, a, b)  # type: ignore[arg-type]


@element("negate", "abs", "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "is_finite")
@element("popcnt", "count_leading_zeros", "not")
def _element_unary(s: Scalars, op: Op, a: Lane) -> Lane:
    method = {
        **{"negate": s.neg, "abs": s.abs, "sign": s.sign, "floor": s.floor, "ceil": s.ceil, "not": s.not_},
        **{"round_nearest_even": s.round_nearest_even, "round_nearest_afz": s.round_nearest_afz},
        **{"is_finite": s.is_finite, "popcnt": s.popcnt, "count_leading_zeros": s.clz},
    }[op.name]
    return method(op.operands[0].dtype, a)  # type: ignore[arg-type]


@element("sqrt", "rsqrt", "cbrt", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "sine")
@element("cosine", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc")
@element("erf_inv", "lgamma", "digamma", "square", "exp2", "bessel_i1e")
def _element_math(s: Scalars, op: Op, a: Lane) -> Lane:
    from ferrule.codegen import math

    return math.unary(op.name, s, op.operands[0].dtype, a)


@element("power", "atan2", "next_after")
def _element_math2(s: Scalars, op: Op, a: Lane, b: Lane) -> Lane:
    from ferrule.codegen import math

    return math.binary(op.name, s, op.operands[0].dtype, a, b)


@element("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _element_shift(s: Scalars, op: Op, a: V, b: V) -> V:
    return s.shift(op.name.rsplit("_", 1)[1], op.operands[0].dtype, a, b)


@element("compare")
def _element_compare(s: Scalars, op: Op, a: Lane, b: Lane) -> V:
    kind = op.attrs.get("compare_type", "NOTYPE")
    return s.compare(op.attrs["comparison_direction"], op.operands[0].dtype, a, b, kind)


@element("multiply_add")
def _element_multiply_add(s: Scalars, op: Op, a: V, b: V, c: V) -> Lane:
    return s.fma(op.result.dtype, a, b, c)


@element("quotient")
def _element_quotient(s: Scalars, op: Op, x: V, by: V, inverse: V) -> Lane:
    return s.quotient(x, by, inverse)


@element("select")
def _element_select(s: Scalars, op: Op, predicate: V, yes: Lane, no: Lane) -> Lane:
    return s.select(predicate, yes, no)


@element("clamp")
def _element_clamp(s: Scalars, op: Op, low: Lane, x: Lane, high: Lane) -> Lane:
    return s.clamp(op.operands[1].dtype, low, x, high)


@element("reduce_precision")
def _element_reduce_precision(s: Scalars, op: Op, a: V) -> V:
    return s.reduce_precision(op.operands[0].dtype, a, op.attrs["exponent_bits"], op.attrs["mantissa_bits"])


# ---- samples -----------------------------------------------------------------------------------------------------

# The interval from which a function's plain samples come; its corners are tested everywhere.
_DOMAIN = {
    **{"exponential": (-20, 20), "exponential_minus_one": (-9, 9), "log": (0, 50), "log_plus_one": (-0.9, 20)},
    **{"sine": (-100, 100), "cosine": (-100, 100), "tan": (-10, 10), "asin": (-1, 1), "acos": (-1, 1)},
    **{"acosh": (1, 40), "atanh": (-1, 1), "erf_inv": (-1, 1), "sqrt": (0, 90), "rsqrt": (0, 90), "power": (0, 8)},
    **{"lgamma": (0.1, 9), "digamma": (0.1, 9)},
}
_UNARY = {
    **{"negate": "iufc", "sign": "ifc"},
    **dict.fromkeys(("ceil", "floor", "round_nearest_even", "round_nearest_afz", "is_finite"), "f"),
    **dict.fromkeys(("popcnt", "count_leading_zeros"), "iu"),
    **{"abs": "ifc", "not": "biu"},
}
_MATH: tuple[str, ...] = (
    "sqrt",
    "rsqrt",
    "cbrt",
    "exponential",
    "exponential_minus_one",
    "log",
    "log_plus_one",
    "logistic",
    "sine",
)
_MATH += ("cosine", "tan", "tanh")
_CHLO = ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "square")
_SPECIAL = ("erf_inv", "lgamma", "digamma", "bessel_i1e")
_BINARY = {
    **{"add": "biufc", "subtract": "iufc", "multiply": "biufc", "divide": "iufc", "remainder": "iuf"},
    **{"maximum": "biuf", "minimum": "biuf", "power": "iufc", "atan2": "f", "and": "biu", "or": "biu", "xor": "biu"},
    **dict.fromkeys(("shift_left", "shift_right_logical", "shift_right_arithmetic", "mulhi"), "iu"),
    "next_after": "f",
}


def _cases(name: str, letters: str, count: int) -> Iterable[Sample]:
    low, high = _DOMAIN.get(name, (-4, 4))
    for d in dtypes(letters):
        if name in ("erf", "erfc", "next_after", *_SPECIAL) and d.bits < 16:
            continue  # CHLO's own decompositions have no f8, so no program brings it
        if name == "bessel_i1e" and d.bits > 32:
            continue
        loose = d.is_complex or (d.is_float and name in (*_MATH, *_CHLO, *_SPECIAL, "power", "atan2"))
        ulps, spread = (4.0 if loose else 0.0), (8.0 if d.is_complex or name in _SPECIAL else 0.0)
        if d.bits < 16 and d.is_float and loose:
            ulps = 1.0
        shapes = SHAPES if d.name in ("f32", "i32", "complex<f32>") else ((37,),)
        for shape in shapes:
            arrays = tuple(data(d, shape, name, i, low=low, high=high) for i in range(count))
            yield Sample(name, f"{d}{list(shape)}", arrays, ulps=ulps, spread=spread)
        if d.is_complex:
            continue  # what infinities do in complex functions is not agreed between implementations
        edge = (corners(d),) if count == 1 else pairs(d)
        yield Sample(name, f"{d}-corners", edge, ulps=ulps, spread=spread)


@samples(*_UNARY)
def _unary_samples(name: str) -> Iterable[Sample]:
    return _cases(name, _UNARY[name], 1)


@samples(*_MATH, *_CHLO, *_SPECIAL)
def _math_samples(name: str) -> Iterable[Sample]:
    return _cases(name, "f" if name in ("cbrt", *_CHLO, *_SPECIAL) else "fc", 1)


@samples(*_BINARY)
def _binary_samples(name: str) -> Iterable[Sample]:
    return _cases(name, _BINARY[name], 2)


@samples("compare")
def _compare_samples(name: str) -> Iterable[Sample]:
    for direction in _COMPARE:
        for d in dtypes("biufc"):
            if d.is_complex and direction not in ("EQ", "NE"):
                continue
            attrs = {"comparison_direction": direction, "compare_type": "NOTYPE"}
            yield Sample(name, f"{direction}-{d}", pairs(d), attrs)
            if d.is_float:
                yield Sample(name, f"{direction}-{d}-total", pairs(d), {**attrs, "compare_type": "TOTALORDER"})


@samples("select")
def _select_samples(name: str) -> Iterable[Sample]:
    for d in dtypes("biufc"):
        for shape in ((), (7,), (0, 3)):
            pred = data(i1, shape, "pred")
            yield Sample(name, f"{d}{list(shape)}", (pred, data(d, shape, 1), data(d, shape, 2)))
        yield Sample(name, f"{d}-scalar", (np.array(True), data(d, (5,), 1), data(d, (5,), 2)))


@samples("clamp")
def _clamp_samples(name: str) -> Iterable[Sample]:
    for d in dtypes("iuf"):
        low, high = (np.array(v).astype(d.numpy) for v in (1, 3))
        yield Sample(name, f"{d}-scalars", (low, data(d, (3, 7), name), high))
        yield Sample(
            name, f"{d}-corners", (np.full(corners(d).shape, low), corners(d), np.full(corners(d).shape, high))
        )


@samples("reduce_precision")
def _reduce_precision_samples(name: str) -> Iterable[Sample]:
    for d in FLOATS:
        for e, m in ((8, 7), (5, 10), (4, 3), (8, 23), (11, 52), (2, 0)):
            edge = np.concatenate([corners(d), data(d, (30,), name), data(d, (9,), 2, low=-1e-2, high=1e-2)])
            yield Sample(name, f"{d}-e{e}m{m}", (edge,), {"exponent_bits": e, "mantissa_bits": m})
