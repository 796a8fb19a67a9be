"""What all tests share: is there an xpu device? And nothing of what the last file compiled."""

from __future__ import annotations

import gc
import os
import sys
from importlib.metadata import entry_points

import pytest

import ferrule
from ferrule.frameworks.jax import INSTALLED_PRIORITY
from ferrule.targets.cpu import host
from ferrule.targets.xpu import can_stand_in

# A CPU stands in for a GPU without a word.
os.environ.setdefault("FERRULE_XPU_DEVICE", "cpu")
# As native/driver_library.cc has it: some tests use the device without the driver.
if "+avx512f" not in host().features:
    os.environ.setdefault("CL_CONFIG_CPU_VECTORIZER_MODE", "1")
# Every test compiles; the tests of the cache of programs switch it on.
os.environ.setdefault("FERRULE_CACHE", "binaries")

# JAX is told of the platforms here, before the module of any test may start it; tests/spmd tells it by the environment.
if "PJRT_NAMES_AND_LIBRARY_PATHS" not in os.environ:
    if not any(e.value == "ferrule.frameworks.jax" for e in entry_points(group="jax_plugins")):
        ferrule.register_jax(priority=INSTALLED_PRIORITY)  # run from a checkout that is not installed
    if can_stand_in(ferrule.library_path()):
        ferrule.register_jax("xpu", target="xpu", priority=INSTALLED_PRIORITY - 1)


@pytest.fixture(scope="session")
def xpu() -> None:
    """Skips where the extra `xpu` is not installed; where it is, a device that does not start is a failure."""
    from ferrule.native import library_path
    from ferrule.targets import xpu

    if not xpu.can_stand_in(library_path()):
        pytest.skip(f"no xpu target: {'; '.join(xpu.find(library_path()).missing)}")


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Else JAX keeps all programs of 13,000 tests: 7 GB in each process, and 36 % of the time of `tests/jax`."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
        gc.collect()
