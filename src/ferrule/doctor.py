"""What `ferrule doctor` looks at: each finding says what is there, or what is missing and the command that mends it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from ferrule.errors import FerruleError
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
    return [*_machine(), *_packages(), *_library(), *_libraries(), *_jax()]


def _machine() -> Iterator[Finding]:
    yield Finding("fine", f"Ferrule {VERSION}, Python {platform.python_version()}, {platform.system()}")
    try:
        from ferrule.targets.cpu import host

        machine = host()
        wide = f"{machine.vector_bytes * 8}-bit vectors"
        yield Finding("fine", f"target cpu: {machine.cpu}, {wide}, {machine.threads} threads")
    except ImportError as error:
        yield Finding("broken", f"target cpu: {error}", "pip install 'llvmlite>=0.50,<0.51'")
    yield Finding("missing", "target xpu (Intel GPUs): not in this version of Ferrule")
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
        yield Finding("fine", "JAX finds Ferrule by its entry point; choose it with JAX_PLATFORMS=ferrule")
    else:
        yield Finding(
            "missing",
            "JAX does not find Ferrule by itself, since the package is not installed",
            f"{sys.executable} -m pip install . (in Ferrule's folder), or call ferrule.register_jax() in the program",
        )
    chosen = os.environ.get("JAX_PLATFORMS")
    if chosen and "ferrule" not in chosen.split(","):
        yield Finding("missing", f"JAX_PLATFORMS={chosen} leaves Ferrule out", "export JAX_PLATFORMS=ferrule,cpu")
