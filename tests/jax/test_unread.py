"""Sorted operands that nobody reads are not written; the others are what they were."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call

# From few elements, which std::sort takes, over radix sorts to what all threads sort, in ranges and in pieces.
LENGTHS = (1, 2, 3, 50, 700, 5000, 40_000, 300_000)


def results(function, *args):
    """The types of the results of each of a program's calls."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    calls = [step for block in program.blocks for step in block if isinstance(step, Call)]
    return [[type.dtype.name for _, type in call.results] for call in calls]


def column(n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(n) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, n).astype(dtype)
    x = rng.standard_normal(n).round(1).astype(dtype)
    x[::7], x[3::11] = 0.0, -0.0
    x[5::13] = np.nan
    return x


def test_what_is_asked_for():
    x, y = column(100, "f4"), np.arange(100)
    assert results(jnp.argsort, x) == [["i32"]]
    assert results(lambda x, y: jax.lax.sort((x, y), num_keys=1), x, y) == [["f32", "i32"]]
    assert results(lambda x, y: jax.lax.sort((x, y, y + 1), num_keys=1)[2:], x, y) == [["i32"]]
    # By two keys: by the second, then by the first, which the first of the calls moves.
    assert results(lambda x, y: jax.lax.sort((x, y, y + 1), num_keys=2)[0], x, y) == [["f32"], ["f32"]]
    assert results(lambda x, y: jax.lax.sort((x, y, y + 1), num_keys=2)[2], x, y) == [["f32", "i32"], ["i32"]]
    by_code = results(lambda x, y: jax.lax.sort((y,) * 8 + (x, y + 1), num_keys=9)[9], x, y)
    assert by_code == [["i32"]]


@pytest.mark.parametrize("dtype", ["f4", "f2", "bfloat16", "i4", "u4", "i2", "i1", "u1", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_positions(device, dtype, descending):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    for n in LENGTHS[:6] if descending else LENGTHS:
        x = column(n, dtype)
        with jax.default_device(device):
            found = np.asarray(jax.jit(lambda x: jnp.argsort(x, descending=descending))(x))
        if descending:
            with jax.default_device(jax.devices("cpu")[0]):
                expected = np.asarray(jnp.argsort(x, descending=True))
        else:  # XLA takes long for it
            expected = np.argsort(x.astype("f4"), kind="stable")  # which holds all of these keys
        np.testing.assert_array_equal(found, expected)


def test_wide_keys(device):
    with jax.enable_x64(True), jax.default_device(device):
        for dtype in ("f8", "i8", "u8"):
            for n in LENGTHS[3:]:
                x = column(n, dtype)
                np.testing.assert_array_equal(jax.jit(jnp.argsort)(x), np.argsort(x, kind="stable"))


@pytest.mark.parametrize("kept", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1)])
@pytest.mark.parametrize("keys", [1, 2, 9])  # so many as nine are compared by compiled code
def test_some_of_three(device, kept, keys):
    def some(x, *rest):
        same = [jnp.zeros_like(x)] * max(0, keys - 2)
        whole = jax.lax.sort([*same, x, *rest], num_keys=keys)
        return [whole[len(same) + k] for k in kept]

    for n in (1, 2, 60, 3000, 80_000):
        x, y = column(n, "i4"), np.arange(n, dtype="i4")[::-1].copy()
        z = column(n, "f4", seed=1)
        order = np.argsort(x, kind="stable") if keys == 1 else np.lexsort((y, x))
        with jax.default_device(device):
            found = jax.jit(some)(x, y, z)
        for k, values in zip(kept, found, strict=True):
            np.testing.assert_array_equal(values, (x, y, z)[k][order])


def test_along_other_dimensions_and_in_a_loop(device):
    x = np.random.default_rng(3).integers(0, 50, (30, 40, 6)).astype("i4")
    with jax.default_device(device):
        for axis in range(3):
            found = jax.jit(lambda x, axis=axis: jnp.argsort(x, axis=axis))(x)
            np.testing.assert_array_equal(found, np.argsort(x, axis=axis, kind="stable"))

        @jax.jit
        def ranks(x):
            return jax.lax.fori_loop(0, 2, lambda i, x: jnp.argsort(x), x)

        y = column(3000, "i4")
        np.testing.assert_array_equal(ranks(y), np.argsort(np.argsort(y, kind="stable"), kind="stable"))
