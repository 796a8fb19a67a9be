"""On which processors the pool's threads are (Place in native/thread_pool.cc)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from one_call import OneCall, aligned, native, tensor

n = 256
a, b, d = (aligned((n, n), "f") for _ in range(3))
a[...], b[...] = np.random.default_rng(0).standard_normal((2, n, n))
at = {"batch": 1, "m": n, "n": n, "k": n, "a_strides": (0, n, 1), "b_strides": (0, n, 1)}
product = OneCall("gemm", [tensor(a.shape, "f")] * 2, [tensor(d.shape, "f")], at)
want = a.astype("d") @ b

def run(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        d[...] = 0
        product.run([a, b], [d])
        np.testing.assert_allclose(d, want, atol=1e-3)

def worker():
    for thread in os.listdir("/proc/self/task"):
        if open(f"/proc/self/task/{thread}/comm").read().startswith("ferrule-"):
            return int(thread)

def await_sleep():  # a worker that is being moved undoes what is asked meanwhile
    while open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)

run(0.02)
processors, thread = sorted(os.sched_getaffinity(0)), worker()
here, there = {processors[0]}, set(processors[:2])
await_sleep()
"""

CASES = {
    "a thread leaves the caller's processor, and may be where else it could be": """
for _ in range(20):  # put where the caller is, then let go
    os.sched_setaffinity(0, here)
    os.sched_setaffinity(thread, here)
    os.sched_setaffinity(thread, there)
    run(0.01)
    await_sleep()
    assert os.sched_getaffinity(thread) in (there, there - here)
""",
    "a thread makes room wherever the caller goes": """
os.sched_setaffinity(thread, there)

def caller():
    for at in [here, there - here] * 5:
        os.sched_setaffinity(0, at)  # of this thread
        run(0.05)
        await_sleep()
        assert os.sched_getaffinity(thread) != at
    done.append(True)

done = []
calling = threading.Thread(target=caller)
calling.start()
calling.join()
assert done
""",
    "a thread that may be nowhere else stays": """
os.sched_setaffinity(0, here)
os.sched_setaffinity(thread, here)
run(0.05)
assert os.sched_getaffinity(thread) == here
""",
    "a thread that is where nobody is stays": """
os.sched_setaffinity(0, here)
os.sched_setaffinity(thread, there - here)
run(0.05)
assert os.sched_getaffinity(thread) == there - here
""",
}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
@pytest.mark.parametrize("case", CASES)
def test_places(case):
    code = SCRIPT + CASES[case]
    environment = os.environ | {"FERRULE_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, env=environment)
