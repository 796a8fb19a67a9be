"""How accurate the mathematical functions are: the largest error in ulp, on Ferrule and on XLA:CPU.

    python benchmarks/numerics.py [--only NAME,…] [--write docs/numerics.md]

f32 runs over bit patterns spread evenly through all of them plus normal distributions, f16 and bf16 over all patterns,
f64 over random ones. The reference computes one format wider (f64 for f32 and narrower, 80 bits for f64).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "ferrule,cpu")

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from scipy import special
from timing import platforms

import jax
from jax import lax

jax.config.update("jax_enable_x64", True)

Function = Callable[..., Any]
# Name → (JAX's function, the reference, whether the reference also serves f64).
FUNCTIONS: dict[str, tuple[Function, Function, bool]] = {
    "exp": (lax.exp, np.exp, True),
    "expm1": (lax.expm1, np.expm1, True),
    "log": (lax.log, np.log, True),
    "log1p": (lax.log1p, np.log1p, True),
    "logistic": (lax.logistic, special.expit, True),
    "sqrt": (lax.sqrt, np.sqrt, True),
    "rsqrt": (lax.rsqrt, lambda x: 1 / np.sqrt(x), True),
    "cbrt": (lax.cbrt, np.cbrt, True),
    "sin": (lax.sin, np.sin, True),
    "cos": (lax.cos, np.cos, True),
    "tan": (lax.tan, np.tan, True),
    "tanh": (lax.tanh, np.tanh, True),
    "sinh": (lax.sinh, np.sinh, True),
    "cosh": (lax.cosh, np.cosh, True),
    "asin": (lax.asin, np.arcsin, True),
    "acos": (lax.acos, np.arccos, True),
    "atan": (lax.atan, np.arctan, True),
    "asinh": (lax.asinh, np.arcsinh, True),
    "acosh": (lax.acosh, np.arccosh, True),
    "atanh": (lax.atanh, np.arctanh, True),
    "erf": (lax.erf, special.erf, False),
    "erfc": (lax.erfc, special.erfc, False),
    "erf_inv": (lax.erf_inv, special.erfinv, False),
    "lgamma": (lax.lgamma, special.gammaln, False),
    "digamma": (lax.digamma, special.digamma, False),
}
DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
HEAD = """# Numerics

Errors of the mathematical functions in units in the last place (ulp) of the element type: 0.5 is the best that rounding
allows. "normal" leaves out arguments and results that are denormal; "all" has them too. `inf` is a NaN, an infinity or
a zero where there should be a number, or the other way round. Written by `python benchmarks/numerics.py --write
docs/numerics.md`.

Where a function crosses zero away from the origin (lgamma, digamma), its error is small against the terms that cancel
there, not against the result.

"""


def samples(dtype: np.dtype) -> np.ndarray:
    """Arguments over the whole range of the type."""
    rng = np.random.default_rng(0)
    if dtype.itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    if dtype == np.float32:
        raw = np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32).view(dtype)
    else:
        raw = rng.integers(0, 1 << 64, 1 << 17, dtype=np.uint64).view(dtype)
    near = [rng.standard_normal(1 << 17) * scale for scale in (0.1, 1, 10, 100)]
    return np.concatenate([raw, *(v.astype(dtype) for v in near)])


def errors(got: np.ndarray, want: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The error of each element in ulp of the type; equal NaNs and infinities have none."""
    info = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32).astype(dtype) if dtype.itemsize == 2 else want.astype(dtype)
        finite = np.isfinite(want)
        exponent = np.maximum(np.frexp(np.where(finite, want, 1))[1] - 1, info.minexp)
        error = np.abs(got.astype(want.dtype) - want) / np.ldexp(np.ones_like(want), exponent - info.nmant)
        got, rounded = got.astype(want.dtype), rounded.astype(want.dtype)
        # Where the true value rounds to infinity, the largest number is one step away, and the other way round.
        edge = (np.isinf(got) & (np.abs(want) > float(info.max) * 0.999)) | (np.isinf(rounded) & np.isfinite(got))
        edge &= np.isinf(rounded) | (np.abs(want) > float(info.max) * 0.999)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(np.isfinite(error), error, np.where(edge, 1, np.inf))
    return np.where(same, np.where(finite, np.minimum(error, 0.5), 0), error)


def measure(name: str, dtype: np.dtype, platform: str, x: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """The largest error among normal numbers, and among all."""
    function = jax.jit(FUNCTIONS[name][0])
    with jax.default_device(jax.devices(platform)[0]):
        got = np.asarray(function(jnp.asarray(x)))
    error = errors(got, want, dtype)
    tiny = float(ml_dtypes.finfo(dtype).tiny)
    with np.errstate(all="ignore"):
        usual = ~((np.abs(x.astype(np.float64)) < tiny) | (np.abs(want) < tiny)) | (x == 0)
    return float(error[usual].max()), float(error.max())


def spelled(value: float) -> str:
    return "inf" if np.isinf(value) else f"{value:.2f}" if value < 100 else f"{value:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FUNCTIONS)
    places = platforms()
    text = []
    for dtype in DTYPES:
        x = samples(dtype)
        wide = np.longdouble if dtype == np.float64 else np.float64
        title = " | ".join(
            f"{'XLA:CPU' if p == 'cpu' else p.capitalize()}, {part}" for p in places for part in ("normal", "all")
        )
        lines = [f"## {dtype.name}", "", f"| function | {title} |", f"| --- |{' ---: |' * (2 * len(places))}"]
        print("\n".join(lines))
        for name in names:
            _, reference, exact = FUNCTIONS[name]
            if dtype == np.float64 and not exact:
                continue
            with np.errstate(all="ignore"):
                want = np.asarray(reference(x.astype(wide)), wide)
                if name == "lgamma":  # C and XLA have +inf at -inf
                    want[np.isinf(x.astype(np.float64))] = np.inf
            figures = [spelled(v) for p in places for v in measure(name, dtype, p, x, want)]
            lines.append(f"| {name} | {' | '.join(figures)} |")
            print(lines[-1], flush=True)
        text.append("\n".join(lines))
    if options.write:
        options.write.write_text(HEAD + "\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
