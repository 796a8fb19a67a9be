"""The largest elements of long rows, few by selection and many by sorting: same bits, same order of equal ones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax

SPECIAL = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1, 1, -1, -1], np.float32)


def bits(x) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("k", [200, 2053])
def test_top_k_of_long_rows(device, dtype, k):
    x = np.random.RandomState(0).randn(2, 3, 2053) * 50
    if jnp.issubdtype(dtype, jnp.floating):
        x[..., ::97] = np.resize(SPECIAL, x[..., ::97].shape)
        x[..., 5::13] = 2.5
    with np.errstate(all="ignore"):
        x = (x > 0 if dtype == "bool" else x).astype(jnp.dtype(dtype))
    # By the position in the total order of the bits, largest first, and among equal ones the earlier first.
    size = {1: np.int8, 2: np.int16, 4: np.int32}[x.dtype.itemsize]
    key = x.view(size).astype(np.int64)
    if jnp.issubdtype(dtype, jnp.floating):
        key = np.where(key < 0, key ^ np.iinfo(size).max, key)
    elif dtype in ("uint8", "bool"):
        key = x.view(np.uint8).astype(np.int64)
    order = np.argsort(-key, axis=-1, kind="stable")[..., :k]
    for count in (k, 9):
        values, index = jax.jit(lambda x, n=count: jax.lax.top_k(x, n))(x)
        np.testing.assert_array_equal(index, order[..., :count])
        np.testing.assert_array_equal(bits(values), bits(np.take_along_axis(x, order[..., :count], -1)))


def test_argpartition(device):
    x = np.random.RandomState(1).randn(30_001).astype(np.float32)
    for k in (100, 20_000):
        found = np.asarray(jax.jit(lambda x, k=k: jnp.argpartition(x, k))(x))
        assert sorted(found.tolist()) == list(range(len(x)))
        assert x[found[:k]].max() <= x[found[k]] <= x[found[k + 1 :]].min()
        head = np.asarray(jax.jit(lambda x, k=k: jnp.argpartition(x, k)[:k])(x))
        np.testing.assert_array_equal(head, found[:k])
