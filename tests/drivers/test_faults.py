"""Faults of a device reach the arrays concerned as the right PJRT errors; the others, and the process, go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driver_binding import driver_file

from ferrule.native import library_path

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen(xpu, tmp_path_factory) -> dict[str, dict]:
    """What fault_scenarios.py saw: all of it in one process, which lives to the end."""
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    pytest.importorskip("jax")
    faulty = tmp_path_factory.mktemp("faulty") / "libfaulty_driver.so"
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{HERE.parents[1] / 'native'}"]
    subprocess.run(["g++", *flags, "-o", str(faulty), str(HERE / "faulty_driver.cc"), "-ldl"], check=True)
    settings = {
        **{"FERRULE_DRIVER": str(faulty), "FERRULE_DRIVER_WRAPPED": str(driver_file())},
        # Two logical devices, treated as a GPU's: their memory is not the host's.
        **{"FERRULE_NUM_DEVICES": "2", "FERRULE_HOST_ACCESS": "0", "FERRULE_XPU_DEVICE": "cpu"},
        **{"JAX_PLATFORMS": "xpu", "PJRT_NAMES_AND_LIBRARY_PATHS": f"xpu:{library_path()}"},
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "fault_scenarios.py")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return {line.pop("name"): line for line in map(json.loads, done.stdout.splitlines())}


def is_error(text: str, code: str, *words: str) -> bool:
    return f": {code}: " in text and "IntelXpuDevice(id=0" in text and all(w in text for w in words)


def test_out_of_device_memory(seen):
    saw = seen["no_memory"]
    assert is_error(saw["first"], "RESOURCE_EXHAUSTED", "512.0 MiB", "(injected)", "fix:")
    assert saw["then"].startswith("sum")


@pytest.mark.parametrize("name", ["a_copy_fails", "a_copy_fails_later"])
def test_copies(seen, name):
    assert is_error(seen[name]["first"], "INTERNAL", "copy engine stuck")
    assert seen[name]["then"].startswith("sum")


def test_a_kernel_that_the_devices_compiler_rejects(seen):
    saw = seen["the_compiler_rejects_a_kernel"]
    assert is_error(saw["first"], "INTERNAL", "compiling the program's kernels", "undefined symbol")
    assert saw["again"].startswith("sum") and saw["other"].startswith("sum")


def test_a_launch_that_the_driver_refuses(seen):
    saw = seen["a_launch_fails"]
    assert is_error(saw["failed"], "INTERNAL", "launch refused", "the step")
    assert saw["operand"].startswith("sum") and saw["after"] == saw["before"]


def test_a_kernel_that_fails_while_it_runs(seen):
    """It is the error of its outputs and of what is computed from them, of nothing else."""
    saw = seen["a_kernel_fails"]
    assert is_error(saw["failing"], "INTERNAL", "page fault") and is_error(saw["following"], "INTERNAL", "page fault")
    assert saw["other"].startswith("sum") and saw["operand"].startswith("sum") and saw["after"] == saw["before"]


def test_a_library_call_that_fails(seen):
    saw = seen["a_library_call_fails"]
    assert is_error(saw["failed"], "INTERNAL", "the library failed") and saw["after"] == saw["before"]


def test_a_library_that_is_missing(seen):
    assert is_error(seen["a_library_is_missing"]["failed"], "NOT_FOUND", "dnnl.matmul", "not installed", "where:")


def test_a_loop_in_its_third_round(seen):
    saw = seen["a_loop_fails"]
    assert is_error(saw["failed"], "INTERNAL", "third round") and saw["after"] == saw["before"]


def test_failed_runs_give_their_memory_back(seen):
    assert seen["memory_comes_back"]["after"] == seen["memory_comes_back"]["before"]


def test_a_lost_device(seen):
    """It does nothing any more and says so; other devices go on."""
    saw = seen["a_device_is_lost"]
    for what in ("failed", "again", "put"):
        assert is_error(saw[what], "UNAVAILABLE", "DEVICE_LOST", "fix:"), what
    assert saw["other"] == saw["before"]
