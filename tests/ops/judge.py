"""Decides whether a result is right: within so many ulps of the op's NumPy meaning, which is computed wide.

`check(sample, run)` is for any way to run a block: `run(block, arrays)` gives the results as NumPy arrays.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ferrule.ir import Block
from ferrule.ir.types import BY_NUMPY
from ferrule.ops import OPS
from ferrule.ops.numerics import total_order_key
from ferrule.ops.samples import Sample
from ferrule.targets.reference import evaluate_block

Runner = Callable[[Block, Sequence[np.ndarray]], Sequence[np.ndarray]]


ALL = bool(os.environ.get("FERRULE_TEST_ALL"))


def some(name: str, limit: int = 30) -> list[Sample]:
    """The samples of an op; when there are many, an even choice (all with FERRULE_TEST_ALL=1)."""
    make = OPS[name].samples
    found = list(make()) if make else []
    return found if ALL else found[:: -(-len(found) // limit)]


def check(sample: Sample, run: Runner) -> None:
    """Runs the sample and compares each result with the op's meaning."""
    block = sample.block()
    judge(sample, run(block, sample.arrays))


def judge(sample: Sample, found: Sequence[np.ndarray], more: float = 1.0, flush: bool = False) -> None:
    """Compares results; `more` widens the tolerance (for implementations that are known to be less exact).

    With `flush`, a denormal result may also be zero.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = evaluate_block(sample.block(), sample.arrays, check=True)
    assert len(found) == len(wanted), f"{sample}: {len(found)} results, not {len(wanted)}"
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        got = np.asarray(got)
        where = f"{sample}, result {number}"
        assert got.dtype == want.dtype, f"{where}: {got.dtype}, not {want.dtype}"
        assert got.shape == want.shape, f"{where}: shape {got.shape}, not {want.shape}"
        bad = np.atleast_1d(wrong(got, want, sample.ulps * more, sample.spread * more))
        if flush and BY_NUMPY[want.dtype].is_float:
            bad &= ~((np.abs(_wide(want)) < float(ml_dtypes.finfo(want.dtype).smallest_normal)) & (_wide(got) == 0))
        if bad.any():
            raise AssertionError(f"{where}: {_show(sample, got, want, bad)}")


def _show(sample: Sample, got: np.ndarray, want: np.ndarray, bad: np.ndarray) -> str:
    places = np.argwhere(bad)
    lines = [f"{len(places)} of {bad.size} elements are wrong"]
    for place in places[:4]:
        at = tuple(int(i) for i in place) if got.ndim else ()
        inputs = [str(a[at]) for a in sample.arrays if a.shape == got.shape]
        lines.append(f"  {list(at)}: {got[at]!s}, should be {want[at]!s}" + (f" for {inputs}" if inputs else ""))
    return "\n".join(lines)


def wrong(got: np.ndarray, want: np.ndarray, ulps: float, spread: float) -> np.ndarray:
    """Which elements differ by more than the tolerance. NaN equals NaN; with no tolerance, -0 is not +0."""
    dtype = BY_NUMPY[want.dtype]
    if dtype.is_complex:
        return _wrong_complex(got, want, ulps + spread)
    if not dtype.is_float:
        return np.asarray(got != want)
    both_nan = _isnan(got) & _isnan(want)
    distance = np.abs(_key(got) - _key(want))
    bad = (distance > ulps) & ~both_nan
    if spread and want.size:
        a, b = _wide(got), _wide(want)
        finite = np.isfinite(b)
        scale = float(np.max(np.abs(b[finite]), initial=0))
        with np.errstate(all="ignore"):
            bad &= ~(finite & (np.abs(a - b) <= spread * float(ml_dtypes.finfo(want.dtype).eps) * scale))
    if ulps or spread:
        bad &= ~((_wide(got) == 0) & (_wide(want) == 0))
    return np.asarray(bad)


def _wrong_complex(got: np.ndarray, want: np.ndarray, spread: float) -> np.ndarray:
    if not want.size:
        return np.zeros(want.shape, bool)
    eps = float(np.finfo(want.dtype).eps)
    with np.errstate(all="ignore"):
        near = np.abs(got - want) <= spread * eps * np.maximum(np.abs(want), 1e-3)
        largest = np.max(np.abs(want[np.isfinite(want)]), initial=0)
        near |= np.abs(got - want) <= spread * eps * largest
    return np.asarray(~(near | (np.isnan(got) & np.isnan(want)) | (got == want)))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _isnan(x: np.ndarray) -> np.ndarray:
    return np.isnan(_wide(x))


def _key(x: np.ndarray) -> Any:
    """Position on the number line, in steps of one ulp; -0 and +0 are one step apart."""
    key = total_order_key(x)
    return key.astype(object) if key.dtype == np.int64 else key.astype(np.int64)
