"""The front half: what a framework hands over → the graph that the passes work on.

`read` gives the module as it was sent; `load` gives one function, `main`, of core ops for one device.

The attributes of ops are as `ferrule.ir.graph` says. What is not plain from StableHLO's own spelling:

- `compare_type` is always there; it is "NOTYPE" where StableHLO leaves it out. Windows, strides, dilations and padding
  are always there too, since portable artifacts write the defaults.
- `padding` is a tuple of pairs; `replica_groups` and `source_target_pairs` are integer arrays; `channel_handle` is the
  pair (handle, type) and absent for handle 0 between devices.
- `algorithm` of dot_general is a dict, absent if none is asked for; `result_accuracy` is absent if it is the default.
- `api_version` of custom_call is a number; `backend_config` a dict (typed FFI) or a string, whose bytes are
  `s.encode("utf-8", "surrogateescape")`; layouts are tuples from minor to major and absent if row-major;
  `output_operand_aliases` are `vhlo.OutputAlias`. After `import_module`, an operand of a call with a layout holds
  its bytes in that order under its logical shape.
- CHLO ops that Ferrule does natively keep CHLO's name ("erf", "top_k"), other composites are gone.
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
