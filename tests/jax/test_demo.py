"""The demo, shortened: it runs on each target, and its losses are those of XLA's CPU backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_registration import START

import ferrule
from ferrule.targets.xpu import can_stand_in

DEMO = Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.mark.parametrize("platform", ["ferrule", "xpu"])
def test_the_demo_learns_as_on_xla(python, platform: str) -> None:
    if platform == "xpu" and not can_stand_in(ferrule.library_path()):
        pytest.skip("the extra xpu is not installed")
    arguments = [str(DEMO), "--steps", "60"]
    run = f"import runpy, sys; sys.argv = {arguments}; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = python(START + run, JAX_PLATFORMS=f"{platform},cpu", FERRULE_XPU_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    assert ("IntelXpuDevice" if platform == "xpu" else "FerruleCpuDevice") in done.stdout
    (accuracy,) = re.findall(r"^test accuracy: ([\d.]+)%", done.stdout, re.MULTILINE)
    (difference,) = re.findall(r"largest difference between the loss curves: (\S+)", done.stdout)
    # Rounding switches some relu, which moves a loss by a few thousandths.
    assert float(accuracy) > 80 and float(difference) < 0.05, done.stdout
