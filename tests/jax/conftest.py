"""JAX with Ferrule beside its own cpu platform; cpu stays the default, and tests choose."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points

import pytest

import ferrule
import jax
from ferrule.frameworks.jax import INSTALLED_PRIORITY

# Run from a checkout that is not installed, nobody else tells JAX.
if not any(e.value == "ferrule.frameworks.jax" for e in entry_points(group="jax_plugins")):
    ferrule.register_jax(priority=INSTALLED_PRIORITY)


@pytest.fixture
def device() -> Iterator[jax.Device]:
    """Ferrule's device, as the default one."""
    found = jax.devices("ferrule")[0]
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
