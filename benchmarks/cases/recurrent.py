"""LSTM and GRU cells scanned over a sequence."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, Gradient, normal

import jax

STEPS, BATCH, WIDTH = 100, 16, 256


def lstm(w, b, xs):
    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], WIDTH), xs.dtype)
    return jax.lax.scan(cell, (zero, zero), xs)[1]


def lstm_torch(w, b, xs):
    """PyTorch's own LSTM; weights in its layout, one bias as both of its."""
    zero = torch.zeros(1, xs.shape[1], WIDTH)
    wx, wh = w[:WIDTH].T, w[WIDTH:].T
    return torch.lstm(xs, (zero, zero), (wx, wh, b, torch.zeros_like(b)), True, 1, 0.0, False, False, False)[0]


def gru(w, u, b, xs):
    def cell(h, x):
        rx, zx, nx = jnp.split(x @ w + b, 3, -1)
        rh, zh, nh = jnp.split(h @ u, 3, -1)
        r, z = jax.nn.sigmoid(rx + rh), jax.nn.sigmoid(zx + zh)
        h = (1 - z) * jnp.tanh(nx + r * nh) + z * h
        return h, h

    return jax.lax.scan(cell, jnp.zeros((xs.shape[1], WIDTH), xs.dtype), xs)[1]


def gru_torch(w, u, b, xs):
    zero = torch.zeros(1, xs.shape[1], WIDTH)
    return torch.gru(xs, zero, (w.T, u.T, b, torch.zeros_like(b)), True, 1, 0.0, False, False, False)[0]


def cases() -> list[Case]:
    def lstm_arguments(batch=BATCH):
        return (
            normal(2 * WIDTH, 4 * WIDTH, scale=0.05),
            np.zeros(4 * WIDTH, np.float32),
            normal(STEPS, batch, WIDTH, seed=1),
        )

    def gru_arguments(batch=BATCH):
        w, u = normal(WIDTH, 3 * WIDTH, scale=0.05), normal(WIDTH, 3 * WIDTH, seed=2, scale=0.05)
        return w, u, normal(3 * WIDTH, seed=3, scale=0.05), normal(STEPS, batch, WIDTH, seed=1)

    flops = 2.0 * STEPS * BATCH * 8 * WIDTH * WIDTH
    return [
        Case("LSTM 256, 100 steps, batch 16", lstm, lstm_arguments, torch=lstm_torch, flops=flops),
        Case(
            "LSTM 256, 100 steps, batch 16, gradient",
            jax.value_and_grad(lambda w, b, xs: lstm(w, b, xs).sum(), (0, 1)),
            lstm_arguments,
            torch=Gradient(lambda w, b, xs: lstm_torch(w, b, xs).sum(), 2, lambda args, value, g: (value, g)),
            flops=3 * flops,
            tolerance=1e-3,
        ),
        Case("GRU 256, 100 steps, batch 16", gru, gru_arguments, torch=gru_torch, flops=flops * 0.75),
        Case("GRU 256, 100 steps, batch 1", gru, lambda: gru_arguments(1), torch=gru_torch, flops=flops * 0.75 / BATCH),
    ]
