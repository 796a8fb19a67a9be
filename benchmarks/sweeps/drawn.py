"""Programs drawn at random: arrays of up to four dimensions of any size, one to four steps on each.

Every step takes an array and gives one. Which, along which dimension and with which numbers is drawn again, the same
each time, while a program is traced: a program is its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jax.numpy as jnp
import numpy as np

import jax
from jax import lax
from sweeps import Program

Draw = np.random.Generator
TYPES = (*["float32"] * 6, "bfloat16", "float16", "int32", "int16", "int8", "uint8", "bool")
LEAST, MOST = 2e4, 3e6  # elements
SHORT = (1, 2, 3, 4, 5, 7, 8, 10, 16, 24, 32, 64, 100, 128)
GROWS = 3_000_000  # larger arrays are not made larger
SORTED = 300_000


def programs(count: int = 300, seed: int = 0) -> Iterator[Program]:
    for number in range(seed, seed + count):
        rng = np.random.default_rng(number)
        shape, dtype, steps = _shape(rng), str(rng.choice(TYPES)), int(rng.integers(1, 5))
        names = [str(rng.choice(list(STEPS))) for _ in range(steps)]
        name = f"{number} {dtype}{list(shape)} {', '.join(names)}"
        # Sums of few bits, of which each compiler rounds others, are compared where they are not chained.
        narrow = dtype in ("bfloat16", "float16") or any(n in ROUNDING for n in names)
        yield Program(
            name, partial(_run, number, names), partial(_arguments, number, shape, dtype), 0.0 if narrow else 2e-2
        )


def _shape(rng: Draw) -> tuple[int, ...]:
    rank, total = int(rng.integers(1, 5)), np.exp(rng.uniform(np.log(LEAST), np.log(MOST)))
    if rank == 1:
        return (int(total),)
    shares = rng.dirichlet([1.0] * rank)
    sizes = [max(1, round(float(total**share))) for share in shares]
    if rng.integers(3) == 0:
        sizes = [1 << (n.bit_length() - 1) for n in sizes]
    if rank > 2 and rng.integers(2):
        sizes[-1] = int(rng.choice(SHORT))
    sizes[0] = max(1, min(sizes[0], int(2 * MOST // np.prod(sizes[1:]))))
    return tuple(sizes)


def _arguments(number: int, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray]:
    x = np.random.default_rng(number).standard_normal(shape, dtype=np.float32) * 3
    if dtype == "bool":
        return (x > 0,)
    return ((np.abs(x) if dtype == "uint8" else x).astype(jnp.dtype(dtype)),)


def _run(number: int, names: list[str], x: jax.Array) -> jax.Array:
    rng = np.random.default_rng(number)
    for name in names:
        if x.ndim and x.size:
            x = STEPS[name](rng, x)
    return x


def _number(x: jax.Array) -> jax.Array:
    return x.astype(jnp.int32) if x.dtype == bool else x


def _real(x: jax.Array) -> jax.Array:
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _axis(rng: Draw, x: jax.Array) -> int:
    return int(rng.integers(x.ndim))


def _one_of(rng: Draw, *names: str) -> str:
    return str(rng.choice(names))


def _along(x: jax.Array, axis: int) -> list[int]:
    return [n if d == axis else 1 for d, n in enumerate(x.shape)]


def _slice(rng: Draw, x: jax.Array) -> jax.Array:
    axis = _axis(rng, x)
    size = x.shape[axis]
    low, high = (int(rng.integers(0, max(1, size // 4))) for _ in range(2))
    return lax.slice_in_dim(x, low, size - high, axis=axis)


def _pad(rng: Draw, x: jax.Array) -> jax.Array:
    axis = _axis(rng, x)
    widths = [(int(rng.integers(4)), int(rng.integers(4))) if d == axis else (0, 0) for d in range(x.ndim)]
    mode = _one_of(rng, "constant", "edge", "reflect", "wrap")
    return jnp.pad(x, widths, mode=mode) if x.shape[axis] > 4 else x


def _take(rng: Draw, x: jax.Array) -> jax.Array:
    axis = _axis(rng, x)
    return jnp.take(x, rng.integers(0, x.shape[axis], max(1, x.shape[axis] // 2)), axis=axis)


def _take_along(rng: Draw, x: jax.Array) -> jax.Array:
    axis = _axis(rng, x)
    return jnp.take_along_axis(x, rng.integers(0, x.shape[axis], _along(x, axis)), axis=axis)


def _add_at(rng: Draw, x: jax.Array) -> jax.Array:
    rows = rng.integers(0, x.shape[0], max(1, x.shape[0] // 2))
    return _number(x).at[rows].add(_number(x)[: len(rows)])


def _inside(rng: Draw, x: jax.Array) -> jax.Array:
    return x.at[tuple(slice(1, -1) if n > 2 else slice(None) for n in x.shape)].set(jnp.zeros((), x.dtype))


def _normalized(rng: Draw, x: jax.Array) -> jax.Array:
    axis, x = _axis(rng, x), _number(x).astype(jnp.float32)
    return (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + 1e-5)


def _less_its(rng: Draw, x: jax.Array) -> jax.Array:
    x, axis = _number(x), _axis(rng, x)
    return x - getattr(jnp, _one_of(rng, "sum", "max", "mean"))(x, axis=axis, keepdims=True).astype(x.dtype)


def _window(rng: Draw, x: jax.Array) -> jax.Array:
    axis, other = _axis(rng, x), int(rng.integers(1, 4))
    window = [3 if d == axis else other if d == (axis + 1) % x.ndim else 1 for d in range(x.ndim)]
    if any(n < w for n, w in zip(x.shape, window)):
        return x
    return lax.reduce_window(_number(x).astype(jnp.float32), 0.0, lax.add, window, [1] * x.ndim, "VALID")


def _product(rng: Draw, x: jax.Array) -> jax.Array:
    rows = _number(x).astype(jnp.float32).reshape(-1, x.shape[-1])
    return rows @ jnp.ones((rows.shape[1], int(rng.integers(1, 100)))) if rows.shape[1] <= 2000 else x


def _segments(rng: Draw, x: jax.Array) -> jax.Array:
    count = max(1, x.shape[0] // 4)
    return jax.ops.segment_sum(_number(x), rng.integers(0, count, x.shape[0]), count)


def _spread(rng: Draw, x: jax.Array) -> jax.Array:
    x, axis = _number(x), _axis(rng, x)
    return x.max(axis) - x.min(axis)


def _differences(rng: Draw, x: jax.Array) -> jax.Array:
    axis = _axis(rng, x)
    return jnp.diff(_number(x), axis=axis) if x.shape[axis] > 1 else x


def _pieces(rng: Draw, x: jax.Array) -> jax.Array:
    axis = _axis(rng, x)
    return jnp.concatenate(jnp.split(x, [x.shape[axis] // 3, x.shape[axis] // 2], axis)[::-1], axis)


def _outer(rng: Draw, x: jax.Array) -> jax.Array:
    line = _number(x).reshape(-1)[:1500]
    return line[:, None] - line[None, :]


def _with_itself(rng: Draw, x: jax.Array) -> jax.Array:
    return jnp.einsum("i...,i...->...", _number(x), _number(x)) if x.ndim > 1 else x


def _few(limit: int, function: Callable[[Draw, jax.Array], jax.Array], rng: Draw, x: jax.Array) -> jax.Array:
    """The step, unless it would take too much."""
    return function(rng, x) if x.size < limit else x


STEPS: dict[str, Callable[[Draw, jax.Array], jax.Array]] = {
    "transposed": lambda rng, x: jnp.transpose(x, rng.permutation(x.ndim)),
    "two swapped": lambda rng, x: jnp.swapaxes(x, _axis(rng, x), _axis(rng, x)),
    "mirrored": lambda rng, x: jnp.flip(x, _axis(rng, x)),
    "cropped": _slice,
    "every other": lambda rng, x: lax.slice_in_dim(x, 0, None, int(rng.integers(2, 4)), axis=_axis(rng, x)),
    "padded": _pad,
    "joined": lambda rng, x: jnp.concatenate([x, x[::-1]], _axis(rng, x)),
    "rolled": lambda rng, x: jnp.roll(x, int(rng.integers(1, 9)), _axis(rng, x)),
    "pieces": _pieces,
    "stacked": partial(_few, GROWS, lambda rng, x: jnp.stack([x, x], int(rng.integers(x.ndim + 1)))),
    "repeated": partial(_few, GROWS, lambda rng, x: jnp.repeat(x, 2, axis=_axis(rng, x))),
    "flat": lambda rng, x: x.reshape(-1) if rng.integers(2) else x.reshape(x.shape[0], -1),
    "a matrix, turned": lambda rng, x: x.reshape(x.shape[0], -1).T,
    "inside set": _inside,
    "lower triangle": lambda rng, x: jnp.tril(x) if x.ndim > 1 else x,
    "diagonal": lambda rng, x: jnp.diagonal(x) if x.ndim > 1 else x,
    "reduced": lambda rng, x: getattr(jnp, _one_of(rng, "sum", "max", "min", "mean"))(_number(x), axis=_axis(rng, x)),
    "any": lambda rng, x: jnp.any(x != 0, axis=_axis(rng, x)),
    "variance": lambda rng, x: jnp.var(_number(x).astype(jnp.float32), axis=_axis(rng, x)),
    "log of sums": lambda rng, x: jax.nn.logsumexp(_number(x).astype(jnp.float32), axis=_axis(rng, x)),
    "spread": _spread,
    "argmax": lambda rng, x: getattr(jnp, _one_of(rng, "argmax", "argmin"))(_number(x), axis=_axis(rng, x)),
    "less its": _less_its,
    "normalized": _normalized,
    "softmax": lambda rng, x: jax.nn.softmax(_real(x), axis=_axis(rng, x)),
    "running": lambda rng, x: jnp.cumsum(_number(x), axis=_axis(rng, x)),
    "differences": _differences,
    "window": _window,
    "sorted": partial(_few, SORTED, lambda rng, x: jnp.sort(x, axis=_axis(rng, x))),
    "largest": partial(_few, SORTED, lambda rng, x: lax.top_k(_number(x), min(5, x.shape[-1]))[0]),
    "rows in another order": lambda rng, x: x[rng.permutation(x.shape[0])],
    "taken": _take,
    "taken along": _take_along,
    "rows added": _add_at,
    "sums of segments": _segments,
    "looked up": lambda rng, x: jnp.searchsorted(jnp.linspace(-3, 3, 64), _number(x).astype(jnp.float32)),
    "product": partial(_few, 2_000_000, _product),
    "with itself": _with_itself,
    "outer": _outer,
    "scaled": lambda rng, x: _number(x) * jnp.arange(1.0, 1 + x.shape[(d := _axis(rng, x))]).reshape(_along(x, d)),
    "positive": lambda rng, x: jnp.where(_number(x) > 0, _number(x), 0),
    "converted": lambda rng, x: x.astype(_one_of(rng, "float32", "bfloat16", "int32", "uint8", "float16", "int8")),
    "function": lambda rng, x: getattr(jnp, _one_of(rng, "exp", "tanh", "sqrt", "sin", "log1p", "arctan", "square"))(
        _real(x)
    ),
    "twice and itself": lambda rng, x: _number(x) * 2 + _number(x),
    "clipped": lambda rng, x: jnp.clip(_number(x), -1, 1),
    "above its mean": lambda rng, x: _number(x) > _number(x).mean().astype(_number(x).dtype),
    "counted": lambda rng, x: _number(x) + lax.broadcasted_iota(_number(x).dtype, x.shape, _axis(rng, x)),
}
# Where an ulp, or the order of equal numbers, makes another result, or XLA:CPU 0.10 takes maxima of bytes wrong.
ROUNDING = frozenset(
    {
        *("converted", "function", "argmax", "above its mean", "less its", "spread"),
        *("reduced", "running", "looked up"),
    }
)
