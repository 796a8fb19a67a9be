"""Prints the graph as text in the manner of StableHLO's generic form; for people and for golden tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.ir.graph import Block, Function, Module, Op, Value


class _Names:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}

    def __call__(self, value: Value) -> str:
        return self.names.setdefault(value, f"%{len(self.names)}")


def _attr(value: Any) -> str:
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1) if value.size <= 16 else value.reshape(-1)[:4]
        if value.size > 1 and not any(value.strides):
            return f"splat({value.flat[0]!s})"
        more = ", …" if value.size > 16 else ""
        return f"[{', '.join(str(v) for v in flat)}{more}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_attr(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def _op(op: Op, names: _Names, indent: str) -> str:
    results = ", ".join(names(r) for r in op.results)
    operands = ", ".join(names(v) for v in op.operands)
    attrs = (" {" + ", ".join(f"{k} = {_attr(v)}" for k, v in op.attrs.items()) + "}") if op.attrs else ""
    types = ", ".join(str(r.type) for r in op.results)
    text = f"{indent}{results + ' = ' if results else ''}{op.name}({operands}){attrs} : {types}"
    for region in op.regions:
        text += " {\n" + _block(region, names, indent + "  ") + f"{indent}}}"
    return text


def _block(block: Block, names: _Names, indent: str) -> str:
    text = ""
    if block.args:
        text += f"{indent}({', '.join(f'{names(a)}: {a.type}' for a in block.args)}):\n"
    for op in block.ops:
        text += _op(op, names, indent) + "\n"
    return text + f"{indent}return {', '.join(names(v) for v in block.results)}\n"


def print_op(op: Op) -> str:
    return _op(op, _Names(), "")


def print_block(block: Block) -> str:
    return _block(block, _Names(), "  ")


def print_function(function: Function) -> str:
    return f"func @{function.name} {{\n{_block(function.body, _Names(), '  ')}}}\n"


def print_module(module: Module) -> str:
    return f"module @{module.name}\n" + "\n".join(print_function(f) for f in module.functions.values())
