"""Functions of each element, and of rows, in every type that they take: an array of 200,000 elements each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import jax.scipy.special as jsp
import ml_dtypes
import numpy as np

import jax
from jax import lax
from sweeps import Program, normal, uniform

COUNT = 200_000
FLOATS = (np.float32, ml_dtypes.bfloat16, np.float16)
INTEGERS = (np.int32, np.uint8, np.int8, np.uint32, np.int16)

# Where a function is defined on a part of the line only: from, to.
REAL: dict[str, tuple[Callable[..., Any], float, float]] = {
    "exp": (jnp.exp, -10, 10),
    "exp2": (jnp.exp2, -10, 10),
    "expm1": (jnp.expm1, -5, 5),
    "log": (jnp.log, 0.01, 100),
    "log2": (jnp.log2, 0.01, 100),
    "log10": (jnp.log10, 0.01, 100),
    "log1p": (jnp.log1p, -0.9, 10),
    "sqrt": (jnp.sqrt, 0, 100),
    "rsqrt": (lax.rsqrt, 0.01, 100),
    "cbrt": (jnp.cbrt, -10, 10),
    "sin": (jnp.sin, -10, 10),
    "cos": (jnp.cos, -10, 10),
    "tan": (jnp.tan, -1.5, 1.5),
    "asin": (jnp.arcsin, -1, 1),
    "acos": (jnp.arccos, -1, 1),
    "atan": (jnp.arctan, -10, 10),
    "sinh": (jnp.sinh, -5, 5),
    "cosh": (jnp.cosh, -5, 5),
    "tanh": (jnp.tanh, -5, 5),
    "asinh": (jnp.arcsinh, -10, 10),
    "acosh": (jnp.arccosh, 1, 10),
    "atanh": (jnp.arctanh, -0.99, 0.99),
    "sinc": (jnp.sinc, -5, 5),
    "erf": (jsp.erf, -3, 3),
    "erfc": (jsp.erfc, -3, 3),
    "erfinv": (jsp.erfinv, -0.99, 0.99),
    "gammaln": (jsp.gammaln, 0.1, 20),
    "digamma": (jsp.digamma, 0.1, 20),
    "i0e": (jsp.i0e, -5, 5),
    "i1e": (jsp.i1e, -5, 5),
    "ndtri": (jsp.ndtri, 0.01, 0.99),
    "log_ndtr": (jsp.log_ndtr, -5, 5),
    "logit": (jsp.logit, 0.01, 0.99),
    "xlogy": (lambda x: jsp.xlogy(x, x + 1), 0, 5),
    "entr": (jsp.entr, 0, 5),
    "floor": (jnp.floor, -10, 10),
    "round": (jnp.round, -10, 10),
    "trunc": (jnp.trunc, -10, 10),
    "sign": (jnp.sign, -10, 10),
    "abs": (jnp.abs, -10, 10),
    "reciprocal": (jnp.reciprocal, 0.1, 10),
    "nan_to_num": (jnp.nan_to_num, -10, 10),
    "frexp": (jnp.frexp, -10, 10),
    "modf": (jnp.modf, -10, 10),
    "isfinite": (jnp.isfinite, -10, 10),
    "clip": (lambda x: jnp.clip(x, -1, 1), -10, 10),
    "power": (lambda x: jnp.power(x, jnp.asarray(2.3, x.dtype)), 0.1, 10),
    "square and cube": (lambda x: x**2 + x**3, -2, 2),
    "hypot": (lambda x: jnp.hypot(x, x + 1), -10, 10),
    "arctan2": (lambda x: jnp.arctan2(x, x + 1), -10, 10),
    "logaddexp": (lambda x: jnp.logaddexp(x, -x), -10, 10),
    "fmod": (lambda x: jnp.fmod(x, jnp.asarray(1.7, x.dtype)), -10, 10),
    "remainder": (lambda x: jnp.remainder(x, jnp.asarray(1.7, x.dtype)), -10, 10),
    "floor_divide": (lambda x: jnp.floor_divide(x, jnp.asarray(1.7, x.dtype)), -10, 10),
    "nextafter": (lambda x: jnp.nextafter(x, x + 1), -10, 10),
    "copysign": (lambda x: jnp.copysign(x, -x + 1), -10, 10),
    "heaviside": (lambda x: jnp.heaviside(x, jnp.asarray(0.5, x.dtype)), -10, 10),
    "polynomial": (lambda x: jnp.polyval(jnp.arange(1, 9, dtype=x.dtype), x), -1, 1),
    "relu": (jax.nn.relu, -5, 5),
    "relu6": (jax.nn.relu6, -5, 10),
    "gelu": (jax.nn.gelu, -5, 5),
    "gelu exact": (lambda x: jax.nn.gelu(x, approximate=False), -5, 5),
    "silu": (jax.nn.silu, -5, 5),
    "mish": (jax.nn.mish, -5, 5),
    "softplus": (jax.nn.softplus, -5, 5),
    "sigmoid": (jax.nn.sigmoid, -5, 5),
    "log_sigmoid": (jax.nn.log_sigmoid, -5, 5),
    "hard_swish": (jax.nn.hard_swish, -5, 5),
    "selu": (jax.nn.selu, -5, 5),
    "elu": (jax.nn.elu, -5, 5),
    "celu": (jax.nn.celu, -5, 5),
    "squareplus": (jax.nn.squareplus, -5, 5),
}
WIDE_ONLY = {"ndtri", "log_ndtr"}  # JAX has them for f32 and f64
SLOW: dict[str, tuple[Callable[..., Any], float, float]] = {  # iterative: a tenth of the elements
    "betainc": (lambda x: jsp.betainc(2.0 + 0 * x, 3.0 + 0 * x, x), 0.01, 0.99),
    "gammainc": (lambda x: jsp.gammainc(2.0 + 0 * x, x), 0.1, 10),
    "gammaincc": (lambda x: jsp.gammaincc(2.0 + 0 * x, x), 0.1, 10),
    "zeta": (lambda x: jsp.zeta(x, 1.0 + 0 * x), 1.5, 10),
    "polygamma": (lambda x: jsp.polygamma(1, x), 0.5, 10),
    "i0": (jsp.i0, -5, 5),
    "expi": (jsp.expi, 0.1, 5),
}
COMPLEX: dict[str, Callable[..., Any]] = {
    "multiply": lambda z: z * (z + 1),
    "divide": lambda z: z / (z + 2),
    "conjugate": jnp.conj,
    "abs": jnp.abs,
    "angle": jnp.angle,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
    "power": lambda z: z ** (z + 1),
    "square": jnp.square,
    "sum": jnp.sum,
    "product of rows": lambda z: jnp.prod(z.reshape(-1, 10), -1),
}
WHOLE: dict[str, Callable[..., Any]] = {  # integers: wrap where they overflow
    "add": lambda x: x + x,
    "multiply": lambda x: x * (x + 1),
    "divide": lambda x: x // 7,
    "remainder": lambda x: x % 7,
    "divide by each": lambda x: x // (x | 1),
    "power": lambda x: x**3,
    "popcount": lax.population_count,
    "clz": lax.clz,
    "shift": lambda x: (x << 2) ^ (x >> 1),
    "shift by each": lambda x: jnp.left_shift(x, x & 3),
    "compare": lambda x: (x > 3) & (x < 50),
    "clip": lambda x: jnp.clip(x, 3, 50),
    "to float": lambda x: x.astype(jnp.float32) * 0.5,
    "sum": jnp.sum,
    "max of rows": lambda x: x.reshape(-1, 40).max(-1),
    "cumsum": jnp.cumsum,
    "gcd": lambda x: jnp.gcd(x, jnp.asarray(12, x.dtype)),
}
ROWS: dict[str, Callable[..., Any]] = {  # of 500 rows of 400
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "mean and deviation": lambda x: (x.mean(1), x.std(1)),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "standardize": lambda x: jax.nn.standardize(x, -1),
    "max and argmax": lambda x: (x.max(1), x.argmax(1)),
    "argmin of columns": lambda x: x.argmin(0),
    "cumsum of rows": lambda x: jnp.cumsum(x, 1),
    "cummax of columns": lambda x: lax.cummax(x, 0),
    "product of rows": lambda x: jnp.prod(1 + x / 100, 1),
    "sort": lambda x: jnp.sort(x, 1),
    "argsort": lambda x: jnp.argsort(x, 1),
    "top 7": lambda x: lax.top_k(x, 7),
    "median": lambda x: jnp.median(x, 1),
    "any and all": lambda x: (jnp.any(x > 2, 1), jnp.all(x > -4, 1)),
    "count_nonzero": lambda x: jnp.count_nonzero(x > 0, 1),
    "norm": lambda x: jnp.linalg.norm(x, axis=1),
    "transpose": lambda x: x.T + 1,
    "product": lambda x: x @ x.T,
    "gradient of gelu": jax.grad(lambda x: jax.nn.gelu(x).sum()),
    "gradient of softmax": jax.grad(lambda x: (jax.nn.softmax(x, -1) ** 2).sum()),
}


def programs() -> Iterator[Program]:
    x64 = jax.config.jax_enable_x64
    floats = (*FLOATS, np.float64) if x64 else FLOATS
    for dtype in floats:
        kind = np.dtype(dtype).name
        for name, (function, low, high) in REAL.items():
            if np.dtype(dtype).itemsize > 2 or name not in WIDE_ONLY:
                yield Program(f"{name} {kind}", function, _between(low, high, COUNT, dtype), _tolerance(dtype))
        for name, function in ROWS.items():
            tolerance = _tolerance(dtype) * (5 if name == "product of rows" else 1)  # XLA:CPU rounds each product
            yield Program(f"{name} {kind}", function, lambda d=dtype: (normal(500, 400).astype(d),), tolerance)
    for dtype in (np.float32, np.float64) if x64 else (np.float32,):
        for name, (function, low, high) in SLOW.items():
            yield Program(f"{name} {np.dtype(dtype).name}", function, _between(low, high, COUNT // 10, dtype))
    for dtype in (np.complex64, np.complex128) if x64 else (np.complex64,):
        for name, function in COMPLEX.items():
            yield Program(f"{name} {np.dtype(dtype).name}", function, lambda d=dtype: (_complex(d),))
    for dtype in (*INTEGERS, np.int64) if x64 else INTEGERS:
        for name, function in WHOLE.items():
            yield Program(f"{name} {np.dtype(dtype).name}", function, lambda d=dtype: (_whole(d),))


def _between(low: float, high: float, count: int, dtype: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (uniform(count, low=low, high=high).astype(dtype),)


def _tolerance(dtype: Any) -> float:
    """Some of a narrow type's steps: XLA:CPU rounds in other places."""
    return 1e-2 if np.dtype(dtype).itemsize > 2 else 4e-2


def _complex(dtype: Any) -> np.ndarray:
    return (normal(COUNT // 2) + 1j * normal(COUNT // 2, seed=1)).astype(dtype)


def _whole(dtype: Any) -> np.ndarray:
    return np.random.default_rng(0).integers(0, min(1000, np.iinfo(dtype).max), COUNT).astype(dtype)
