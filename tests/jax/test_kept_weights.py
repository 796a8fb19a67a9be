"""Weights that are the same in later runs get a second form, in the library's own layout, which those runs find."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.libraries import onednn_path

pytestmark = pytest.mark.skipif(onednn_path() is None, reason="oneDNN is not installed")
IMAGE, KERNEL = (1, 14, 14, 64), (3, 3, 64, 128)
BYTES = 4 * 3 * 3 * 64 * 128


def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def filled(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.fixture
def used() -> Iterator[Callable[[], int]]:
    """How many bytes the device holds more than when the test began."""
    device = jax.devices("ferrule")[0]
    with jax.default_device(device):
        gc.collect()
        before = device.memory_stats()["bytes_in_use"]

        def more() -> int:
            gc.collect()
            return device.memory_stats()["bytes_in_use"] - before

        yield more


def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows, w.astype(np.float64))


def test_the_second_run_keeps_a_form_and_the_weights_own_it(used):
    x, weights = filled(IMAGE, 0), filled(KERNEL, 1)
    images, w = jnp.array(x), jnp.array(weights)  # copies
    start, run = used(), jax.jit(convolve)
    expected = reference(x, weights)
    for count in range(4):
        np.testing.assert_allclose(run(images, w), expected, rtol=1e-4, atol=1e-3)
        assert used() - start == (0 if count == 0 else BYTES)
    # another program finds the same form
    again = jax.jit(lambda x, w: convolve(x, w) * 2)
    for _ in range(3):
        np.testing.assert_allclose(again(images, w), 2 * expected, rtol=1e-4, atol=1e-3)
        assert used() - start == BYTES
    w.delete()
    assert used() - start == -BYTES, "the form outlived the weights"


def test_other_weights_have_forms_of_their_own(used):
    x, run = filled(IMAGE, 0), jax.jit(convolve)
    kernels = [filled(KERNEL, seed) for seed in (1, 2)]
    arrays = [jnp.array(k) for k in kernels]
    for _ in range(3):
        for kernel, array in zip(kernels, arrays, strict=True):
            np.testing.assert_allclose(run(x, array), reference(x, kernel), rtol=1e-4, atol=1e-3)


def test_updated_weights_are_new_ones(used):
    """A training step: the donated memory is the same, the contents are not."""
    x, w = filled(IMAGE, 0), filled(KERNEL, 1)
    forward = jax.jit(convolve)
    update = jax.jit(lambda w: w * 0.5, donate_argnums=0)
    array = jnp.array(w)
    for count in range(3):
        for _ in range(3):
            np.testing.assert_allclose(forward(x, array), reference(x, w) * 0.5**count, rtol=1e-4, atol=1e-3)
        array = update(array)


def test_constants_are_kept_with_the_program(used):
    x, w = jnp.array(filled(IMAGE, 0)), filled(KERNEL, 1)
    start, run = used(), jax.jit(lambda x: convolve(x, w)).lower(x).compile()
    for _ in range(3):
        np.testing.assert_allclose(run(x), reference(np.asarray(x), w), rtol=1e-4, atol=1e-3)
    assert used() - start >= BYTES


def test_memory_whose_address_was_given_away_may_change(used):
    x, w = filled(IMAGE, 0), jnp.array(filled(KERNEL, 1))
    run = jax.jit(convolve)
    start = used()
    w.unsafe_buffer_pointer()
    for _ in range(3):
        run(x, w).block_until_ready()
        assert used() - start == 0


def test_donated_weights_are_not_kept(used):
    x, w = filled(IMAGE, 0), filled(KERNEL, 1)
    run = jax.jit(lambda x, w: (convolve(x, w), w + 1), donate_argnums=1)
    array = jnp.array(w)
    for count in range(3):
        y, array = run(x, array)
        np.testing.assert_allclose(y, reference(x, w + np.float32(count)), rtol=1e-4, atol=2e-3)


def test_switched_off(python):
    program = """
import ferrule, jax, jax.numpy as jnp
ferrule.register_jax()
device = jax.devices("ferrule")[0]
with jax.default_device(device):
    x, w = jnp.ones((1, 14, 14, 64)), jnp.ones((3, 3, 64, 128))
    numbers = ("NHWC", "HWIO", "NHWC")
    f = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
    f(x, w).block_until_ready()
    before = device.memory_stats()["bytes_in_use"]
    for _ in range(3):
        f(x, w).block_until_ready()
    print(device.memory_stats()["bytes_in_use"] - before)
"""
    for setting, expected in (("0", 0), ("1", BYTES)):
        run = python(program, FERRULE_PACK=setting)
        assert run.stdout.split()[-1:] == [str(expected)], run.stdout + run.stderr
