"""The numeric libraries that Ferrule's runtime uses when they are installed, and how it gets at them.

SciPy's wheels carry OpenBLAS with LAPACK; another SciPy exports its BLAS as C function pointers
(`scipy.linalg.cython_blas`). oneDNN comes as a shared library in the package `onednn-cpu-gomp`. None is required: the
runtime has own loops for everything, slower at some sizes. The runtime opens a library when a program first needs it.
What an xpu device needs is in `targets/xpu.py`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

BLAS = tuple(f"{letter}{name}" for name in ("gemm", "trsm") for letter in "sdcz")
LAPACK = ("cpotrf", "zpotrf")


@dataclass(frozen=True)
class Library:
    """What `ferrule doctor` says of one library: where it is, or why it is not used and how to get it."""

    name: str
    purpose: str
    found: str | None
    missing: str = ""
    install: str = ""

    def __str__(self) -> str:
        if self.found:
            return f"{self.name}: {self.found} ({self.purpose})"
        return f"{self.name}: not used, {self.missing} ({self.purpose}); install it with `{self.install}`"


def switched_off() -> frozenset[str]:
    """Libraries switched off by FERRULE_LIBRARIES_OFF: `scipy`, `onednn`, `dnnl-sycl`, `mkl-sycl`, with commas."""
    return frozenset(filter(None, os.environ.get("FERRULE_LIBRARIES_OFF", "").split(",")))


def _pointers(module: Any, names: tuple[str, ...], prefix: str) -> dict[str, int]:
    """Addresses of a Cython module's exported C functions."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table: dict[str, int] = {}
    for name in names:
        capsule = module.__pyx_capi__.get(name)
        if capsule is not None:
            table[f"{prefix}.{name}"] = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return table


def openblas_path() -> Path | None:
    """The OpenBLAS in SciPy's wheel, found without importing SciPy (which takes a good part of a second)."""
    if "scipy" in switched_off():
        return None
    spec = importlib.util.find_spec("scipy")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parents[1] / "scipy.libs"
    return next(iter(sorted(folder.glob("libscipy_openblas*.so"))), None)


@cache
def has_lapack() -> bool:
    """Whether the runtime may call any of LAPACK's routines by its name."""
    return openblas_path() is not None


def scipy_symbols() -> dict[str, int]:
    """BLAS and LAPACK entry points of a SciPy that is not a wheel, by the names of native/blas.cc; else empty."""
    if "scipy" in switched_off() or importlib.util.find_spec("scipy") is None:
        return {}
    try:
        from scipy.linalg import cython_blas, cython_lapack
    except ImportError:
        return {}
    return _pointers(cython_blas, BLAS, "blas") | _pointers(cython_lapack, LAPACK, "lapack")


def installed_files(package: str, start: str) -> list[Path]:
    """Installed files of a package whose names start so, shortest name first (libdnnl.so.3 before libdnnl.so.3.2).

    A file of another size than the package recorded is another package's: `onednn-cpu-gomp` and `onednn` both write
    their own libdnnl.so.3 into one folder, and the one that is installed later wins. Their full names differ.
    """
    try:
        listed = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return []
    paths = [(Path(str(f.locate())).resolve(), f.size) for f in listed if f.name.startswith(start)]
    own = [p for p, size in paths if p.exists() and (size is None or p.stat().st_size == size)]
    return sorted(own, key=lambda p: len(p.name))


def onednn_path() -> Path | None:
    """libdnnl.so.3 of the package onednn-cpu-gomp, or the file that FERRULE_ONEDNN names; None when there is none."""
    if named := os.environ.get("FERRULE_ONEDNN"):
        return Path(named)
    if "onednn" in switched_off():
        return None
    return next(iter(installed_files("onednn-cpu-gomp", "libdnnl.so.3")), None)


def hand_over(library: ctypes.CDLL) -> None:
    """Tells the native library where these libraries are; it opens them when a program first needs one."""
    if path := openblas_path():
        library.ferrule_set_path(b"path.openblas", str(path).encode())
    else:
        for name, address in scipy_symbols().items():
            library.ferrule_set_symbol(name.encode(), ctypes.c_void_p(address))
    if path := onednn_path():
        library.ferrule_set_path(b"path.dnnl", str(path).encode())


def describe() -> list[Library]:
    """What was found, what is missing, and what to install."""
    openblas, dnnl, off = openblas_path(), onednn_path(), switched_off()
    symbols = {} if openblas else scipy_symbols()
    switched = "switched off by FERRULE_LIBRARIES_OFF"
    return [
        Library(
            "SciPy's BLAS and LAPACK",
            "Cholesky factorizations, triangular solves, eigenvectors",
            str(openblas) if openblas else f"{len(symbols)} functions of scipy.linalg.cython_blas" if symbols else None,
            switched if "scipy" in off else "SciPy is not installed",
            "pip install scipy",
        ),
        Library(
            "oneDNN",
            "convolutions, bf16 and int8 products",
            str(dnnl) if dnnl and dnnl.exists() else None,
            switched if "onednn" in off else f"no file {dnnl}" if dnnl else "onednn-cpu-gomp is not installed",
            "pip install onednn-cpu-gomp",
        ),
    ]
