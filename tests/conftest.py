"""What all tests share: is there an xpu device? And nothing of what the last file compiled."""

from __future__ import annotations

import os

# NumPy says what is right. OpenBLAS's threads wait for each other by spinning: beside another worker of pytest
# on two cores that took four times as long. Set before NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import mmap
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

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
# XLA:CPU says what is right; that it compiles for speed took a quarter of all time. Its flags change with jaxlib, which
# ends the process at one that it does not know. Its former kernels are checked against all tests without AVX-512 only.
QUICK_XLA = {"xla_backend_optimization_level": "0"}
if "+avx512f" not in host().features:
    QUICK_XLA["xla_cpu_use_fusion_emitters"] = "false"


def _known_flags() -> list[str]:
    """Those of `QUICK_XLA` that this jaxlib's library names."""
    spec = find_spec("jaxlib")
    library = Path(spec.submodule_search_locations[0], "libjax_common.so") if spec else None
    if library is None or not library.exists():
        return []
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        known = [name for name in QUICK_XLA if text.find(b"\0" + name.encode() + b"\0") >= 0]
    return [f"--{name}={QUICK_XLA[name]}" for name in known]


# The processes that tests start, and pytest's own workers, find it set.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(_known_flags())
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


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: each full collection took half a second to look through all of them."""
    gc.collect()
    gc.freeze()


CONTEXT_USES = 200  # a context keeps each type and location that was ever made in it


class OneContext:
    """JAX's `make_ir_context` with one context for the programs of a thread, not one each.

    To make one takes 7 to 16 ms, a sixth of the time of `tests/jax`.
    """

    def __init__(self, make) -> None:
        self.make = make
        self.kept = threading.local()

    def __call__(self):
        uses = getattr(self.kept, "uses", CONTEXT_USES)
        if uses == CONTEXT_USES:
            self.kept.context, uses = self.make(), 0
        self.kept.uses = uses + 1
        return self.kept.context


@pytest.fixture(scope="module", autouse=True)
def _one_context() -> None:
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    make = getattr(mlir, "make_ir_context", None)  # not JAX's public interface: a later one may do without it
    if make and not isinstance(make, OneContext):
        mlir.make_ir_context = OneContext(make)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Else JAX keeps all programs of 13,000 tests: 7 GB in each process, and 36 % of the time of `tests/jax`."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
        gc.collect()
