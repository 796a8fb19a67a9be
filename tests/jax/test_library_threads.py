"""The threads that a library brings work on processors of their own, and may go wherever they could go before."""

from __future__ import annotations

import json
import os

import pytest

from ferrule.libraries import onednn_path

pytestmark = [
    pytest.mark.skipif(onednn_path() is None, reason="oneDNN is not installed"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor only"),
]

SCRIPT = """
import json, os, time
import ferrule
ferrule.register_jax("threads")
import jax, jax.numpy as jnp

def threads():
    return {int(t) for t in os.listdir("/proc/self/task")}

def processor(thread):
    return int(open(f"/proc/self/task/{thread}/stat").read().rsplit(")", 1)[1].split()[36])

device = jax.devices("threads")[0]
x, w = (jax.device_put(v, device) for v in (jnp.ones((1, 28, 28, 64)), jnp.ones((3, 3, 64, 128))))
large = jnp.ones((256, 256), device=device)  # which is too small for the library on any processor
order = ("NHWC", "HWIO", "NHWC")
run = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order))
jax.block_until_ready(jax.jit(lambda x: x @ x)(large))  # Ferrule's own threads are there
compiled = run.lower(x, w).compile()
before = threads()
jax.block_until_ready(compiled(x, w))
first = threads()
for _ in range(20):  # the caller comes to run it itself, with workers of its own
    jax.block_until_ready(compiled(x, w))
workers = threads() - first or first - before
allowed = os.sched_getaffinity(0)
one = min(allowed)
alone = []
for _ in range(10):
    # Everybody was on one processor last; the library's threads may leave it.
    for thread in threads():
        os.sched_setaffinity(thread, {one})
    jax.block_until_ready(compiled(x, w))
    for thread in workers:
        os.sched_setaffinity(thread, allowed)
    time.sleep(0.002)
    result = jax.block_until_ready(compiled(x, w))
    alone.append(all(processor(t) != one for t in workers))
kept = all(os.sched_getaffinity(t) == allowed for t in workers)
print(json.dumps({"workers": len(workers), "alone": sum(alone), "kept": kept, "result": float(result[0, 5, 5, 5])}))
"""


def test_they_do_not_share_the_callers_processor(python):
    ran = python(SCRIPT, FERRULE_NUM_THREADS="2")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found["workers"] == 1 and found["kept"] and found["result"] == 576
    assert found["alone"] >= 3  # Linux alone moves it in none of the ten; a busy machine may move it back
