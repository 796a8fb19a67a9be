"""Makers of products, convolutions, transforms and solvers."""

from __future__ import annotations

from math import prod

from draw import Draw, maker

from ferrule.ir import ConvDims, DotDims, Tensor, Value
from ferrule.ir.types import DTYPES


@maker("dot_general", group="product", weight=3.0)
def dot_general(g: Draw) -> Value:
    """Any number of batch and contracting dimensions, in any order."""
    x = g.operand("iufc", 1, 4)
    rank = len(x.shape)
    dims = g.shuffled(range(rank))
    shared = g.int(0, min(2, rank)) if g.chance(0.4) else 0
    summed = g.int(0 if g.chance(0.1) else min(1, rank - shared), min(2, rank - shared))
    batch, contract = dims[:shared], dims[shared : shared + summed]
    if g.chance(0.6):
        batch.sort()
        contract.sort()
    budget = max(1, g.work // max(1, prod(s for s in x.shape if s)))
    free = [g.dim(max(1, min(budget, 40 if g.profile != "large" else 300))) for _ in range(g.int(0, 2))]
    while prod(f for f in free if f) > budget:
        free.pop()
    # the other operand's dimensions: which of its own each one is
    labels = (
        [("b", i) for i in range(shared)] + [("c", i) for i in range(summed)] + [("f", i) for i in range(len(free))]
    )
    order = g.shuffled(labels) if g.chance(0.5) else labels
    sizes = {"b": [x.shape[d] for d in batch], "c": [x.shape[d] for d in contract], "f": free}
    y = g.like(Tensor(tuple(sizes[k][i] for k, i in order), x.dtype))
    where = {label: i for i, label in enumerate(order)}
    numbers = DotDims(
        tuple(batch),
        tuple(where["b", i] for i in range(shared)),
        tuple(contract),
        tuple(where["c", i] for i in range(summed)),
    )
    rest = [s for d, s in enumerate(x.shape) if d not in batch and d not in contract]
    others = [y.shape[where["f", i]] for i in sorted(range(len(free)), key=lambda i: where["f", i])]
    out = x.dtype
    if x.dtype.name in ("bf16", "f16") and g.chance(0.3):
        out = DTYPES["f32"]
    if x.dtype.name == "i8" and g.chance(0.5):
        out = DTYPES["i32"]
    shape = (*sizes["b"], *rest, *others)
    return g.add("dot_general", [x, y], Tensor(shape, out), {"dot_dimension_numbers": numbers})


@maker("dot", group="product", weight=0.3)
def dot(g: Draw) -> Value:
    """The old spelling: matrices and vectors."""
    x = g.operand("iufc", 1, 2)
    y = g.like(Tensor((x.shape[-1], *g.shape(0, 1, 20)), x.dtype))
    return g.add("dot", [x, y], Tensor((*x.shape[:-1], *y.shape[1:]), x.dtype))


def _permuted(g: Draw, first: int, last: int, spatial: int) -> tuple[int, int, tuple[int, ...]]:
    """Where two special dimensions and the spatial ones stand."""
    order = list(range(spatial + 2))
    if g.chance(0.5):
        order = g.shuffled(order)
    return order[0], order[1], tuple(order[2:])


@maker("convolution", group="product", weight=2.0)
def convolution(g: Draw) -> Value:
    """One to three spatial dimensions (at times none), groups, strides, dilations, padding of either sign, reversal."""
    n = g.rng.choices((0, 1, 2, 3), (1, 6, 6, 2))[0]
    dtype = g.dtype("fi", 8) if g.chance(0.85) else g.dtype("cu", 8)
    groups, batch_groups = 1, 1
    if g.chance(0.3):
        groups = g.int(2, 4)
    elif g.chance(0.2):
        batch_groups = g.int(2, 3)
    batch, features, outs = g.int(1, 3) * batch_groups, g.int(1, 3) * groups, g.int(1, 3) * groups * batch_groups
    limit = {0: 1, 1: 40, 2: 9, 3: 5}[n]
    x_size, k_size, strides, padding, lhs, rhs, flip, out = [], [], [], [], [], [], [], []
    for _ in range(n):
        size, window = g.int(1, limit), g.int(1, 4)
        if g.chance(0.01):
            size = 0
        dilate, spread = (g.int(2, 3) if g.chance(0.2) else 1 for _ in range(2))
        step = g.int(2, 3) if g.chance(0.3) else 1
        low, high = (g.int(-1, 3) if g.chance(0.5) else 0 for _ in range(2))
        full = (0 if size == 0 else (size - 1) * dilate + 1) + low + high
        if full < 0:
            low = high = 0
            full = 0 if size == 0 else (size - 1) * dilate + 1
        reach = (window - 1) * spread + 1
        x_size.append(size)
        k_size.append(window)
        strides.append(step)
        padding.append((low, high))
        lhs.append(dilate)
        rhs.append(spread)
        flip.append(g.chance(0.15))
        out.append(0 if full <= 0 or reach > full else (full - reach) // step + 1)
    xb, xf, xs = _permuted(g, 0, 1, n)
    ki, ko, ks = _permuted(g, 0, 1, n)
    yb, yf, ys = _permuted(g, 0, 1, n)
    x_shape, k_shape, y_shape = [0] * (n + 2), [0] * (n + 2), [0] * (n + 2)
    x_shape[xb], x_shape[xf] = batch, features
    k_shape[ki], k_shape[ko] = features // groups, outs
    y_shape[yb], y_shape[yf] = batch // batch_groups, outs
    for i in range(n):
        x_shape[xs[i]], k_shape[ks[i]], y_shape[ys[i]] = x_size[i], k_size[i], out[i]
    x, k = g.like(Tensor(tuple(x_shape), dtype)), g.like(Tensor(tuple(k_shape), dtype))
    attrs = {
        "window_strides": tuple(strides),
        "padding": tuple(padding),
        "lhs_dilation": tuple(lhs),
        "rhs_dilation": tuple(rhs),
        "window_reversal": tuple(flip),
        "dimension_numbers": ConvDims(xb, xf, xs, ki, ko, ks, yb, yf, ys),
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
    }
    return g.add("convolution", [x, k], Tensor(tuple(y_shape), dtype), attrs)


@maker("fft", group="solver", weight=0.8)
def fft(g: Draw) -> Value:
    """Of one to three dimensions, each kind."""
    kind = g.pick(("FFT", "IFFT", "RFFT", "IRFFT"))
    n = g.int(1, 3)
    length = tuple(
        g.pick((1, 2, 3, 4, 5, 7, 8, 9, 16) if n > 1 else (1, 2, 3, 5, 8, 13, 16, 31, 64, 100)) for _ in range(n)
    )
    while prod(length) > 300:
        length = length[1:]
    wide = g.chance(0.3)
    real, whole = DTYPES["f64" if wide else "f32"], DTYPES["complex<f64>" if wide else "complex<f32>"]
    half = (*length[:-1], length[-1] // 2 + 1)
    batch = tuple(g.int(1, 3) for _ in range(g.int(0, 2)))
    shapes = {"FFT": (length, length), "IFFT": (length, length), "RFFT": (length, half), "IRFFT": (half, length)}
    before, after = shapes[kind]
    x = g.like(Tensor((*batch, *before), real if kind == "RFFT" else whole), special=False)
    out = Tensor((*batch, *after), real if kind == "IRFFT" else whole)
    return g.add("fft", [x], out, {"fft_type": kind, "fft_length": length})


def _definite(g: Draw, kind: Tensor) -> Value:
    """A positive definite matrix: a product with its own transpose, and something on the diagonal."""
    a = g.new(kind, low=-1.0, high=1.0, special=False)
    n, rank = kind.shape[-1], kind.rank
    order = (*range(rank - 2), rank - 1, rank - 2)
    t = g.add("transpose", [a], kind, {"permutation": order}, keep=False)
    if kind.dtype.is_complex:
        im = g.add("imag", [t], Tensor(kind.shape, kind.dtype.part), keep=False)
        im = g.add("negate", [im], im.type, keep=False)
        re = g.add("real", [t], im.type, keep=False)
        t = g.add("complex", [re, im], kind, keep=False)
    batch = tuple(range(rank - 2))
    dims = DotDims(batch, batch, (rank - 1,), (rank - 2,))
    product = g.add("dot_general", [a, t], kind, {"dot_dimension_numbers": dims}, keep=False)
    eye = g.broadcast(_diagonal(g, n, kind, float(n)), kind.shape, (rank - 2, rank - 1))
    return g.add("add", [product, eye], kind, keep=False)


def _diagonal(g: Draw, n: int, kind: Tensor, value: float) -> Value:
    square = Tensor((n, n), DTYPES["i32"])
    rows = g.add("iota", [], square, {"iota_dimension": 0}, keep=False)
    columns = g.add("iota", [], square, {"iota_dimension": 1}, keep=False)
    attrs = {"comparison_direction": "EQ", "compare_type": "SIGNED"}
    on = g.add("compare", [rows, columns], Tensor((n, n), DTYPES["i1"]), attrs, keep=False)
    yes = g.broadcast(g.scalar(kind.dtype, value), (n, n), ())
    no = g.broadcast(g.scalar(kind.dtype, 0.0), (n, n), ())
    return g.add("select", [on, yes, no], yes.type, keep=False)


@maker("cholesky", group="solver", weight=0.5)
def cholesky(g: Draw) -> Value:
    """Of definite matrices; the other triangle of the result is up to the implementation, so it is cut off."""
    kind = _matrices(g)
    lower = g.chance(0.5)
    c = g.add("cholesky", [_definite(g, kind)], kind, {"lower": lower}, keep=False)
    return _triangle(g, c, lower)


def _matrices(g: Draw) -> Tensor:
    n = g.pick((1, 2, 3, 4, 5, 8, 9, 13))
    batch = tuple(g.int(1, 3) for _ in range(g.int(0, 1)))
    return Tensor((*batch, n, n), g.pick([DTYPES[d] for d in ("f32", "f32", "f64", "complex<f32>")]))


def _triangle(g: Draw, x: Value, lower: bool) -> Value:
    n, rank = x.shape[-1], len(x.shape)
    square = Tensor(x.shape, DTYPES["i32"])
    rows = g.add("iota", [], square, {"iota_dimension": rank - 2}, keep=False)
    columns = g.add("iota", [], square, {"iota_dimension": rank - 1}, keep=False)
    attrs = {"comparison_direction": "GE" if lower else "LE", "compare_type": "SIGNED"}
    on = g.add("compare", [rows, columns], Tensor(x.shape, DTYPES["i1"]), attrs, keep=False)
    zero = g.broadcast(g.scalar(x.dtype, 0.0), x.shape, ())
    del n
    return g.add("select", [on, x, zero], x.type)


@maker("triangular_solve", group="solver", weight=0.6)
def triangular_solve(g: Draw) -> Value:
    """With well-conditioned triangles; the other triangle holds anything."""
    kind = _matrices(g)
    n, rank = kind.shape[-1], kind.rank
    a = g.new(kind, low=-0.5, high=0.5, special=False)
    eye = g.broadcast(_diagonal(g, n, kind, 2.0), kind.shape, (rank - 2, rank - 1))
    a = g.add("add", [a, eye], kind, keep=False)
    left, columns = g.chance(0.5), g.int(1, 5)
    shape = (*kind.shape[:-2], n, columns) if left else (*kind.shape[:-2], columns, n)
    b = g.like(Tensor(shape, kind.dtype), special=False)
    transposes = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
    attrs = {"left_side": left, "lower": g.chance(0.5), "unit_diagonal": g.chance(0.3)}
    return g.add("triangular_solve", [a, b], b.type, {**attrs, "transpose_a": g.pick(transposes)})


@maker("rng_bit_generator", group="solver", weight=0.4)
def random_bits(g: Draw) -> list[Value]:
    """Each algorithm: its sequence is part of StableHLO's practice."""
    algorithm = g.pick(("THREE_FRY", "PHILOX"))
    length = 2 if algorithm == "THREE_FRY" else g.pick((2, 3))
    state = g.new(Tensor((length,), DTYPES["ui64"]))
    dtype = g.pick([DTYPES[d] for d in ("ui8", "ui16", "ui32", "ui64")])
    out = Tensor(g.shape(), dtype)
    return g.add("rng_bit_generator", [state], [state.type, out], {"rng_algorithm": algorithm})
