"""Matrix products: square in three types, skinny, batched small, with an epilogue, of mostly zeros."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, integers, normal

import jax

SIZES = (256, 512, 1024, 2048, 4096)


def product(x, y):
    return x @ y


def wide(x, y):
    """8-bit factors, 32-bit sums."""
    return jax.lax.dot(x, y, preferred_element_type=jnp.int32)


def one_hot(i, table):
    """Rows of a table as a product, as where devices have no fast gathers."""
    return jax.nn.one_hot(i, len(table), dtype=table.dtype) @ table


def one_hot_torch(i, table):
    return torch.nn.functional.one_hot(i.long(), len(table)).to(table.dtype) @ table


def four_bits(of, packed, scale, dtype):
    """Weights of which a byte has two rows' one, with scales for groups of rows; in JAX or PyTorch."""
    both = of.stack([packed & 15, packed >> 4], 1).reshape(-1, packed.shape[1])
    both = (both.astype(of.int8) if of is jnp else both.to(of.int8)) - 8
    both = both.astype(dtype) if of is jnp else both.to(dtype)
    return (both.reshape(scale.shape[0], -1, scale.shape[2]) * scale).reshape(both.shape)


def cases() -> list[Case]:
    found = []
    for n in SIZES:
        found.append(
            Case(
                f"{n}³ f32",
                product,
                lambda n=n: (normal(n, n), normal(n, n, seed=1)),
                torch=product,
                flops=2 * n**3,
                bytes=12 * n * n,
            )
        )
    for n in SIZES:
        found.append(
            Case(
                f"{n}³ bf16",
                product,
                lambda n=n: (normal(n, n, dtype=jnp.bfloat16), normal(n, n, seed=1, dtype=jnp.bfloat16)),
                torch=product,
                flops=2 * n**3,
                bytes=6 * n * n,
                peak="bf16",
                tolerance=1e-2,
            )
        )
    for n in SIZES:
        found.append(
            Case(
                f"{n}³ int8",
                wide,
                lambda n=n: (
                    integers(127, n, n, low=-127, dtype=np.int8),
                    integers(127, n, n, low=-127, seed=1, dtype=np.int8),
                ),
                torch=lambda x, y: torch._int_mm(x, y),
                flops=2 * n**3,
                bytes=6 * n * n,
                peak="int8",
                tolerance=0,
            )
        )
    for m, k, n in (
        (1, 4096, 4096),
        (4096, 4096, 1),
        (16, 4096, 4096),
        (65536, 64, 64),
        (64, 65536, 64),
        (1000, 1000, 10),
        (65536, 32, 3),
        (4096, 256, 5),
    ):
        found.append(
            Case(
                f"{m} × {k} × {n} f32",
                product,
                lambda m=m, k=k, n=n: (normal(m, k), normal(k, n, seed=1)),
                torch=product,
                flops=2 * m * k * n,
                bytes=4 * (m * k + k * n + m * n),
            )
        )
    found.append(
        Case(
            "8 × 1024 × 1024 f32, x @ wᵀ",
            lambda x, w: x @ w.T,
            lambda: (normal(8, 1024), normal(1024, 1024, seed=1)),
            torch=lambda x, w: x @ w.T,
            flops=2 * 8 * 1024**2,
            bytes=4 * (16 * 1024 + 1024**2),
        )
    )
    width = 4096
    found.append(
        Case(
            f"1 × {width} × {width} bf16",
            product,
            lambda: (normal(1, width, dtype=jnp.bfloat16), normal(width, width, seed=1, dtype=jnp.bfloat16)),
            torch=product,
            flops=2 * width**2,
            bytes=2 * width**2,
            peak="bf16",
            tolerance=1e-2,
        )
    )
    found.append(
        Case(
            f"1 × {width} × {width} bf16, x @ wᵀ",
            lambda x, w: x @ w.T,
            lambda: (normal(1, width, dtype=jnp.bfloat16), normal(width, width, seed=1, dtype=jnp.bfloat16)),
            torch=lambda x, w: x @ w.T,
            flops=2 * width**2,
            bytes=2 * width**2,
            peak="bf16",
            tolerance=1e-2,
        )
    )
    found.append(
        Case(
            f"1 × {width} × {width} int8",
            wide,
            lambda: (
                integers(127, 1, width, low=-127, dtype=np.int8),
                integers(127, width, width, low=-127, seed=1, dtype=np.int8),
            ),
            flops=2 * width**2,
            bytes=width**2,
            peak="int8",
            tolerance=0,
        )
    )
    found.append(
        Case(
            f"1 × {width} × {width}, f32 and weights of int8",
            lambda x, w, scale: (x @ w.astype(x.dtype)) * scale,
            lambda: (
                normal(1, width),
                integers(127, width, width, low=-127, seed=1, dtype=np.int8),
                normal(width, seed=2),
            ),
            torch=lambda x, w, scale: (x @ w.to(x.dtype)) * scale,
            flops=2 * width**2,
            bytes=width**2,
            tolerance=1e-3,
        )
    )
    found.append(
        Case(
            f"8 × {width} × {width}, f32 and weights of int8, scaled",
            lambda x, w, scale: x @ (w.astype(x.dtype) * scale),
            lambda: (
                normal(8, width),
                integers(127, width, width, low=-127, seed=1, dtype=np.int8),
                normal(width, seed=2),
            ),
            torch=lambda x, w, scale: x @ (w.to(x.dtype) * scale),
            flops=2 * 8 * width**2,
            bytes=width**2,
            tolerance=1e-3,
        )
    )
    found.append(
        Case(
            f"8 × {width} × {width}, bf16 and weights of 4 bits, scales for 128",
            lambda x, w, scale: x @ four_bits(jnp, w, scale, jnp.bfloat16),
            lambda: (
                normal(8, width, dtype=jnp.bfloat16),
                integers(256, width // 2, width, seed=1, dtype=np.uint8),
                normal(width // 128, 1, width, seed=2, dtype=jnp.bfloat16),
            ),
            torch=lambda x, w, scale: x @ four_bits(torch, w, scale, torch.bfloat16),
            flops=2 * 8 * width**2,
            bytes=width**2 / 2,
            peak="bf16",
            tolerance=2e-2,
        )
    )
    for batch, m, k, n in ((4096, 4, 4, 4), (2048, 16, 16, 16), (512, 32, 32, 32), (96, 128, 64, 128)):
        found.append(
            Case(
                f"{batch} of {m} × {k} × {n} f32",
                product,
                lambda batch=batch, m=m, k=k, n=n: (normal(batch, m, k), normal(batch, k, n, seed=1)),
                torch=product,
                flops=2 * batch * m * k * n,
                bytes=4 * batch * (m * k + k * n + m * n),
            )
        )
    found.append(
        Case(
            "65536 × 32 × 1 f32",
            product,
            lambda: (normal(65536, 32), normal(32, 1, seed=1)),
            torch=product,
            flops=2 * 65536 * 32,
            bytes=4 * 65536 * 33,
        )
    )
    for rows, columns in ((300_000, 10), (50_000, 32)):
        found.append(
            Case(
                f"xᵀ @ y, {rows} × {columns} f32",
                lambda x, y: x.T @ y,
                lambda rows=rows, columns=columns: (normal(rows, columns), normal(rows, columns, seed=1)),
                torch=lambda x, y: x.T @ y,
                flops=2 * rows * columns**2,
                bytes=8 * rows * columns,
            )
        )
    for text, shape in (("dn,dn->n", (64, 10_000)), ("tbc,tbc->bc", (50, 32, 256))):
        found.append(
            Case(
                f"{text}, {' × '.join(map(str, shape))} f32",
                lambda x, y, text=text: jnp.einsum(text, x, y),
                lambda shape=shape: (normal(*shape), normal(*shape, seed=1)),
                torch=lambda x, y, text=text: torch.einsum(text, x, y),
                flops=2 * int(np.prod(shape)),
                bytes=8 * int(np.prod(shape)),
            )
        )
    for name, m, n, k in (("1024³", 1024, 1024, 1024), ("3000 × 1000 of 3 terms", 3000, 1000, 3)):
        found.append(
            Case(
                f"x @ yᵀ, {name} f32",
                lambda x, y: x @ y.T,
                lambda m=m, n=n, k=k: (normal(m, k), normal(n, k, seed=1)),
                torch=lambda x, y: x @ y.T,
                flops=2 * m * n * k,
                bytes=4 * (m * k + n * k + m * n),
            )
        )
    found.append(
        Case(
            "relu(x @ w + b), 1024³ f32",
            lambda x, w, b: jax.nn.relu(x @ w + b),
            lambda: (normal(1024, 1024), normal(1024, 1024, seed=1), normal(1024, seed=2)),
            torch=lambda x, w, b: torch.relu(torch.addmm(b, x, w)),
            flops=2 * 1024**3,
            bytes=12 << 20,
        )
    )
    found.append(
        Case(
            "x + gelu(y @ w + b), 512 × 768 × 3072 f32",
            lambda x, y, w, b: x + jax.nn.gelu(y @ w + b),
            lambda: (
                normal(512, 3072),
                normal(512, 768, seed=3),
                normal(768, 3072, seed=1, scale=0.05),
                normal(3072, seed=2),
            ),
            torch=lambda x, y, w, b: x + torch.nn.functional.gelu(torch.addmm(b, y, w), approximate="tanh"),
            flops=2 * 512 * 768 * 3072,
            bytes=4 * (2 * 512 * 3072 + 512 * 768 + 768 * 3072),
        )
    )
    rows, words, depth = 512, 8000, 128
    found.append(
        Case(
            f"one-hot, {rows} of {words} × {depth} f32",
            one_hot,
            lambda: (integers(words, rows), normal(words, depth)),
            torch=torch and one_hot_torch,
            bytes=4 * (rows * words + words * depth + rows * depth),
        )
    )
    found.append(
        Case(
            f"one-hot, {rows} of {words} × {depth} f32, gradient",
            jax.grad(lambda table, i: (one_hot(i, table) ** 2).sum()),
            lambda: (normal(words, depth), integers(words, rows)),
            bytes=4 * (2 * rows * words + 2 * words * depth),
        )
    )
    return found
