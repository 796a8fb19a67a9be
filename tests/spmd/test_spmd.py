"""Programs over several devices of one process: each file check_*.py runs in an interpreter whose JAX has them.

By hand:
    FERRULE_NUM_DEVICES=8 JAX_PLATFORMS=ferrule,cpu python -m pytest tests/spmd/check_jit.py
    FERRULE_NUM_DEVICES=4 FERRULE_TARGET=xpu FERRULE_XPU_DEVICE=cpu JAX_PLATFORMS=ferrule,cpu python -m pytest …
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.native import library_path
from ferrule.targets.xpu import can_stand_in

HERE = Path(__file__).parent


# The environment of each target; JAX sees the platform `ferrule` in both.
TARGETS = {
    "cpu": {"FERRULE_TARGET": "cpu", "FERRULE_NUM_DEVICES": "8"},
    # JAX without Shardy says shardings in XLA's text.
    "cpu-text": {"FERRULE_TARGET": "cpu", "FERRULE_NUM_DEVICES": "8", "JAX_USE_SHARDY_PARTITIONER": "0"},
    "xpu": {"FERRULE_TARGET": "xpu", "FERRULE_NUM_DEVICES": "4", "FERRULE_XPU_DEVICE": "cpu"},
}


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("check_*.py")))
@pytest.mark.parametrize("target", TARGETS)
def test_several_devices(target: str, file: str) -> None:
    if target == "xpu" and not can_stand_in(library_path()):
        pytest.skip("the extra xpu is not installed")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "PJRT_"))}
    environment = clean | {
        "JAX_PLATFORMS": "ferrule,cpu",
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"ferrule:{library_path()}",
        **TARGETS[target],
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
