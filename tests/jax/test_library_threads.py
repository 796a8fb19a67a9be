"""oneDNN runs on Ferrule's threads: it has none of its own, whatever OpenMP the process had loaded before."""

from __future__ import annotations

import importlib.util
import json

import pytest

from ferrule.libraries import onednn_path

pytestmark = pytest.mark.skipif(onednn_path() is None, reason="oneDNN is not installed")

# What is done before anything else. A libgomp that is there already is the one that oneDNN finds, with settings that
# nobody chose for it; PyTorch brings one of the same name.
FIRST = {
    "nothing": "",
    "libgomp": "import ctypes; ctypes.CDLL('libgomp.so.1', ctypes.RTLD_GLOBAL)",
    "torch": "import torch",
}

SCRIPT = """
import json, os, time
import ferrule
ferrule.register_jax("threads")
import jax, jax.numpy as jnp
import numpy as np

def threads():
    return {int(t) for t in os.listdir("/proc/self/task")}

def names(threads):  # but for the thread that compiles, which comes and goes, and the queue's, which starts when needed
    found = []
    for thread in threads:
        try:
            found.append(open(f"/proc/self/task/{thread}/comm").read().strip())
        except OSError:
            continue
    return sorted(name for name in found if name not in ("ferrule-compile", "ferrule-queue"))

device = jax.devices("threads")[0]
r = np.random.default_rng(0)
x, w = (r.standard_normal(s).astype(np.float32) for s in ((2, 28, 28, 64), (3, 3, 64, 128)))
order = ("NHWC", "HWIO", "NHWC")

def loss(x, w):
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order)
    return jnp.sum(jnp.maximum(y, 0.0) ** 2)

large = jax.device_put(jnp.ones((256, 256)), device)  # which is too small for the library on any processor
jax.block_until_ready(jax.jit(lambda x: x @ x)(large))  # Ferrule's own threads are there
run = jax.jit(jax.grad(loss, (0, 1)))
want = jax.tree.map(np.asarray, run(*jax.device_put((x, w), jax.devices("cpu")[0])))
run = run.lower(*jax.device_put((x, w), device)).compile()
before = threads()
for _ in range(20):
    got = run(*jax.device_put((x, w), device))
worst = max(float(np.max(np.abs(g - w)) / np.max(np.abs(w))) for g, w in zip(got, want))
for _ in range(100):  # a thread that has just begun has the name of the one that began it
    more = names(threads() - before)
    if not more:
        break
    time.sleep(0.02)
pool = sum(name.startswith("ferrule-") for name in names(threads()))
print(json.dumps({"more": more, "pool": pool, "worst": worst}))
"""


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("first", list(FIRST))
def test_it_has_no_threads_of_its_own(python, threads, first):
    if first == "torch" and importlib.util.find_spec(first) is None:
        pytest.skip("torch is not installed; a libgomp that was loaded before is tested without it")
    ran = python(f"{FIRST[first]}\n{SCRIPT}", FERRULE_NUM_THREADS=str(threads), JAX_PLATFORMS="threads,cpu")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found["worst"] < 1e-4 and found["pool"] == threads - 1
    assert found["more"] == []
