"""Fourier transforms in one and two dimensions. A transform of n points counts 5 n log2 n operations."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, normal
from jax.scipy.signal import fftconvolve


def complexes(*shape):
    return ((normal(*shape) + 1j * normal(*shape, seed=1)).astype(np.complex64),)


def cases() -> list[Case]:
    def fft(batch, n, name, function, args, counterpart, size=16.0):
        return Case(
            name,
            function,
            args,
            torch=counterpart,
            flops=5.0 * batch * n * math.log2(n) * size / 16,
            bytes=size * batch * n,
        )

    f = torch.fft if torch else None
    return [
        fft(64, 4096, "64 × 4096", jnp.fft.fft, lambda: complexes(64, 4096), f and f.fft),
        fft(1, 1 << 20, "1 M points", jnp.fft.fft, lambda: complexes(1 << 20), f and f.fft),
        fft(1000, 1000, "1000 × 1000", jnp.fft.fft, lambda: complexes(1000, 1000), f and f.fft),
        fft(64, 4096, "inverse, 64 × 4096", jnp.fft.ifft, lambda: complexes(64, 4096), f and f.ifft),
        fft(256, 4096, "real, 256 × 4096", jnp.fft.rfft, lambda: (normal(256, 4096),), f and f.rfft, 8.0),
        fft(2000, 500, "2000 × 500", jnp.fft.fft, lambda: complexes(2000, 500), f and f.fft),
        fft(20000, 28, "20000 × 28", jnp.fft.fft, lambda: complexes(20000, 28), f and f.fft),
        fft(1000, 1000, "real, 1000 × 1000", jnp.fft.rfft, lambda: (normal(1000, 1000),), f and f.rfft, 8.0),
        fft(5000, 200, "real, 5000 × 200", jnp.fft.rfft, lambda: (normal(5000, 200),), f and f.rfft, 8.0),
        fft(1000, 375, "real, 1000 × 375", jnp.fft.rfft, lambda: (normal(1000, 375),), f and f.rfft, 8.0),
        fft(1, 512 * 512, "2-D, 512²", jnp.fft.fft2, lambda: complexes(512, 512), f and f.fft2),
        fft(1, 720 * 1200, "2-D, 720 × 1200", jnp.fft.fft2, lambda: complexes(720, 1200), f and f.fft2),
        fft(16, 256 * 256, "2-D, 16 of 256²", jnp.fft.fft2, lambda: complexes(16, 256, 256), f and f.fft2),
        fft(
            2,
            1 << 20,
            "convolution of 1 M by transforms",
            convolve,
            lambda: (normal(1 << 20), normal(1 << 20, seed=1)),
            convolve_torch,
            12.0,
        ),
        fft(
            3,
            100_999,
            "fftconvolve of 100 K and 1 K",
            fftconvolve,
            lambda: (normal(100_000), normal(1000, seed=1)),
            fftconvolve_torch,
            8.0,
        ),
    ]


def convolve(x, y):
    return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(y), x.shape[0])


def fftconvolve_torch(x, y):
    n = x.shape[0] + y.shape[0] - 1
    return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(y, n), n)


def convolve_torch(x, y):
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), x.shape[0])
