"""Attention whose logits have a soft limit, cap * tanh(x / cap), as one call."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from test_attention import agree, calls, of_any_size, qkv, random, squares  # noqa: F401

import jax


def limited(q, k, v, mask=True, cap=5.0, scale=1.0):
    """As Gemma has it: several heads of queries share one of keys."""
    rows, keys, shared = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    q = q.reshape(*q.shape[:2], k.shape[2], shared, q.shape[-1]) * scale
    logits = jnp.einsum("btkgh,bskh->btkgs", q, k)
    logits = jnp.tanh(logits / cap) * cap
    seen = jnp.tril(jnp.ones((rows, keys), bool), keys - rows) & mask
    logits = jnp.where(seen[None, :, None, None, :], logits, -2.38e38)
    out = jnp.einsum("btkgs,bskh->btkgh", jax.nn.softmax(logits), v)
    return out.reshape(q.shape[0], rows, -1, v.shape[-1])


@pytest.mark.parametrize("rows", [1, 3, 70, 97])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 3.0, 1e6])
def test_soft_limits(rows: int, scale: float) -> None:
    """Logits that tanh leaves as they are, that it bends, and that it cuts off."""
    args = random(2, rows, 6, 24), random(2, 97, 2, 24), random(2, 97, 2, 20)
    function = partial(limited, scale=scale)
    assert calls(function, *args) == ["attention"]
    # Now and then a logit lies where the limit bends, and a millionth of it counts as much as the weight beside it.
    agree(function, *args, tolerance=2e-5 if scale < 1e3 else 1e-3)


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [2, 90])
def test_what_is_not_finite(rows: int, what: float) -> None:
    """An infinite logit is finite behind the limit; NaN stays."""
    args = random(1, rows, 2, 16), random(1, 90, 2, 16), random(1, 90, 2, 16)
    args[0][0, rows - 1, 1, 3] = what
    agree(limited, *args)


def test_narrow() -> None:
    args = [t.swapaxes(1, 2) for t in qkv(1, 2, 70, 90, 32, dtype="bfloat16")]

    def function(q, k, v):
        logits = jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(50 * jnp.tanh(logits / 50)).astype(v.dtype)
        return jnp.einsum("bnts,bsnh->btnh", weights, v)

    assert calls(function, *args) == ["attention"]
    agree(function, *args, tolerance=2e-2)


def test_its_gradient_is_not_one_call() -> None:
    args = random(1, 280, 2, 16), random(1, 280, 2, 16), random(1, 280, 2, 16)
    assert calls(partial(squares, limited), *args) == []
    agree(partial(squares, limited), *args, tolerance=1e-4)
