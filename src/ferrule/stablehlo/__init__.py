"""The front half: what a framework hands over → the graph that the passes work on.

`read` gives the module as it was sent; `load` gives one function, `main`, of core ops for one device.
"""

from __future__ import annotations

from ferrule.ir import Module
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.options import CompileOptions, parse_options
from ferrule.stablehlo.reader import read

__all__ = ["CompileOptions", "import_module", "legalize", "load", "parse_options", "read"]


def load(code: bytes, format: str = "mlir") -> Module:
    """Reads a program and brings it into the form that the passes take; raises one of Ferrule's errors."""
    return import_module(legalize(read(code, format)))
