"""The ops: one place each. Importing this package registers all of them."""

from ferrule.ops.definition import OPS, OpDef, define, element, lookup  # isort: skip
from ferrule.ops import (
    collectives,
    control,
    convert,
    device,
    elementwise,
    indexing,
    linalg,
    random,
    reduction,
    shape,
    sort,
    tables,
)

__all__ = ["OPS", "OpDef", "define", "element", "lookup"]
__all__ += ["collectives", "control", "convert", "device", "elementwise", "indexing"]
__all__ += ["linalg", "random", "reduction", "shape", "sort", "tables"]
