"""Programs that are not portable artifacts → portable artifacts, through jaxlib's MLIR bindings in the worker.

MLIR text (StableHLO, CHLO or VHLO), MLIR bytecode of other dialects or versions, and HLO protos.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.errors import InvalidArgument
from ferrule.stablehlo.options import fields
from ferrule.stablehlo.worker import WORKER

FORMATS = ("mlir", "hlo", "hlo_with_config")


def to_portable(code: bytes, format: str, steps: Sequence[str] = ()) -> bytes:
    """Converts a program of any format that a framework may send; `steps` name MLIR passes to run, see `mlir.py`."""
    if format not in FORMATS:
        raise InvalidArgument(f"program format {format!r} is not known", fix=f"use one of {', '.join(FORMATS)}")
    if format == "hlo_with_config":
        code, format = _module_of(code), "hlo"
    return WORKER.convert(code, format, list(steps))


def _module_of(code: bytes) -> bytes:
    """The HloModuleProto (field 1) of an HloModuleProtoWithConfig."""
    for number, value in fields(code, "HloModuleProtoWithConfig"):
        if number == 1 and isinstance(value, bytes):
            return value
    raise InvalidArgument("the program is not an HloModuleProtoWithConfig", why="it holds no module")
