"""Reductions: over dimensions, over windows, and select_and_scatter (the gradient of max pooling)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ferrule.ir import Block, Op, Tensor, Type
from ferrule.ir.types import DType, bf16, c64, f8E4M3FN, f16, f32, f64, i1, i4, i8, i32, ui8, ui64
from ferrule.ops import numerics as n
from ferrule.ops.bodies import check_body, fold, monoid, starts_with_identity, vectorized
from ferrule.ops.checks import attr, axes, expect, operands, per_axis, regions
from ferrule.ops.definition import Factors, Run, alike, define, element, factors
from ferrule.ops.samples import Region, Sample, compare_body, data, samples, scalar_body
from ferrule.ops.shape import pad

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes

Arrays = Sequence[np.ndarray]


def _inputs(op: Op) -> tuple[list[Tensor], list[Tensor], Block]:
    types = operands(op)
    expect(op, bool(types) and len(types) % 2 == 0, f"takes N inputs and N initial values, got {len(types)} operands")
    half = len(types) // 2
    inputs, inits = types[:half], types[half:]
    for i, (x, init) in enumerate(zip(inputs, inits, strict=True)):
        expect(op, x.shape == inputs[0].shape, f"input {i} is {x} and input 0 {inputs[0]}", "shapes must be equal")
        expect(op, init.rank == 0, f"initial value {i} is {init}, not a scalar")
    (body,) = regions(op, 1)
    results = [r.type for r in body.results]
    expect(op, len(results) == half, f"the body returns {len(results)} values for {half} inputs")
    check_body(op, body, [*results, *results], [], "reduction")
    return inputs, inits, body


def _element_types(body: Block) -> list[Tensor]:
    return [r.type for r in body.results]  # type: ignore[misc]


def _infer_reduce(op: Op) -> Sequence[Type]:
    inputs, _, body = _inputs(op)
    gone = axes(op, "dimensions", attr(op, "dimensions", ()), inputs[0].rank)
    shape = tuple(s for i, s in enumerate(inputs[0].shape) if i not in gone)
    return [Tensor(shape, t.dtype) for t in _element_types(body)]


def _reduce(op: Op, xs: Arrays, run: Run) -> Arrays:
    half = len(xs) // 2
    gone = tuple(attr(op, "dimensions", ()))
    kept = [i for i in range(xs[0].ndim) if i not in gone]
    shape = [xs[0].shape[i] for i in kept]
    lines = [x.transpose([*kept, *gone]).reshape(*shape, prod(x.shape[i] for i in gone)) for x in xs[:half]]
    return fold(op.regions[0], run, xs[half:], lines)


# ---- windows -----------------------------------------------------------------------------------------------------


def window_output(
    shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    base: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    """How many windows fit in each dimension."""
    out = []
    for s, w, step, b, d, (low, high) in zip(shape, window, strides, base, dilation, padding, strict=True):
        full = low + (0 if s == 0 else (s - 1) * b + 1) + high
        reach = 0 if w == 0 else (w - 1) * d + 1
        out.append(0 if full <= 0 or reach > full else (full - reach) // step + 1)
    return tuple(out)


def _window_attrs(op: Op, rank: int) -> tuple[tuple, tuple, tuple, tuple, tuple]:
    window = per_axis(op, "window_dimensions", rank)
    strides = per_axis(op, "window_strides", rank, 1)
    base, dilation = per_axis(op, "base_dilations", rank, 1), per_axis(op, "window_dilations", rank, 1)
    padding = per_axis(op, "padding", rank, (0, 0))
    for name, values in (("window_strides", strides), ("base_dilations", base), ("window_dilations", dilation)):
        expect(op, all(v >= 1 for v in values), f"{name} = {values} must be 1 or more")
    expect(op, all(w >= 1 for w in window), f"window_dimensions = {window} must be 1 or more")
    return window, strides, base, dilation, padding


def _infer_reduce_window(op: Op) -> Sequence[Type]:
    inputs, _, body = _inputs(op)
    window, strides, base, dilation, padding = _window_attrs(op, inputs[0].rank)
    shape = window_output(inputs[0].shape, window, strides, base, dilation, padding)
    return [Tensor(shape, t.dtype) for t in _element_types(body)]


_FIRST_FOREIGN_TYPE = 256  # NumPy's numbers of types that other packages register


def windows(
    x: np.ndarray, value: np.ndarray, window: tuple, strides: tuple, base: tuple, dilation: tuple, padding: tuple
) -> np.ndarray:
    """A view-like array (outputs…, window…) of the padded input."""
    low, high = [p[0] for p in padding], [p[1] for p in padding]
    full = pad(x, value, low, high, [b - 1 for b in base])
    shape = window_output(x.shape, window, strides, base, dilation, padding)
    steps = [s * t for s, t in zip(full.strides, strides, strict=True)]
    inner = [s * d for s, d in zip(full.strides, dilation, strict=True)]
    # NumPy would lose the types of small floats there, which are not its own
    raw = full if full.dtype.num < _FIRST_FOREIGN_TYPE else full.view(f"u{full.dtype.itemsize}")
    out = np.lib.stride_tricks.as_strided(raw, (*shape, *window), (*steps, *inner), writeable=False)
    return out.view(full.dtype)


def _reduce_window(op: Op, xs: Arrays, run: Run) -> Arrays:
    half, rank, body = len(xs) // 2, xs[0].ndim, op.regions[0]
    window, strides, base, dilation, padding = _window_attrs(op, rank)
    if half == 1 and monoid(body) and rank > 1 and sum(w > 1 for w in window) > 1 and not _starts_anew(op, xs[1]):
        return [_axis_by_axis(op, xs, run)]
    views = [windows(x, v, window, strides, base, dilation, padding) for x, v in zip(xs[:half], xs[half:], strict=True)]
    if half == 1:
        line = _cumulative(xs[0], xs[1], monoid(body), window, strides, base, dilation, padding)
        if line is not None:
            return [line]
    shape = views[0].shape[:rank]
    return fold(body, run, xs[half:], [v.reshape(*shape, prod(window)) for v in views])


def _starts_anew(op: Op, init: np.ndarray) -> bool:
    """True if the initial value is not neutral, so that applying it once per dimension would change the result."""
    kind, d = monoid(op.regions[0]), n.dtype_of(init)
    value = n.widen(init)
    if kind in ("maximum", "minimum", "and", "or"):
        return False
    return bool(value != (1 if kind == "multiply" else 0)) or d.kind == "bool"


def _axis_by_axis(op: Op, xs: Arrays, run: Run) -> np.ndarray:
    """A window of a commutative body is a product of one-dimensional windows."""
    d = n.dtype_of(xs[0])
    x, init, rank = xs[0], xs[1], xs[0].ndim
    window, strides, base, dilation, padding = _window_attrs(op, rank)
    for axis in range(rank):
        one = lambda values, rest, axis=axis: tuple(v if i == axis else rest for i, v in enumerate(values))  # noqa: E731
        args = (one(window, 1), one(strides, 1), one(base, 1), one(dilation, 1), one(padding, (0, 0)))
        line = _cumulative(x, init, monoid(op.regions[0]), *args)
        if line is None:
            view = windows(x, init, *args)
            line = fold(op.regions[0], run, [init], [view.reshape(*view.shape[:rank], prod(args[0]))])[0]
        x = line
    return n.narrow(x, d)


def _cumulative(
    x: np.ndarray,
    init: np.ndarray,
    kind: str | None,
    window: tuple,
    strides: tuple,
    base: tuple,
    dilation: tuple,
    padding: tuple,
) -> np.ndarray | None:
    """cumsum and its kind: one window as long as its dimension, padded on one side."""
    long = [i for i, w in enumerate(window) if w > 1]
    d = n.dtype_of(x)
    if len(long) != 1 or kind not in ("add", "multiply") or d.kind == "bool":
        return None
    (axis,) = long
    size, plain = x.shape[axis], {*strides, *base, *dilation} == {1}
    if not plain or window[axis] != size or any(p != (0, 0) for i, p in enumerate(map(tuple, padding)) if i != axis):
        return None
    forward = tuple(padding[axis]) == (size - 1, 0)
    if not forward and tuple(padding[axis]) != (0, size - 1):
        return None
    if bool(n.widen(init) != (0 if kind == "add" else 1)):
        return None
    work = n.precise(x) if d.is_float or d.is_complex else n.widen(x)
    work = work if forward else np.flip(work, axis)
    with n.silent():
        total = (np.add if kind == "add" else np.multiply).accumulate(work, axis=axis, dtype=work.dtype)
    return n.narrow(total if forward else np.flip(total, axis), d)


# ---- select_and_scatter ------------------------------------------------------------------------------------------


def _infer_select_and_scatter(op: Op) -> Sequence[Type]:
    x, source, init, *chosen = operands(op)
    expect(op, chosen in ([], [Tensor(source.shape, i32)]), f"its selected positions are {chosen}")
    select, scatter = regions(op, 2)
    scalar = Tensor((), x.dtype)
    expect(op, init == Tensor((), source.dtype), f"the initial value is {init}, not a scalar {source.dtype}")
    check_body(op, select, [scalar, scalar], [Tensor((), i1)], "select")
    expect(op, len(scatter.args) == 2 and len(scatter.results) == 1, "the scatter region takes 2 values, returns 1")
    window, strides, _, _, padding = _window_attrs(op, x.rank)
    ones = (1,) * x.rank
    shape = window_output(x.shape, window, strides, ones, ones, padding)
    expect(op, source.shape == shape, f"the source is {source}", f"the windows of {x} give the shape {shape}")
    return [Tensor(x.shape, scatter.results[0].type.dtype)]  # type: ignore[union-attr]


def _select_and_scatter(op: Op, xs: Arrays, run: Run) -> Arrays:
    x, source, init = xs[:3]  # what is selected is found again
    rank = x.ndim
    window, strides, _, _, padding = _window_attrs(op, rank)
    select, scatter = vectorized(op.regions[0], run), vectorized(op.regions[1], run)
    places = np.indices(source.shape)
    best = np.zeros(source.shape, x.dtype)
    chosen = np.full(source.shape, -1, np.int64)
    flat = x.reshape(-1)
    for offset in np.ndindex(*window):
        at = [places[i] * strides[i] + offset[i] - padding[i][0] for i in range(rank)]
        inside = np.ones(source.shape, bool)
        for i in range(rank):
            inside &= (at[i] >= 0) & (at[i] < x.shape[i])
        if not inside.any():
            continue
        index = np.where(inside, np.ravel_multi_index(at, x.shape, mode="clip"), 0)
        value = flat[index]
        (keep,) = select([best, value])
        take = inside & ((chosen < 0) | ~keep)
        best, chosen = np.where(take, value, best), np.where(take, index, chosen)
    out = np.full(x.size, init, n.dtype_of(init).numpy)
    target, values = chosen.reshape(-1), source.reshape(-1)
    values, target = values[target >= 0], target[target >= 0]
    apply_in_rounds([out], target, [values], scatter)
    return [out.reshape(x.shape)]


def apply_in_rounds(outs: list[np.ndarray], target: np.ndarray, values: Arrays, combine) -> None:  # type: ignore[no-untyped-def]
    """out[target] = combine(out[target], value), one after the other where a target repeats.

    Targets are numbered by how often they came before; each number is one vectorised round.
    """
    order = np.argsort(target, kind="stable")
    line = target[order]
    first = np.r_[True, line[1:] != line[:-1]] if line.size else np.zeros(0, bool)
    starts = np.flatnonzero(first)
    turn = np.arange(line.size) - np.repeat(starts, np.diff(np.r_[starts, line.size]))
    by_turn = order[np.argsort(turn, kind="stable")]
    for part in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]) if line.size else []:
        where = target[part]
        news = combine([*(o[where] for o in outs), *(v[part] for v in values)])
        for out, new in zip(outs, news, strict=True):
            out[where] = new


define("reduce", infer=_infer_reduce, evaluate=_reduce)
define("reduce_window", infer=_infer_reduce_window, evaluate=_reduce_window)
define("select_and_scatter", infer=_infer_select_and_scatter, evaluate=_select_and_scatter)


@factors("reduce")
def _reduce_factors(op: Op) -> Factors:
    half, rank = len(op.operands) // 2, len(op.operands[0].shape)
    gone = tuple(attr(op, "dimensions", ()))
    sums = {}
    if half == 1 and starts_with_identity(op.regions[0], op.operands[1]):
        sums = dict.fromkeys(gone, str(monoid(op.regions[0])))
    inputs = [alike(rank, () if sums else gone)] * half
    return Factors([*inputs, *[()] * half], [tuple(d for d in range(rank) if d not in gone)] * half, sums)


@factors("reduce_window")
def _reduce_window_factors(op: Op) -> Factors:
    half, rank = len(op.operands) // 2, len(op.operands[0].shape)
    dims = alike(rank, _windowed(op, rank))
    return Factors([*[dims] * half, *[()] * half], [dims] * half)


@factors("select_and_scatter")
def _select_and_scatter_factors(op: Op) -> Factors:
    dims = alike(len(op.result.shape), _windowed(op, len(op.result.shape)))
    return Factors([dims, dims, ()], [dims])


def _windowed(op: Op, rank: int) -> list[int]:
    """The dimensions in which windows do not lie side by side and hold all elements."""
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    steps = zip(*(per_axis(op, name, rank, 1) for name in names), op.operands[0].shape, strict=True)
    edges = per_axis(op, "padding", rank, (0, 0))
    return [
        d
        for d, ((size, step, base, apart, length), edge) in enumerate(zip(steps, edges, strict=True))
        if size != step or base != 1 or (apart != 1 and size > 1) or any(edge) or length % size
    ]


# ---- elements ----------------------------------------------------------------------------------------------------


@element("reduce")
def _reduce_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.reduce import reduce_element

    return reduce_element(em, op, k, index)


@element("reduce_window")
def _reduce_window_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.windows import window_element

    return window_element(em, op, k, index, _window_attrs(op, len(index)))


@element("select_and_scatter")
def _select_and_scatter_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.windows import scattered_element

    return scattered_element(em, op, index, _window_attrs(op, len(index)))


# ---- samples -----------------------------------------------------------------------------------------------------


def _neutral(kind: str, d: DType) -> np.ndarray:
    low, high = (False, True) if d.kind == "bool" else _bounds(d) if d.is_int else (-np.inf, np.inf)
    start = {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "and": high if d.kind == "bool" else -1, "or": 0}
    value = np.array(start[kind])
    return (value.astype(np.int64) if d.is_int and not d.kind == "uint" else value).astype(d.numpy)


def _bounds(d: DType) -> tuple[int, int]:
    info = ml_dtypes.iinfo(d.numpy)  # NumPy's own does not know int2 and int4
    return int(info.min), int(info.max)


_REDUCED = (i1, i8, i32, ui8, ui64, f16, bf16, f32, f64, c64)


def _suits(kind: str, d: DType) -> bool:
    logical = kind in ("and", "or")
    return d.kind == "bool" if logical else not (d.kind == "bool" or (d.is_complex and kind[:3] in ("max", "min")))


def _tolerance(kind: str, d: DType) -> dict[str, Any]:
    sums = kind in ("add", "multiply") and (d.is_float or d.is_complex)
    return {"ulps": 8.0, "spread": 16.0} if sums else {}


@samples("reduce")
def _reduce_samples(name: str) -> Iterable[Sample]:
    for d in _REDUCED:
        for kind in ("add", "multiply", "maximum", "minimum", "and", "or"):
            if not _suits(kind, d):
                continue
            forms = (
                ((3, 5), (0,)),
                ((3, 5), (1,)),
                ((2, 3, 7), (0, 2)),
                ((37,), (0,)),
                ((0, 3), (0,)),
                ((1, 1), (0, 1)),
            )
            for shape, gone in forms:
                x = data(d, shape, name, low=0.5, high=1.5)
                label = f"{kind}-{d}{list(shape)}{list(gone)}"
                yield Sample(name, label, (x, _neutral(kind, d)), {"dimensions": gone},
                             regions=(scalar_body(kind, d),), **_tolerance(kind, d))  # fmt: skip
    for shape in ((3, 5), (0, 2), (300, 7)):
        arrays = (data(f32, shape, 1), data(i32, shape, 2), np.float32(0), np.int32(3))
        body = _pair_body(f32, i32)
        yield Sample(name, f"two-{list(shape)}", tuple(map(np.asarray, arrays)), {"dimensions": (0,)}, regions=(body,),
                     spread=16.0)  # fmt: skip
    edge = np.array([[1, np.nan, 3], [-np.inf, 2, -0.0]], np.float32)
    for kind in ("maximum", "minimum", "add"):
        yield Sample(name, f"{kind}-nan", (edge, _neutral(kind, f32)), {"dimensions": (1,)},
                     regions=(scalar_body(kind, f32),), ulps=1)  # fmt: skip


def _pair_body(a: DType, b: DType) -> Region:
    """(a, b), (c, d) → (a + c, max(b, d))."""

    def make() -> Block:
        block = Block([Tensor((), a), Tensor((), b)] * 2)
        x, y, z, w = block.args
        block.results = [block.add("add", [x, z], x.type).result, block.add("maximum", [y, w], y.type).result]
        return block

    return make


@samples("reduce_window")
def _reduce_window_samples(name: str) -> Iterable[Sample]:
    windows_of = (
        ((3, 2), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
        ((3, 3), (2, 1), (1, 1), (1, 1), ((1, 1), (1, 0))),
        ((2, 2), (1, 2), (2, 1), (1, 3), ((1, 0), (2, 1))),
        ((1, 7), (1, 1), (1, 1), (1, 1), ((0, 0), (6, 0))),  # cumulative
        ((5, 1), (1, 1), (1, 1), (1, 1), ((0, 4), (0, 0))),  # cumulative, reversed
    )
    for d in (i32, ui8, i4, f8E4M3FN, f16, bf16, f32, f64, c64):
        for kind in ("add", "multiply", "maximum", "minimum"):
            if not _suits(kind, d):
                continue
            for window, strides, base, dilation, padding in windows_of:
                attrs: dict[str, Any] = {"window_dimensions": window, "window_strides": strides, "base_dilations": base}
                attrs |= {"window_dilations": dilation, "padding": padding}
                x = data(d, (5, 7), name, low=0.5, high=1.5)
                yield Sample(name, f"{kind}-{d}-{window}-{padding}", (x, _neutral(kind, d)), attrs,
                             regions=(scalar_body(kind, d),), **_tolerance(kind, d))  # fmt: skip


@samples("select_and_scatter")
def _select_and_scatter_samples(name: str) -> Iterable[Sample]:
    for d in (f32, f64, bf16, i32):
        for window, strides, padding in (
            ((2, 2), (2, 2), ((0, 0), (0, 0))),
            ((3, 3), (1, 2), ((1, 1), (1, 0))),
            ((1, 3), (1, 1), ((0, 0), (0, 0))),
        ):
            ones = (1, 1)
            shape = window_output((6, 7), window, strides, ones, ones, padding)
            x, source = data(d, (6, 7), name), data(d, shape, "source")
            attrs = {"window_dimensions": window, "window_strides": strides, "padding": padding}
            regions = (compare_body("GE", (d,)), scalar_body("add", d))
            yield Sample(name, f"{d}-{window}-{strides}", (x, source, _neutral("add", d)), attrs, regions=regions,
                         spread=16.0 if d.is_float else 0)  # fmt: skip
