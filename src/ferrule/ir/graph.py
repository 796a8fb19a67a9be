"""The graph: values, ops, blocks, functions, modules. There is one IR from the reader to the code generator.

An op is named as StableHLO names it, without the dialect prefix ("add", "dot_general", "while"). Names with a dot
belong to other dialects ("func.call", "sdy.mesh"). Passes add two ops of Ferrule's own: "fusion" (its region is
compiled into one kernel) and "library" (a call of the runtime, `attrs["target"]` names it).

Attributes are plain Python values under StableHLO's names: ints, floats, bools, strings; enums as their StableHLO
spelling ("LT", "DEFAULT"); integer arrays as tuples (2-D padding as a tuple of pairs); tensors as read-only NumPy
arrays (splats are broadcast views with zero strides); dimension-number structs as the frozen dataclasses below;
function symbols as strings; types as `ir.types`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ferrule.ir.types import Tensor, Type


@dataclass(frozen=True)
class DotDims:
    lhs_batching_dimensions: tuple[int, ...]
    rhs_batching_dimensions: tuple[int, ...]
    lhs_contracting_dimensions: tuple[int, ...]
    rhs_contracting_dimensions: tuple[int, ...]


@dataclass(frozen=True)
class ConvDims:
    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: tuple[int, ...]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: tuple[int, ...]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: tuple[int, ...]


@dataclass(frozen=True)
class GatherDims:
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int


@dataclass(frozen=True)
class ScatterDims:
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int


@dataclass(frozen=True)
class Loc:
    """Where an op came from: `name` is the framework's name stack, the rest the user's source line if known."""

    name: str = ""
    file: str = ""
    line: int = 0
    col: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.col}" if self.file else ""
        return f"{place} ({self.name})" if place and self.name else place or self.name


UNKNOWN = Loc()
_serial = itertools.count()


class Value:
    """A result of an op (`op` set) or an argument of a block (`op` is None). Compared and hashed by identity."""

    __slots__ = ("type", "op", "index", "serial")

    def __init__(self, type: Type, op: Op | None = None, index: int = 0) -> None:
        self.type, self.op, self.index, self.serial = type, op, index, next(_serial)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape  # type: ignore[union-attr]

    @property
    def dtype(self):
        return self.type.dtype  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return f"%{self.serial}: {self.type}"


class Op:
    """One operation. `regions` are blocks; a block may use values defined outside it (as StableHLO allows)."""

    __slots__ = ("name", "operands", "results", "attrs", "regions", "loc", "__weakref__")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value],
        result_types: Iterable[Type],
        attrs: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
        loc: Loc = UNKNOWN,
    ) -> None:
        self.name = name
        self.operands = list(operands)
        self.attrs = attrs or {}
        self.regions: Sequence[Block] = list(regions) if regions else ()
        self.loc = loc
        self.results = [Value(t, self, i) for i, t in enumerate(result_types)]

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def __repr__(self) -> str:
        from ferrule.ir.printer import print_op

        return print_op(self)


class Block:
    """Arguments, ops in an order that respects dependencies, and the values it returns. No terminator op."""

    __slots__ = ("args", "ops", "results")

    def __init__(self, arg_types: Iterable[Type] = ()) -> None:
        self.args = [Value(t, None, i) for i, t in enumerate(arg_types)]
        self.ops: list[Op] = []
        self.results: list[Value] = []

    def add(
        self,
        name: str,
        operands: Sequence[Value],
        result_types: Iterable[Type] | Type,
        attrs: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
        loc: Loc = UNKNOWN,
    ) -> Op:
        """Appends a new op and returns it. A single type may be given instead of a list."""
        types = [result_types] if isinstance(result_types, Type) else result_types
        op = Op(name, operands, types, attrs, regions, loc)
        self.ops.append(op)
        return op

    def walk(self) -> Iterator[Op]:
        """All ops, outer before inner."""
        for op in self.ops:
            yield op
            if op.regions:
                for region in op.regions:
                    yield from region.walk()

    def holds(self, *names: str) -> bool:
        """Is there an op of one of these names, here or in a nested block?"""
        for op in self.ops:
            if op.name in names or (op.regions and any(region.holds(*names) for region in op.regions)):
                return True
        return False

    def uses(self) -> dict[Value, list[Op]]:
        """For each value the ops (in this block and in nested ones) that read it; the block's results not counted."""
        table: dict[Value, list[Op]] = {}
        for op in self.walk():
            for value in op.operands:
                table.setdefault(value, []).append(op)
            for region in op.regions:
                for value in region.results:
                    table.setdefault(value, []).append(op)
        return table

    def free(self) -> list[Value]:
        """Values used inside but defined outside, each once, in order of first use."""
        found: dict[Value, None] = {}
        _free(self, set(), found)
        return list(found)


def _free(block: Block, defined: set[Value], found: dict[Value, None]) -> None:
    # Not inside `Block.free`: a function that refers to itself, and all that it sees, is left to the garbage collector.
    defined.update(block.args)
    for op in block.ops:
        for value in op.operands:
            if value not in defined:
                found[value] = None
        for region in op.regions:
            _free(region, defined, found)
        defined.update(op.results)
    for value in block.results:
        if value not in defined:
            found[value] = None


# `rewrite` calls this for each op with the already rewritten operands. It returns the values that replace the op's
# results (ops may be added to `out`), or None to keep the op as it is.
Rule = Callable[[Block, Op, list[Value]], Sequence[Value] | None]


def rewrite(
    block: Block,
    rule: Rule,
    mapping: dict[Value, Value] | None = None,
    regions: bool = True,
    ours: bool = False,
    closed: str = "",
) -> Block:
    """Returns a copy of `block` with each op put through `rule`; the one way in which passes change a graph.

    Nested regions are rewritten first (by the same rule) unless `regions` is False. `mapping` may bind outer values.
    `ours` says that nobody else needs the block: its arguments, and the ops that stay, become the result's. `closed`
    names ops whose regions read nothing from outside and hold nothing for the rule.
    """
    env: dict[Value, Value] = {} if mapping is None else mapping
    out = Block(() if ours else (a.type for a in block.args))
    ops = block.ops
    if ours:
        out.args, block.ops = block.args, []
    else:
        env.update(zip(block.args, out.args, strict=True))
    for op in ops:
        operands = [env.get(v, v) for v in op.operands]
        inner = op.regions
        if inner:
            if not (ours and (op.name == closed or is_plain_reduction(op))):
                keep: Rule = lambda *_: None  # noqa: E731
                inner = [rewrite(r, rule if regions else keep, env, regions, ours, closed) for r in inner]
            probe = op if ours else Op.__new__(Op)
            probe.name, probe.operands, probe.attrs, probe.loc = op.name, op.operands, op.attrs, op.loc
            probe.regions, probe.results = inner, op.results
        else:
            probe = op
        new = rule(out, probe, operands)
        if new is None and ours:
            op.operands = operands
            out.ops.append(op)
            continue
        if new is None:
            new = out.add(op.name, operands, [r.type for r in op.results], op.attrs, inner, op.loc).results
        if new is not op.results:
            env.update(zip(op.results, new, strict=True))
    out.results = [env.get(v, v) for v in block.results]
    return out


# In a transformer's gradient every tenth op is a sum; no rule has anything to say about the addition in it.
_REDUCERS = frozenset({"reduce", "reduce_window", "select_and_scatter", "scatter", "all_reduce", "reduce_scatter"})


def is_plain_reduction(op: Op) -> bool:
    """Is all that its regions do one operation on two arguments?"""
    return op.name in _REDUCERS and all(map(_plain, op.regions))


def _plain(body: Block) -> bool:
    """Is it one operation on its two arguments?"""
    ops = body.ops
    return len(ops) == 1 and not ops[0].regions and set(ops[0].operands) == set(body.args) and len(body.args) == 2


def dismantle(block: Block) -> None:
    """Takes a graph apart that nobody needs any more. Ops and values refer to each other, so that otherwise only the
    garbage collector frees them: later, and in several times the time."""
    for op in block.ops:
        for region in op.regions:
            dismantle(region)
        op.operands, op.results = [], []
    block.ops = []


def inline(out: Block, block: Block, args: Sequence[Value], mapping: dict[Value, Value] | None = None) -> list[Value]:
    """Copies the ops of `block` to the end of `out` with its arguments bound to `args`; returns the results."""
    env: dict[Value, Value] = dict(mapping or {})
    env.update(zip(block.args, args, strict=True))
    copy_ops(out, block.ops, env)
    return [env.get(v, v) for v in block.results]


def copy_ops(out: Block, ops: Iterable[Op], env: dict[Value, Value]) -> None:
    """Copies ops to the end of `out`, with what they read as `env` says, and adds their results to it."""
    for op in ops:
        regions = [rewrite(r, lambda *_: None, env) for r in op.regions]
        operands = [env.get(v, v) for v in op.operands]
        copy = out.add(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc)
        env.update(zip(op.results, copy.results, strict=True))


@dataclass
class Function:
    """A function; `arg_attrs` and `result_attrs` are StableHLO's dictionaries (tf.aliasing_output, sdy.sharding, …)."""

    name: str
    body: Block
    arg_attrs: list[dict[str, Any]] = field(default_factory=list)
    result_attrs: list[dict[str, Any]] = field(default_factory=list)
    visibility: str = "public"


@dataclass
class Module:
    """A program: functions by name and the module's attributes (mhlo.num_partitions, …). The entry is `main`."""

    functions: dict[str, Function]
    attrs: dict[str, Any] = field(default_factory=dict)
    name: str = "main"
    producer: str = ""
    meshes: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> Function:
        return self.functions["main"]


def tensor(value: Value) -> Tensor:
    """The value's type, which must be a tensor."""
    assert isinstance(value.type, Tensor), value
    return value.type


def constant(value: Value) -> np.ndarray | None:
    """The array when `value` is a constant."""
    return value.op.attrs["value"] if value.op is not None and value.op.name == "constant" else None


def splat(value: Value) -> Any | None:
    """The one element (a NumPy scalar) when `value` is a constant with equal elements."""
    array = constant(value)
    if array is None or array.size == 0 or (array.size > 1 and any(array.strides)):
        return None
    return array.reshape(-1)[0] if array.ndim else array[()]
