"""How jaxlib's MLIR bindings see a program, in the terms of `ferrule.ir`; the tests compare the reader with this."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ferrule.ir import Block, ConvDims, DotDims, GatherDims, Module, Op, ScatterDims, Value
from ferrule.stablehlo.vhlo import OutputAlias, ResultAccuracy

_STRUCTS: dict[str, tuple[Any, Any]] = {
    "#stablehlo.dot<": (stablehlo.DotDimensionNumbers, DotDims),
    "#stablehlo.conv<": (stablehlo.ConvDimensionNumbers, ConvDims),
    "#stablehlo.gather<": (stablehlo.GatherDimensionNumbers, GatherDims),
    "#stablehlo.scatter<": (stablehlo.ScatterDimensionNumbers, ScatterDims),
}
_FIELDS = {"scatter_dims_to_operand_dims": "scattered_dims_to_operand_dims"}
# What StableHLO leaves out because it is the default, and VHLO writes.
_DEFAULTS: dict[str, Any] = {
    "compare_type": "NOTYPE",
    "version": 0,
    "composite_attributes": {},
    "has_side_effect": False,
    "called_computations": (),
    "api_version": 1,
    "backend_config": "",
    "indices_are_sorted": False,
    "unique_indices": False,
    "use_global_device_ids": False,
    "is_stable": False,
    "dimension": -1,
    "channel_handle": None,
}


def module_of(code: bytes) -> Any:
    return stablehlo.deserialize_portable_artifact(jax_mlir.make_ir_context(), code)


def attribute(attr: Any) -> Any:
    """An attribute as a Python value, or its text where the bindings give no more."""
    text = str(attr)
    for start, (kind, struct) in _STRUCTS.items():
        if text.startswith(start):
            found = kind(attr)
            values = {f.name: getattr(found, _FIELDS.get(f.name, f.name)) for f in fields(struct)}
            return struct(**{k: v if isinstance(v, int) else tuple(v) for k, v in values.items()})
    enum = re.fullmatch(r"#stablehlo<\w+ (\w+)>", text)
    if enum:
        return enum[1]
    for kinds, make in (
        ((ir.BoolAttr, ir.StringAttr, ir.FlatSymbolRefAttr, ir.FloatAttr), lambda a: a.value),
        (ir.IntegerAttr, lambda a: a.value),
        ((ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr), tuple),
        (ir.ArrayAttr, lambda a: tuple(attribute(x) for x in a)),
        (ir.DictAttr, lambda a: {x.name: attribute(x.attr) for x in a}),
        (ir.DenseElementsAttr, _elements),
    ):
        if isinstance(attr, kinds):
            return make(attr)
    return text


def _elements(attr: Any) -> Any:
    try:
        return np.array(attr)
    except (TypeError, ValueError, RuntimeError):
        return None


def attributes(op: Any) -> dict[str, Any]:
    found = {}
    for name in op.attributes:
        try:
            found[name] = attribute(op.attributes[name])
        except (ValueError, TypeError, AttributeError):
            found[name] = None  # the bindings cannot give complex constants, for one
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Compares an attribute; None on their side means that the bindings cannot show it."""
    if theirs is None:
        return True
    if isinstance(theirs, np.ndarray):
        found = np.asarray(ours)
        return found.shape == theirs.shape and np.array_equal(found, theirs, equal_nan=theirs.dtype.kind == "f")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        return all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    if theirs == "unit":
        return ours is True
    if isinstance(theirs, str) and theirs.startswith("#"):
        if isinstance(ours, ResultAccuracy):
            return f"ulps = {ours.ulps}" in theirs and ours.mode in theirs
        if isinstance(ours, OutputAlias):
            return f"operand_index = {ours.operand_index}" in theirs
        return True
    return bool(ours == theirs)


def compare(module: Module, code: bytes) -> int:
    """Checks every function, op, operand, type and attribute of `module` against the bindings; returns the op count."""
    theirs = module_of(code)
    functions = [op for op in theirs.body.operations if op.operation.name == "func.func"]
    assert [f.name.value for f in functions] == list(module.functions)
    return sum(_Comparison().block(module.functions[f.name.value].body, f.entry_block) for f in functions)


class _Comparison:
    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}

    def block(self, ours: Block, theirs: Any) -> int:
        self.bind(ours.args, list(theirs.arguments))
        *ops, end = list(theirs.operations)
        assert end.operation.name in ("func.return", "stablehlo.return", "sdy.return")
        kept = [op.operation for op in ops]
        assert [o.name for o in ours.ops] == [self.name(o) for o in kept]
        count = sum(self.op(a, b) for a, b in zip(ours.ops, kept, strict=True))
        assert ours.results == [self.values[v] for v in end.operation.operands]
        return count

    @staticmethod
    def name(op: Any) -> str:
        return str(op.name).removeprefix("stablehlo.").removeprefix("func.")

    def bind(self, ours: list[Value], theirs: list[Any]) -> None:
        assert [str(v.type) for v in ours] == [str(v.type) for v in theirs]
        self.values.update(zip(theirs, ours, strict=True))

    def op(self, ours: Op, theirs: Any) -> int:
        assert ours.operands == [self.values[v] for v in theirs.operands], ours
        self.bind(ours.results, list(theirs.results))
        expected = attributes(theirs)
        for key in expected.keys() - {"value", "channel_handle"}:
            assert key in ours.attrs or expected[key] in ((), "", None), (ours, key)
        for key, value in ours.attrs.items():
            if key in expected:
                assert same(value, expected[key]), (ours.name, key, value, expected[key])
            else:
                assert _is_default(key, value), (ours.name, key, value)
        regions = [block for region in theirs.regions for block in region.blocks]
        assert len(regions) == len(ours.regions)
        return 1 + sum(self.block(a, b) for a, b in zip(ours.regions, regions, strict=True))


def _is_default(key: str, value: Any) -> bool:
    if key in _DEFAULTS:
        return bool(value == _DEFAULTS[key])
    numbers = np.asarray(value, dtype=object).reshape(-1).tolist()
    return all(v in (0, 1, False, "DEFAULT") for v in numbers)
