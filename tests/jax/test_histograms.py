"""Many numbers that are added up in few places, as histograms are, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

import jax

R = np.random.default_rng(21)
COUNT = 150_003


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same ones whichever ran before it: how much rounding sums see depends on them."""
    global R
    R = np.random.default_rng(21)


def at_places(kind: str, bins: int, count: int = COUNT) -> np.ndarray:
    """Some of them outside, and some counted from the end."""
    places = {
        "uniform": lambda: R.integers(0, bins, count),
        "outside": lambda: R.integers(-2 * bins, 2 * bins, count),
        "one": lambda: np.full(count, bins // 2),
        "skewed": lambda: np.minimum(R.zipf(1.3, count) - 1, bins - 1),
        "sorted": lambda: np.sort(R.integers(0, bins, count)),
    }
    return places[kind]().astype(np.int32)


def meant(places: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """The places that JAX means, and which of them there are."""
    places = np.where(places < 0, places + bins, places)
    return places, (places >= 0) & (places < bins)


@pytest.mark.parametrize("kind", ["uniform", "outside", "one", "skewed", "sorted"])
@pytest.mark.parametrize("bins", [1, 2, 15, 16, 1000, 1024, 10_000, 30_000, 100_000])
def test_counts(device: jax.Device, bins: int, kind: str) -> None:
    at = at_places(kind, bins)
    wanted = np.bincount(np.clip(at, 0, 2 * bins), minlength=bins)[:bins]
    np.testing.assert_array_equal(jax.jit(lambda at: jnp.bincount(at, length=bins))(at), wanted)
    places, there = meant(at, bins)
    weights = R.standard_normal(COUNT).astype(np.float32)
    added = jax.jit(lambda at, w: jnp.ones(bins, jnp.float32).at[at].add(w))(at, weights)
    exact = 1 + np.bincount(places[there], weights[there].astype(np.float64), bins)
    one_by_one = device.platform == "xpu"  # there updates of one place follow each other, and errors add up
    close = 5e-2 if one_by_one else 1e-4 if kind == "uniform" and bins > 16 else 2e-3
    np.testing.assert_allclose(added, exact, rtol=1e-5, atol=close)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["add", "max", "min", "mul"])
def test_types(device: jax.Device, dtype: str, kind: str) -> None:
    """Numbers so small that their sums are exact in every type."""
    bins = 1500
    at = at_places("outside", bins, 40_003)
    new = R.integers(0, 3, len(at)).astype(np.float32)
    old = R.integers(0, 3, bins).astype(np.float32)
    places, there = meant(at, bins)
    if kind == "mul":
        new = np.where(R.integers(0, 20, len(at)) < 19, 1, new)
    wanted = old.astype(np.float64)
    ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[kind]
    ufunc.at(wanted, places[there], new[there].astype(np.float64))
    found = jax.jit(lambda x, at, u: getattr(x.at[at], kind)(u))(
        *map(jnp.asarray, (old.astype(dtype), at, new.astype(dtype)))
    )
    fits = wanted if "int8" not in dtype else wanted.astype(np.int64).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(found).astype(np.float64), fits)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_wide_types(device: jax.Device, dtype: str) -> None:
    with jax.enable_x64(True):
        bins = 777
        at = at_places("outside", bins).astype(np.int64)
        new = R.integers(-1 << 40, 1 << 40, COUNT).astype(dtype)
        places, there = meant(at, bins)
        wanted = np.zeros(bins, dtype)
        np.add.at(wanted, places[there], new[there])
        found = jax.jit(lambda at, u: jnp.zeros(bins, dtype).at[at].add(u))(jnp.asarray(at), jnp.asarray(new))
        np.testing.assert_array_equal(np.asarray(found), wanted)


def test_flags(device: jax.Device) -> None:
    at = at_places("outside", 70_000)
    flags = R.integers(0, 2, COUNT).astype(bool)
    places, there = meant(at, 70_000)
    wanted = np.zeros(70_000, bool)
    np.logical_or.at(wanted, places[there], flags[there])
    np.testing.assert_array_equal(jax.jit(lambda at, u: jnp.zeros(70_000, bool).at[at].max(u))(at, flags), wanted)


def test_special_numbers(device: jax.Device) -> None:
    """NaN, infinities and zeros with signs: what nothing is added to stays as it is."""
    old = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf] * 4, np.float32)
    at = R.integers(5, 15, COUNT).astype(np.int32)
    new = R.choice(np.array([-0.0, 0.0, 1.0, np.inf], np.float32), COUNT)
    found = np.asarray(jax.jit(lambda x, at, u: x.at[at].add(u))(old, at, new))
    with np.errstate(invalid="ignore"):
        wanted = np.where((np.arange(20) < 5) | (np.arange(20) > 14), old, old + np.float32(np.inf))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[[0, 1, 15, 16]]), [True, False, True, False])
    negative = np.asarray(jax.jit(lambda x, at: x.at[at].add(jnp.float32(-0.0)))(old, at))
    np.testing.assert_array_equal(np.signbit(negative), np.signbit(old))
    largest = np.asarray(jax.jit(lambda x, at, u: x.at[at].max(u))(old, at, new))
    assert np.isnan(largest[[2, 7, 12, 17]]).all()
    assert (largest[[5, 6, 9, 10]] == np.inf).all() and largest[4] == -np.inf


@pytest.mark.parametrize("promise", ["indices_are_sorted", "unique_indices"])
def test_promises(device: jax.Device, promise: str) -> None:
    bins = 2 * COUNT if promise == "unique_indices" else 999
    at = np.sort(R.permutation(bins)[:COUNT] if bins > COUNT else R.integers(0, bins, COUNT)).astype(np.int32)
    found = jax.jit(lambda at: jnp.zeros(bins, jnp.int32).at[at].add(3, **{promise: True}))(at)
    np.testing.assert_array_equal(found, 3 * np.bincount(at, minlength=bins))


def test_rows_and_segments(device: jax.Device) -> None:
    at, weights = at_places("uniform", 64).reshape(3, -1), R.standard_normal((3, COUNT // 3)).astype(np.float32)
    rows = jax.jit(jax.vmap(lambda at: jnp.bincount(at, length=64)))(at)
    np.testing.assert_array_equal(rows, [np.bincount(row, minlength=64) for row in at])
    sums = jax.jit(jax.vmap(lambda at, w: jax.ops.segment_sum(w, at, num_segments=64)))(at, weights)
    exact = [np.bincount(row, w.astype(np.float64), 64) for row, w in zip(at, weights, strict=True)]
    np.testing.assert_allclose(sums, exact, atol=1e-3)


def test_planes_and_edges(device: jax.Device) -> None:
    x, y = R.standard_normal((2, COUNT)).astype(np.float32)
    edges = np.linspace(-3, 3, 41).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.histogram(x, edges)[0])(x), np.histogram(x, edges)[0])
    found = jax.jit(lambda x, y: jnp.histogram2d(x, y, bins=[edges, edges])[0])(x, y)
    np.testing.assert_array_equal(found, np.histogram2d(x, y, bins=[edges, edges])[0])


def in_a_loop(at, weights):
    def step(i, state):
        counts, sums = state
        return counts.at[(at + i) % 50].add(1), sums.at[(at * (i + 1)) % 300].add(weights * i)

    return jax.lax.fori_loop(0, 5, step, (jnp.zeros(50, jnp.int32), jnp.zeros(300, jnp.float32)))


def chained(at, weights):
    counts = jnp.bincount(at, length=100)
    return jnp.cumsum(counts)[at % 100], jnp.zeros(100).at[at].add(weights) / jnp.maximum(counts, 1)


@pytest.mark.parametrize("function", [in_a_loop, chained])
def test_inside_of_programs(device: jax.Device, function: Callable) -> None:
    at, weights = at_places("uniform", 90), R.integers(0, 9, COUNT).astype(np.float32)
    found = jax.jit(function)(at, weights)
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.jit(function)(at, weights)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.fixture
def cpu():
    with jax.default_device(jax.devices("ferrule")[0]):
        yield


def test_same_sums_again(cpu: None) -> None:
    """Which thread is done first changes nothing."""
    at, weights = at_places("skewed", 500), R.standard_normal(COUNT).astype(np.float32)
    function = jax.jit(lambda at, w: jnp.zeros(500, jnp.float32).at[at].add(w))
    first = np.asarray(function(at, weights))
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(function(at, weights)), first)


def test_sums_of_many_small_numbers(cpu: None) -> None:
    """One after the other, numbers of 16 bits come to a halt where the next is less than half of the last digit."""
    at = np.zeros(1 << 17, np.int32)
    found = jax.jit(lambda at: jnp.zeros(3, jnp.float32).at[at].add(0.1))(at)
    assert abs(float(found[0]) / (0.1 * len(at)) - 1) < 1e-3
