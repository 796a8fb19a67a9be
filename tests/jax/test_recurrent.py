"""Recurrent networks and their gradients beside float64: products that leave the loop, odd sizes, types, NaN."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call
from jax import lax

WIDTH, STEPS, BATCH = 33, 7, 5


def random(*shape: int, seed: int = 0, scale: float = 0.3) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32) * np.float32(scale)


def lstm(w, b, xs, reverse=False):
    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], w.shape[1] // 4), xs.dtype)
    return lax.scan(cell, (zero, zero), xs, reverse=reverse)[1]


def gru(w, u, v, xs):
    """With an output layer, inside of the scan."""

    def cell(h, x):
        rx, zx, nx = jnp.split(x @ w, 3, -1)
        rh, zh, nh = jnp.split(h @ u, 3, -1)
        r, z = jax.nn.sigmoid(rx + rh), jax.nn.sigmoid(zx + zh)
        h = (1 - z) * jnp.tanh(nx + r * nh) + z * h
        return h, jnp.tanh(h @ v)

    return lax.scan(cell, jnp.zeros((xs.shape[1], WIDTH), xs.dtype), xs)[1]


LSTM = random(2 * WIDTH, 4 * WIDTH), random(4 * WIDTH, seed=1), random(STEPS, BATCH, WIDTH, seed=2, scale=1)
GRU = random(WIDTH, 3 * WIDTH), random(WIDTH, 3 * WIDTH, seed=1), random(WIDTH, 9, seed=3), LSTM[2]


def squares(function, *args):
    return jax.value_and_grad(lambda *a: (function(*a) ** 2).astype(jnp.float32).sum(), tuple(range(len(args))))(*args)


def agree(function, *args, tolerance: float = 1e-5) -> None:
    with jax.default_device(jax.devices("ferrule")[0]):
        got = jax.tree.leaves(jax.jit(function)(*args))
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        want = jax.tree.leaves(jax.jit(function)(*(np.asarray(a, np.float64) for a in args)))
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w)
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * max(1.0, np.nanmax(np.abs(w), initial=0)))


@pytest.mark.parametrize("function", [lstm, partial(lstm, reverse=True)], ids=["forwards", "backwards"])
def test_lstm(function) -> None:
    agree(function, *LSTM)
    agree(partial(squares, function), *LSTM)


def test_gru_with_an_output_layer() -> None:
    agree(gru, *GRU)
    agree(partial(squares, gru), *GRU)


def test_narrow() -> None:
    """The total of a gradient is rounded once, not in each step: no further from float64 than XLA is."""
    args = [a.astype(jnp.bfloat16) for a in LSTM]
    errors = []
    with jax.enable_x64(True):
        want = jax.tree.leaves(squares(lstm, *(np.asarray(a, np.float64) for a in args)))
    for platform in ("ferrule", "cpu"):
        with jax.default_device(jax.devices(platform)[0]):
            got = jax.tree.leaves(jax.jit(partial(squares, lstm))(*args))
        errors.append([np.abs(np.asarray(g, np.float64) - np.asarray(w)).max() for g, w in zip(got, want, strict=True)])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.5 * theirs


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_what_is_not_finite(what: float) -> None:
    xs = LSTM[2].copy()
    xs[3, 1, 4] = what
    agree(lstm, *LSTM[:2], xs)


def test_one_product_for_all_steps() -> None:
    """Of 21 products of seven steps two are left in each loop: of the state, forwards and backwards."""
    args = random(192, 384), random(384, seed=1), random(STEPS, 16, 96)
    text = str(jax.jit(partial(squares, lstm)).lower(*args).compiler_ir("stablehlo"))
    program = compile_program(text.encode())
    inside = [[s.attrs["k"] for s in b if isinstance(s, Call) and s.target == "gemm"] for b in program.blocks]
    assert sorted(k for block in inside[1:] for k in block) == [96, 384]
    assert STEPS * 16 in inside[0]


@pytest.mark.parametrize("batch", [2, 5, 16, 64])
def test_weights_in_panels(batch: int) -> None:
    """Widths of whole panels (passes/turn.py): forwards, backwards, in a loop of loops, by a transposed matrix."""
    w, b, xs = random(128, 256), random(256, seed=1), random(STEPS, batch, 64, seed=2, scale=1)
    agree(partial(squares, lstm), w, b, xs, tolerance=1e-4)

    def twice(w, b, xs):
        return lax.scan(lambda c, _: (lstm(w, b, xs + c), None), xs, None, length=4)[0]

    agree(twice, w, b, xs, tolerance=1e-4)
    agree(lambda u, x: lax.fori_loop(0, 6, lambda i, c: jnp.tanh(c @ u.T), x), random(64, 64), xs[0], tolerance=1e-4)
