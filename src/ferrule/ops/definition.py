"""What an op is: one `OpDef` per op, all of it in one place.

An op's file calls `define(...)` once per op. Rules that come later in the pipeline (its element expression) are
attached in the same file with `@element("name")`, so that an op is read and changed in one place.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import Op, Tensor, Type

# Result types from operand types and attributes; raises InvalidArgument naming what does not fit.
Infer = Callable[[Op], Sequence[Type]]
# NumPy meaning. `run(block, args)` evaluates a nested region on NumPy arrays (0-d for scalars).
Run = Callable[[Any, Sequence[np.ndarray]], list[np.ndarray]]
Evaluate = Callable[[Op, Sequence[np.ndarray], Run], Sequence[np.ndarray]]
# For each dimension of a tensor the number of its factor, or None.
Dims = tuple[int | None, ...]
Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Factors:
    """Which dimensions of an op's operands and results go together, as in a sharding rule of Shardy's.

    Dimensions with one number may be split alike: a device then computes its part of the results from its parts of the
    operands. None marks a dimension that has to be whole. Factors that no result has are in `sums`: the results are
    then to be combined by the op that is named there ("add", "maximum", …). `attrs` gives the attributes that differ
    on parts, from the shapes of the operands' and of the results' parts. Factors in `picked` are dimensions in which
    indices pick elements, with the number of the operand that has the indices and their component: on parts, indices
    count from a part's beginning, and those outside of it pick nothing.
    """

    operands: Sequence[Dims]
    results: Sequence[Dims]
    sums: Mapping[int, str] = field(default_factory=dict)
    attrs: Callable[[Shapes, Shapes], dict[str, Any]] | None = None
    picked: Mapping[int, tuple[int, int]] = field(default_factory=dict)


def alike(rank: int, whole: Iterable[int] = ()) -> Dims:
    """A factor for each dimension, of its own number, but for those that have to be whole."""
    return tuple(None if d in whole else d for d in range(rank))


@dataclass
class OpDef:
    """`infer` gives the result types, `evaluate` the NumPy meaning, `element` what element i of the result is.

    elementwise: the result's element i depends only on the operands' elements i; then `element` is a scalar function
    `(emitter, op, operand values) -> value`. Otherwise `element` is `(emitter, op, result index, index) -> value`.
    `flops` estimates floating-point operations per result element, for the cost model and cost analysis.
    internal: only Ferrule's passes make it; programs cannot contain it.
    `factors` says how the op may be computed in parts, by several devices; elementwise ops need no such rule, others
    that have none are computed whole by every device.
    """

    name: str
    infer: Infer | None = None
    evaluate: Evaluate | None = None
    element: Callable[..., Any] | None = None
    elementwise: bool = False
    flops: float = 1.0
    samples: Callable[[], Iterable[Any]] | None = None
    internal: bool = False
    factors: Callable[[Op], Factors] | None = None


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


def factors(*names: str) -> Callable[[Callable[[Op], Factors]], Callable[[Op], Factors]]:
    """Attaches the rule by which ops are computed in parts to ops that are already defined."""

    def attach(rule: Callable[[Op], Factors]) -> Callable[[Op], Factors]:
        for name in names:
            OPS[name].factors = rule
        return rule

    return attach


def factors_of(op: Op) -> Factors | None:
    """How the op may be computed in parts; None: not at all."""
    found = OPS.get(op.name)
    if found is None or not all(isinstance(v.type, Tensor) for v in (*op.operands, *op.results)):
        return None
    if found.factors is not None:
        return found.factors(op)
    if not found.elementwise or op.regions:
        return None
    shape = op.results[0].shape
    return Factors([alike(len(v.shape)) if v.shape == shape else () for v in op.operands], [alike(len(shape))])


def lookup(op: Op) -> OpDef:
    """The definition of `op`, or an Unsupported error that names the op and the user's line."""
    found = OPS.get(op.name)
    if found is None:
        near = difflib.get_close_matches(op.name, OPS, 1)
        hint = f"the nearest op that Ferrule knows is {near[0]!r}" if near else "see README.md for the list of ops"
        raise Unsupported(f"op {op.name!r} is not supported", where=op.loc, why="Ferrule has no rule for it", fix=hint)
    return found
