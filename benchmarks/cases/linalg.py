"""Dense linear algebra: factorizations, solutions, eigenvalues; one matrix and batches of small ones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, normal

import jax


def positive(*shape):
    """Symmetric, positive definite, well conditioned."""
    x = normal(*shape)
    n = shape[-1]
    return x @ np.swapaxes(x, -1, -2) / np.float32(n) + np.eye(n, dtype=np.float32)


def regular(*shape):
    return normal(*shape) / np.float32(shape[-1] ** 0.5) + 2 * np.eye(shape[-1], dtype=np.float32)


# Eigenvectors and Q have no unique signs, so what is checked does not depend on them.


def qr(x):
    q, r = jnp.linalg.qr(x)
    return jnp.abs(q), jnp.abs(r)


def qr_torch(x):
    q, r = torch.linalg.qr(x)
    return q.abs(), r.abs()


def least_squares(a, b):
    """As lineax solves it: the factors are not multiplied out."""
    packed, taus = jnp.linalg.qr(a, mode="raw")
    packed, n = packed.T, a.shape[1]
    right = jax.lax.linalg.ormqr(packed, taus, b, left=True, transpose=True)[:n]
    return jax.scipy.linalg.solve_triangular(packed[:n], right)


def least_squares_torch(a, b):
    return torch.linalg.lstsq(a, b, driver="gels").solution


def eigh(x):
    values, vectors = jnp.linalg.eigh(x)
    return values, (vectors * jnp.exp(values * 0.1)) @ vectors.T


def eigh_torch(x):
    values, vectors = torch.linalg.eigh(x)
    return values, (vectors * torch.exp(values * 0.1)) @ vectors.T


def cases() -> list[Case]:
    la = torch.linalg if torch else None
    n = 512
    return [
        Case("Cholesky, 512", jnp.linalg.cholesky, lambda: (positive(n, n),), torch=la and la.cholesky, flops=n**3 / 3),
        Case(
            "Cholesky, 2048",
            jnp.linalg.cholesky,
            lambda: (positive(2048, 2048),),
            torch=la and la.cholesky,
            flops=2048**3 / 3,
        ),
        Case(
            "Cholesky, 1024 of 16",
            jnp.linalg.cholesky,
            lambda: (positive(1024, 16, 16),),
            torch=la and la.cholesky,
            flops=1024 * 16**3 / 3,
        ),
        Case(
            "solve, 512, 16 right-hand sides",
            jnp.linalg.solve,
            lambda: (regular(n, n), normal(n, 16)),
            torch=la and la.solve,
            flops=2 * n**3 / 3,
            tolerance=1e-3,
        ),
        Case(
            "solve, 256 of 32",
            jnp.linalg.solve,
            lambda: (regular(256, 32, 32), normal(256, 32, 1)),
            torch=la and la.solve,
            flops=256 * 2 * 32**3 / 3,
            tolerance=1e-3,
        ),
        Case(
            "triangular solve, 1024, 256 right-hand sides",
            lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
            lambda: (np.tril(regular(1024, 1024)), normal(1024, 256)),
            torch=lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
            flops=1024.0 * 1024 * 256,
            tolerance=1e-3,
        ),
        Case(
            "solve with a Cholesky factor, 1024, 1 right-hand side",
            lambda a, b: jax.scipy.linalg.cho_solve((a, True), b),
            lambda: (np.linalg.cholesky(positive(1024, 1024)), normal(1024, 1)),
            torch=lambda a, b: torch.cholesky_solve(b, a),
            flops=2 * 1024.0**2,
            bytes=2 * 2 * 1024.0**2,
            tolerance=1e-3,
        ),
        Case(
            "inverse, 1024",
            jnp.linalg.inv,
            lambda: (regular(1024, 1024),),
            torch=la and la.inv,
            flops=2 * 1024.0**3,
            tolerance=1e-3,
        ),
        Case("QR, 256", qr, lambda: (normal(256, 256),), torch=qr_torch, flops=8 * 256**3 / 3, tolerance=1e-2),
        Case("QR, 1024", qr, lambda: (normal(1024, 1024),), torch=qr_torch, flops=8 * 1024**3 / 3, tolerance=1e-2),
        Case(
            "least squares by QR, 1000 × 50, 1 right-hand side",
            least_squares,
            lambda: (normal(1000, 50), normal(1000, 1, seed=1)),
            torch=least_squares_torch,
            flops=2 * 1000 * 50.0**2,
            tolerance=1e-3,
        ),
        Case(
            "symmetric eigenvalues and vectors, 256",
            eigh,
            lambda: (positive(256, 256),),
            torch=eigh_torch,
            flops=9.0 * 256**3,
            tolerance=1e-3,
        ),
        Case(
            "singular values, 256",
            lambda x: jnp.linalg.svd(x, compute_uv=False),
            lambda: (normal(256, 256),),
            torch=la and la.svdvals,
            flops=8 * 256**3 / 3,
        ),
        Case(
            "determinant, 128",
            lambda x: jnp.linalg.slogdet(x)[1],
            lambda: (regular(128, 128),),
            torch=lambda x: torch.linalg.slogdet(x)[1],
            flops=2 * 128**3 / 3,
        ),
    ]
