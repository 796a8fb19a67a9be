"""Control flow, calls, tokens and tuples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import Block, Op, Tensor, Token, Tuple, Type
from ferrule.ir.types import DType, bf16, c64, f32, i1, i32, ui32
from ferrule.ops.bodies import check_body, vectorized
from ferrule.ops.checks import attr, declared_results, expect, operand, operand_types, operands, regions, reject
from ferrule.ops.definition import Dims, Factors, Run, alike, define, element, factors
from ferrule.ops.samples import Region, Sample, data, samples, scalar_body

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes

TOKEN = np.zeros((), np.bool_)
"""What stands for a token where values are NumPy arrays."""


def _infer_while(op: Op) -> Sequence[Type]:
    condition, body = regions(op, 2)
    types = operand_types(op)
    check_body(op, condition, types, [Tensor((), i1)], "condition")
    check_body(op, body, types, types, "body")
    return types


def _while(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    condition, body = op.regions
    values = list(xs)
    if "trips" in op.attrs:  # the condition may have lost what it counts (passes/carries.py)
        for _ in range(op.attrs["trips"]):
            values = run(body, values)
        return values
    while bool(run(condition, values)[0]):
        values = run(body, values)
    return values


def _branches(op: Op, blocks: Sequence[Block]) -> Sequence[Type]:
    types = [r.type for r in blocks[0].results]
    for i, block in enumerate(blocks):
        expect(op, not block.args, f"branch {i} takes arguments", "branches use outer values directly")
        found = [r.type for r in block.results]
        if found != types:
            reject(op, f"branch {i} returns ({', '.join(map(str, found))}), branch 0 ({', '.join(map(str, types))})")
    return types


def _infer_if(op: Op) -> Sequence[Type]:
    expect(op, operands(op, 1)[0] == Tensor((), i1), f"the predicate is {operand(op, 0)}, not a scalar i1")
    return _branches(op, regions(op, 2))


def _infer_case(op: Op) -> Sequence[Type]:
    expect(op, operands(op, 1)[0] == Tensor((), i32), f"the index is {operand(op, 0)}, not a scalar i32")
    expect(op, bool(op.regions), "needs at least one branch")
    return _branches(op, op.regions)


def _case(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    index, last = int(xs[0]), len(op.regions) - 1
    return run(op.regions[index if 0 <= index <= last else last], [])


def _call(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    name = op.attrs.get("callee") or op.attrs.get("decomposition")
    functions = getattr(run, "functions", {})
    if name not in functions:
        reject(op, f"calls the function {name!r}, which does not exist", f"known are {sorted(functions)}")
    return run(functions[name].body, xs)


def _custom_call(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    target = attr(op, "call_target_name")
    if target in ("Sharding", "annotate_device_placement", "LayoutConstraint"):
        return xs
    raise Unsupported(
        f"custom call {target!r} has no meaning in NumPy",
        where=op.loc,
        why="the reference target and the constant folder evaluate StableHLO ops only",
        fix="run the program on a target that offers this call, such as cpu",
    )


def _infer_map(op: Op) -> Sequence[Type]:
    types = operands(op)
    expect(op, bool(types), "needs at least one operand")
    for i, t in enumerate(types):
        expect(op, t.shape == types[0].shape, f"operand {i} is {t} and operand 0 {types[0]}", "shapes must be equal")
    (body,) = regions(op, 1)
    check_body(op, body, [Tensor((), t.dtype) for t in types], [], "computation")
    expect(op, len(body.results) == 1, f"the computation returns {len(body.results)} values, not 1")
    return [Tensor(types[0].shape, body.results[0].type.dtype)]  # type: ignore[union-attr]


def _map(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    return [np.array(vectorized(op.regions[0], run)(xs)[0])]


def _infer_tuple(op: Op) -> Sequence[Type]:
    return [Tuple(tuple(v.type for v in op.operands))]


def _infer_get_tuple_element(op: Op) -> Sequence[Type]:
    expect(op, len(op.operands) == 1 and isinstance(op.operands[0].type, Tuple), "takes one tuple")
    elements, index = op.operands[0].type.elements, attr(op, "index")  # type: ignore[union-attr]
    expect(op, 0 <= index < len(elements), f"index {index} of a tuple of {len(elements)}")
    return [elements[index]]


def _tuple(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[Any]:
    return [tuple(xs)]


def _infer_tokens(op: Op) -> Sequence[Type]:
    for i, v in enumerate(op.operands):
        expect(op, isinstance(v.type, Token), f"operand {i} is {v.type}, not a token")
    return [Token()]


def _infer_fusion(op: Op) -> Sequence[Type]:
    (body,) = regions(op, 1)
    check_body(op, body, operand_types(op), [], "fusion")
    return [r.type for r in body.results]


define("loop", infer=_infer_while, evaluate=_while, flops=100, internal=True)
define("while", infer=_infer_while, evaluate=_while)
define("if", infer=_infer_if, evaluate=lambda op, xs, run: run(op.regions[0 if bool(xs[0]) else 1], []))
define("case", infer=_infer_case, evaluate=_case)
for _name in ("call", "func.call", "composite"):
    define(_name, infer=declared_results, evaluate=_call)
define("custom_call", infer=declared_results, evaluate=_custom_call)
define("map", infer=_infer_map, evaluate=_map)
define("optimization_barrier", infer=operand_types, evaluate=lambda op, xs, run: list(xs), flops=0)
define("after_all", infer=_infer_tokens, evaluate=lambda op, xs, run: [TOKEN], flops=0)
define("create_token", infer=_infer_tokens, evaluate=lambda op, xs, run: [TOKEN], flops=0)
define("tuple", infer=_infer_tuple, evaluate=_tuple, flops=0)
define(
    "get_tuple_element",
    infer=_infer_get_tuple_element,
    evaluate=lambda op, xs, run: [xs[0][op.attrs["index"]]],
    flops=0,
)
for _name in ("partition_id", "replica_id"):
    define(
        _name,
        infer=lambda op: [Tensor((), ui32)],
        evaluate=lambda op, xs, run: [np.zeros((), np.uint32)],
        flops=0,
    )
# Ferrule's own: the region that becomes one kernel means what its ops mean
define("fusion", infer=_infer_fusion, evaluate=lambda op, xs, run: run(op.regions[0], xs))


# ---- factors -----------------------------------------------------------------------------------------------------


@factors("custom_call")
def _custom_call_factors(op: Op) -> Factors:
    """As the framework says (JAX does of LAPACK's calls on batches), by a rule or, without Shardy, by the number of
    batch dimensions: what operands and results have in common, where a dimension is one factor."""
    rule, values = op.attrs.get("sdy.sharding_rule"), [*op.operands, *op.results]
    if rule is None or [*map(len, (*rule.operands, *rule.results))] != [len(v.shape) for v in values]:
        said = str((op.attrs.get("mhlo.frontend_attributes") or {}).get("num_batch_dims", ""))
        batch = int(said) if said.isdigit() else 0
        if op.attrs.get("call_target_name") == "ferrule.lu_permutation":
            batch = len(op.result.shape) - 1
        dims = [tuple(d if d < batch else None for d in range(len(v.shape))) for v in values]
        return Factors(dims[: len(op.operands)], dims[len(op.operands) :])
    special = {*rule.reduction, *rule.need_replication, *rule.permutation, *rule.blocked}
    shared = {f for dims in rule.operands for d in dims for f in d} - special
    for dims in rule.results:
        shared &= {d[0] for d in dims if len(d) == 1}

    def known(dims: Sequence[Sequence[int]]) -> Dims:
        return tuple(d[0] if len(d) == 1 and d[0] in shared else None for d in dims)

    return Factors([known(dims) for dims in rule.operands], [known(dims) for dims in rule.results])


@factors("map")
def _map_factors(op: Op) -> Factors:
    dims = alike(len(op.result.shape))
    return Factors([dims] * len(op.operands), [dims])


@factors("optimization_barrier")
def _barrier_factors(op: Op) -> Factors:
    first = [sum(len(v.shape) for v in op.operands[:i]) for i in range(len(op.operands))]
    dims = [tuple(range(at, at + len(v.shape))) for at, v in zip(first, op.operands, strict=True)]
    return Factors(dims, dims)


# ---- elements ----------------------------------------------------------------------------------------------------


@element("loop")
def _loop_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.while_loop import loop_element

    return loop_element(em, op, k, index)


@element("map")
def _map_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    return em.inline(op.regions[0], [em.value(v, index) for v in op.operands])[0]


@element("partition_id", "replica_id")
def _zero_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    return em.s.const(ui32, 0)


# ---- samples -----------------------------------------------------------------------------------------------------


@samples("optimization_barrier")
def _barrier_samples(name: str) -> Iterable[Sample]:
    for d in (i1, f32, c64):
        yield Sample(name, f"{d}", (data(d, (3, 5), 1), data(d, (), 2)))


@samples("map")
def _map_samples(name: str) -> Iterable[Sample]:
    for d in (i32, bf16, f32):
        for shape in ((), (7,), (2, 0)):
            arrays = (data(d, shape, 1), data(d, shape, 2))
            attrs = {"dimensions": tuple(range(len(shape)))}
            yield Sample(name, f"{d}{list(shape)}", arrays, attrs, regions=(scalar_body("add", d),))


def _block(*ops: tuple[str, Type]) -> Region:
    """A region without arguments that returns the results of ops without operands."""

    def make() -> Block:
        block = Block()
        values = [np.array(3, t.dtype.numpy) for _, t in ops if isinstance(t, Tensor)]
        block.results = [
            block.add(name, [], kind, {"value": v} if name == "constant" else {}).result
            for (name, kind), v in zip(ops, values, strict=True)
        ]
        return block

    return make


def _counting(limit: int, d: DType) -> tuple[Region, Region]:
    """while i < limit: i, x = i + 1, x * x - x."""

    def condition() -> Block:
        block = Block([Tensor((), i32), Tensor((3,), d)])
        stop = block.add("constant", [], Tensor((), i32), {"value": np.array(limit, np.int32)}).result
        attrs = {"comparison_direction": "LT", "compare_type": "SIGNED"}
        block.results = [block.add("compare", [block.args[0], stop], Tensor((), i1), attrs).result]
        return block

    def body() -> Block:
        block = Block([Tensor((), i32), Tensor((3,), d)])
        i, x = block.args
        one = block.add("constant", [], i.type, {"value": np.array(1, np.int32)}).result
        square = block.add("multiply", [x, x], x.type).result
        block.results = [block.add("add", [i, one], i.type).result, block.add("subtract", [square, x], x.type).result]
        return block

    return condition, body


@samples("while")
def _while_samples(name: str) -> Iterable[Sample]:
    for d in (i32, f32):
        for limit in (0, 1, 5):
            x = data(d, (3,), name, low=-1, high=1)
            yield Sample(name, f"{d}-{limit}", (np.array(0, np.int32), x), regions=_counting(limit, d), spread=16)


@samples("if")
def _if_samples(name: str) -> Iterable[Sample]:
    scalar = Tensor((), f32)
    for value in (True, False):
        both = (_block(("constant", scalar)), _block(("constant", scalar)))
        yield Sample(name, f"{value}", (np.array(value),), regions=both)


@samples("case")
def _case_samples(name: str) -> Iterable[Sample]:
    scalar, whole = Tensor((), f32), Tensor((), i32)
    one = _block(("constant", scalar), ("constant", whole))
    for value in (-1, 0, 1, 2, 99):
        yield Sample(name, f"{value}", (np.array(value, np.int32),), regions=(one, one, one))
