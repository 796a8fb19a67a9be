"""Are an engine's results right? The largest error against the reference, relative to its largest magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 1 << 22  # elements compared at a time, so that a large result needs no second copy in float64


def save(results: Sequence[np.ndarray], folder: Path) -> None:
    """The reference's results, one file each; workers map them into memory."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, result in enumerate(results):
        np.save(folder / f"{i}.npy", result)


def error(results: Sequence[Any], folder: Path, moments: bool = False, outliers: float = 0.0) -> float:
    """The largest error of all results; infinite when shapes or the places of NaN and infinities differ.

    With `outliers`, that share of each result's elements is left out, the worst ones.
    """
    count = len(list(folder.glob("*.npy")))
    if count != len(results):
        return math.inf
    worst = 0.0
    for i, result in enumerate(results):
        reference = np.load(folder / f"{i}.npy", mmap_mode="r")
        result = np.asarray(result)
        if moments:
            mean, deviation = float(np.mean(reference)), float(np.std(reference))
            worst = max(worst, abs(float(np.mean(result)) - mean), abs(float(np.std(result)) - deviation))
        else:
            worst = max(worst, _quantile(result, reference, 1 - outliers) if outliers else _largest(result, reference))
    return worst


def _quantile(result: np.ndarray, reference: np.ndarray, part: float) -> float:
    if result.shape != reference.shape or not np.isfinite(result).all():
        return math.inf
    magnitude = float(np.abs(reference).max())
    return float(np.quantile(np.abs(result - reference), part)) / (magnitude or 1.0)


def _largest(result: np.ndarray, reference: np.ndarray) -> float:
    if result.shape != reference.shape:
        return math.inf
    kind = np.complex128 if np.iscomplexobj(reference) or np.iscomplexobj(result) else np.float64
    result, reference = result.reshape(-1), reference.reshape(-1)
    difference, magnitude = 0.0, 0.0
    for begin in range(0, reference.size, CHUNK):
        got, want = (a[begin : begin + CHUNK].astype(kind) for a in (result, reference))
        finite = np.isfinite(want)
        if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
            return math.inf
        if finite.any():
            difference = max(difference, float(np.abs(got[finite] - want[finite]).max()))
            magnitude = max(magnitude, float(np.abs(want[finite]).max()))
    return difference / (magnitude or 1.0)
