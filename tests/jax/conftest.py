"""JAX with Ferrule beside its own cpu platform; cpu stays the default, and tests choose."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import ferrule
import jax
from ferrule.targets.xpu import can_stand_in

XPU = can_stand_in(ferrule.library_path())


@pytest.fixture(params=["cpu", "xpu"])
def device(request: pytest.FixtureRequest) -> Iterator[jax.Device]:
    """The device of each of Ferrule's targets, as the default one."""
    if request.param == "xpu" and not XPU:
        pytest.skip("the extra xpu is not installed")
    found = jax.devices("ferrule" if request.param == "cpu" else "xpu")[0]
    with jax.default_device(found):
        yield found


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a fresh interpreter with environment variables; JAX's own are taken away first."""

    def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "PJRT_")) and k != "FERRULE_TARGET"}
        return subprocess.run(
            [sys.executable, "-c", program],
            env=clean | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
