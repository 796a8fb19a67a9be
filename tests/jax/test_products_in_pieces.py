"""Products of bf16 and 8-bit integers in pieces on Ferrule's own threads: some rows of one whose right side stays the
same, or the matrices of a batch."""

from __future__ import annotations

import pytest

from ferrule import libraries

PROGRAM = """
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

r = np.random.default_rng(0)
assert jax.devices()[0].platform == "ferrule"
bf16 = np.dtype(ml_dtypes.bfloat16)

# Small integers: every sum is exact in f32, and most are in bf16.
def values(shape, dtype):
    low = 0 if dtype == np.uint8 else -4
    return r.integers(low, 5, shape).astype(np.float32).astype(dtype)


def product(a, b, out):
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=out)


FOLLOW = {
    "nothing": (lambda y, c: y, lambda y, c: y),
    "bias and relu": (lambda y, c: jnp.maximum(y + c, 0), lambda y, c: np.maximum(y + c, 0)),
    "two results": (lambda y, c: (y, y * c), lambda y, c: (y, y * c)),
    "row sums": (lambda y, c: (y * c).sum(1), lambda y, c: (y * c).sum(1)),
}
for m, n, k in [(256, 256, 256), (128, 512, 512), (200, 300, 500), (81, 512, 513), (1000, 130, 200), (33, 1000, 700)]:
    for left, right, out in [(bf16, bf16, np.float32), (bf16, bf16, bf16), (np.int8, np.int8, np.int32),
                             (np.uint8, np.int8, np.int32)]:
        c = np.arange(n).astype(np.float32 if out != np.int32 else np.int32) % 5
        weights = [values((k, n), right) for _ in range(2)]  # other ones of the same shape
        calls = [(values((m, k), left), b) for b in weights for _ in range(3)]  # as they come, kept, found
        products = [(a.astype(np.float32) @ b.astype(np.float32)).astype(out).astype(np.float64) for a, b in calls]
        for name, (ours, theirs) in FOLLOW.items():
            if out == bf16 and name != "nothing":
                continue  # rounded differently where a kernel keeps f32
            run = jax.jit(lambda a, b, c: ours(product(a, b, out), c))
            on_device = [jax.device_put(b) for b in weights]
            for i, (a, _) in enumerate(calls):
                exact = jax.tree.leaves(theirs(products[i], c.astype(np.float64)))
                for x, y in zip(jax.tree.leaves(run(a, on_device[i // 3], c)), exact, strict=True):
                    np.testing.assert_array_equal(np.asarray(x).astype(np.float64), y, f"{m} {n} {k} {left} {name}")
# The weights are part of the program.
w = values((512, 512), bf16)
run = jax.jit(lambda a: jnp.tanh(product(a, w, np.float32)))
for _ in range(3):
    a = values((128, 512), bf16)
    exact = np.tanh(a.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_allclose(np.asarray(run(a)), exact, rtol=1e-6, atol=1e-7)
for batch, m, n, k in [(16, 64, 64, 64), (17, 100, 64, 90), (5, 128, 300, 65), (40, 33, 257, 200)]:
    for left, right, out in [(bf16, bf16, np.float32), (np.int8, np.int8, np.int32)]:
        for sides in ("bmk,bkn->bmn", "bmk,bnk->bmn", "bkm,bkn->bmn", "mbk,kbn->bmn", "bmk,kn->bmn"):
            at = dict(zip("bmnk", (batch, m, n, k)))
            one, two = sides[:-5].split(",")
            a, b = (values(tuple(at[x] for x in side), t) for side, t in ((one, left), (two, right)))
            run = jax.jit(lambda a, b: jnp.maximum(jnp.einsum(sides, a, b, preferred_element_type=out), 1))
            rows = a.transpose([one.index(x) for x in "bmk"]).astype(np.float32)
            columns = b.transpose([two.index(x) for x in "bkn" if x in two]).astype(np.float32)
            exact = np.maximum(rows @ columns, 1)
            for _ in range(2):
                np.testing.assert_array_equal(np.asarray(run(a, b)), exact, f"{sides} {at} {left}")
print("fine")
"""


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_every_call_is_right(python, threads):
    environment = {"FERRULE_NUM_THREADS": str(threads), "FERRULE_DEBUG": "3"}
    done = python(PROGRAM, JAX_PLATFORMS="ferrule", **environment)
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stdout[-2000:] + done.stderr[-3000:]
    if libraries.onednn_path() is not None and "oneDNN primitive brg" in done.stderr:
        assert "100 rows at a time" in done.stderr
