"""The front half: what a framework hands over → the graph that the passes work on.

`read` gives the module as it was sent; `load` gives one function, `main`, of core ops for one device.
"""

from __future__ import annotations

from ferrule.errors import Unsupported
from ferrule.ir import Module
from ferrule.stablehlo.bytecode import bytecode_version, is_bytecode
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.options import CompileOptions, parse_compile_options
from ferrule.stablehlo.reader import read_bytecode
from ferrule.stablehlo.tables import Foreign
from ferrule.stablehlo.text import to_portable

__all__ = ["CompileOptions", "import_module", "legalize", "load", "parse_compile_options", "read"]

# Which MLIR passes help with a form that the reader cannot take as it is.
_STEPS = {
    **{"dynamic": ["dynamic"], "quantized": ["quantized"], "deprecated": ["deprecated"]},
    **{"newer": [], "dialect": [], "type": []},
}


def read(code: bytes, format: str = "mlir") -> Module:
    """Reads a program. `format` is PJRT's name: "mlir" (portable bytecode, other MLIR bytecode, or text), "hlo"…"""
    code = bytes(code)
    converted = False
    if format != "mlir" or not is_bytecode(code) or bytecode_version(code) != 6:
        code, converted = to_portable(code, format), True
    tried: set[str] = set()
    while True:
        try:
            return read_bytecode(code)
        except Foreign as found:
            steps = _STEPS[found.kind]
            if found.kind in tried or (converted and not steps):
                raise Unsupported(
                    f"{found.what} is not supported",
                    where=found.where,
                    why=_WHY[found.kind],
                    fix=_FIX.get(found.kind, ""),
                ) from None
            tried.add(found.kind)
            code, converted = to_portable(code, "mlir", steps), True


_WHY = {
    "dynamic": "its shape is not known when the program is compiled",
    "quantized": "MLIR's passes could not turn the quantized values into ordinary arithmetic",
    "deprecated": "MLIR's passes could not replace it",
    "newer": "this version of Ferrule does not know it, and neither does the installed jaxlib",
    "dialect": "it is not StableHLO, and MLIR's passes did not turn it into StableHLO",
    "type": "Ferrule has no such type",
}
_FIX = {
    "dynamic": "compile for fixed shapes",
    "newer": "update ferrule, or tell the framework to write an older StableHLO version",
}


def load(code: bytes, format: str = "mlir") -> Module:
    """Reads a program and brings it into the form that the passes take; raises one of Ferrule's errors."""
    return import_module(legalize(read(code, format)))
