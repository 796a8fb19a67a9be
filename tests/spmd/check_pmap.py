"""pmap with its collectives."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from meshes import COUNT, numbers

import jax
from jax import lax

A = numbers(COUNT, 3, COUNT)
HALVES = [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]


@pytest.mark.parametrize(
    "body, expected",
    [
        (lambda a: a * 2, A * 2),
        (lambda a: lax.psum(a, "i"), np.broadcast_to(A.sum(0), A.shape)),
        (lambda a: lax.pmax(a, "i"), np.broadcast_to(A.max(0), A.shape)),
        (lambda a: a / lax.psum(a, "i") + lax.axis_index("i"), A / A.sum(0) + np.arange(COUNT)[:, None, None]),
        (lambda a: lax.all_gather(a, "i"), np.broadcast_to(A, (COUNT, *A.shape))),
        (lambda a: lax.psum_scatter(a, "i", scatter_dimension=1), A.sum(0).T),
        (lambda a: lax.all_to_all(a, "i", 1, 1), A.transpose(2, 1, 0)),
        (lambda a: lax.pshuffle(a, "i", list(range(COUNT))[::-1]), A[::-1]),
        (lambda a: lax.psum(1, "i") * a[0, 0], COUNT * A[:, 0, 0]),
    ],
)
def test_collectives(body: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(jax.pmap(body, axis_name="i")(A), expected, rtol=1e-4, atol=1e-5)


def test_groups() -> None:
    result = jax.pmap(lambda a: lax.psum(a, "i", axis_index_groups=HALVES), axis_name="i")(A)
    for group in HALVES:
        for d in group:
            np.testing.assert_allclose(result[d], A[group].sum(0), rtol=1e-4, atol=1e-5)


def test_arguments_for_all() -> None:
    f = jax.pmap(lambda a, b: a + b, in_axes=(0, None))
    np.testing.assert_allclose(f(A, A[0]), A + A[0])


def test_fewer_devices_and_donation() -> None:
    a = jax.pmap(lambda a: a + 1, devices=jax.devices()[:2])(A[:2])
    b = jax.pmap(lambda a: a * 2, donate_argnums=0, devices=jax.devices()[:2])(a)
    assert a.is_deleted()
    np.testing.assert_allclose(b, (A[:2] + 1) * 2)


def test_training() -> None:
    w, y = numbers(COUNT, seed=1), numbers(COUNT, 3, seed=2)

    def step(w: Any, a: Any, y: Any) -> Any:
        grad = jax.grad(lambda w: ((a @ w - y) ** 2).mean())(w)
        return w - 0.1 * lax.pmean(grad, "i")

    result = jax.pmap(step, axis_name="i", in_axes=(None, 0, 0))(w, A, y)
    errors = np.einsum("dbk,k->db", A, w) - y
    expected = w - 0.1 * np.einsum("db,dbk->k", 2 * errors / 3, A) / COUNT
    np.testing.assert_allclose(result, np.broadcast_to(expected, result.shape), rtol=1e-4, atol=1e-5)


def test_what_is_thrown_away_is_not_needed() -> None:
    assert jnp.isfinite(jax.pmap(lambda a: a.sum(), axis_name="i")(A)).all()
