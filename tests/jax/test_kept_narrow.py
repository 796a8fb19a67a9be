"""Right sides of bf16 and 8-bit products that are the same in later runs are kept in oneDNN's layout, or ours."""

from __future__ import annotations

import gc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax
from ferrule.libraries import onednn_path
from ferrule.targets.cpu import host

pytestmark = pytest.mark.skipif(onednn_path() is None, reason="oneDNN is not installed")
BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def on_ferrule():
    with jax.default_device(jax.devices("ferrule")[0]):
        yield


def held() -> int:
    gc.collect()
    return jax.devices("ferrule")[0].memory_stats()["bytes_in_use"]


def filled(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(BF16)


def bytes_of(*shape: int, low: int = -128, seed: int = 0, dtype: type = np.int8) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, low + 256, shape).astype(dtype)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [(64, 64, 64), (33, 130, 77), (300, 256, 512), (17, 1000, 3)])
@pytest.mark.parametrize("result", [jnp.bfloat16, jnp.float32])
def test_bf16(size, turned, result):
    m, k, n = size
    x, w = filled(m, k), filled(k, n, seed=1)
    x[0, 0], x[1, 3], w[5, 1], x[2, 5] = np.nan, np.inf, -np.inf, -0.0
    run = jax.jit(lambda x, w: jax.lax.dot(x, w.T if turned else w, preferred_element_type=result))
    array = jnp.array(np.ascontiguousarray(w.T) if turned else w)
    results = [np.array(run(x, array)).astype(np.float32) for _ in range(4)]
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(results[0], want, rtol=1e-2 if result == jnp.bfloat16 else 1e-4, atol=2e-2)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("size", [(64, 64, 64), (33, 130, 77), (256, 1024, 96)])
def test_8_bits_are_exact_at_their_limits(size, left):
    m, k, n = size
    x = bytes_of(m, k, low=0 if left == np.uint8 else -128, dtype=left)
    w = bytes_of(k, n, seed=1)
    x[0], w[:, 0] = np.iinfo(left).max, -128
    x[1], w[:, 1] = np.iinfo(left).min, 127
    want = x.astype(np.int64) @ w.astype(np.int64)
    run = jax.jit(lambda x, w: jax.lax.dot(x, w, preferred_element_type=jnp.int32))
    array = jnp.array(w)
    for _ in range(4):
        np.testing.assert_array_equal(run(x, array), want)


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_8_bits_are_exact_on_older_processors(python, isa):
    """oneDNN's products of 8-bit integers are not: it adds pairs of them in 16 bits there."""
    program = """
import ferrule, jax, jax.numpy as jnp, numpy as np
ferrule.register_jax()
with jax.default_device(jax.devices("ferrule")[0]):
    run = jax.jit(lambda x, w: jax.lax.dot(x, w, preferred_element_type=jnp.int32))
    for left in (np.int8, np.uint8):
        for value in (-128, 127):
            x, w = np.full((64, 130), np.iinfo(left).max, left), np.full((130, 64), value, np.int8)
            print((np.array(run(x, w)) == 130 * np.iinfo(left).max * value).all())
"""
    run = python(program, ONEDNN_MAX_CPU_ISA=isa)
    assert run.stdout.split() == ["True"] * 4, run.stdout + run.stderr


@pytest.mark.skipif(
    "+avx512f" not in host().features, reason="without AVX-512 oneDNN has no layout of its own for bf16"
)
def test_the_second_run_keeps_a_form_and_the_weights_own_it():
    x, w = jnp.array(filled(16, 256)), jnp.array(filled(256, 256, seed=1))  # of few rows on every processor
    run, start = jax.jit(jnp.matmul), held()
    for count in range(4):
        run(x, w).block_until_ready()
        assert held() - start == (0 if count == 0 else 2 * 256 * 256)
    w.delete()
    assert held() - start == -2 * 256 * 256, "the form outlived the weights"


def test_both_sides_in_one_array_and_donated_ones():
    x = filled(128, 128)
    square, array = jax.jit(lambda x: x @ x), jnp.array(x)
    want = (x.astype(np.float64) @ x.astype(np.float64)).astype(BF16)
    for _ in range(3):
        np.testing.assert_allclose(np.array(square(array)).astype(np.float32), want.astype(np.float32), rtol=2e-2)
    step = jax.jit(lambda x, w: (x @ w, w * 2), donate_argnums=1)
    for _ in range(3):
        w = jnp.array(x)
        for count in range(3):
            y, w = step(array, w)
            np.testing.assert_allclose(np.array(y).astype(np.float32), want.astype(np.float32) * 2**count, rtol=2e-2)
