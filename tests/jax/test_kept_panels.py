"""Right sides of products that are the same in later runs are kept in panels; the results have the same bits."""

from __future__ import annotations

import gc

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.targets.cpu import host

has_quads = pytest.mark.skipif(
    not {"+avx512vnni", "+avxvnni"} & set(host().features.split(",")),
    reason="products of bytes are kept only where the processor multiplies four at once (VNNI)",
)


def filled(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def held() -> int:
    gc.collect()
    return jax.devices("ferrule")[0].memory_stats()["bytes_in_use"]


@pytest.fixture(autouse=True)
def on_ferrule():
    with jax.default_device(jax.devices("ferrule")[0]):
        yield


def plain(x, w):
    return x @ w


def turned(x, w):
    return x @ w.T


def finished(x, w):
    return jax.nn.relu(x @ w + 1)


@pytest.mark.parametrize("rows", [2, 5, 12, 24, 33, 64])
@pytest.mark.parametrize("form", [plain, turned, finished])
@pytest.mark.parametrize("size", [(1025, 450), (300, 4100)])
def test_later_runs_have_the_same_bits(form, rows, size):
    k, n = size
    x, weights = filled(rows, k), filled(k, n, seed=1)
    x[0, 0], x[1, 3], weights[5, 7] = np.nan, np.inf, -np.inf
    x[1, 5] = -0.0
    w = jnp.array(weights.T if form is turned else weights)
    run = jax.jit(form)
    results = [np.array(run(x, w)) for _ in range(2)]
    before = held()
    results += [np.array(run(x, w)) for _ in range(2)]
    assert held() == before, "later runs keep nothing more"
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ weights.astype(np.float64)
    if form is finished:
        want = np.where(np.isnan(want), want, np.maximum(want + 1, 0))
    np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=1e-3)
    for other in results[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), results[0].view(np.uint32))


def bytes_of(dtype: type, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8).view(dtype)


def product(x, w):
    return jax.lax.dot(x, w, preferred_element_type=jnp.int32)


@has_quads
@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
@pytest.mark.parametrize("size", [(2, 640, 704), (33, 1025, 450), (300, 130, 70), (5, 2700, 1100)])
def test_panels_of_bytes(left, right, size):
    """Exact at the limits, of a right side that lies as it is and turned, and with something behind the product."""
    rows, k, n = size
    x, w = bytes_of(left, rows, k), bytes_of(right, k, n, seed=1)
    x[0], w[:, 0] = np.iinfo(left).max, np.iinfo(right).min
    x[1], w[:, 1] = np.iinfo(left).min, np.iinfo(right).max
    want = x.astype(np.int64) @ w.astype(np.int64)
    turned = np.ascontiguousarray(w.T)
    for run, weights, finish in (
        (product, w, lambda y: y),
        (lambda x, w: product(x, w.T), turned, lambda y: y),
        (lambda x, w: jnp.abs(product(x, w) - 7), w, lambda y: np.abs(y - 7)),
    ):
        run, array = jax.jit(run), jnp.array(weights)
        start = held()
        for count in range(4):
            np.testing.assert_array_equal(run(x, array), finish(want))
            assert (held() - start >= k * n) == (count > 0), "the second run keeps panels"


def test_the_second_run_keeps_panels_and_the_weights_own_them():
    x, w, run = jnp.array(filled(16, 512)), jnp.array(filled(512, 1024)), jax.jit(plain)
    start = held()
    for count in range(3):
        run(x, w).block_until_ready()
        assert held() - start == (0 if count == 0 else 4 * 512 * 1024)
    w.delete()
    assert held() - start == -4 * 512 * 1024


@pytest.mark.parametrize("shape", [(1, 512, 1024), (101, 512, 1024), (16, 512, 256)])
def test_what_does_not_gain_keeps_nothing(shape):
    m, k, n = shape
    x, w, run = jnp.array(filled(m, k)), jnp.array(filled(k, n)), jax.jit(plain)
    start = held()
    for _ in range(3):
        run(x, w).block_until_ready()
    assert held() == start


def test_updated_weights_are_new_ones():
    x, w = filled(16, 512), filled(512, 1024)
    update = jax.jit(lambda w: w * 0.5, donate_argnums=0)
    run, array = jax.jit(plain), jnp.array(w)
    for count in range(3):
        for _ in range(3):
            np.testing.assert_allclose(run(x, array), (x @ w) * 0.5**count, rtol=1e-3, atol=1e-3)
        array = update(array)
