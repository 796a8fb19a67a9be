"""Reductions over the same arrays that one loop does: maxima and minima, sums and sums of squares."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_finish import steps

import jax
from ferrule.passes.fuse import ABREAST, ASKED, _Fuser

R = np.random.default_rng(3)
SHAPES = [(37, 41), (300, 130), (16, 2100), (2100, 16), (1100, 600), (5, 30, 17, 8), (2, 9, 3)]


def spread(x, axis):
    return x.max(axis) - x.min(axis)


def moments(x, axis):
    return x.sum(axis), (x * x).sum(axis), (x * x * x).sum(axis), jnp.abs(x).max(axis)


def spread_of_computed(x, axis):
    y = jnp.log1p(jnp.abs(x)) * 2
    return y.max(axis) - y.min(axis), y.sum(axis)


def counts(x, axis):
    return (x > 0).sum(axis), (x < -1).sum(axis), x.sum(axis)


def five(x, axis):
    return moments(x, axis), jnp.prod(1 + x * 0.01, axis)


def of_two(x, axis):
    y = jnp.flip(x, 0) + 1
    return (x * y).sum(axis), y.max(axis), x.min(axis)


def in_turn(x, axis):
    """The second one needs the first: they cannot be one loop."""
    mean = x.mean(axis, keepdims=True)
    return mean, ((x - mean) ** 2).sum(axis), x.max(axis)


def around(x, axis):
    """The third one needs what is made of the first, the second nothing."""
    total = x.sum(axis)
    return total, x.max(axis), (x * jnp.tanh(total).sum()).min(axis)


def starting(x, axis):
    """Initial values of their own."""
    return jnp.max(x, axis, initial=1.5), jnp.sum(x, axis, initial=2.0), jnp.min(x, axis, initial=-0.25)


FUNCTIONS = [spread, moments, spread_of_computed, counts, five, of_two, in_turn, around, starting]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_results(device, shape, function):
    x = R.normal(size=shape).astype("f")
    x.flat[:: x.size // 3] = -0.0
    for axis in [*range(len(shape)), (0, len(shape) - 1), tuple(range(1, len(shape))), None]:
        with jax.default_device(device):
            got = jax.jit(lambda x, axis=axis: function(x, axis))(x)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            want = function(jnp.asarray(x, "float64"), axis)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * max(1, x.size**0.5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "int8", "uint8", "float64", "complex64", "bool"])
def test_types(device, dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(R.normal(size=(400, 300)) * 5).astype(dtype)
        for axis in (0, 1, None):

            def function(x, axis=axis):
                if dtype == "complex64":
                    return x.sum(axis), (x * x).sum(axis)
                if dtype == "bool":
                    return x.any(axis), x.all(axis), x.sum(axis)
                return x.max(axis), x.min(axis), x.sum(axis, dtype=x.dtype), (x + x).sum(axis, dtype=x.dtype)

            with jax.default_device(device):
                got = jax.jit(function)(np.asarray(x))
            wide = np.asarray(x).astype("float64") if dtype in ("bfloat16", "float16") else np.asarray(x)
            with jax.default_device(jax.devices("cpu")[0]):
                want = function(jnp.asarray(wide))
            tolerance = {"bfloat16": 2e-2, "float16": 2e-2, "complex64": 1e-3}.get(
                dtype, 0 if dtype[0] != "f" else 1e-12
            )
            for a, b in zip(got, want, strict=True):
                near, far = (np.asarray(v).astype(wide.dtype) for v in (a, b))
                np.testing.assert_allclose(near, far, rtol=tolerance, atol=tolerance * 40)


def test_special_numbers(device):
    """What one of them makes of NaN and infinities is not the others' business."""
    x = R.normal(size=(64, 200)).astype("f")
    x[3, :70], x[5, 40:90], x[7, 60:100] = np.nan, np.inf, -np.inf

    def function(x, axis):
        return x.max(axis), x.min(axis), x.sum(axis), jnp.abs(x).sum(axis)

    for axis in (0, 1):
        with jax.default_device(device):
            got = jax.jit(lambda x, axis=axis: function(x, axis))(x)
        want = x.max(axis), x.min(axis), x.astype("d").sum(axis), np.abs(x.astype("d")).sum(axis)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function, axis, kernels",
    [
        (spread, 0, 1),
        (spread, 1, 1),
        (moments, 0, 1),
        (moments, 1, 1),
        (spread_of_computed, 0, 1),
        (five, 0, 2),
        (of_two, 0, 1),
        (in_turn, 0, 3),
        (around, 0, 3),
        (starting, 1, 1),
    ],
)
def test_one_loop(function, axis, kernels):
    x = R.normal(size=(60, 130)).astype("f")
    assert steps(lambda x: function(x, axis), x).count("launch") == kernels


def test_other_arrays_have_loops_of_their_own():
    x, y = R.normal(size=(2, 60, 130)).astype("f")
    assert steps(lambda x, y: (x.sum(0), y.sum(0)), x, y).count("launch") == 2
    assert steps(lambda x, y: (x.sum(0), (x * y).sum(0)), x, y).count("launch") == 1
    assert steps(lambda x, y: (x.sum(0), x.sum(1)), x, y).count("launch") == 2


def test_statistics_of_a_batch():
    """Sums and sums of squares, in two stages where there are few channels: one kernel for each stage."""
    x = R.normal(size=(8, 56, 56, 64)).astype("f")
    assert steps(lambda x: (x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))), x).count("launch") == 2


def test_compiling_takes_as_long_as_the_program_is(monkeypatch):
    """Of many kernels that reduce one array, each after the other, the last ones are asked, not all."""
    asked = []
    apart = _Fuser._apart
    monkeypatch.setattr(_Fuser, "_apart", lambda self, a, b: asked.append(a) or apart(self, a, b))

    def chain(x):
        v = x[0]
        for step in range(30):
            v = jnp.tanh((x * v).sum(1) + step)
        return v

    assert steps(chain, R.normal(size=(200, 200)).astype("f")).count("launch") >= 30
    assert 0 < len(asked) <= 30 * ASKED


def test_no_more_than_fit_registers():
    x = R.normal(size=(60, 130)).astype("f")
    kernels = steps(lambda x: [(x * (k + 2.5)).max(0) - (x + k).min(0) for k in range(6)], x).count("launch")
    assert kernels == -(-12 // ABREAST)
