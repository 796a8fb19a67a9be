"""The ops: one place each. Importing this package registers all of them."""

from ferrule.ops.definition import OPS, OpDef, define, element, lookup  # isort: skip
from ferrule.ops import convert, elementwise, shape

__all__ = ["OPS", "OpDef", "define", "element", "lookup"]
__all__ += ["convert", "elementwise", "shape"]
