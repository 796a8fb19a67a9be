"""What is cut in another way where there are many threads: matrix products, and running totals of few lines."""

from __future__ import annotations

import pytest

START = """
import jax
import jax.numpy as jnp
import numpy as np

r = np.random.default_rng(0)
assert jax.devices()[0].platform == "ferrule"
"""

PRODUCTS = """
shapes = [(1, 512, 512, 512), (1, 128, 512, 784), (1, 256, 256, 256), (1, 64, 2048, 512), (1, 2048, 64, 512),
          (1, 333, 517, 211), (3, 300, 300, 300), (24, 128, 128, 64), (1, 15, 3000, 400), (1, 3000, 15, 400),
          (1, 4096, 40, 300), (17, 90, 100, 70), (1, 1000, 1000, 10), (1, 64, 64, 20000), (1, 1, 2000, 3000)]
for batch, m, n, k in shapes:
    for dtype in (np.float32, np.float64, np.int32, np.complex64):
        a, b = (r.integers(-4, 5, s).astype(dtype) for s in ((batch, m, k), (batch, k, n)))
        wide = np.complex64 if dtype == np.complex64 else np.float32  # these sums are exact in 32 bits
        exact = np.matmul(a.astype(wide), b.astype(wide))
        np.testing.assert_array_equal(np.asarray(jnp.matmul(a, b)), exact.astype(dtype), f"{batch} {m} {n} {k} {dtype}")
    a, b = (r.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n)))
    follow = jax.jit(lambda a, b, c: jnp.maximum(a @ b + c, 0))(a, b, np.arange(n, dtype=np.float32))
    np.testing.assert_array_equal(np.asarray(follow), np.maximum(a @ b + np.arange(n), 0))
print("fine")
"""

TOTALS = """
def check(kind, x, axis=0, reverse=False, rtol=0.0):
    found = np.asarray(getattr(jax.lax, kind)(x, axis=axis, reverse=reverse)).astype(np.float64)
    wide = np.flip(x, axis).astype(np.float64) if reverse else x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        of = {"cumsum": np.add, "cummax": np.maximum, "cummin": np.minimum, "cumprod": np.multiply}[kind]
        exact = of.accumulate(wide, axis)
    exact = np.flip(exact, axis) if reverse else exact
    case = f"{kind} {x.dtype} {x.shape} {axis} {reverse}"
    if rtol:
        np.testing.assert_allclose(found, exact, rtol=rtol, atol=rtol, err_msg=case)
    else:
        np.testing.assert_array_equal(found, exact, case)


for n in (1 << 20, 999_999, 1 << 18, 131_071, 1_000_003):
    x = r.standard_normal(n).astype(np.float32)
    for reverse in (False, True):
        check("cumsum", x, reverse=reverse, rtol=3e-7 * 40)
        check("cummax", x, reverse=reverse)
        check("cumsum", (10 * x).astype(np.int32), reverse=reverse)
        check("cummin", (1000 * x).astype(np.int16), reverse=reverse)
        check("cumprod", 1 + 1e-5 * x, reverse=reverse, rtol=1e-6)
x = r.standard_normal(1 << 20).astype(np.float32)
check("cumsum", np.abs(x).astype(jnp.bfloat16), rtol=2e-2)
x[[1000, 500_000]] = np.nan, np.inf
check("cummax", x)
x[1000] = 1
check("cumsum", x, rtol=1e-5)
x[800_000] = -np.inf
check("cumsum", x, rtol=1e-5)
for shape, axis in (((2, 1 << 19), 1), ((2, 300_007), 1), ((1 << 19, 2), 0), ((100_003, 3), 0), ((2, 1 << 18, 1), 1)):
    for reverse in (False, True):
        check("cumsum", r.integers(-9, 9, shape).astype(np.float32), axis, reverse)
        check("cummax", r.standard_normal(shape).astype(np.float32), axis, reverse)
fused = jax.jit(lambda x: jnp.tanh(1e-3 * jnp.cumsum(jnp.sin(x))))(np.arange(1 << 20, dtype=np.float32))
exact = np.tanh(1e-3 * np.cumsum(np.sin(np.arange(1 << 20, dtype=np.float32).astype(np.float64))))
np.testing.assert_allclose(np.asarray(fused), exact, atol=1e-6)
print("fine")
"""


@pytest.mark.parametrize("threads", ["3", "16"])
@pytest.mark.parametrize("program", [PRODUCTS, TOTALS], ids=["products", "totals"])
def test_many_threads(python, program, threads):
    done = python(START + program, JAX_PLATFORMS="ferrule,cpu", FERRULE_NUM_THREADS=threads, JAX_ENABLE_X64="1")
    assert done.stdout == "fine\n", done.stdout + done.stderr
