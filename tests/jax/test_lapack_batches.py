"""Batches of matrices that LAPACK's handlers get in parts, one in each thread, against float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.ir import Block, Tensor
from ferrule.ir import types as t
from ferrule.passes.lapack import batch_dims

BATCHES = [(2000,), (40, 25), (3,), (1,), ()]


def matrices(batch: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((*batch, rows, columns)).astype("f4")


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_each_part_has_its_own_matrices(batch):
    a = matrices(batch, 6, 4)
    wide = a.astype("f8")
    square = wide.swapaxes(-1, -2) @ wide + 1

    @jax.jit
    def run(a, square):
        q, r = jnp.linalg.qr(a)
        u, s, v = jnp.linalg.svd(a, full_matrices=False)
        w, vectors = jnp.linalg.eigh(square)
        return q @ r, (u * s[..., None, :]) @ v, s, w, (vectors * w[..., None, :]) @ vectors.mT

    product, again, values, eigenvalues, square_again = run(a, square.astype("f4"))
    np.testing.assert_allclose(product, wide, atol=1e-5)
    np.testing.assert_allclose(again, wide, atol=1e-5)
    np.testing.assert_allclose(values, np.linalg.svd(wide, compute_uv=False), atol=1e-5)
    np.testing.assert_allclose(eigenvalues, np.linalg.eigvalsh(square), atol=1e-4)
    np.testing.assert_allclose(square_again, square, atol=1e-4)


def test_tridiagonal():
    diagonal, beside = 4 + np.abs(matrices((500,), 1, 9)[:, 0]), matrices((500,), 1, 9)[:, 0]
    right = matrices((500,), 9, 2)
    low, high = beside.copy(), beside[:, ::-1].copy()
    low[:, 0] = high[:, -1] = 0
    x = jax.jit(jax.lax.linalg.tridiagonal_solve)(low, diagonal, high, right)
    whole = np.zeros((500, 9, 9))
    for i in range(9):
        whole[:, i, i] = diagonal[:, i]
        if i:
            whole[:, i, i - 1], whole[:, i - 1, i] = low[:, i], high[:, i - 1]
    np.testing.assert_allclose(x, np.linalg.solve(whole, right.astype("f8")), atol=1e-5)


def test_singular_matrices_are_told_apart():
    a = matrices((600,), 80, 80)
    a[::7, 3] = 0
    sign, _ = jax.jit(jnp.linalg.slogdet)(a)
    np.testing.assert_array_equal(np.asarray(sign) == 0, np.arange(600) % 7 == 0)


def call(batch: str, layouts: list[tuple[int, ...]], shape: tuple[int, ...], results: list[tuple[int, ...]]):
    block = Block([Tensor(shape, t.f32)])
    attrs = {"call_target_name": "lapack_sgeqrf_ffi", "mhlo.frontend_attributes": {"num_batch_dims": batch}}
    attrs |= {"operand_layouts": layouts[:1], "result_layouts": layouts[1:]}
    return block.add("custom_call", block.args, [Tensor(r, t.f32) for r in results], attrs)


def test_what_is_a_batch():
    by_columns = [(1, 2, 0), (1, 2, 0), (1, 0)]
    assert batch_dims(call("1", by_columns, (5, 4, 3), [(5, 4, 3), (5, 3)])) == 1
    assert batch_dims(call("1", by_columns, (5, 4, 3), [(6, 4, 3), (6, 3)])) is None
    assert batch_dims(call("x", by_columns, (5, 4, 3), [(5, 4, 3), (5, 3)])) is None
    numbers_fastest = [(0, 1, 2), (1, 2, 0), (1, 0)]
    assert batch_dims(call("1", numbers_fastest, (5, 4, 3), [(5, 4, 3), (5, 3)])) is None
