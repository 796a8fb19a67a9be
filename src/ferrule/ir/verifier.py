"""Checks a graph after a pass: every value is defined before its use, every type is what the op's rule gives."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule.errors import Internal, InvalidArgument
from ferrule.ir.graph import Block, Op, Value
from ferrule.ir.printer import print_op

# Ops of the compiler's own, whose result types are what the pass that made them states.
_STATED = {"library", "uninitialized"}
# A kernel is a function of its operands: its region may read nothing from outside.
_ISOLATED = {"fusion"}


def verify(block: Block, stage: str) -> None:
    """Raises Internal that names the stage and the op if the graph is malformed."""
    _verify(block, set(), stage, set())


def _fail(stage: str, what: str, op: Op | None = None, why: str = "") -> Internal:
    text = f" in {_short(op)}" if op is not None else ""
    return Internal(f"after stage '{stage}': {what}{text}", where=op.loc if op is not None else None, why=why)


def _short(op: Op) -> str:
    text = print_op(op)
    return text if len(text) <= 400 else text[:400] + " …"


def _define(values: Iterable[Value], visible: set[Value], everywhere: set[Value], stage: str, op: Op | None) -> None:
    for value in values:
        if value in everywhere:
            raise _fail(stage, f"value {value!r} is defined twice", op)
        everywhere.add(value)
        visible.add(value)


def _verify(block: Block, outer: set[Value], stage: str, everywhere: set[Value]) -> None:
    from ferrule.ops import lookup  # the ops import the graph

    visible = set(outer)
    _define(block.args, visible, everywhere, stage, None)
    for op in block.ops:
        for number, value in enumerate(op.operands):
            if value not in visible:
                raise _fail(stage, f"operand {number} ({value!r}) is used before its definition", op)
        for number, result in enumerate(op.results):
            if result.op is not op or result.index != number:
                raise _fail(stage, f"result {number} belongs to another op", op)
        for region in op.regions:
            _verify(region, set() if op.name in _ISOLATED else visible, stage, everywhere)
        if op.name not in _STATED:
            _check_types(op, lookup(op).infer, stage)
        _define(op.results, visible, everywhere, stage, op)
    for number, value in enumerate(block.results):
        if value not in visible:
            raise _fail(stage, f"result {number} of a block ({value!r}) is not defined in it or around it")


def _check_types(op: Op, infer, stage: str) -> None:  # type: ignore[no-untyped-def]
    if infer is None:
        return
    try:
        expected = list(infer(op))
    except InvalidArgument as error:
        raise _fail(stage, error.what, op, error.why) from error
    found = [r.type for r in op.results]
    if found != expected:
        shown = ", ".join(map(str, expected))
        raise _fail(stage, f"the result types are not ({shown}), which follow from the operands,", op)
