"""Small products of long sums, whose parts are added up at the end (LongSums in native/gemm_blocked.cc)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from one_call import call

SHAPES = [(64, 9000, 64), (3, 5000, 5), (100, 17001, 20), (13, 70000, 31), (20, 4096, 40), (64, 4100, 200)]


def values(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-99, 99, shape).astype(dtype)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def exactly(a, b):
    """The product. NumPy's own sums in f64 are no better than ours: of 32 terms only, which are added up beyond f64."""
    wide = np.result_type(a, "d")  # which holds the integers' sums
    a = np.pad(a.astype(wide), [(0, 0), (0, -a.shape[1] % 32)])
    b = np.pad(b.astype(wide), [(0, -len(b) % 32), (0, 0)])
    with np.errstate(invalid="ignore"):
        sums = a.reshape(len(a), -1, 32).swapaxes(0, 1) @ b.reshape(-1, 32, b.shape[1])
        return sums.sum(0, np.result_type(wide, "g"))


def product(m, k, n, dtype, left_across=False, right_across=False, spoil=None):
    a, b = values((k, m) if left_across else (m, k), dtype, 0), values((n, k) if right_across else (k, n), dtype, 1)
    if spoil is not None:
        (a.T if left_across else a)[spoil] = np.nan
    attrs = {
        **{"batch": 1, "m": m, "n": n, "k": k},
        "a_strides": (0, 1, m) if left_across else (0, k, 1),
        "b_strides": (0, 1, k) if right_across else (0, n, 1),
    }
    got = call("gemm", [a, b], [((m, n), dtype)], attrs)[0]
    return got, exactly(a.T if left_across else a, b.T if right_across else b)


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D", "i"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums(shape, dtype):
    for across in ((False, False), (True, False), (False, True), (True, True)):
        got, want = product(*shape, dtype, *across)
        if dtype == "i":
            np.testing.assert_array_equal(got, want)
        else:
            bound = 20 * np.finfo(dtype).eps * shape[1] ** 0.5
            np.testing.assert_allclose(got, want, rtol=0, atol=bound * (1 if dtype in "fd" else 2))


def test_not_a_number_stays_in_its_row():
    got, _ = product(20, 9000, 40, "f", spoil=(7, 8999))
    assert np.isnan(got[7]).all() and np.isfinite(np.delete(got, 7, 0)).all()


def test_the_same_bits_with_any_number_of_threads():
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import hashlib
from test_long_sums import product
for shape in (64, 9000, 64, "f"), (13, 70000, 31, "d"):
    print(hashlib.sha256(product(*shape)[0].tobytes()).hexdigest())
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"FERRULE_NUM_THREADS": threads},
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(found) == 1
