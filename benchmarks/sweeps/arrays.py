"""What NumPy's users do with arrays of any form: move, join, pad, index, sort, count, scan, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax
from jax import lax
from sweeps import Program, integers, normal

SHAPES = ((1000, 7), (7, 30_000), (333, 301), (100, 100, 10), (1, 100_003), (50, 3, 17, 41))

OF_ANY_SHAPE: dict[str, Callable[..., Any]] = {
    "sum of the first axis": lambda x: x.sum(0),
    "sum of the last": lambda x: x.sum(-1),
    "sum of all": jnp.sum,
    "mean and var of the first": lambda x: (x.mean(0), x.var(0)),
    "cumsum of the first": lambda x: jnp.cumsum(x, 0),
    "cumsum of the last": lambda x: jnp.cumsum(x, -1),
    "cumprod": lambda x: jnp.cumprod(1 + x / 1000, -1),
    "sort the last": lambda x: jnp.sort(x, -1),
    "sort the first": lambda x: jnp.sort(x, 0),
    "argsort the last": lambda x: jnp.argsort(x, -1),
    "argmax of the last": lambda x: jnp.argmax(x, -1),
    "argmax of the first": lambda x: jnp.argmax(x, 0),
    "argmax of all": jnp.argmax,
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "softmax of the first": lambda x: jax.nn.softmax(x, 0),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "median": lambda x: jnp.median(x, -1),
    "quantile": lambda x: jnp.quantile(x, jnp.array([0.1, 0.9]), -1),
    "swap of first and last": lambda x: jnp.swapaxes(x, 0, -1) + 1,
    "layer norm": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
    "batch norm": lambda x: (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5),
    "min-max scaling": lambda x: (x - x.min(0)) / (x.max(0) - x.min(0) + 1),
    "roll of the last": lambda x: jnp.roll(x, 3, -1),
    "roll of the first": lambda x: jnp.roll(x, 3, 0),
    "diff": lambda x: jnp.diff(x, axis=-1),
    "diff of the first": lambda x: jnp.diff(x, axis=0),
    "gradient": lambda x: jnp.gradient(x, axis=-1) if x.shape[-1] > 1 else x,
    "flip": lambda x: jnp.flip(x, -1),
    "flip of the first": lambda x: jnp.flip(x, 0),
    "top 5": lambda x: lax.top_k(x, 5),
    "repeat": lambda x: jnp.repeat(x, 3, -1),
    "repeat of the first": lambda x: jnp.repeat(x, 3, 0),
    "tile": lambda x: jnp.tile(x, 2),
    "pad": lambda x: jnp.pad(x, 2),
    "pad edge": lambda x: jnp.pad(x, 2, mode="edge"),
    "pad reflect": lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 3)], mode="reflect"),
    "pad wrap": lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 3)], mode="wrap"),
    "every second": lambda x: x[..., ::2] * 2,
    "every second row": lambda x: x[::2] * 2,
    "first and last halves": lambda x: jnp.concatenate([x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1),
    "stack": lambda x: jnp.stack([x, x + 1, x * 2]),
    "stack as last": lambda x: jnp.stack([x, x + 1, x * 2], -1),
    "concatenate as last": lambda x: jnp.concatenate([x, x + 1], -1),
    "split": lambda x: jnp.array_split(x.reshape(-1), 3),
    "where": lambda x: jnp.where(x > 0, x, -x / 2),
    "select": lambda x: jnp.select([x < -1, x < 1], [x + 1, x * 2], 0),
    "mask of rows": lambda x: jnp.where((jnp.arange(x.shape[0]) % 3 == 0).reshape(-1, *[1] * (x.ndim - 1)), x, 0),
    "nonzero": lambda x: jnp.nonzero(x > 0, size=100),
    "argwhere": lambda x: jnp.argwhere(x > 2, size=500),
    "one row out": lambda x: lax.dynamic_slice_in_dim(x, x.shape[0] // 2, 1, 0) * 2,
    "one row set": lambda x: x.at[x.shape[0] // 2].set(1.0),
    "one column set": lambda x: x.at[..., x.shape[-1] // 2].set(1.0),
    "border set": lambda x: x.at[..., 0].set(0.0).at[..., -1].set(0.0),
    "add to every second": lambda x: x.at[..., ::2].add(1.0),
    "shifted difference": lambda x: x[..., 1:] - x[..., :-1],
    "norms": lambda x: jnp.linalg.norm(x.reshape(x.shape[0], -1), axis=1),
    "outer difference of the first": lambda x: x[: min(50, x.shape[0]), None] - x[None, : min(50, x.shape[0])],
    "bfloat16 and back": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "as integers": lambda x: jnp.round(x * 10).astype(jnp.int32) % 7,
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.int32) ^ 1,
    "allclose": lambda x: jnp.allclose(x, x + 1e-9),
    "isnan count": lambda x: jnp.isnan(x).sum(),
    "associative scan": lambda x: lax.associative_scan(jnp.maximum, x, axis=-1),
    "ptp and average": lambda x: (jnp.ptp(x, -1), jnp.average(x, axis=-1, weights=jnp.arange(1.0, 1 + x.shape[-1]))),
    "unwrap": lambda x: jnp.unwrap(x, axis=-1),
    "trapezoid": lambda x: jnp.trapezoid(x, axis=-1),
}


# With places to take something from.
OF_JOINED: dict[str, Callable[..., Any]] = {
    "roll by a traced number": lambda x, i: jnp.roll(x, 7 + i[0], 0),
    "roll of the last by a traced number": lambda x, i: jnp.roll(x, 7 + i[0], 1),
    "rolls of each row": lambda x, i: jax.vmap(jnp.roll)(x[:300], i),
    "crops of padded": lambda x, i: jax.vmap(lambda k: lax.dynamic_slice(jnp.pad(x, 4), (k, k), (100, 97)))(i[:10]),
    "one of a stack": lambda x, i: jnp.stack([x, x * 2, x + 1])[i[0]],
    "one of a stack for each row": lambda x, i: jnp.stack([x, x * 2, x + 1])[i, jnp.arange(300)],
    "rows and a zero": lambda x, i: jnp.concatenate([x, jnp.zeros((1, 97))])[i * 500],
    "rows of a padded array": lambda x, i: jnp.pad(x, 1)[i * 500],
}


def programs() -> Iterator[Program]:
    for shape in SHAPES:
        for name, function in OF_ANY_SHAPE.items():
            tolerance = 0 if name == "unwrap" else 1e-2  # a step of exactly pi goes either way
            if name == "top 5" and shape[-1] < 5:
                continue
            yield Program(f"{name} {list(shape)}", function, lambda s=shape: (normal(*s),), tolerance)
    yield from _transposes()
    yield from _indexing()
    yield from _counting()
    yield from _of_two()


def _transposes() -> Iterator[Program]:
    for shape, order in (
        ((333, 301), (1, 0)),
        ((50, 60, 70), (0, 2, 1)),
        ((50, 60, 70), (2, 1, 0)),
        ((50, 60, 70), (1, 0, 2)),
        ((4, 33, 33, 13), (0, 3, 1, 2)),
        ((4, 13, 33, 33), (0, 2, 3, 1)),
        ((4, 77, 5, 24), (0, 2, 1, 3)),
        ((5, 6, 7, 8, 9, 10), (5, 3, 1, 0, 2, 4)),
        ((100_000, 3), (1, 0)),
        ((3, 100_000), (1, 0)),
    ):
        for dtype in (np.float32, np.int8, np.complex64):
            yield Program(
                f"transpose {list(shape)} by {list(order)} {np.dtype(dtype).name}",
                partial(jnp.transpose, axes=order),
                lambda s=shape, d=dtype: ((normal(*s) * 10).astype(d),),
            )
    yield Program("space to depth", _space_to_depth, lambda: (normal(4, 66, 66, 5),))
    yield Program("depth to space", _depth_to_space, lambda: (normal(4, 33, 33, 20),))
    yield Program("patches of 8", _patches, lambda: (normal(4, 96, 96, 3),))
    yield Program("triu", jnp.triu, lambda: (normal(333, 333),))
    yield Program("diagonal", jnp.diag, lambda: (normal(500),))
    yield Program("block of", lambda a, b: jnp.block([[a, b], [b, a]]), lambda: (normal(99, 99), normal(99, 99)))
    yield Program("rot90", jnp.rot90, lambda: (normal(333, 301),))
    yield Program("meshgrid", lambda x, y: jnp.meshgrid(x, y), lambda: (normal(301), normal(333)))
    yield Program("vander", lambda x: jnp.vander(x, 9), lambda: (normal(10_007),))


def _space_to_depth(x: Any) -> Any:
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h // 2, w // 2, 4 * c)


def _depth_to_space(x: Any) -> Any:
    b, h, w, c = x.shape
    return x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, c // 4)


def _patches(x: Any) -> Any:
    b, h, w, c = x.shape
    return x.reshape(b, h // 8, 8, w // 8, 8, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 64 * c)


def _indexing() -> Iterator[Program]:
    rows: Callable[..., Any] = lambda: (normal(997, 33), integers(997, 5003))  # noqa: E731
    yield Program("take rows", lambda x, i: x[i], rows)
    yield Program("take columns", lambda x, i: x[:, i], lambda: (normal(333, 301), integers(301, 500)))
    yield Program(
        "take_along_axis", lambda x, i: jnp.take_along_axis(x, i, 1), lambda: (normal(500, 77), integers(77, 500, 50))
    )
    yield Program(
        "pairs of indices",
        lambda x, i, j: x[i, j],
        lambda: (normal(333, 301), integers(333, 9999), integers(301, 9999)),
    )
    yield Program(
        "pick of each row", lambda x, i: x[jnp.arange(x.shape[0]), i], lambda: (normal(5003, 21), integers(21, 5003))
    )
    yield Program("windows by vmap", _windows, lambda: (normal(3001), integers(2900, 500)))
    yield Program("add at rows", lambda x, i: x.at[i].add(1.0), lambda: (normal(997, 33), integers(997, 503)))
    yield Program(
        "set at rows",
        lambda x, i, v: x.at[i].set(v),
        lambda: (normal(997, 33), np.arange(0, 997, 3, dtype=np.int32), normal(333, 33)),
    )
    yield Program("add at elements", lambda x, i: x.at[i].add(1.0), lambda: (normal(1009), integers(1009, 20_011)))
    yield Program(
        "max at elements",
        lambda x, i, v: x.at[i].max(v),
        lambda: (normal(1009), integers(1009, 20_011), normal(20_011)),
    )
    yield Program("set by mask", lambda x: x.at[jnp.where(x > 1, 0, 5)].set(1.0, mode="drop"), lambda: (normal(5003),))
    yield Program("gradient of take", jax.grad(lambda x, i: (x[i] ** 2).sum()), rows)
    yield Program("one hot", lambda i: jax.nn.one_hot(i, 97), lambda: (integers(97, 3001),))
    for name, function in OF_JOINED.items():
        yield Program(name, function, lambda: (normal(1001, 97), integers(3, 300)))
    yield Program("searchsorted", jnp.searchsorted, lambda: (np.sort(normal(1001)), normal(4321)))
    yield Program("digitize", jnp.digitize, lambda: (normal(10_007), np.linspace(-3, 3, 31, dtype=np.float32)))
    yield Program("interp", jnp.interp, lambda: (normal(4321), np.linspace(-3, 3, 101, dtype=np.float32), normal(101)))
    for op in ("sum", "max", "prod"):
        segment = getattr(jax.ops, f"segment_{op}")
        function = lambda x, i, f=segment: f(1 + x / 1000, i, 97)  # noqa: E731
        yield Program(f"segment {op}", function, lambda: (normal(10_007, 13), integers(97, 10_007)))
        yield Program(f"segment {op}, sorted", lambda x, i, f=segment: f(1 + x / 1000, i, 97, indices_are_sorted=True),
                      lambda: (normal(10_007, 13), np.sort(integers(97, 10_007))))  # fmt: skip


def _windows(x: Any, starts: Any) -> Any:
    return jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (77,)))(starts)


def _counting() -> Iterator[Program]:
    yield Program("bincount", lambda i: jnp.bincount(i, length=97), lambda: (integers(97, 50_021),))
    yield Program("histogram", lambda x: jnp.histogram(x, 31)[0], lambda: (normal(20_011),), 0)
    yield Program(
        "histogram2d", lambda x, y: jnp.histogram2d(x, y, 13)[0], lambda: (normal(5003), normal(5003, seed=1)), 0
    )
    yield Program("unique", lambda x: jnp.unique(jnp.round(x * 10), size=64), lambda: (normal(10_007),))
    yield Program(
        "unique with counts", lambda i: jnp.unique(i, size=97, return_counts=True), lambda: (integers(97, 10_007),)
    )
    yield Program("isin", lambda i, j: jnp.isin(i, j), lambda: (integers(5000, 10_007), integers(5000, 301, seed=1)))
    yield Program(
        "intersect1d",
        lambda i, j: jnp.intersect1d(i, j, size=100),
        lambda: (integers(5000, 1009), integers(5000, 1009, seed=1)),
    )
    yield Program("lexsort", lambda i, x: jnp.lexsort((x, i)), lambda: (integers(97, 10_007), normal(10_007)))
    yield Program(
        "sort by key", lambda i, x: lax.sort((i, x), num_keys=1), lambda: (integers(97, 10_007), normal(10_007))
    )
    yield Program("sort int64 pairs", lambda x: jnp.sort(x, axis=0, stable=False), lambda: (integers(10_000, 20_011),))
    yield Program("partition", lambda x: jnp.partition(x, 100), lambda: (normal(20_011),), 0)
    yield Program("rank", lambda x: jnp.argsort(jnp.argsort(x)), lambda: (normal(10_007),))
    yield Program("packbits", jnp.packbits, lambda: (integers(2, 80_003).astype(np.uint8),))
    yield Program("unpackbits", jnp.unpackbits, lambda: (integers(256, 10_007).astype(np.uint8),))


def _of_two() -> Iterator[Program]:
    yield Program("distances 500 to 400 in 3", _distances, lambda: (normal(500, 3), normal(400, 3, seed=1)))
    yield Program(
        "nearest", lambda x, y: _distances(x, y).argmin(1), lambda: (normal(500, 3), normal(400, 3, seed=1)), 0
    )
    yield Program("cross products", jnp.cross, lambda: (normal(10_007, 3), normal(10_007, 3, seed=1)))
    yield Program("cosine similarity", _cosine, lambda: (normal(301, 77), normal(333, 77, seed=1)))
    yield Program("row plus column", lambda x, y: x[:, None] * y[None] + 1, lambda: (normal(333), normal(301)))
    yield Program("broadcast in the middle", lambda x, y: x * y[:, None], lambda: (normal(50, 60, 70), normal(50, 70)))
    yield Program("correlate", lambda x, y: jnp.correlate(x, y, "full"), lambda: (normal(1001), normal(333)))
    yield Program("polyfit", lambda x, y: jnp.polyfit(x, y, 3), lambda: (normal(1001), normal(1001, seed=1)))
    yield Program(
        "apply along rows",
        lambda x, y: jax.vmap(jnp.interp, (0, 0, 0))(x, jnp.sort(y, 1), x),
        lambda: (normal(50, 100), normal(50, 100)),
    )


def _distances(x: Any, y: Any) -> Any:
    return jnp.sqrt(((x[:, None] - y[None]) ** 2).sum(-1))


def _cosine(x: Any, y: Any) -> Any:
    return (x / jnp.linalg.norm(x, axis=1, keepdims=True)) @ (y / jnp.linalg.norm(y, axis=1, keepdims=True)).T
