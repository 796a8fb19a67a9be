"""Several threads wait for the SYCL CPU device at once: Intel's runtime hangs then (`Turn` in native/sycl/device.h)."""

from __future__ import annotations

PROGRAM = """
import faulthandler
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

faulthandler.dump_traceback_later(60, exit=True)
product = jax.jit(lambda x: (jnp.sin(jnp.cos(x) @ x) @ jnp.tanh(x)) * 0.01)
kernels = jax.jit(lambda x: jnp.cumsum(jnp.sort(jnp.sin(x), axis=0), axis=1))
solve = jax.jit(lambda a, b: jnp.linalg.solve(a + 70 * jnp.eye(len(a)), b))
x = jnp.asarray(np.random.default_rng(0).standard_normal((200, 200), np.float32))
assert x.device.platform == "xpu"
wanted = [product(product(x)), kernels(x), solve(x, product(x))]
jax.block_until_ready(wanted)
deadline = time.time() + 10
wrong = []


def work(kind):
    rounds = 0
    while time.time() < deadline:
        found = [lambda: product(product(x)), lambda: kernels(x), lambda: solve(x, product(x))][kind]()
        if not np.array_equal(found, wanted[kind]):
            wrong.append(kind)
        rounds += 1
    print("rounds", rounds)


threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
print("wrong", wrong)
"""


def test_products_kernels_and_solves_in_three_threads(python, xpu):
    done = python(PROGRAM, JAX_PLATFORMS="xpu,cpu", FERRULE_XPU_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    assert "wrong []" in done.stdout
    assert done.stdout.count("rounds") == 3
