"""The cache of device binaries on disk: found again, kept whole, bounded; damaged entries are made again.

Each check is a process of its own, because a process reads its settings once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np, spirv_kernels
from driver_binding import Driver
device = Driver().open(0)
given = np.arange(64, dtype=np.float32)
for number in {numbers}:
    kernel = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.add("plus", number))), "plus")
    a, b = device.put(given), device.allocate(given.nbytes)
    np.testing.assert_array_equal(device.get(b, given, [device.launch(kernel, 1, 64, [a, b])]), given + number)
"""


@pytest.fixture
def run(driver, tmp_path):
    def load(*numbers: float, **settings: str) -> list[Path]:
        """Loads and runs one module for each number; the cache's files after that."""
        places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = {**os.environ, "FERRULE_CACHE_DIR": str(tmp_path), "PYTHONPATH": places, "FERRULE_DEBUG": "1"}
        environment.pop("FERRULE_CACHE", None)
        script = SCRIPT.format(numbers=list(numbers))
        done = subprocess.run(
            [sys.executable, "-c", script], env={**environment, **settings}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        load.said = done.stderr
        return sorted((tmp_path / "sycl").iterdir()) if (tmp_path / "sycl").exists() else []

    return load


def test_the_second_process_finds_what_the_first_built(run):
    first = run(1.0, 2.0)
    assert len(first) == 2
    written = [f.stat().st_ino for f in first]
    assert [f.stat().st_ino for f in run(1.0, 2.0)] == written  # found, not made again
    assert "damaged" not in run.said and "not used" not in run.said


def test_damaged_files_are_made_again(run):
    files = run(1.0, 2.0, 3.0, 4.0)
    assert len(files) == 4
    whole = [file.read_bytes() for file in files]
    cut, flip, other = whole[0][:-1], bytearray(whole[1]), whole[0]
    flip[-100] ^= 1
    for file, bad in zip(files, (cut, flip, b"", other)):
        file.write_bytes(bad)
    run(1.0, 2.0, 3.0, 4.0)
    assert run.said.count("is damaged") == 4
    assert [file.stat().st_size for file in files] == [len(data) for data in whole]
    run(1.0, 2.0, 3.0, 4.0)
    assert "is damaged" not in run.said


def test_a_binary_that_the_device_refuses_is_made_again(run):
    (file,) = run(1.0)
    # Whole as a file, but no binary: its checksum is that of the empty text.
    empty = (0x6C62272E07BB0142).to_bytes(8, "little") + (0x62B821756295C58D).to_bytes(8, "little")
    file.write_bytes(file.read_bytes()[:24] + bytes(8) + empty)
    run(1.0)
    assert "a cached binary is not used" in run.said
    assert file.stat().st_size > 1000


def test_it_can_be_switched_off(run):
    assert run(1.0, FERRULE_CACHE="0") == []


def test_a_folder_that_cannot_be_made_is_no_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    run(1.0, FERRULE_CACHE_DIR=str(tmp_path / "file" / "below"))
    assert "binaries of kernels are not kept" in run.said


def test_the_oldest_are_removed_when_it_is_full(run, tmp_path):
    for i in range(3):
        old = tmp_path / "sycl" / f"{i:032x}.bin"
        old.parent.mkdir(exist_ok=True)
        old.write_bytes(bytes(400_000))
        os.utime(old, (1000 + i, 1000 + i))
    files = run(1.0, FERRULE_CACHE_MB="1")
    # 1.2 MB and the new one are above 1 MiB: down to three quarters of it.
    assert [f.name[-5] for f in files if f.stat().st_size == 400_000] == ["2"]
    assert len(files) == 2
