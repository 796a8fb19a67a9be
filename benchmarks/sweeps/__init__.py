"""Programs by the hundred that nobody chose for their speed: functions in every type, odd sizes, models, science.

`cases/` is what we promise; here is what finds the next thing that is slow. One file per set, each with `programs()`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SETS = ("functions", "arrays", "shapes", "models", "science")


@dataclass(frozen=True)
class Program:
    """A function to jit, and what makes its NumPy arguments when its turn comes. `tolerance`: what two compilers may
    differ by, of the largest magnitude in a result; 0 where they need not agree (an eigenvector's sign)."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    tolerance: float = 1e-2


def load(names: tuple[str, ...] = SETS) -> Iterator[tuple[str, Program]]:
    for name in names:
        for program in importlib.import_module(f"sweeps.{name}").programs():
            yield name, program


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * np.float32(scale)


def uniform(*shape: int, seed: int = 0, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def integers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def positive_definite(count: int, size: int, seed: int = 0) -> np.ndarray:
    """`count` matrices of `size` x `size` whose smallest eigenvalue is at least `size`."""
    a = normal(count, size, size, seed=seed)
    return a @ a.transpose(0, 2, 1) + size * np.eye(size, dtype=np.float32)
