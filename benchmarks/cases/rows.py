"""Softmax, layer norm, RMS norm, losses, and their gradients: one pass over rows at best."""

from __future__ import annotations

import jax.numpy as jnp
from harness import torch
from harness.case import Case, Gradient, integers, normal

import jax

ROWS, WIDTH = 4096, 1024
ONCE = 4 * ROWS * WIDTH  # bytes of the array


def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def norm_gelu(x, scale, bias):
    return jax.nn.gelu(layer_norm(x, scale, bias))


def norm_gelu_torch(x, scale, bias):
    f = torch.nn.functional
    return f.gelu(f.layer_norm(x, (WIDTH,), scale, bias, 1e-5), approximate="tanh")


def rms_norm(x, scale):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rms_norm_torch(x, scale):
    return torch.nn.functional.rms_norm(x, (WIDTH,), scale, 1e-6)


def cross_entropy(x, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()


def cross_entropy_torch(x, labels):
    return torch.nn.functional.cross_entropy(x, labels.long())


def group_norm(x, scale, bias, groups=32):
    """Channels are the second dimension."""
    y = x.reshape(x.shape[0], groups, -1)
    y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return y.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]


def cases() -> list[Case]:
    def rows():
        return (normal(ROWS, WIDTH),)

    def norms():
        return normal(ROWS, WIDTH), 1 + normal(WIDTH, seed=1, scale=0.1), normal(WIDTH, seed=2, scale=0.1)

    def weighted(f):
        """A scalar whose gradient by the result is not constant."""
        return lambda x, w, *rest: (f(x, *rest) * w).sum()

    def with_weights():
        x, scale, bias = norms()
        return x, scale, bias, normal(ROWS, WIDTH, seed=3)

    softmax_loss = weighted(jax.nn.softmax)
    return [
        Case("softmax, 4096 × 1024", jax.nn.softmax, rows, torch=lambda x: x.softmax(-1), bytes=2 * ONCE),
        Case(
            "softmax, 64 × 50257",
            jax.nn.softmax,
            lambda: (normal(64, 50257),),
            torch=lambda x: x.softmax(-1),
            bytes=8 * 64 * 50257,
        ),
        Case(
            "softmax of axis 0, 1024 × 1024",
            lambda x: jax.nn.softmax(x, 0),
            lambda: (normal(1024, 1024),),
            torch=lambda x: x.softmax(0),
            bytes=8 << 20,
        ),
        Case(
            "softmax of bf16, 4096 × 1024",
            jax.nn.softmax,
            lambda: (normal(ROWS, WIDTH, dtype=jnp.bfloat16),),
            torch=lambda x: x.softmax(-1),
            bytes=ONCE,
            tolerance=2e-2,
        ),
        Case(
            "layer norm, 20000 × 1001",
            layer_norm,
            lambda: (normal(20000, 1001), 1 + normal(1001, seed=1, scale=0.1), normal(1001, seed=2, scale=0.1)),
            torch=lambda x, scale, bias: torch.nn.functional.layer_norm(x, (1001,), scale, bias, 1e-5),
            bytes=8.0 * 20000 * 1001,
        ),
        Case("log-softmax, 4096 × 1024", jax.nn.log_softmax, rows, torch=lambda x: x.log_softmax(-1), bytes=2 * ONCE),
        Case(
            "softmax, gradient, 4096 × 1024",
            jax.grad(softmax_loss),
            lambda: (normal(ROWS, WIDTH), normal(ROWS, WIDTH, seed=3)),
            torch=Gradient(lambda x, w: (x.softmax(-1) * w).sum(), 1, lambda args, value, g: g[0]),
            bytes=3 * ONCE,
        ),
        Case(
            "cross entropy and gradient, 4096 × 1024",
            jax.value_and_grad(cross_entropy),
            lambda: (normal(ROWS, WIDTH), integers(WIDTH, ROWS)),
            torch=Gradient(cross_entropy_torch, 1, lambda args, value, g: (value, g[0])),
            bytes=2 * ONCE,
        ),
        Case("layer norm + GELU, 4096 × 1024", norm_gelu, norms, torch=norm_gelu_torch, bytes=2 * ONCE),
        Case(
            "layer norm + GELU, gradient, 4096 × 1024",
            jax.grad(lambda x, s, b, w: (norm_gelu(x, s, b) * w).sum(), (0, 1, 2)),
            with_weights,
            torch=Gradient(lambda x, s, b, w: (norm_gelu_torch(x, s, b) * w).sum(), 3),
            bytes=3 * ONCE,
        ),
        Case(
            "softmax of capped logits, 4096 × 1024",
            lambda x: jax.nn.softmax(jnp.tanh(x / 30) * 30),
            rows,
            torch=lambda x: (torch.tanh(x / 30) * 30).softmax(-1),
            bytes=2 * ONCE,
        ),
        Case(
            "squares of softmax, gradient, 4096 × 1024",
            jax.grad(lambda x: (jax.nn.softmax(x) ** 2).sum()),
            rows,
            torch=Gradient(lambda x: (x.softmax(-1) ** 2).sum(), 1, lambda args, value, g: g[0]),
            bytes=2 * ONCE,
        ),
        Case(
            "softmax of x + yᵀ, 1024²",
            lambda x, y: jax.nn.softmax(x + y.T),
            lambda: (normal(1024, 1024), normal(1024, 1024, seed=1)),
            torch=lambda x, y: torch.softmax(x + y.T, -1),
            bytes=12 << 20,
        ),
        Case("RMS norm, 4096 × 1024", rms_norm, lambda: norms()[:2], torch=rms_norm_torch, bytes=2 * ONCE),
        Case(
            "RMS norm, gradient, 4096 × 1024",
            jax.grad(lambda x, s, w: (rms_norm(x, s) * w).sum(), (0, 1)),
            lambda: (*norms()[:2], normal(ROWS, WIDTH, seed=3)),
            torch=Gradient(lambda x, s, w: (rms_norm_torch(x, s) * w).sum(), 2),
            bytes=3 * ONCE,
        ),
        Case(
            "group norm, gradient, 16 × 256 × 14², 32 groups",
            jax.grad(lambda x, s, b, w: (group_norm(x, s, b) * w).sum(), (0, 1, 2)),
            lambda: (
                normal(16, 256, 14, 14),
                normal(256, seed=1),
                normal(256, seed=2),
                normal(16, 256, 14, 14, seed=3),
            ),
            torch=Gradient(lambda x, s, b, w: (torch.nn.functional.group_norm(x, 32, s, b) * w).sum(), 3),
            bytes=12 * 16 * 256 * 14 * 14,
        ),
    ]
