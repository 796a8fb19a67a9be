"""What a case is: one JAX function with arguments, what it must move and compute, and its PyTorch counterpart."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One row of the report. `arguments` makes the NumPy arguments when the case's turn comes."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    torch: Any = None  # a function of tensors, or a Gradient
    torch_arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = (
        None  # weights in PyTorch's layout, not timed
    )
    torch_results: Callable[[Any], Any] | None = None  # results as JAX has them, for the check
    bytes: float = 0  # that must move between memory and cores: arguments once, results once
    read_only: bool = False  # its results are small: the limit is that of reading
    flops: float = 0  # a multiplication and an addition are two
    peak: str = "f32"  # which arithmetic bounds it: f32, bf16, int8
    donate: tuple[int, ...] = ()  # arguments that are updated in place; the first results are their next values
    tolerance: float = 1e-4  # of the largest magnitude in the reference; 0: exactly equal
    outliers: float = 0.0  # share of a result's elements that may be worse: rounding decides a relu near zero otherwise
    exact: Callable[..., Any] | None = None  # for the reference, where the function itself names a narrow type
    reference: str = "f64"  # or "f32": the same types, on XLA (random numbers depend on the type)
    torch_check: str = "values"  # or "moments": mean and deviation, for random numbers
    keep_unused: bool = False
    area: str = field(default="")

    @property
    def key(self) -> str:
        return f"{self.area}/{self.name}"


@dataclass(frozen=True)
class Gradient:
    """A training step in PyTorch: `torch.compile` takes the loss and the update, autograd stands between them.

    `loss(*args)` gives a scalar; its derivatives by the tensors in the first `over` arguments go to
    `update(args, value, gradients)`, which gives what the JAX function gives.
    """

    loss: Callable[..., Any]
    over: int
    update: Callable[[tuple[Any, ...], Any, list[Any]], Any] | None = None


def normal(*shape: int, seed: int = 0, scale: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    """Normally distributed numbers; large arrays repeat themselves, so that they are made fast."""
    count = int(np.prod(shape))
    part = np.random.default_rng(seed).standard_normal(min(count, 4_000_037), dtype=np.float32) * np.float32(scale)
    return np.resize(part, count).reshape(shape).astype(dtype, copy=False)


def integers(high: int, *shape: int, seed: int = 0, low: int = 0, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def areas() -> list[str]:
    """The files under `cases/`, in the order of the report."""
    package = importlib.import_module("cases")
    found = [m.name for m in pkgutil.iter_modules(package.__path__)]
    return sorted(found, key=lambda n: (package.ORDER.index(n) if n in package.ORDER else len(package.ORDER), n))


def load(names: Sequence[str] | None = None) -> list[Case]:
    """Every case of the named areas."""
    found = []
    for area in names or areas():
        module = importlib.import_module(f"cases.{area}")
        for case in module.cases():
            object.__setattr__(case, "area", area)
            found.append(case)
    return found


def select(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    """Those whose area or name contains one of the words."""
    return [c for c in cases if not words or any(w.lower() in c.key.lower() for w in words)]
