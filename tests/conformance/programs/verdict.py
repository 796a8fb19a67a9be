"""Whether results are right.

The truth is the reference interpreter's result, or, where it has none, XLA:CPU's. What is exact must be equal to the
bit. A rounded result must lie between the truth and the wide NumPy meaning, or within a few times the distance that
rounding noise moves it (`condition.py`). NaN equals NaN. Noise also tells where a result of any type hangs on the last
bit of a rounded one; nothing is asked of such an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from case import Case
from condition import meaning

from ferrule.ir.types import BY_NUMPY

Arrays = Sequence[np.ndarray]
# Runs with noise: a few for all, more where these leave a doubt.
FEW, MANY = 3, 40
# How many times the noise a result may be off.
FACTOR = 4.0


@dataclass
class Verdict:
    """`wrong` says what is wrong, "" if nothing; `open` is the share of elements of which nothing was asked."""

    wrong: str = ""
    open: float = 0.0

    @property
    def good(self) -> bool:
        return not self.wrong


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal, NaN as NaN, and zeros of the same sign."""
    dtype = BY_NUMPY[a.dtype]
    if dtype.is_complex:
        return same_bits(a.real, b.real) & same_bits(a.imag, b.imag)
    with np.errstate(all="ignore"):
        if not dtype.is_float:
            return np.asarray(a == b)
        x, y = a.astype(np.float64), b.astype(np.float64)
        return np.asarray(((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y)))


def _parts(array: np.ndarray) -> np.ndarray:
    """One more dimension, of real parts, as f64."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1).astype(np.float64)
    return array.astype(np.float64)[..., None]


def judge(case: Case, found: Arrays, truth: Arrays, wide: Arrays | None = None) -> Verdict:
    """Compares results. `wide` is the meaning, if it is already known; None where it has none."""
    shapes = [(x.dtype, x.shape) for x in found]
    wanted = [(x.dtype, x.shape) for x in truth]
    if shapes != wanted:
        return Verdict(f"results are {shapes}, not {wanted}")
    same = [same_bits(a, b) for a, b in zip(found, truth, strict=True)]
    if all(s.all() for s in same):
        return Verdict()
    wide = meaning(case) if wide is None else wide
    runs: list[list[np.ndarray]] = []
    for count in (FEW, MANY):
        runs += [meaning(case, 1 + k) for k in range(len(runs), count)]
        wrong, loose, size = [], 0.0, 0
        for k, (a, b, ok) in enumerate(zip(found, truth, same, strict=True)):
            bad, unasked = _bad(a, b, wide[k], [r[k] for r in runs])
            bad &= ~ok
            loose += float(unasked.sum())
            size += a.size
            if bad.any():
                wrong.append(_show(k, a, b, wide[k], bad))
        if not wrong:
            return Verdict("", loose / max(1, size))
    return Verdict("\n".join(wrong), loose / max(1, size))


def _bad(
    found: np.ndarray, truth: np.ndarray, wide: np.ndarray, runs: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Which elements are wrong, and of which nothing is asked."""
    dtype = BY_NUMPY[found.dtype]
    same = same_bits(wide, truth)
    if not (dtype.is_float or dtype.is_complex):
        unstable = ~same
        for r in runs:
            unstable = unstable | (r != wide)
        return (found != truth) & ~unstable, unstable
    x, t, w = _parts(found), _parts(truth), _parts(wide)
    with np.errstate(all="ignore"):
        noise, odd = np.zeros(x.shape), np.zeros(x.shape, bool)
        turned = np.signbit(t) != np.signbit(w)
        for r in runs:
            y = _parts(r)
            changed = np.isfinite(y) != np.isfinite(w)
            changed |= ~np.isfinite(y) & ~((y == w) | (np.isnan(y) & np.isnan(w)))
            odd |= changed
            turned |= np.signbit(y) != np.signbit(w)
            noise = np.maximum(noise, np.where(np.isfinite(y) & np.isfinite(w), np.abs(y - w), 0))
        odd |= (np.isfinite(t) != np.isfinite(w)) | (~np.isfinite(t) & ~((t == w) | (np.isnan(t) & np.isnan(w))))
        low, high = np.minimum(t, w), np.maximum(t, w)
        if dtype.is_complex:
            # the error of a complex number is one of its size, not of its parts
            noise = np.broadcast_to(np.max(noise, -1, keepdims=True), noise.shape)
        off = np.maximum(np.maximum(low - x, x - high), 0)
        fine = off <= FACTOR * noise
        fine |= (x == t) & (np.signbit(x) == np.signbit(t))
        fine &= np.isfinite(x) == np.isfinite(t)
        fine |= np.isnan(x) & np.isnan(t)
        # a zero may change its sign where noise or the two truths do
        moving = (noise > 0) | turned | dtype.is_complex
        fine &= ~((x == 0) & (t == 0) & (np.signbit(x) != np.signbit(t)) & ~moving)
        near_top = np.isinf(x) ^ np.isinf(t)
        top = float(ml_dtypes.finfo(dtype.part.numpy).max)
        fine |= near_top & (np.minimum(np.abs(x), np.abs(t)) > 0.9 * top) & (noise > 0)
    return np.any(~fine & ~odd, -1), np.any(odd, -1)


def _show(number: int, found: np.ndarray, truth: np.ndarray, wide: np.ndarray, bad: np.ndarray) -> str:
    places = np.argwhere(bad)
    lines = [f"result {number}: {len(places)} of {bad.size} elements of {found.dtype}{list(found.shape)} are wrong"]
    for place in places[:3]:
        at = tuple(int(i) for i in place)
        lines.append(f"  {list(at)}: {found[at]!s}, should be {truth[at]!s} (meaning: {wide[at]!s})")
    return "\n".join(lines)
