"""Integers divided by a constant: which divisions become products (tests/jax/test_divided_exactly.py: numbers)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.ir import Op
from ferrule.passes.quotients import quotients
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host

FUSES = replace(host(), triple="x86_64-unknown-linux-gnu", features="+avx2,+fma", vector_bytes=32)
BYTES = np.zeros((1000, 3), np.uint8)
X = normal(1000, 3)
MEAN, DEVIATION = np.float32([0.4, 0.5, 0.6]), np.float32([0.2, 0.25, 0.3])


def divisions(f: Callable, *args: np.ndarray, machine=FUSES) -> list[str]:
    with jax.enable_x64(True):
        block = simplify(graph(f, *args))
    ops: list[Op] = list(quotients(block, machine).walk())
    return [op.name for op in ops if op.name in ("quotient", "divide")]


def f32(x):
    return x.astype(jnp.float32)


SAFE: dict[str, Callable] = {
    "bytes": lambda b: f32(b) / 255,
    "doubles": lambda b: b.astype(jnp.float64) / 3,
    "flags": lambda b: f32(b > 3) / 7,
    "normalized": lambda b: (f32(b) / 255 - MEAN) / DEVIATION,
    "to -1 … 1": lambda b: f32(b) / 127.5 - 1,
    "indices": lambda b: jnp.arange(3000, dtype=jnp.float32).reshape(1000, 3) / 3000 + b,
    "scaled first": lambda b: f32(b) * 0.7 / 3 * 2 / np.float32(1.1),
    "clipped, turned and joined": lambda b: jnp.concatenate([jnp.minimum(f32(b).T, 7)[::-1], f32(b).T * 3]) / 11,
    "large": lambda b: f32(b.astype(jnp.int64) * 10**15) / 1e9,
}


@pytest.mark.parametrize("name", SAFE)
def test_products(name: str) -> None:
    found = divisions(SAFE[name], BYTES)
    assert found and set(found) == {"quotient"}


UNSAFE: dict[str, Callable] = {
    "any number": lambda b, x: x / 255,
    "halves": lambda b, x: b.astype(jnp.float16) / 255,
    "powers of two": lambda b, x: f32(b) / np.float32([0.5, 4, 1024]),
    "of a variable": lambda b, x: f32(b) / x,
    "of zero": lambda b, x: f32(b) / np.float32([1, 0, 3]),
    "of less than nothing": lambda b, x: f32(b) / -255,
    "of infinity": lambda b, x: f32(b) / np.float32([1, np.inf, 3]),
    "of NaN": lambda b, x: f32(b) / np.float32([1, np.nan, 3]),
    "tiny": lambda b, x: f32(b) / np.float32(3e37),
    "huge": lambda b, x: f32(b) / np.float32(1e-37),
    "tiny on the way": lambda b, x: (f32(b) * np.float32(1e-37) - np.float32(1e-37)) / 3,
    "may be -0": lambda b, x: -f32(b) / 3,
    "-0 from a product": lambda b, x: f32(b) * -2 / 3,
    "-0 from a constant": lambda b, x: jnp.minimum(f32(b), np.float32([-0.0, 1, 2])) / 3,
    "infinity from a constant": lambda b, x: (f32(b) - np.float32([np.inf, 1, 2])) / 3,
    "few": lambda b, x: f32(b[:300]) / 255,
}


@pytest.mark.parametrize("name", UNSAFE)
def test_left_alone(name: str) -> None:
    found = divisions(UNSAFE[name], BYTES, X)
    assert found and set(found) == {"divide"}


def test_machines_that_do_not_fuse() -> None:
    assert divisions(SAFE["bytes"], BYTES, machine=replace(FUSES, features="+sse2", vector_bytes=16)) == ["divide"]
