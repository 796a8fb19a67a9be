"""Steps of running totals and of radix sorts on devices: ops that only Ferrule's passes make, each of them a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ferrule.ir import Op, Tensor, Type
from ferrule.ir.types import bf16, f32, f64, i1, i32
from ferrule.ops import numerics as n
from ferrule.ops.bodies import check_body, monoid, total_type, vectorized
from ferrule.ops.checks import attr, expect, operands, regions
from ferrule.ops.definition import Run, define
from ferrule.ops.samples import Sample, data, samples, scalar_body

Arrays = Sequence[np.ndarray]


# ---- running_total: of each line along a dimension, or of each part of `part` elements, from a value of its own ------
# Parts are counted from where totals begin, so that the last one may be shorter; their values stand as parts do.


def _infer_total(op: Op) -> Sequence[Type]:
    x, start = operands(op, 2)
    axis = attr(op, "dimension")
    (body,) = regions(op, 1)
    rest = (*x.shape[:axis], *_parts(op, x.shape[axis]), *x.shape[axis + 1 :])
    starts = [Tensor(rest, d) for d in (x.dtype, total_type(x.dtype, monoid(body)))]
    expect(op, start in starts, f"starts {start} for lines of {x}")
    scalar = Tensor((), x.dtype)
    check_body(op, body, [scalar, scalar], [scalar], "body")
    return [x]


def _parts(op: Op, length: int) -> tuple[int, ...]:
    """How many parts a line has, as a dimension, where it has some."""
    return (-(-length // op.attrs["part"]),) if "part" in op.attrs else ()


def _total(op: Op, xs: Arrays, run: Run) -> Arrays:
    x, starts = xs
    axis, body = op.attrs["dimension"], op.regions[0]
    combine = vectorized(body, run)
    line = np.moveaxis(x, axis, 0)
    out = np.empty_like(line)
    wide = total_type(n.dtype_of(x), monoid(body))  # as the kernel: rounded when written
    apply = {"add": np.add, "multiply": np.multiply}.get(monoid(body) or "")
    if apply and wide != n.dtype_of(x):
        line, starts = line.astype(wide.numpy), starts.astype(wide.numpy)
    else:
        apply = None
    part = op.attrs.get("part", len(line))
    starts = np.moveaxis(starts, axis, 0) if "part" in op.attrs else starts[None]
    for at, i in enumerate(range(len(line))[:: -1 if op.attrs["backward"] else 1]):
        if at % part == 0:
            total = starts[-1 - at // part if op.attrs["backward"] else at // part]
        total = apply(total, line[i]) if apply else np.asarray(combine([total, line[i]])[0])
        out[i] = total
    return [np.moveaxis(out, 0, axis)]


# ---- digits: a pass of a radix sort ----------------------------------------------------------------------------------


def parts(op: Op) -> int:
    """How many parts of a line are counted, and then written, by a work-item each."""
    return -(-op.operands[0].shape[1] // int(op.attrs["part"]))


def _infer_counts(op: Op) -> Sequence[Type]:
    (digits,) = operands(op, 1)
    expect(op, digits.rank == 2 and digits.dtype.is_int, f"digits are {digits}")
    return [Tensor((digits.shape[0], attr(op, "radix"), parts(op)), i32)]


def _counts(op: Op, xs: Arrays, run: Run) -> Arrays:
    (digits,) = xs
    part, radix = op.attrs["part"], op.attrs["radix"]
    pieces = [digits[:, at : at + part] for at in range(0, digits.shape[1], part)]
    columns = [[np.bincount(line.astype(np.int64), minlength=radix) for line in piece] for piece in pieces]
    return [np.moveaxis(np.asarray(columns, np.int32), 0, -1)]


def _infer_scatter(op: Op) -> Sequence[Type]:
    digits, starts, *values = operands(op)
    radix = attr(op, "radix")
    expect(op, starts == Tensor((digits.shape[0], radix, parts(op)), i32), f"starts are {starts} for digits {digits}")
    expect(op, bool(values) and all(v.shape == digits.shape for v in values), "values must have the digits' shape")
    return values


def _scatter(op: Op, xs: Arrays, run: Run) -> Arrays:
    digits, starts, *values = xs
    part, results = op.attrs["part"], [np.empty_like(v) for v in values]
    for row, line in enumerate(digits):
        at = starts[row].copy()
        for i, digit in enumerate(line.astype(np.int64)):
            for result, value in zip(results, values, strict=True):
                result[row, at[digit, i // part]] = value[row, i]
            at[digit, i // part] += 1
    return results


define("running_total", infer=_infer_total, evaluate=_total, flops=2, internal=True)
define("digit_counts", infer=_infer_counts, evaluate=_counts, flops=4, internal=True)
define("digit_scatter", infer=_infer_scatter, evaluate=_scatter, flops=4, internal=True)


# ---- samples ---------------------------------------------------------------------------------------------------------


@samples("running_total")
def _total_samples(name: str) -> Iterable[Sample]:
    for d in (i32, f32, f64, bf16):
        for shape, axis, backward, part in (
            *(((5,), 0, False, 0), ((3, 40), 1, True, 0), ((3, 7, 2), 1, False, 0)),
            *(((100,), 0, False, 32), ((2, 70), 1, True, 32), ((3, 7, 2), 1, False, 4), ((9,), 0, True, 4)),
        ):
            attrs = {"dimension": axis, "backward": backward} | ({"part": part} if part else {})
            parts = [-(-shape[axis] // part)] if part else []
            x = data(d, shape, name, low=0.5, high=1.5)
            start = data(d, (*shape[:axis], *parts, *shape[axis + 1 :]), 2, low=0.5, high=1.5)
            for kind in ("add", "maximum"):
                yield Sample(name, f"{kind}-{d}{list(shape)}{backward}{part}", (x, start), attrs,
                             regions=(scalar_body(kind, d),), spread=64.0 if d.is_float else 0)  # fmt: skip


def _digits(lines: int, length: int, radix: int) -> np.ndarray:
    return (data(i32, (lines, length), "digits") % radix).astype(np.int32)


@samples("digit_counts")
def _count_samples(name: str) -> Iterable[Sample]:
    for lines, length, radix, part in ((1, 64, 16, 16), (3, 37, 16, 8), (2, 300, 256, 100), (1, 5, 4, 8)):
        attrs = {"radix": radix, "part": part}
        yield Sample(name, f"{lines}x{length}-{radix}-{part}", (_digits(lines, length, radix),), attrs)


@samples("digit_scatter")
def _scatter_samples(name: str) -> Iterable[Sample]:
    for lines, length, radix, part in ((1, 64, 16, 16), (3, 37, 16, 8), (2, 300, 256, 100), (1, 5, 4, 8)):
        digits = _digits(lines, length, radix)
        pieces = [digits[:, at : at + part] for at in range(0, length, part)]
        counts = np.asarray([[np.bincount(row, minlength=radix) for row in piece] for piece in pieces])
        flat = np.moveaxis(counts, 0, -1).reshape(lines, -1)
        starts = (np.cumsum(flat, 1) - flat).reshape(lines, radix, len(pieces)).astype(np.int32)
        values = (data(f32, (lines, length), 1), data(i1, (lines, length), 2), digits)
        attrs = {"radix": radix, "part": part}
        yield Sample(name, f"{lines}x{length}-{radix}-{part}", (digits, starts, *values), attrs)
