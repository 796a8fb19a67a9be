"""`rng` on the CPU target: fresh numbers at each execution, from the distribution that is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import ferrule
from ferrule.ir import types as t

N = 20011


def program(kind: str, low: float, high: float, distribution: str) -> Any:
    numbers = [str(int(v)) if t.DTYPES[kind].is_int else f"{v:e}" for v in (low, high)]
    return ferrule.compile(f"""
        module {{ func.func @main() -> (tensor<{N}x{kind}>, tensor<{N}x{kind}>) {{
          %a = stablehlo.constant dense<{numbers[0]}> : tensor<{kind}>
          %b = stablehlo.constant dense<{numbers[1]}> : tensor<{kind}>
          %s = stablehlo.constant dense<{N}> : tensor<1xi64>
          %0 = stablehlo.rng %a, %b, %s, distribution = {distribution}
            : (tensor<{kind}>, tensor<{kind}>, tensor<1xi64>) -> tensor<{N}x{kind}>
          %1 = stablehlo.rng %a, %b, %s, distribution = {distribution}
            : (tensor<{kind}>, tensor<{kind}>, tensor<1xi64>) -> tensor<{N}x{kind}>
          return %0, %1 : tensor<{N}x{kind}>, tensor<{N}x{kind}>
        }} }}""")


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_uniform_floats(kind: str) -> None:
    draws = np.stack([*program(kind, -1, 3, "UNIFORM")()]).astype(np.float64)
    assert draws.min() >= -1 and draws.max() < 3
    assert not np.array_equal(draws[0], draws[1])
    if kind in ("f32", "f64"):
        assert stats.kstest((draws.reshape(-1) + 1) / 4, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("kind", ["i8", "ui8", "i32", "ui32", "i64", "ui64"])
def test_uniform_integers(kind: str) -> None:
    low = 0 if kind.startswith("u") else -5
    draws = np.stack([*program(kind, low, 5, "UNIFORM")()]).astype(np.int64)
    assert sorted(set(draws.reshape(-1).tolist())) == list(range(low, 5))
    counts = np.unique(draws, return_counts=True)[1]
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_normal(kind: str) -> None:
    run = program(kind, 2, 0.5, "NORMAL")
    first, second = (np.stack([*run()]).astype(np.float64) for _ in range(2))
    assert np.isfinite(first).all()
    assert not np.array_equal(first, second)
    if kind in ("f32", "f64"):
        assert stats.kstest((first.reshape(-1) - 2) / 0.5, "norm").pvalue > 1e-6
