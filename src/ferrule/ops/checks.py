"""What the ops' type rules share: reading attributes, and saying precisely what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ferrule.errors import InvalidArgument
from ferrule.ir import Block, Op, Tensor, Type

_LETTER = {"bool": "b", "int": "i", "uint": "u", "float": "f", "complex": "c"}
_MISSING = object()


def reject(op: Op, what: str, why: str = "", fix: str = "") -> NoReturn:
    """Raises InvalidArgument that names the op and the user's line."""
    raise InvalidArgument(f"op {op.name!r}: {what}", where=op.loc, why=why, fix=fix)


def attr(op: Op, name: str, default: Any = _MISSING) -> Any:
    """The op's attribute; without a default it must be there."""
    value = op.attrs.get(name)
    if value is not None:
        return value
    if default is _MISSING:
        reject(op, f"the attribute {name!r} is missing", f"it has {sorted(op.attrs) or 'no attributes'}")
    return default


def operand(op: Op, index: int) -> Tensor:
    """The type of an operand, which must exist and be a tensor."""
    if index >= len(op.operands):
        reject(op, f"operand {index} is missing", f"it has {len(op.operands)} operands")
    kind = op.operands[index].type
    if not isinstance(kind, Tensor):
        reject(op, f"operand {index} is {kind}, not a tensor")
    return kind


def operands(op: Op, count: int | None = None) -> list[Tensor]:
    """The types of all operands, tensors each; `count` if their number is fixed."""
    if count is not None and len(op.operands) != count:
        reject(op, f"takes {count} operands, got {len(op.operands)}")
    return [operand(op, i) for i in range(len(op.operands))]


def declared(op: Op, index: int = 0) -> Tensor:
    """The result type that the op states, for ops whose result type is a choice and not a consequence."""
    if index >= len(op.results):
        reject(op, f"result {index} is missing", f"it has {len(op.results)} results")
    kind = op.results[index].type
    if not isinstance(kind, Tensor):
        reject(op, f"result {index} is {kind}, not a tensor")
    return kind


def regions(op: Op, count: int) -> Sequence[Block]:
    """The op's regions, whose number is fixed."""
    if len(op.regions) != count:
        reject(op, f"has {count} regions, got {len(op.regions)}")
    return op.regions


def kinds(op: Op, letters: str, *types: Tensor) -> None:
    """Each type's element kind must be one of `letters`: b bool, i signed, u unsigned, f float, c complex."""
    for i, t in enumerate(types):
        if _LETTER[t.dtype.kind] not in letters:
            allowed = ", ".join(name for name, letter in _LETTER.items() if letter in letters)
            reject(op, f"operand {i} has element type {t.dtype}", f"the op is defined for {allowed}")


def same_type(op: Op, *types: Tensor) -> Tensor:
    """All types must be equal; returns it."""
    for i, t in enumerate(types):
        if t != types[0]:
            reject(op, f"operands 0 and {i} differ: {types[0]} and {t}", "they must have one type")
    return types[0]


def axes(op: Op, name: str, values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Distinct dimension numbers in [0, rank)."""
    for v in values:
        if not 0 <= v < rank:
            reject(op, f"{name} = {tuple(values)} names dimension {v} of a tensor of rank {rank}")
    if len(set(values)) != len(values):
        reject(op, f"{name} = {tuple(values)} names a dimension twice")
    return tuple(values)


def per_axis(op: Op, name: str, rank: int, default: Any = _MISSING) -> tuple[Any, ...]:
    """An attribute with one entry per dimension; `default` fills an absent one."""
    value = attr(op, name, None if default is not _MISSING else _MISSING)
    if value is None:
        return (default,) * rank
    value = tuple(value)
    if len(value) != rank:
        reject(op, f"{name} = {value} has {len(value)} entries", f"the operand has rank {rank}")
    return value


def expect(op: Op, condition: bool, what: str, why: str = "") -> None:
    """Rejects the op unless the condition holds."""
    if not condition:
        reject(op, what, why)


def declared_results(op: Op) -> Sequence[Type]:
    """The rule of ops whose result types are the program's word."""
    return [r.type for r in op.results]


def operand_types(op: Op) -> Sequence[Type]:
    """The rule of ops whose results are of the operands' types."""
    return [v.type for v in op.operands]


Infer = Callable[[Op], Sequence[Type]]
