"""Reductions over long arrays: the relative error of sums, means, products and chains of them, against f64 or more.

The arguments are drawn from [0, 1), and for "signed" from a normal distribution; there the error is relative to the sum
of magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

import jax
from jax import numpy as jnp

HEAD = """## Reductions

The largest relative error of sums and of chains with sums in them, over some arrays of random numbers between 0 and 1
("signed": of a normal distribution, and relative to the sum of magnitudes); softmax, normalizations and running sums:
an element's error relative to the largest element. A result that is rounded to bfloat16 or float16 cannot
be nearer than 2.0e-03 or 2.4e-04.

"""


def _normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def _jax_normalized(x: Any) -> Any:
    return (x - x.mean()) * jax.lax.rsqrt(x.var() + jnp.asarray(1e-5, x.dtype))


# Name → (JAX's function, the true value of an f64 array, signed arguments).
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "sum": (jnp.sum, np.sum, False),
    "sum, signed": (jnp.sum, np.sum, True),
    "mean": (jnp.mean, np.mean, False),
    "sum of columns": (lambda x: x.reshape(-1, 8).sum(0), lambda x: x.reshape(-1, 8).sum(0), False),
    "dot": (lambda x: jnp.dot(x, x), lambda x: np.dot(x, x), False),
    "cumsum": (jnp.cumsum, np.cumsum, False),
    "var": (jnp.var, np.var, False),
    "logsumexp": (jax.nn.logsumexp, special.logsumexp, True),
    "softmax": (jax.nn.softmax, special.softmax, True),
    "layer norm": (_jax_normalized, _normalized, True),
    "norm": (jnp.linalg.norm, np.linalg.norm, True),
}
LONGEST = ("sum", "mean", "dot")  # these alone are tried with the most elements
TYPES = ("float32", "bfloat16", "float16")
SIZES = (10**3, 10**5, 10**7, 10**8)


def _error(name: str, got: np.ndarray, want: np.ndarray, x: np.ndarray) -> float:
    scale = np.sum(np.abs(x)) if name == "sum, signed" else np.max(np.abs(want))
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(got.astype(np.float64) - want)) / scale)


def measure(name: str, dtype: np.dtype, size: int, place: str, arrays: Sequence[np.ndarray]) -> float:
    function, reference, _ = REDUCTIONS[name]
    device = jax.devices(place)[0]
    compiled = jax.jit(function)
    worst = 0.0
    for x in arrays:
        got = np.asarray(compiled(jax.device_put(x, device)))
        wide = x.astype(np.float64)
        want = np.asarray(reference(wide))
        if np.max(np.abs(want)) > float(ml_dtypes.finfo(dtype).max):
            return np.nan
        worst = max(worst, _error(name, got, want, wide))
    return worst


def tables(places: Sequence[str], quick: bool) -> str:
    lines = [HEAD.rstrip("\n"), ""]
    sizes = [s for s in SIZES if s <= 10**4 or not quick]
    for type_name in TYPES[:1] if quick else TYPES:
        dtype = np.dtype(getattr(ml_dtypes, type_name, type_name))
        title = " | ".join(f"{'XLA' if p == 'cpu' else p.capitalize()}, {s:.0e}" for s in sizes for p in places)
        rule = f"| --- |{' ---: |' * (len(sizes) * len(places))}"
        lines += [f"### {dtype.name}", "", f"| reduction | {title} |", rule]
        for name, (_, _, signed) in REDUCTIONS.items():
            cells = []
            for size in sizes:
                if size == SIZES[-1] and (dtype != np.float32 or name not in LONGEST):
                    cells += ["-"] * len(places)
                    continue
                rng = np.random.default_rng(size)
                draw = rng.standard_normal if signed else rng.random
                arrays = [draw(size, np.float32).astype(dtype) for _ in range(4 if size < 10**6 else 1)]
                for place in places:
                    value = measure(name, dtype, size, place, arrays)
                    cells.append("-" if np.isnan(value) else f"{value:.1e}")
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        lines.append("")
    return "\n".join(lines).rstrip("\n")
