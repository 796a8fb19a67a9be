"""Ferrule plugs ML devices into ML frameworks: one PJRT plugin whose compiler is written in Python.

    import ferrule

    ferrule.register_jax()                          # the platform "ferrule" for JAX, chosen in the program
    step = ferrule.compile(Path("step.mlir"))       # or without a framework: StableHLO in, NumPy arrays in and out
    (result,) = step(x, y)

After `pip install`, JAX finds Ferrule by itself: `JAX_PLATFORMS=ferrule python program.py`.
Importing this package is cheap; the compiler is loaded when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import FerruleError
from ferrule.version import VERSION as __version__

if TYPE_CHECKING:
    from ferrule.api import compile, load
    from ferrule.client import LoadedExecutable as Executable
    from ferrule.frameworks.jax import register_jax
    from ferrule.native import library_path

__all__ = ["Executable", "FerruleError", "__version__", "compile", "library_path", "load", "register_jax"]

_PLACES = {
    "Executable": ("ferrule.client", "LoadedExecutable"),
    "compile": ("ferrule.api", "compile"),
    "library_path": ("ferrule.native", "library_path"),
    "load": ("ferrule.api", "load"),
    "register_jax": ("ferrule.frameworks.jax", "register_jax"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'ferrule' has no attribute {name!r}")
    import importlib

    module, attribute = _PLACES[name]
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value
