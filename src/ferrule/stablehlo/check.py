"""Checks that each op of an imported program fits its operands and says what it returns.

Everything after the front half relies on this: code made for a shape that does not hold would read or write memory
that is not its own. It costs about as much as reading the program, and every program passes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ferrule.errors import FerruleError, InvalidArgument, OutOfMemory
from ferrule.ir import Block, Op, Tensor, Type, Value, is_plain_reduction

# What a type rule may raise when an attribute has not the form that the op's name promises.
MALFORMED = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)

# Elements of one array: what the runtime takes, far below where offsets in bytes leave 64 bits.
MAX_ELEMENTS = 1 << 43


def check(block: Block) -> None:
    """Raises InvalidArgument for an op that does not fit, Unsupported for one that Ferrule does not know."""
    from ferrule.ops import lookup  # here, since the MLIR worker imports this package and needs no ops

    _check_sizes(block.args, "the program's arguments")
    # The layers of a network have the same ops. Attributes and types go by identity: that is no less than equality.
    passed: set[tuple[object, ...]] = set()
    for op in block.walk():
        plain = bool(op.regions) and is_plain_reduction(op)
        if plain or not op.regions:
            attrs = id(op.attrs) if op.attrs else 0
            told = (op.name, attrs, *[id(v.type) for v in op.operands], 0, *[id(v.type) for v in op.results])
            if plain:  # its rule looks at what the bodies take and return
                for body in op.regions:
                    told = (*told, 0, *[id(v.type) for v in body.args], 0, *[id(v.type) for v in body.results])
            if told in passed:
                continue
            passed.add(told)
        _check_sizes(op.results, op.loc)
        infer = lookup(op).infer
        if infer is not None:
            _check_op(op, infer)


def _check_sizes(values: Sequence[Value], where: object) -> None:
    for value in values:
        if isinstance(value.type, Tensor) and prod(d for d in value.type.shape if d) > MAX_ELEMENTS:
            raise OutOfMemory(
                f"an array of type {value.type} is too large",
                where=where,
                why=f"an array may have {MAX_ELEMENTS} elements",
                fix="compute with smaller arrays, or in pieces",
            )


def _check_op(op: Op, infer: Callable[[Op], Sequence[Type]]) -> None:
    try:
        types = list(infer(op))
    except FerruleError:
        raise
    except MALFORMED as error:
        raise InvalidArgument(
            f"op {op.name!r} is malformed",
            where=op.loc,
            why=f"its attributes or operands do not have the form that they should have ({error!r})",
        ) from error
    declared = [r.type for r in op.results]
    if types != declared:
        have, want = (", ".join(map(str, t)) or "nothing" for t in (declared, types))
        raise InvalidArgument(f"op {op.name!r} returns {have}", where=op.loc, why=f"its operands give {want}")
