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

SETUP = """
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
"""

PLACES = """
def call():
    result = compiled(x, w)
    time.sleep(0.001)  # else the caller would come to run it itself, with threads of its own
    return jax.block_until_ready(result)

call()
workers = threads() - before
allowed = os.sched_getaffinity(0)
one = min(allowed)
alone = []
for _ in range(10):
    # Everybody was on one processor last; the library's threads may leave it.
    for thread in threads():
        os.sched_setaffinity(thread, {one})
    call()
    for thread in workers:
        os.sched_setaffinity(thread, allowed)
    time.sleep(0.002)
    result = call()
    alone.append(all(processor(t) != one for t in workers))
kept = all(os.sched_getaffinity(t) == allowed for t in workers)
print(json.dumps({"workers": len(workers), "alone": sum(alone), "kept": kept, "result": float(result[0, 5, 5, 5])}))
"""


def test_they_do_not_share_the_callers_processor(python):
    ran = python(SETUP + PLACES, FERRULE_NUM_THREADS="2")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found["workers"] == 1 and found["kept"] and found["result"] == 576
    assert found["alone"] >= 3  # Linux alone moves it in none of the ten; a busy machine may move it back


TEAMS = """
def come_to_one(call, former=frozenset()):
    # Where the runs come to be on another thread, the library's threads of the former one go. On a busy machine
    # the caller may be the one that runs what it has not yet waited for, so that this takes several rounds.
    end = time.monotonic() + 20
    found = set()
    while time.monotonic() < end:
        for _ in range(20):
            call()
        found = threads() - before
        if len(found) == 1 and found != former:
            break
        time.sleep(0.01)
    return found

def wait_for_none():
    result = [compiled(x, w) for _ in range(3)]
    time.sleep(0.02)
    jax.block_until_ready(result)

waited = come_to_one(lambda: jax.block_until_ready(compiled(x, w)))
queued = come_to_one(wait_for_none, waited)
print(json.dumps({"waited": len(waited), "queued": len(queued), "moved": waited != queued}))
"""


def test_one_set_of_them_is_there(python):
    ran = python(SETUP + TEAMS, FERRULE_NUM_THREADS="2")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.strip().splitlines()[-1]) == {"waited": 1, "queued": 1, "moved": True}
