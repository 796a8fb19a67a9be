"""Products on tile registers (AMX): native/gemm_tiles.cc, exact where the sums are."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from one_call import call, elsewhere

import jax

bf16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = pytest.mark.skipif(
    not llvm.get_host_cpu_features().get("amx-bf16"), reason="this processor has no tile registers (AMX)"
)
TYPES = [(bf16, bf16, bf16), (bf16, bf16, "f"), ("b", "b", "i"), ("B", "B", "i"), ("b", "B", "i"), ("B", "b", "i")]
TYPES.append(("f", "f", "f"))
# Less than a tile, one block of rows and several, several parts along k, more columns than are taken at once.
SIZES = [
    (1, 1, 1),
    (3, 37, 7),
    (32, 32, 32),
    (33, 65, 47),
    (100, 31 + 64, 300),
    (64, 4200, 70),
    (40, 200, 2500),
    (513, 130, 1100),
    (1300, 64, 257),
    (520, 4250, 40),
    (1100, 100, 3000),
]


def integers(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Whose products add up to what f32 has."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return rng.integers(-30, 31, shape).astype(dtype)


@pytest.mark.parametrize("types", TYPES, ids=lambda t: "-".join(np.dtype(x).name for x in t))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_exact(sizes: tuple[int, int, int], types: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_GEMM", "tiles")
    m, n, k = sizes
    rng = np.random.default_rng(m)
    a, b = integers(rng, (m, k), types[0]), integers(rng, (k, n), types[1])
    want = (a.astype("d") @ b.astype("d")).astype(types[2])
    for a_turned, b_turned in itertools.product((False, True), repeat=2):
        attrs = {
            "batch": 1,
            "m": m,
            "n": n,
            "k": k,
            "a_strides": (m * k, *((1, m) if a_turned else (k, 1))),
            "b_strides": (n * k, *((1, k) if b_turned else (n, 1))),
        }
        [got] = call("gemm", [a.T if a_turned else a, b.T if b_turned else b], [((1, m, n), types[2])], attrs)
        np.testing.assert_array_equal(got[0], want)


def test_values_without_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN, infinities, the largest number and what rounds to infinity."""
    monkeypatch.setenv("FERRULE_GEMM", "tiles")
    big = np.float32(3.3895314e38)  # bf16's largest; half a unit more is infinity
    pairs = [
        (np.nan, 1),
        (np.inf, 1),
        (-np.inf, 1),
        (np.inf, -np.inf),
        (big, 0),
        (big, 6.6e35),
        (-big, -6.7e35),
        (0, -0.0),
    ]
    a = np.zeros((64, 64), np.float32)
    a[: len(pairs), :2] = pairs
    a = a.astype(bf16)
    ones = np.ones((64, 64), bf16)
    attrs = {"batch": 1, "m": 64, "n": 64, "k": 64, "a_strides": (4096, 64, 1), "b_strides": (4096, 64, 1)}
    [got] = call("gemm", [a, ones], [((1, 64, 64), bf16)], attrs)
    with np.errstate(invalid="ignore", over="ignore"):
        want = (a[:, 0].astype("f") + a[:, 1].astype("f")).astype(bf16)
    np.testing.assert_array_equal(got[0].astype("f"), np.broadcast_to(want[:, None], (64, 64)).astype("f"))


# --- floats, in three parts of bf16 each ------------------------------------------------------------------------
def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """m x k times k x n floats."""
    (m, k), n = a.shape, b.shape[1]
    attrs = {"batch": 1, "m": m, "n": n, "k": k, "a_strides": (m * k, k, 1), "b_strides": (n * k, n, 1)}
    [got] = call("gemm", [a, b], [((1, m, n), "f")], attrs)
    return got[0]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("depth", [64, 700, 5000])
@pytest.mark.parametrize("positive", [False, True])
def test_floats_are_no_less_exact(depth: int, positive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(200, depth), normal(depth, 150, seed=1)
    if positive:
        a, b = abs(a), abs(b)
    want, errors = a.astype("d") @ b.astype("d"), {}
    for choice in ("tiles", "own"):
        monkeypatch.setenv("FERRULE_GEMM", choice)
        errors[choice] = abs(product(a, b) - want).max()
    assert errors["tiles"] <= 1.5 * errors["own"]
    assert errors["tiles"] <= 6e-7 * abs(want).max()


def test_all_digits_of_floats_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times one, a float stays what it is; products and sums of whole numbers that a float holds are exact."""
    monkeypatch.setenv("FERRULE_GEMM", "tiles")
    x = np.ldexp(normal(128, 128), np.random.default_rng(1).integers(-60, 60, (128, 128))).astype("f")
    np.testing.assert_array_equal(product(x, np.eye(128, dtype="f")), x)
    np.testing.assert_array_equal(product(np.eye(128, dtype="f"), x), x)
    rng = np.random.default_rng(2)
    for most in (2**9, 2**4, 2**1):
        a = rng.integers(-most, most + 1, (64, 16)).astype("f")
        b = rng.integers(-(2**19) // most, 2**19 // most, (16, 64)).astype("f")
        np.testing.assert_array_equal(product(a, b), a.astype("d") @ b.astype("d"))


@pytest.mark.parametrize(
    "scales", [(1e-30, 1e-5), (1e-20, 1e-17), (1e-37, 1.0), (1.0, 1e-39), (1e30, 1e7), (3e38, 0.0)]
)
def test_floats_out_of_the_range_of_their_parts(scales: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (np.clip(normal(64, 64, seed=i), -1, 1) * np.float32(s) for i, s in enumerate(scales))
    results = []
    for choice in ("tiles", "own"):
        monkeypatch.setenv("FERRULE_GEMM", choice)
        results.append(product(a, b))
    np.testing.assert_array_equal(*results)
    with np.errstate(over="ignore"):
        want = (a.astype("d") @ b.astype("d")).astype("f")
    np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=max(1e-44, 1e-6 * float(abs(want).max())))


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_floats_that_are_not_finite(what: float, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_GEMM", "tiles")
    operands = [normal(64, 64), np.zeros((64, 64), "f")]
    operands[side][5, 7] = what
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(product(*operands), operands[0] @ operands[1])
        np.testing.assert_array_equal(np.isnan(product(*operands[::-1])), np.isnan(operands[1] @ operands[0]))


@pytest.mark.parametrize("what", [1.0, np.inf])
def test_kept_weights_of_floats(what: float) -> None:
    """The range of weights that are kept in panels is kept, too."""
    device = jax.devices("ferrule")[0]
    w = normal(300, 400)
    w[17, 23] = what
    weights = jax.device_put(w, device)
    layer = jax.jit(lambda x, w: jnp.maximum(x @ w, 0))
    for seed in range(4):
        x = normal(250, 300, seed=seed)
        with np.errstate(invalid="ignore"):
            want = np.maximum(x.astype("d") @ w.astype("d"), 0)
        np.testing.assert_allclose(np.asarray(layer(jax.device_put(x, device), weights)), want, rtol=1e-4, atol=1e-4)


# --- any product ------------------------------------------------------------------------------------------------
def test_any_number_of_threads() -> None:
    code = """
import os, hashlib, ml_dtypes, numpy as np
os.environ["FERRULE_GEMM"] = "tiles"
from one_call import call
bf16, hashes = np.dtype(ml_dtypes.bfloat16), hashlib.sha256()
for m, n, k in (40, 2000, 600), (700, 90, 900), (1500, 700, 100):
    a, b = (np.random.default_rng(0).standard_normal(s).astype(bf16) for s in ((m, k), (k, n)))
    attrs = {"batch": 1, "m": m, "n": n, "k": k, "a_strides": (m * k, k, 1), "b_strides": (n * k, n, 1)}
    hashes.update(call("gemm", [a, b], [((1, m, n), bf16)], attrs)[0].tobytes())
    a, b = (x.astype("f") / 3 for x in (a, b))
    hashes.update(call("gemm", [a, b], [((1, m, n), "f")], attrs)[0].tobytes())
print(hashes.hexdigest())"""
    assert len({elsewhere(code, FERRULE_NUM_THREADS=n) for n in ("1", "2", "3", "8")}) == 1


@pytest.mark.parametrize("sizes", [(100, 130, 200), (700, 300, 1100)], ids=str)
def test_with_what_follows_and_kept_weights(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(0)
    device = jax.devices("ferrule")[0]

    @jax.jit
    def layer(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w + bias)

    def put(*shape: int) -> jax.Array:
        return jax.device_put(jnp.asarray(rng.standard_normal(shape) / 8, jnp.bfloat16), device)

    for w in put(k, n), put(k, n):
        for _ in range(3):  # from the second run on the weights are kept in panels
            x, bias = put(m, k), put(n)
            got = np.asarray(layer(x, w, bias)).astype("d")
            exact = [np.asarray(v).astype("d") for v in (x, w, bias)]
            z = exact[0] @ exact[1] + exact[2]
            want = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
            np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)
