"""Products one side of which is mostly zeros (native/gemm_sparse.cc), against float64, with what zeros may not hide."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import OneCall, tensor
from test_calls import under
from test_gemm_bounds import at_the_end

import jax


def one_hot(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    found = np.zeros((rows, k))
    found[np.arange(rows), rng.integers(0, k, rows)] = 1
    return found


def interpolation(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    """Two neighbours in each row, as where images are resized."""
    place = (np.arange(rows) + 0.5) * k / rows - 0.5
    first, part = np.floor(place).astype(int), place % 1
    found = np.zeros((rows, k))
    for shift, weight in ((0, 1 - part), (1, part)):
        np.add.at(found, (np.arange(rows), np.clip(first + shift, 0, k - 1)), weight)
    return found


def scattered(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    """Some elements anywhere, negative zeros among the others, and a row that is not sparse at all."""
    found = rng.standard_normal((rows, k)) * (rng.random((rows, k)) < 1 / 24)
    found[rng.random((rows, k)) < 0.5] *= -1.0
    found[1] = rng.standard_normal(k)
    return found


def product(a: np.ndarray, b: np.ndarray, turned: tuple[bool, bool]) -> np.ndarray:
    """a @ b by the call, whose operands and result end where the memory does."""
    dtype, (m, k), n = a.dtype.char, a.shape, b.shape[1]
    stored = []
    for x, turn in zip((a, b), turned):
        x = x.T if turn else x
        stored.append(at_the_end(x.shape, dtype))
        stored[-1][...] = x
    attrs = dict(
        batch=1,
        **dict(m=m, n=n, k=k),
        a_strides=(m * k, *((1, m) if turned[0] else (k, 1))),
        b_strides=(k * n, *((1, k) if turned[1] else (n, 1))),
    )
    d = at_the_end((m, n), dtype)
    OneCall("gemm", [tensor(x.shape, dtype) for x in stored], [tensor((1, m, n), dtype)], attrs).run(stored, [d])
    return d


SIZES = [(48, 80, 112), (80, 48, 352), (33, 64, 4096), (416, 208, 48), (64, 33, 96), (144, 131, 96)]
# Right sides beyond 2 MB, whose rows are added up in blocks of columns or, of the second, whole.
LARGE = [(70, 1100, 600), (40, 300, 2400)]


def check_results() -> None:
    rng = np.random.default_rng(0)
    makes = (one_hot, interpolation, scattered)
    for (m, n, k), dtype, make in [*itertools.product(SIZES, "fd", makes), *itertools.product(LARGE, "f", makes)]:
        for left, turned in itertools.product((True, False), itertools.product((False, True), repeat=2)):
            sparse, dense = make(rng, m if left else n, k), rng.standard_normal((k, n) if left else (m, k))
            a, b = (sparse, dense) if left else (dense, sparse.T)
            a, b = a.astype(dtype), b.astype(dtype)
            exact, size = a.astype("d") @ b.astype("d"), np.abs(a).astype("d") @ np.abs(b).astype("d")
            error = np.abs(product(a, b, turned) - exact)
            limit = 16 * np.finfo(dtype).eps * size
            assert (error <= limit).all(), (m, n, k, dtype, make.__name__, left, turned)


def check_batches() -> None:
    """Of several matrices, or of one that all share; one that is not sparse among them is multiplied as well."""
    rng = np.random.default_rng(2)
    batch = 3
    for (m, n, k), left, (share_a, share_b), odd in itertools.product(
        ((48, 70, 96), (48, 1700, 120)), (True, False), ((False, False), (True, False), (False, True)), (False, True)
    ):
        a = np.stack([one_hot(rng, m, k) if left else rng.standard_normal((m, k)) for _ in range(batch)])
        b = np.stack([rng.standard_normal((k, n)) if left else one_hot(rng, n, k).T for _ in range(batch)])
        if odd:
            (a if left else b)[1] += 1
        a, b = a.astype("f"), np.ascontiguousarray(b, "f")
        a, b = a[: 1 if share_a else batch], b[: 1 if share_b else batch]
        attrs = dict(batch=batch, m=m, n=n, k=k)
        attrs |= dict(a_strides=(0 if share_a else m * k, k, 1), b_strides=(0 if share_b else k * n, n, 1))
        d = at_the_end((batch, m, n), "f")
        OneCall("gemm", [tensor(a.shape, "f"), tensor(b.shape, "f")], [tensor(d.shape, "f")], attrs).run([a, b], [d])
        np.testing.assert_allclose(d, a.astype("d") @ b.astype("d"), rtol=1e-4, atol=1e-4)


def check_nothing() -> None:
    """No matrices at all: nothing is read."""
    shape = (0, 64, 64)
    none = np.zeros(shape, "f")
    for strides in ((64 * 64, 64, 1), (64 * 64, 1, 64)):
        attrs = dict(batch=0, m=64, n=64, k=64, a_strides=strides, b_strides=strides)
        OneCall("gemm", [tensor(shape, "f")] * 2, [tensor(shape, "f")], attrs).run([none, none], [none])


def check_nonfinite() -> None:
    """Zero times infinity is NaN: a row of the other side that no term takes counts as well."""
    rng = np.random.default_rng(1)
    for (m, n, k), make, left, turned, odd in itertools.product(
        ((64, 96, 128), (64, 1100, 600)),
        (one_hot, interpolation, scattered),
        (True, False),
        ((False, False), (True, True)),
        (np.inf, -np.inf, np.nan),
    ):
        sparse, dense = make(rng, m if left else n, k), rng.standard_normal((k, n) if left else (m, k))
        dense[(-1, -1) if left else (0, 5)] = odd
        a, b = (sparse, dense) if left else (dense, sparse.T)
        with np.errstate(invalid="ignore"):
            exact = a @ b
        assert np.isnan(exact).any()
        found = product(a.astype("f"), b.astype("f"), turned)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(exact))
        if make is not scattered:  # it has a row of many terms
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    sparse = one_hot(rng, m, k)
    sparse[3] = sparse[:, 7] = 0
    sparse[5, 7] = np.nan  # a term like others
    found = product(sparse.astype("f"), np.ones((k, n), "f"), (False, False))
    assert np.isnan(found[5]).all() and (found[3] == 0).all() and not np.isnan(np.delete(found, 5, 0)).any()


@pytest.mark.parametrize("isa", ALL_SETS)
def test_results(isa: str) -> None:
    under(
        isa,
        "from test_gemm_sparse import check_results, check_batches, check_nothing as none; "
        "check_results(); check_batches(); none()",
    )


@pytest.mark.parametrize("isa", ALL_SETS)
def test_what_is_not_finite(isa: str) -> None:
    under(isa, "from test_gemm_sparse import check_nonfinite; check_nonfinite()")


@pytest.mark.parametrize("make", [one_hot, interpolation])
@pytest.mark.parametrize("odd", [False, True])
def test_what_follows(odd: bool, make: Callable[..., np.ndarray]) -> None:
    """It might write over what it reads: that a side is not finite is known before it runs."""
    rng = np.random.default_rng(3)
    a, b, c = make(rng, 70, 600), rng.standard_normal((600, 1100)), rng.standard_normal((70, 1100))
    if odd:
        b[-1, -1] = np.inf
    with np.errstate(invalid="ignore"):
        wanted = np.maximum(a @ b * 2 + c, 0)
    a, b, c = (jax.device_put(x.astype("f"), jax.devices("ferrule")[0]) for x in (a, b, c))
    found = jax.jit(lambda a, b, c: jnp.maximum(a @ b * 2 + c, 0))(a, b, c)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
