"""Flattens tuples: each value of a tuple type becomes its elements, in order. Frameworks hardly send them."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, Function, Module, Op, Tuple, Type, Value


def has_tuples(module: Module) -> bool:
    """True if any value of the module is a tuple."""
    return any(_block_has(f.body) for f in module.functions.values())


def _block_has(block: Block) -> bool:
    if any(a.type.__class__ is Tuple for a in block.args):
        return True
    for op in block.ops:
        for result in op.results:
            if result.type.__class__ is Tuple:
                return True
        for region in op.regions:
            if _block_has(region):
                return True
    return False


def flat_types(types: Iterable[Type]) -> list[Type]:
    """The types with tuples replaced by their elements, at any depth."""
    out: list[Type] = []
    for t in types:
        if isinstance(t, Tuple):
            out.extend(flat_types(t.elements))
        else:
            out.append(t)
    return out


def flatten_tuples(module: Module) -> Module:
    """Returns the module without tuples. Attributes of a flattened argument or result go to each of its parts."""
    functions = {}
    for name, f in module.functions.items():
        body = _block(f.body, {})
        arg_attrs = [a for v, a in zip(f.body.args, f.arg_attrs, strict=True) for _ in flat_types([v.type])]
        result_attrs = [a for v, a in zip(f.body.results, f.result_attrs, strict=True) for _ in flat_types([v.type])]
        functions[name] = Function(name, body, arg_attrs, result_attrs, f.visibility)
    return Module(functions, module.attrs, module.name, module.producer, module.meshes)


def _block(block: Block, env: dict[Value, list[Value]]) -> Block:
    out = Block(flat_types(a.type for a in block.args))
    _bind(block.args, out.args, env)

    def flat(values: Iterable[Value]) -> list[Value]:
        return [part for v in values for part in env.get(v, [v])]

    for op in block.ops:
        if op.name == "tuple":
            env[op.result] = flat(op.operands)
        elif op.name == "get_tuple_element":
            env[op.result] = _element(op, env)
        else:
            if op.name == "custom_call" and any(
                alias.operand_tuple_indices for alias in op.attrs.get("output_operand_aliases", ())
            ):
                raise Unsupported("a custom call aliases a part of a tuple operand", where=op.loc)
            regions = [_block(r, env) for r in op.regions]
            new = out.add(op.name, flat(op.operands), flat_types(r.type for r in op.results), op.attrs, regions, op.loc)
            _bind(op.results, new.results, env)
    out.results = flat(block.results)
    return out


def _bind(old: list[Value], new: list[Value], env: dict[Value, list[Value]]) -> None:
    at = 0
    for value in old:
        size = len(flat_types([value.type]))
        env[value] = new[at : at + size]
        at += size


def _element(op: Op, env: dict[Value, list[Value]]) -> list[Value]:
    (operand,) = op.operands
    index = op.attrs["index"]
    if not isinstance(operand.type, Tuple) or not 0 <= index < len(operand.type.elements):
        raise InvalidArgument(f"get_tuple_element {index} of {operand.type}", where=op.loc)
    start = len(flat_types(operand.type.elements[:index]))
    return env[operand][start : start + len(flat_types([operand.type.elements[index]]))]
