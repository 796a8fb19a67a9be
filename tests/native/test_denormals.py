"""FERRULE_FLUSH_DENORMALS: numbers too small to be normal, in programs, on all threads, and around them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import numpy as np, jax
device = jax.devices("ferrule")[0]
put = lambda *shape: jax.device_put(np.full(shape, 1e-40, np.float32), device)
count = lambda values: int(np.count_nonzero(np.asarray(values)))
print(count(jax.jit(lambda x: x * 0.5)(put(1000))))
print(count(jax.jit(lambda x: x * 0.5)(put(1 << 20))))
print(count(jax.jit(lambda x: x @ x)(put(64, 64) ** 0 * 1e-20)))
halves = lambda x: jax.pure_callback(lambda v: np.asarray(v) * np.float32(0.5), jax.typeof(x), x)
print(count(jax.jit(halves)(put(1000))))
print(count(np.full(10, 1e-40, np.float32) * np.float32(0.5)))
print(count(jax.jit(lambda x: jax.numpy.where(x > 0, np.float32(1e-40), np.float32(2e-40)))(put(7))))  # compiled so
for name in NARROW:
    codes = np.arange(16 if "float4" in name else 256, dtype=np.uint8).view(name)
    values = codes.astype(np.float32)
    wide = jax.jit(lambda x: x.astype(np.float32))(jax.device_put(codes, device))
    back = jax.jit(lambda x: x.astype(name))(jax.device_put(values, device)).astype(np.float32)
    for got in (wide, back):
        np.testing.assert_array_equal(np.asarray(got), values, err_msg=name)
"""
# Threads of a framework make zeros of them: glibc's fenv_t holds MXCSR behind 28 bytes, threads inherit it.
BEFORE = """
import ctypes
values = np.full(1 << 20, 1e-40, np.float32)
state = (ctypes.c_uint32 * 16)()
assert ctypes.CDLL("libm.so.6").fegetenv(state) == 0
state[7] |= 0x8040
assert ctypes.CDLL("libm.so.6").fesetenv(state) == 0
count = lambda values: int(np.count_nonzero(np.asarray(values).view(np.int32)))
print(count(jax.jit(lambda x: x + x)(jax.device_put(values, jax.devices("ferrule")[0]))))
"""
# Tests that need them.
NEEDING = ["qr.py::test_magnitudes", "svd.py::test_kinds", "vector_products.py::test_denormal_sums"]
NEEDING += ["constant_powers.py", "attention.py::test_bf16_results_are_rounded_and_stay_nan"]
# Their denormal numbers are normal ones of f32.
NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float4_e2m1fn"]


def run(code: str = CODE, **environment: str) -> tuple[list[int], str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code.replace("NARROW", str(NARROW))],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ
        | {"JAX_PLATFORMS": "ferrule,cpu", "FERRULE_NUM_THREADS": "3", "FERRULE_CACHE": "0"}
        | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(line) for line in done.stdout.split()], done.stderr


x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="native/denormals.cc sets what x86 has; elsewhere denormal numbers are kept"
)
ZERO = [0, 0, 0, 1000, 10, 7]


@x86
def test_zero_in_programs_kept_in_callbacks_and_after() -> None:
    assert run()[0] == ZERO


def test_kept_when_asked() -> None:
    assert run(FERRULE_FLUSH_DENORMALS="0")[0] == [1000, 1 << 20, 64 * 64, 1000, 10, 7]


@x86
def test_kept_on_threads_of_one_that_makes_zeros() -> None:
    assert run("import numpy as np, jax" + BEFORE, FERRULE_FLUSH_DENORMALS="0")[0] == [1 << 20]


def test_what_needs_them_when_kept() -> None:
    """The tests that are skipped, or expect zeros, elsewhere."""
    folder = Path(__file__).parents[1] / "jax"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not xpu"]
        + [f"{folder}/test_{name}" for name in NEEDING],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "PJRT_", "PYTEST_"))}
        | {"FERRULE_FLUSH_DENORMALS": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@x86
def test_a_wrong_value_is_said_and_ignored() -> None:
    counts, errors = run(FERRULE_FLUSH_DENORMALS="yes")
    assert counts == ZERO
    assert "FERRULE_FLUSH_DENORMALS='yes' is neither 0 nor 1" in errors
