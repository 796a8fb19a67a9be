"""Singular values and vectors (native/svd.cc, native/bidiagonal*): other instruction sets and numbers of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call

from ferrule.libraries import has_lapack

pytestmark = pytest.mark.skipif(not has_lapack(), reason="SciPy's wheel is not installed")
SHAPES = [(2, 2), (3, 2), (2, 5), (31, 31), (64, 64), (65, 66), (97, 33), (33, 150), (300, 300)]
SHAPES += [(3, 40, 40), (9, 70, 50)]
TYPES = ["f", "d"]


def check(dtype):
    for shape in SHAPES:
        for power in (0, -30):
            *batch, m, n = shape if len(shape) > 2 else (1, *shape)
            least = min(m, n)
            a = np.random.default_rng(0).standard_normal((*batch, m, n)).astype(dtype) * np.array(10.0**power, dtype)
            # Rows so small that squares leave the range of exponents.
            a[..., m // 2 :, :] *= np.finfo(dtype).tiny ** 0.6
            info = ((*batch,), "i4")
            s, u, vt, failed = call(
                "svd",
                [a],
                [((*batch, least), dtype), ((*batch, m, least), dtype), ((*batch, least, n), dtype), info],
                {},
            )
            alone, failed_too = call("svd", [a], [((*batch, least), dtype), info], {})
            assert not np.any(failed) and not np.any(failed_too)
            exact, u, vt = (x.astype("f8") for x in (a, u, vt))
            want = np.linalg.svd(exact, compute_uv=False)
            bound = 8 * np.finfo(dtype).eps * max(m, n) ** 0.5
            np.testing.assert_allclose(s, want, rtol=0, atol=bound * want.max())
            np.testing.assert_allclose(alone, want, rtol=0, atol=bound * want.max())
            np.testing.assert_allclose((u * s[..., None, :]) @ vt, exact, rtol=0, atol=bound * want.max())
            for x in (u.mT @ u, vt @ vt.mT):
                np.testing.assert_allclose(x, np.broadcast_to(np.eye(least), x.shape), atol=bound)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_and_vectors(dtype):
    check(dtype)


def elsewhere(**environment):
    code = "import sys; sys.path.insert(0, sys.argv[1])\nimport test_bidiagonal as t\n[t.check(x) for x in t.TYPES]"
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    subprocess.run(command, check=True, env=os.environ | environment)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_other_instruction_sets(isa):
    elsewhere(FERRULE_ISA=isa)


@pytest.mark.parametrize("threads", ["1", "4", "16"])
def test_other_numbers_of_threads(threads):
    elsewhere(FERRULE_NUM_THREADS=threads)
