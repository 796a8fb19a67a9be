"""Reductions of transposed arrays are formed in memory's order (passes/across.py)."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir import Block
from ferrule.passes.across import in_order
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block
from jax import lax

R = np.random.default_rng(9)


def packed(x: jax.Array) -> jax.Array:
    """As in `jnp.packbits`: eight rows each, seen as columns."""
    bits = (x > 0).astype(jnp.uint8).T.reshape(6, 5, 8) << jnp.arange(8, dtype=jnp.uint8)
    return bits.sum(2, dtype=jnp.uint8).T


def unpacked(x: jax.Array) -> jax.Array:
    """As in `jnp.unpackbits`: each row becomes eight."""
    bits = jnp.abs(x * 20).astype(jnp.uint8).T[:, :, None] & (jnp.uint8(1) << jnp.arange(8, dtype=jnp.uint8))
    return (bits > 0).astype(jnp.uint8).reshape(6, 320).T


CASES: dict[str, tuple[Callable[[jax.Array], jax.Array], tuple[int, ...]]] = {
    "a column's maximum": (lambda x: x.T.max(1), (40, 6)),
    "of rows": (lambda x: x.T.max(0), (40, 6)),
    "packed bits": (packed, (40, 6)),
    "what is left is turned back": (lambda x: x.transpose(2, 0, 1).sum(1), (4, 6, 10)),
    "two dimensions": (lambda x: x.transpose(3, 1, 0, 2).sum((0, 2)), (4, 6, 5, 3)),
    "elementwise": (lambda x: (jnp.exp(x.T * 0.5) - jnp.arange(6.0, dtype="f")[:, None]).sum(1), (40, 6)),
    "two arrays": (lambda x: (x.T * (x + 1).T).sum(1), (40, 6)),
    "merged dimensions": (lambda x: x.transpose(0, 3, 1, 2).reshape(2, 3, 20).sum(2), (2, 4, 5, 3)),
    "split and merged": (lambda x: x.transpose(2, 0, 1).reshape(3, 2, 10).max(1), (4, 5, 3)),
    "dimensions of one": (lambda x: x.T.reshape(1, 6, 1, 40, 1).sum((1, 4)), (40, 6)),
    "a sum of broadcast rows": (lambda x: (x.T + x[0][:, None]).sum(1), (40, 6)),
    "places of maxima": (lambda x: jnp.argmax(x.T, 1), (40, 6)),
    "a padding": (lambda x: jnp.pad(x.T, ((1, 0), (0, 8))).reshape(7, 6, 8).sum(2), (40, 6)),
    "a slice": (lambda x: x.transpose(2, 0, 1)[1:, :, ::2].max(2), (4, 6, 10)),
    "there and back": (lambda x: jnp.exp(x.T * 2).T, (40, 6)),
    "unpacked bits": (unpacked, (40, 6)),
    "back in another shape": (lambda x: x.transpose(2, 0, 1).reshape(10, 24).T + 1, (4, 6, 10)),
    "a limit": (lambda x: lax.clamp(np.float32(-1), x.T, np.float32(1)).sum(1), (40, 6)),
}


def ordered(build: Callable, x: np.ndarray) -> Block:
    return in_order(simplify(graph(build, x)))


def transposed(block: Block) -> list[int]:
    return [op.result.type.size for op in block.walk() if op.name == "transpose"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str) -> None:
    build, shape = CASES[name]
    x = R.normal(size=shape).astype("f")
    block = ordered(build, x)
    assert all(size < x.size for size in transposed(block)), block
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = np.asarray(jax.jit(build)(x))
    np.testing.assert_allclose(evaluate_block(block, [x])[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "build, shape",
    [
        (lambda x: x.transpose(1, 0, 2).sum(2), (4, 6, 40)),  # rows stay rows
        (lambda x: x.T.reshape(240).sum(), (40, 6)),  # no dimension is a whole one
        (lambda x: (x.T + x.reshape(6, 40)).sum(1), (40, 6)),  # one of two lies as it is
        (lambda x: (x * 2).T + 1, (40, 6)),  # once is once
    ],
)
def test_what_stays(build: Callable, shape: tuple[int, ...]) -> None:
    x = R.normal(size=shape).astype("f")
    block = ordered(build, x)
    assert x.size in transposed(block)


@pytest.mark.parametrize("seed", range(40))
def test_any_order(seed: int) -> None:
    """Reductions over some dimensions of arrays in any order, with a reshape that splits or merges."""
    r = np.random.default_rng(seed)
    shape = tuple(int(n) for n in r.choice([1, 2, 3, 4, 6], size=r.integers(2, 5)))
    order = tuple(int(d) for d in r.permutation(len(shape)))
    turned = [shape[d] for d in order]
    at = int(r.integers(len(turned)))
    if seed % 2 and turned[at] % 2 == 0:
        turned[at : at + 1] = [turned[at] // 2, 2]
    elif at + 1 < len(turned):
        turned[at : at + 2] = [turned[at] * turned[at + 1]]
    axes = tuple(int(d) for d in np.flatnonzero(r.random(len(turned)) < 0.5)) or (0,)

    def build(x: jax.Array) -> jax.Array:
        return (x.transpose(order) * 2).reshape(turned).sum(axes)

    x = r.integers(-9, 9, shape).astype("f")
    block = ordered(build, x)
    np.testing.assert_array_equal(evaluate_block(block, [x])[0], np.asarray(build(x)))
