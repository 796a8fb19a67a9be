"""What `ferrule doctor` looks at: each finding says what is there, or what is missing and the command that mends it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ferrule.errors import FerruleError
from ferrule.libraries import switched_off
from ferrule.targets.xpu import Package
from ferrule.version import VERSION

_MARKS = {"fine": "✓", "missing": "–", "broken": "✗"}
# The range that the package declares (pyproject.toml).
JAX_RANGE = ((0, 10), (0, 13))


@dataclass(frozen=True)
class Finding:
    """`level`: fine, missing (Ferrule works without it) or broken."""

    level: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{_MARKS[self.level]} {self.what}" + (f"\n    mend it with: {self.fix}" if self.fix else "")


def examine() -> list[Finding]:
    """Looks at everything, in the order in which things depend on each other."""
    return [*_machine(), *_packages(), *_library(), *_libraries(), *_xpu(), *_jax()]


def _machine() -> Iterator[Finding]:
    yield Finding("fine", f"Ferrule {VERSION}, Python {platform.python_version()}, {platform.system()}")
    try:
        from ferrule.targets.cpu import host

        machine = host()
        wide = f"{machine.vector_bytes * 8}-bit vectors"
        yield Finding("fine", f"target cpu: {machine.cpu}, {wide}, {machine.threads} threads")
    except ImportError as error:
        yield Finding("broken", f"target cpu: {error}", "pip install 'llvmlite>=0.50,<0.51'")
    yield Finding("missing", "target cuda (NVIDIA GPUs): not in this version of Ferrule")


def _packages() -> Iterator[Finding]:
    for package in ("numpy", "ml_dtypes", "llvmlite", "scipy"):
        try:
            yield Finding("fine", f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            yield Finding("broken", f"{package} is not installed", f"{sys.executable} -m pip install {package}")


def _library() -> Iterator[Finding]:
    from ferrule.native import library, library_path

    try:
        path = library_path()
        library()
        yield Finding("fine", f"libferrule.so: {path}")
    except FerruleError as error:
        yield Finding("broken", str(error), f"{sys.executable} -m pip install --force-reinstall ferrule")
        return
    from ferrule.api import client

    try:
        for device in client().devices:
            yield Finding("fine", f"device {device}")
    except Exception as error:  # whatever goes wrong is what the user asked for
        yield Finding("broken", f"the devices do not start: {error}")


def _libraries() -> Iterator[Finding]:
    from ferrule.libraries import describe

    for entry in describe():
        yield Finding("fine" if entry.found else "missing", str(entry))


def _xpu() -> Iterator[Finding]:
    """Intel GPUs: what the machine has, what is installed for them, and the devices that SYCL shows."""
    from ferrule.native import library_path
    from ferrule.targets import xpu

    try:
        files = xpu.find(library_path())
    except FerruleError:
        return  # said above
    name = "target xpu (Intel GPUs)"
    runtime = xpu.PACKAGES[-1].name
    if not files.driver or not _version(runtime):
        why = f"{runtime} is not installed" if not _version(runtime) else files.missing[0]
        yield Finding("missing", f"{name}: {why}", xpu.INSTALL if not _version(runtime) else files.fix[0])
        return
    yield Finding("fine", f"{name}: {files.driver}")
    for package in (*xpu.PACKAGES, xpu.ONEDNN):
        yield _oneapi(package)
    yield from _mkl(library_path())
    for node in xpu.gpus():
        yield Finding("fine", f"Intel GPU {node}")
    for problem, fix in xpu.gpu_problems():
        yield Finding("missing", problem, fix)
    yield from _xpu_devices()


def _oneapi(package: Package) -> Finding:
    from ferrule.targets import xpu

    version, what = _version(package.name), f"{package.name} ({package.purpose})"
    if all(xpu.locate(package.name, name) for name in package.libraries):
        return Finding("fine", f"{package.name} {version or 'of another installation'} ({package.purpose})")
    if package == xpu.ONEDNN and "dnnl-sycl" in switched_off():
        return Finding("missing", f"{what}: switched off by FERRULE_LIBRARIES_OFF", "unset FERRULE_LIBRARIES_OFF")
    return Finding("missing", f"{what} is not installed" if not version else f"{what}: files are missing", xpu.INSTALL)


def _mkl(library: str) -> Iterator[Finding]:
    """Where transforms and factorizations run."""
    from ferrule.targets import xpu

    name, else_where = "oneMKL for the target xpu", "transforms and factorizations run without it (docs/intel-gpu.md)"
    if path := xpu.mkl_path(library):
        version = _version(xpu.MKL[0].name) or "of another installation"
        yield Finding("fine", f"oneMKL {version} (transforms, triangular solves, factorizations): {path}")
    elif "mkl-sycl" in switched_off():
        yield Finding("missing", f"{name} is switched off: {else_where}", "unset FERRULE_LIBRARIES_OFF")
    elif not (Path(xpu.driver_path(library)).parent / xpu.MKL_CALLS).is_file():
        yield Finding("missing", f"{name} was not there when Ferrule was built: {else_where}", xpu.BUILD_MKL)
    else:
        yield Finding("missing", f"{name} is not installed: {else_where}", xpu.INSTALL_MKL)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# In a process of its own: what goes wrong in a driver may take the process with it.
_LIST = """
import json
from ferrule.api import client
try:
    devices = client("xpu").devices
except Exception as error:
    print(json.dumps(str(error)))
else:
    print(json.dumps([(repr(d), d.kind, d.attributes, d.memory_stats()) for d in devices]))
"""


def _xpu_devices() -> Iterator[Finding]:
    done = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        yield Finding("broken", "the driver fails: " + said[-1])
        return
    found = json.loads(done.stdout)
    if isinstance(found, str):
        yield Finding("missing", f"no xpu device: {found}")
        return
    for text, kind, about, stats in found:
        facts = [f"{stats.get('bytes_limit', 0) / 2**30:.1f} GiB"]
        facts += [f"{label} {about[key]}" for key, label in _FACTS.items() if about.get(key)]
        note = "; the SYCL CPU device: it stands in for a GPU" if about.get("stand_in") else ""
        yield Finding("fine", f"device {text}: {kind}, {', '.join(facts)}{note}")
    yield Finding("fine", "on xpu, callbacks and some factorizations are calls on the host (docs/intel-gpu.md)")


_FACTS = {"backend": "through", "driver_version": "driver", "formats": "formats", "core_count": "units"}


def _jax() -> Iterator[Finding]:
    install = f"{sys.executable} -m pip install 'ferrule[jax]'"
    try:
        version = metadata.version("jax")
    except metadata.PackageNotFoundError:
        yield Finding("missing", "JAX is not installed", install)
        return
    number = tuple(int(p) for p in version.split(".")[:2])
    if JAX_RANGE[0] <= number < JAX_RANGE[1]:
        yield Finding("fine", f"JAX {version}")
    else:
        low, high = (".".join(map(str, v)) for v in JAX_RANGE)
        yield Finding("missing", f"JAX {version} is not one that Ferrule was tested with (>={low},<{high})", install)
    found = [e.value for e in metadata.entry_points(group="jax_plugins") if e.value == "ferrule.frameworks.jax"]
    if found:
        yield Finding("fine", "JAX finds Ferrule by its entry point; choose it with JAX_PLATFORMS=ferrule (or xpu)")
    else:
        yield Finding(
            "missing",
            "JAX does not find Ferrule by itself, since the package is not installed",
            f"{sys.executable} -m pip install . (in Ferrule's folder), or call ferrule.register_jax() in the program",
        )
    chosen = os.environ.get("JAX_PLATFORMS")
    if chosen and not {"ferrule", "xpu"} & set(chosen.split(",")):
        yield Finding("missing", f"JAX_PLATFORMS={chosen} leaves Ferrule out", "export JAX_PLATFORMS=ferrule,cpu")
