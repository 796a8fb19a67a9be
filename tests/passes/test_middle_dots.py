"""Products over dimensions in the middle of a side are products of its parts, where nothing is moved for them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host

X, W, V = normal(6, 70, 48), normal(70, 90, seed=1), normal(90, 70, seed=2)
IMAGES, H, C = normal(3, 40, 50, 40), normal(40, 64, seed=3), normal(50, 33, seed=4)

# What a program does with products: of how many parts, and whether anything is transposed beside them.
CASES = {
    "tokens": (lambda x, w: jnp.einsum("bsd,st->btd", x, w), (X, W), [6], False),
    "tokens, from the left": (lambda x, v: jnp.einsum("ts,bsd->btd", v, x), (X, V), [6], False),
    "both sides of images": (lambda x, h, c: jnp.einsum("nhwc,hk,wl->nklc", x, h, c), (IMAGES, H, C), [120, 3], False),
    "images with channels first": (
        lambda x, h, c: jnp.einsum("nckw,wl->nckl", jnp.einsum("nchw,hk->nckw", x, c), h),
        (IMAGES, H, C),
        [120, 1],
        False,
    ),
    "volumes with channels first": (
        lambda x, h, c: jnp.einsum(
            "ncekw,wl->ncekl", jnp.einsum("ncehw,hk->ncekw", jnp.einsum("ncdhw,de->ncehw", x, h), c), h
        ),
        (normal(2, 3, 40, 50, 40), H, C),
        [6, 384, 1],
        False,
    ),
    "of a transposed result": (
        lambda x, w, v: jnp.einsum("tbd,td->bt", jnp.einsum("bsd,st->tbd", x, w), v),
        (X, W, normal(90, 48)),
        [6],
        True,
    ),
    "one after another": (
        lambda x, w, v: jnp.einsum("bsd,st->btd", jnp.einsum("btd,ts->bsd", jnp.einsum("bsd,st->btd", x, w), v), w),
        (X, W, V),
        [6, 6, 6],
        False,
    ),
    "two dimensions": (
        lambda x, w: jnp.einsum("bhwc,hwk->bkc", x, w),
        (IMAGES, normal(40, 50, 24, seed=5)),
        [3],
        False,
    ),
    "of a transposed array": (
        lambda x, w: jnp.einsum("dbs,st->btd", x.transpose(2, 0, 1), w),
        (X, W),
        [6],
        False,
    ),
    "outer dimensions exchanged": (lambda x, v: jnp.tensordot(v, x, ((1,), (1,))), (X, V), [6], True),
    # Followed by something elementwise in another order: as it was, one product with a transposed side.
    "then elementwise": (lambda x, w: jnp.tanh(x.transpose(0, 2, 1) @ w), (X, W), [1], True),
    "short rows": (lambda x, w: jnp.einsum("bsd,st->btd", x, w), (normal(6, 70, 12), W), [1], True),
    "nothing contracted": (lambda x, w: jnp.tensordot(x.transpose(2, 0, 1), w.T, 0), (X, W[:9, :8]), [], True),
    "contracted last": (lambda x, w: jnp.einsum("bds,st->bdt", x, w), (normal(6, 48, 70), W), [1], False),
    "bf16": (
        lambda x, w: jnp.einsum("bsd,st->btd", x, w),
        (X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)),
        [1],
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_called(name: str) -> None:
    f, args, batches, moved = CASES[name]
    block = simplify(match(simplify(graph(f, *args)), host()))
    calls = [op.attrs["attrs"] for op in block.walk() if op.name == "library"]
    assert [c["batch"] for c in calls] == batches
    assert any(op.name == "transpose" for op in block.walk()) == moved


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    f, args, _, _ = CASES[name]
    with jax.default_device(jax.devices("ferrule")[0]):
        found = np.asarray(jax.jit(f)(*args)).astype("d")
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        wanted = np.asarray(f(*(np.asarray(x).astype("d") for x in args)))
    rounding = 2e-2 if name == "bf16" else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=rounding, atol=rounding * np.abs(wanted).max())


def test_what_follows_a_product_of_parts() -> None:
    """The epilogue's rows are those of the parts."""

    def layer(x: Any, w: Any, bias: Any) -> Any:
        return jax.nn.relu(jnp.einsum("ts,bsd->btd", w, x) + bias[:, None]) + x[:, :1]

    args = X, V, normal(90, seed=6)
    with jax.default_device(jax.devices("ferrule")[0]):
        found = jax.jit(layer)(*args)
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = layer(*args)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns, rows", [(40, 60 * 70), (20, 20)])
def test_small_sides_do_not_take_the_place_of_what_is_contracted(columns: int, rows: int) -> None:
    """The next product would not be one of parts, and want a transpose."""
    args = normal(60, 70, 80), normal(80, columns), normal(70, 50)

    def both(x: Any, a: Any, b: Any) -> Any:
        first = jax.lax.dot_general(a, x, (((0,), (2,)), ((), ())))  # columns, 60, 70
        return jax.lax.dot_general(first, b, (((2,), (0,)), ((), ()))).transpose(1, 2, 0)

    block = simplify(match(simplify(graph(both, *args)), host()))
    assert next(op for op in block.ops if op.name == "library").attrs["attrs"]["m"] == rows
