"""A comparator that is no order, with many threads: each merge is cut into parts that must stay one another's rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from test_calls import Fn, call, comparator_object
random = np.random.default_rng(5)
for length in 1000, 60000, 150000:
    major = random.integers(0, 5, length).astype(np.int32)
    minor = random.integers(0, 9, length).astype(np.float32)
    minor[random.random(length) < 0.4] = np.nan  # neither less than any other number nor not
    place = np.arange(length, dtype=np.int32)
    operands = [major, minor, place]
    results = [(x.shape, x.dtype) for x in operands]
    attributes = dict(dimension=0, is_stable=False, comparator=Fn(0))
    a, b, c = call("sort", operands, results, attributes, objects=[comparator_object()], functions=[(0, "less")])
    np.testing.assert_array_equal(np.sort(c), place)  # each once
    np.testing.assert_array_equal(a, major[c])
    np.testing.assert_array_equal(b, minor[c])
"""


@pytest.mark.parametrize("threads", ["2", "7", "16", "64"])
def test_each_element_once(threads):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        env=os.environ | {"FERRULE_NUM_THREADS": threads},
    )
    assert ran.returncode == 0, ran.stderr
