"""Errors that come after a command was started are on that command's event and those behind it, on no others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ferrule.native import library_path
from ferrule.targets import xpu

ROOT = Path(__file__).parents[2]
PARTS = ("commands", "devices", "errors", "opencl")


@pytest.fixture(scope="module")
def lines(driver, tmp_path_factory) -> list[list[str]]:
    sycl = xpu.locate("intel-sycl-rt", "libsycl.so.9")
    include = Path(sycl).parents[1] / "include"
    if not shutil.which("g++") or not (include / "sycl/sycl.hpp").is_file():
        pytest.skip("needs g++ and the headers of intel-sycl-rt")
    program = tmp_path_factory.mktemp("late") / "late_errors"
    sources = [
        str(Path(__file__).with_name("late_errors.cc")),
        *(str(ROOT / f"native/sycl/{name}.cc") for name in PARTS),
    ]
    flags = ["-std=c++17", "-O0", f"-I{ROOT / 'native/sycl'}", "-isystem", str(include)]
    flags += ["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", "-DCL_TARGET_OPENCL_VERSION=300"]
    subprocess.run(["g++", *flags, "-o", str(program), *sources, sycl, "-ldl", "-lpthread"], check=True)
    files = xpu.find(library_path())
    folders = os.pathsep.join(dict.fromkeys(str(Path(p).parent) for p in files.preload))
    environment = {**os.environ, "LD_LIBRARY_PATH": folders, "OCL_ICD_FILENAMES": files.icd}
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.split(" ", 2) for line in done.stdout.splitlines()]


def test_the_failed_command_and_those_behind_it_fail(lines):
    codes = {name: int(code) for name, code, _ in lines}
    assert codes["failing"] == codes["again"] == codes["following"] == 14
    assert "DEVICE_LOST" in next(text for name, _, text in lines if name == "failing")


def test_others_do_not(lines):
    codes = [(name, int(code)) for name, code, _ in lines if name in ("before", "elsewhere", "later")]
    assert codes == [("before", 0), ("before", 0), ("elsewhere", 0), ("later", 0)]
