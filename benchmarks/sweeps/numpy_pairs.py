"""Expressions of NumPy and SciPy that JAX has, too: `benchmarks/beside_numpy.py` times both.

One text is run with both: `np` is jax.numpy or NumPy, `sp` jax.scipy or SciPy. Where JAX wants a size, or arrays that
change say it differently, there are two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sweeps import integers, normal, positive_definite, uniform

NAMES = "xyzuvw"

# x: normal, y: normal, z: below 1000, u: a place in x, v: 1000 in order, w: 31.
LINES = {
    "sort": "np.sort(x)",
    "argsort": ("np.argsort(x)", "np.argsort(x, kind='stable')"),
    "sort of integers": "np.sort(z)",
    "argsort of integers": ("np.argsort(z)", "np.argsort(z, kind='stable')"),
    "lexsort": "np.lexsort((u % 50, z))",
    "median": "np.median(x)",
    "percentiles": "np.percentile(x, np.asarray([5, 50, 95]))",
    "partition": "np.partition(x, 100)[100]",
    "unique": ("np.unique(z, size=1000, fill_value=999)", "np.resize(np.unique(z), 1000)"),
    "searchsorted": "np.searchsorted(v, x)",
    "digitize": "np.digitize(x, v[::20])",
    "histogram": "np.histogram(x, 100)[0]",
    "bincount": ("np.bincount(z, length=1000)", "np.bincount(z, minlength=1000)"),
    "weighted bincount": ("np.bincount(z, x, length=1000)", "np.bincount(z, x, minlength=1000)"),
    "interp": "np.interp(x, v, v * v)",
    "isin": "np.isin(u, z[:100])",
    "cumsum": "np.cumsum(x)",
    "cumulative maximum": "np.maximum.accumulate(x)",
    "argmax": "np.argmax(x)",
    "max": "np.max(x)",
    "sum": "np.sum(x)",
    "var": "np.var(x)",
    "any": "np.any(x > 100)",
    "count_nonzero": "np.count_nonzero(x > 0)",
    "nonzero": ("np.nonzero(x > 0, size=len(x))[0]", "np.pad(p := np.nonzero(x > 0)[0], (0, len(x) - len(p)))"),
    "allclose": "np.allclose(x, x)",
    "dot": "np.dot(x, y)",
    "dot of parts": "np.dot(x[1:], x[:-1])",
    "norm": "np.linalg.norm(x)",
    "diff": "np.diff(x)",
    "gradient": "np.gradient(x)",
    "roll": "np.roll(x, 7)",
    "repeat": "np.repeat(x, 3)",
    "tile": "np.tile(x, 3)",
    "take": "np.take(x, u)",
    "add at places": ("x.at[u].add(y)", "add_at(x, u, y)"),
    "put at places": ("x.at[u].set(1)", "put(x, u, 1)"),
    "where": "np.where(x > 0, x, 0.1 * x)",
    "clip": "np.clip(x, -1, 1)",
    "convolve": "np.convolve(x, w, 'same')",
    "polynomial": "np.polyval(w[:8], x)",
    "fft": "np.fft.fft(x)",
    "rfft": "np.fft.rfft(x)",
    "exp": "np.exp(x)",
    "sin": "np.sin(x)",
    "arctan2": "np.arctan2(x, y)",
    "power": "np.abs(x) ** 1.7",
    "remainder": "x % 0.3",
    "integer division": "z // (u + 1)",
    "bitwise_count": "np.bitwise_count(z)",
    "packbits": "np.packbits(z > 500)",
    "unpackbits": "np.unpackbits(z.astype(np.uint8))",
    "to bytes": "(x * 20).astype(np.int8)",
    "erf": "sp.special.erf(x)",
    "gammaln": "sp.special.gammaln(np.abs(x))",
    "logsumexp": "sp.special.logsumexp(x)",
    "fftconvolve": "sp.signal.fftconvolve(x, v)",
    "welch": "sp.signal.welch(x, nperseg=256)[1]",
}

# x and y: n x n, z: n x 1, u: symmetric and positive.
SQUARES = {
    "product": "x @ y",
    "covariance": "np.cov(x)",
    "inverse": "np.linalg.inv(u)",
    "determinant": "np.linalg.slogdet(u)[1]",
    "solution": "np.linalg.solve(u, z)",
    "cholesky": "np.linalg.cholesky(u)",
    "singular values": "np.linalg.svd(x, compute_uv=False)",
    "eigenvalues": "np.linalg.eigvalsh(u)",
    "least squares": "np.linalg.lstsq(x[:, :50], z)[0]",
    "power of a matrix": "np.linalg.matrix_power(x / len(x), 5)",
    "exponential": "sp.linalg.expm(x / len(x))",
    "transposed": "x.T + 1",
    "turned": "np.rot90(x) + 1",
    "triu": "np.triu(x)",
    "outer": "np.outer(x[0], x[1])",
    "sort of rows": "np.sort(x, 1)",
    "sort of columns": "np.sort(x, 0)",
    "argsort of rows": ("np.argsort(x, 1)", "np.argsort(x, 1, kind='stable')"),
    "median of rows": "np.median(x, 1)",
    "median of columns": "np.median(x, 0)",
    "argmax of rows": "np.argmax(x, 1)",
    "argmax of columns": "np.argmax(x, 0)",
    "cumsum of rows": "np.cumsum(x, 1)",
    "cumsum of columns": "np.cumsum(x, 0)",
    "mean of rows": "np.mean(x, 1)",
    "std of columns": "np.std(x, 0)",
    "rows less their mean": "x - np.mean(x, 1, keepdims=True)",
    "distances": "np.sqrt(np.sum((x[:, None, :8] - y[None, :, :8]) ** 2, -1))",
    "einsum": "np.einsum('ij,kj->ik', x, y)",
    "fft2": "np.fft.fft2(x)",
    "convolve2d": "sp.signal.convolve2d(x, y[:5, :5], 'same')",
}


@dataclass(frozen=True)
class Pair:
    name: str
    jax: str
    numpy: str
    arguments: Callable[[], tuple[np.ndarray, ...]]

    def function(self) -> Callable[..., Any]:
        import jax.numpy as jnp

        import jax

        return eval(self._lambda(self.jax), {"np": jnp, "sp": jax.scipy})

    def numpy_function(self) -> Callable[..., Any]:
        import scipy.linalg
        import scipy.signal
        import scipy.special

        return eval(self._lambda(self.numpy), {"np": np, "sp": scipy, "add_at": _add_at, "put": _put})

    def _lambda(self, text: str) -> str:
        return f"lambda {', '.join(NAMES[: len(self.arguments())])}: {text}"


def pairs() -> Iterator[Pair]:
    for n in (10_000, 100_000, 1_000_000):
        yield from _each(LINES, str(n), partial(_line, n))
    for n in (100, 500, 1000):
        yield from _each(SQUARES, f"{n}²", partial(_squares, n))


def _each(table: dict[str, Any], size: str, arguments: Callable[[], tuple[np.ndarray, ...]]) -> Iterator[Pair]:
    for name, text in table.items():
        ours, theirs = (text, text) if isinstance(text, str) else text
        yield Pair(f"{name}, {size}", ours, theirs, arguments)


def _line(n: int) -> tuple[np.ndarray, ...]:
    places = np.random.default_rng(4).permutation(n).astype(np.int32)
    v = np.sort(uniform(1000, seed=2, low=-3, high=3))
    return normal(n), normal(n, seed=1), integers(1000, n, seed=3), places, v, normal(31, seed=5)


def _squares(n: int) -> tuple[np.ndarray, ...]:
    return normal(n, n), normal(n, n, seed=1), normal(n, 1, seed=2), positive_definite(1, n)[0] / np.float32(n)


def _add_at(x: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    x = x.copy()
    np.add.at(x, places, values)
    return x


def _put(x: np.ndarray, places: np.ndarray, value: float) -> np.ndarray:
    x = x.copy()
    x[places] = value
    return x
