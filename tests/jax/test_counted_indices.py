"""Indices that are sums and multiples of counted numbers: the elements that NumPy finds, whatever the type holds."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

import jax

CASES: dict[str, Callable] = {
    "windows": lambda np, x: x[np.arange(900)[:, None] + np.arange(50)],
    "windows of windows": lambda np, x: x[np.arange(30)[:, None, None] * 20 + np.arange(7)[:, None] * 3 + np.arange(5)],
    "differences": lambda np, x: x[np.arange(300)[:, None] - np.arange(300) + 400],
    "from the end": lambda np, x: x[999 - np.arange(1000)],
    "negative from the start": lambda np, x: x[np.arange(40) - 3],
    "negative from the end": lambda np, x: x[-1 - np.arange(40) * 5],
    "every third": lambda np, x: x[1 + 3 * np.arange(300)],
    "wrapping bytes": lambda np, x: x[np.arange(250, dtype=np.uint8) + np.uint8(100)],
    "wrapping signed bytes": lambda np, x: x[(np.arange(100, dtype=np.int8) * np.int8(3)).astype(np.int32)],
    "converted": lambda np, x: x[(np.arange(200, dtype=np.uint8)).astype(np.int8).astype(np.int32)],
    "diagonals": lambda np, x: x.reshape(25, 40)[np.arange(20), np.arange(20) * 2 + 1],
    "rows and windows": lambda np, x: x.reshape(25, 40)[np.arange(5)[:, None], np.arange(30) + 4],
    "one of each row": lambda np, x: x.reshape(25, 40)[np.arange(25), x.reshape(25, 40).argmax(1)],
    "compared": lambda np, x: x[np.where(np.arange(1000) < 2000, np.arange(1000), 0)],
    "compared here and there": lambda np, x: x[np.where(np.arange(1000) < 500, np.arange(1000) + 5, 7)],
    "whole rows": lambda np, x: x.reshape(25, 40)[np.arange(8) * 3],
    "windows of each row": lambda np, x: x.reshape(5, 200)[:, np.arange(30)[:, None] * 3 + np.arange(100)],
    "a mean of windows": lambda np, x: x[np.arange(960)[:, None] + np.arange(41)].mean(1),
}


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
@pytest.mark.parametrize("label", CASES)
def test_as_in_numpy(device, label: str, dtype: str) -> None:
    if "each row" in label and dtype == "complex64":
        pytest.skip("complex numbers have no largest")
    x = np.random.default_rng(5).integers(-9, 9, 1000).astype(jnp.dtype(dtype))
    found = jax.jit(lambda x: CASES[label](jnp, x))(x)
    assert found.devices() == {device}
    if "mean" in label:
        wide = CASES[label](np, x.astype(complex if dtype == "complex64" else float))
        np.testing.assert_allclose(np.asarray(found).astype(wide.dtype), wide, rtol=0.01, atol=0.02)
    else:
        np.testing.assert_array_equal(found, CASES[label](np, x))


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_out_of_bounds(device, mode: str) -> None:
    x, at = np.arange(100.0, dtype=np.float32), np.arange(60) * 3 - (0 if mode == "promise_in_bounds" else 12)
    at = at[: 33 if mode == "promise_in_bounds" else 60]

    def take(x):
        i = jnp.arange(len(at)) * 3 + int(at[0])
        return x.at[i].get(mode=mode), x.at[i].add(1.0, mode=mode)

    got, added = jax.jit(take)(x)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        want, wanted = jax.jit(take)(x)
    assert got.devices() == {device} and want.devices() != {device}
    np.testing.assert_array_equal(got, np.asarray(want))
    np.testing.assert_array_equal(added, np.asarray(wanted))


@pytest.mark.parametrize("donate", [False, True])
def test_updates(device, donate: bool) -> None:
    x, y = np.arange(1000, dtype=np.float32), np.arange(300, dtype=np.float32)

    def update(x, y):
        return (
            x.at[jnp.arange(300) * 3 + 2].set(y).at[5 + jnp.arange(300)].add(y).at[jnp.arange(7)[:, None] + 3].max(9.0)
        )

    found = jax.jit(update, donate_argnums=0 if donate else ())(jnp.array(x), y)
    assert found.devices() == {device}
    x[np.arange(300) * 3 + 2] = y
    x[5 + np.arange(300)] += y
    x[3:10] = np.maximum(x[3:10], 9)
    np.testing.assert_array_equal(found, x)
