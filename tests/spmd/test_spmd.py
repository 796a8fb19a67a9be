"""Programs over several devices of one process: each file check_*.py runs in an interpreter whose JAX has them.

By hand:
    FERRULE_NUM_DEVICES=8 JAX_PLATFORMS=ferrule,cpu python -m pytest tests/spmd/check_jit.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.native import library_path

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("check_*.py")))
def test_eight_devices(file: str) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "PJRT_")) and k != "FERRULE_TARGET"}
    environment = clean | {
        "JAX_PLATFORMS": "ferrule,cpu",
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"ferrule:{library_path()}",
        "FERRULE_NUM_DEVICES": "8",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
