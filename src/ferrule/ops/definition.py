"""What an op is: one `OpDef` per op, all of it in one place.

An op's file calls `define(...)` once per op. Rules that come later in the pipeline (its element expression) are
attached in the same file with `@element("name")`, so that an op is read and changed in one place.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import Op, Type

# Result types from operand types and attributes; raises InvalidArgument naming what does not fit.
Infer = Callable[[Op], Sequence[Type]]
# NumPy meaning. `run(block, args)` evaluates a nested region on NumPy arrays (0-d for scalars).
Run = Callable[[Any, Sequence[np.ndarray]], list[np.ndarray]]
Evaluate = Callable[[Op, Sequence[np.ndarray], Run], Sequence[np.ndarray]]


@dataclass
class OpDef:
    """`infer` gives the result types, `evaluate` the NumPy meaning, `element` what element i of the result is.

    elementwise: the result's element i depends only on the operands' elements i; then `element` is a scalar function
    `(emitter, op, operand values) -> value`. Otherwise `element` is `(emitter, op, result index, index) -> value`.
    `flops` estimates floating-point operations per result element, for the cost model and cost analysis.
    internal: only Ferrule's passes make it; programs cannot contain it.
    """

    name: str
    infer: Infer | None = None
    evaluate: Evaluate | None = None
    element: Callable[..., Any] | None = None
    elementwise: bool = False
    flops: float = 1.0
    samples: Callable[[], Iterable[Any]] | None = None
    internal: bool = False


OPS: dict[str, OpDef] = {}


def define(name: str, **parts: Any) -> OpDef:
    """Registers an op; called once per op, at import of the op's file."""
    assert name not in OPS, f"op {name} is defined twice"
    OPS[name] = OpDef(name, **parts)
    return OPS[name]


def element(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Attaches the element expression to ops that are already defined."""

    def attach(rule: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            OPS[name].element = rule
        return rule

    return attach


def lookup(op: Op) -> OpDef:
    """The definition of `op`, or an Unsupported error that names the op and the user's line."""
    found = OPS.get(op.name)
    if found is None:
        near = difflib.get_close_matches(op.name, OPS, 1)
        hint = f"the nearest op that Ferrule knows is {near[0]!r}" if near else "see README.md for the list of ops"
        raise Unsupported(f"op {op.name!r} is not supported", where=op.loc, why="Ferrule has no rule for it", fix=hint)
    return found
