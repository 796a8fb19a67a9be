"""Sums of integers that are narrowed afterwards are formed narrow (passes/narrow_sums.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block
from jax import lax

R = np.random.default_rng(5)


def reduced(kind: Callable, start: int, wide: str, narrow: str) -> Callable:
    """JAX names the reductions of jnp.sum and its kind by what they are of; this one is as it stands."""

    def build(x: jax.Array) -> jax.Array:
        y = lax.reduce(x.astype(wide), np.asarray(start, wide), kind, (1,))
        return y.astype(narrow)

    return build


@pytest.mark.parametrize("kind, start", [(lax.add, 0), (lax.mul, 1), (lax.bitwise_xor, 0), (lax.bitwise_and, -1)])
@pytest.mark.parametrize("of, narrow", [("int8", "int8"), ("int8", "uint8"), ("uint8", "int16"), ("bool", "int8")])
def test_low_bits(kind: Callable, start: int, of: str, narrow: str) -> None:
    x = R.integers(-120, 120, (7, 300)).astype(of)
    build = reduced(kind, start, "int32", narrow)
    block = simplify(graph(build, x))
    (op,) = [op for op in block.ops if op.name == "reduce"]
    assert op.result.dtype.bits == np.dtype(narrow).itemsize * 8
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = np.asarray(jax.jit(build)(x))
    np.testing.assert_array_equal(evaluate_block(block, [x])[0], wanted)


@pytest.mark.parametrize(
    "kind, of, narrow",
    [(lax.max, "int8", "int8"), (lax.add, "int16", "int8"), (lax.add, "float32", "int8"), (lax.add, "int8", "float32")],
)
def test_what_stays(kind: Callable, of: str, narrow: str) -> None:
    x = R.integers(-120, 120, (7, 30)).astype(of)
    block = simplify(graph(reduced(kind, 0, "int32", narrow), x))
    assert [op.result.dtype.bits for op in block.ops if op.name == "reduce"] == [32]
