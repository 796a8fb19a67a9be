"""Pixels that computed places choose: their channels first, last or alone, beside XLA's."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.ndimage import map_coordinates

import jax

Sample = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def places(height: int, width: int, turn) -> tuple[jax.Array, jax.Array]:
    """The rows and columns, not whole numbers, that a turn and a shift make of those of an image; some lie outside."""
    y, x = jnp.meshgrid(jnp.arange(height, dtype=jnp.float32), jnp.arange(width, dtype=jnp.float32), indexing="ij")
    return turn[0] * y + turn[1] * x + turn[2], turn[3] * x - turn[1] * y - 1


def bilinear(pick: Callable) -> Sample:
    def sample(image, y, x):
        top, left = jnp.floor(y), jnp.floor(x)
        down, right = y - top, x - left
        i, j = top.astype(jnp.int32), left.astype(jnp.int32)
        corners = ((0, 0, (1 - down) * (1 - right)), (0, 1, (1 - down) * right))
        corners += ((1, 0, down * (1 - right)), (1, 1, down * right))
        return sum(pick(image, i + a, j + b) * weight[..., None].astype(image.dtype) for a, b, weight in corners)

    return sample


def clipped(image, i, j):
    return image[jnp.clip(i, 0, image.shape[0] - 1), jnp.clip(j, 0, image.shape[1] - 1)]


def filled(image, i, j):
    return image.at[i, j].get(mode="fill", fill_value=7)


def nearest(image, y, x):
    return clipped(image, jnp.rint(y).astype(jnp.int32), jnp.rint(x).astype(jnp.int32))


def channels_apart(image, y, x):
    return jax.vmap(lambda c: map_coordinates(c, [y, x], 1, mode="mirror"), -1, -1)(image)


def channels_first(image, y, x):
    planes = jnp.moveaxis(image, -1, 0)
    return jax.vmap(lambda c: map_coordinates(c, [y, x], 1, mode="nearest") * jnp.sin(y + x).astype(c.dtype))(planes)


def two_results(image, y, x):
    return nearest(image, y, x), bilinear(clipped)(image, y, x) + (jnp.tanh(y) * jnp.exp(-x * x))[..., None]


SAMPLES = {
    "clipped": bilinear(clipped),
    "filled": bilinear(filled),
    "nearest": nearest,
    "channels apart": channels_apart,
    "channels first": channels_first,
    "two results": two_results,
    "joined": lambda image, y, x: jnp.concatenate([nearest(image, y, x), (y * x)[..., None].astype(image.dtype)], -1),
}
TURN = np.array([0.875, 0.25, 2.53125, 1.125], np.float32)  # every place is exact


def compare(device, function, *arguments) -> None:
    found = jax.jit(function)(*arguments)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = jax.jit(function)(*arguments)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert got.devices() == {device} and want.devices() != {device} and got.dtype == want.dtype
        error = 0.06 if got.dtype == jnp.bfloat16 else 2e-5
        wide = np.complex128 if got.dtype == jnp.complex64 else np.float64
        np.testing.assert_allclose(np.asarray(got, wide), np.asarray(want, wide), rtol=error, atol=error)


@pytest.mark.parametrize("shape", [(70, 67), (9, 5)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4, 6])
@pytest.mark.parametrize("sample", SAMPLES)
def test_channels(device, sample: str, channels: int, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(1).integers(-8, 8, (*shape, channels)).astype(np.float32)
    compare(device, lambda image, turn: SAMPLES[sample](image, *places(*shape, turn)), image, TURN)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "uint8", "complex64", "bool"])
def test_types(device, dtype: str) -> None:
    image = np.random.default_rng(2).integers(0, 9, (40, 50, 3)).astype(jnp.dtype(dtype))
    with jax.enable_x64(dtype == "float64"):
        compare(device, lambda image, turn: nearest(image, *places(40, 50, turn)), image, TURN)


@pytest.mark.parametrize("channels", [2, 3])
def test_a_batch_with_its_own_places(device, channels: int) -> None:
    rng = np.random.default_rng(3)
    images, flow = rng.standard_normal((4, 33, 50, channels)), 5 * rng.standard_normal((4, 33, 50, 2))
    y, x = places(33, 50, TURN)

    def warp(image, by):
        return bilinear(clipped)(image, y + by[..., 0], x + by[..., 1])

    compare(device, jax.vmap(warp), images.astype(np.float32), flow.astype(np.float32))


def test_gradients(device) -> None:
    image = np.random.default_rng(4).standard_normal((40, 48, 3)).astype(np.float32)

    def loss(image, turn):
        return (bilinear(clipped)(image, *places(40, 48, turn)) ** 2).mean()

    compare(device, jax.grad(loss, (0, 1)), image, TURN)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("features", [1, 2, 3, 4])
def test_levels_of_hashed_cells(device, features: int, dtype: str) -> None:
    """Rows of a table for the corners of a cell, weighted, level beside level; and the gradient of the table."""
    rng = np.random.default_rng(5)
    table = rng.integers(-3, 4, (3, 64, features)).astype(jnp.dtype(dtype))
    points = rng.integers(0, 256, (1000, 2)).astype(np.float32) / 256

    def encode(table):
        levels = []
        for level in range(3):
            at = points * 4.0 * 2**level
            cell = jnp.floor(at).astype(jnp.uint32)
            part = (at - jnp.floor(at)).astype(table.dtype)
            total = 0
            for a in (0, 1):
                for b in (0, 1):
                    place = ((cell[:, 0] + a) ^ (cell[:, 1] + b) * jnp.uint32(2654435761)) % jnp.uint32(64)
                    weight = (part[:, 0] if a else 1 - part[:, 0]) * (part[:, 1] if b else 1 - part[:, 1])
                    total += table[level, place] * weight[:, None]
            levels.append(total)
        return jnp.concatenate(levels, -1)

    compare(device, encode, table)
    if dtype == "float32":
        compare(device, jax.grad(lambda table: (encode(table) ** 2).sum() / 512), table)
