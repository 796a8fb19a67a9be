"""The graph IR: types, values, ops, blocks, modules, the printer."""

from ferrule.ir.graph import (
    UNKNOWN,
    Block,
    ConvDims,
    DotDims,
    Function,
    GatherDims,
    Loc,
    Module,
    Op,
    ScatterDims,
    Value,
    copy_ops,
    inline,
    rewrite,
    tensor,
)
from ferrule.ir.types import DType, Tensor, Token, Tuple, Type

__all__ = [
    "UNKNOWN",
    "Block",
    "ConvDims",
    "DType",
    "DotDims",
    "Function",
    "GatherDims",
    "Loc",
    "Module",
    "Op",
    "ScatterDims",
    "Tensor",
    "Token",
    "Tuple",
    "Type",
    "Value",
    "copy_ops",
    "inline",
    "rewrite",
    "tensor",
]
