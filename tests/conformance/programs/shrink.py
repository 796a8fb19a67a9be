"""Makes a failing program small while it goes on failing in the same way.

Steps, again and again until none helps: fewer outputs; an op's result becomes an input (with the value that it had) or
a constant; a branch, loop body or function in place of the op that has it; smaller sizes everywhere at once;
attributes at their defaults; plainer inputs. What MLIR refuses is no step.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from artifact import parse
from case import Case
from condition import Endless, Shaken

from ferrule.ir import Block, ConvDims, Tensor, Value
from ferrule.ir.graph import inline
from ferrule.ops import OPS


class Result(Protocol):
    """What the reducer must know of a run."""

    state: str
    cause: str


class Runs(Protocol):
    """Runs a program: `trial.Bench`, or a stand-in in tests."""

    def run(self, request: Any) -> tuple[Any, Any]: ...


def failure(record: Any) -> str:
    """The class of a failure: a smaller program must stay in it."""
    if record.state == "wrong":
        return "wrong"
    return f"{record.state}: {record.cause}"


def shrink(case: Case, record: Any, bench: Runs, seconds: float = 240.0) -> tuple[Case, Any]:
    """The smallest failing program that the steps reach, and its record."""
    wanted, stop = failure(record), time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < stop:
        progress = False
        for step in STEPS:
            again = True
            while again and time.monotonic() < stop:
                again = False
                for candidate in step(case):
                    if time.monotonic() > stop:
                        break
                    if _size(candidate) >= _size(case) or not _valid(candidate):
                        continue
                    found, _ = bench.run(candidate)
                    if failure(found) == wanted:
                        case, record, again, progress = candidate, found, True, True
                        break
    return case, record


def _size(case: Case) -> tuple[int, int, int]:
    """What gets smaller: ops and arguments, then elements, then the numbers in attributes and inputs."""
    ops = case.ops()
    values = [v for b in (case.body, *case.functions.values()) for op in b.walk() for v in op.results] + case.body.args
    elements = sum(v.type.size + len(v.shape) for v in values if isinstance(v.type, Tensor))
    numbers = sum(len(str(x)) for x in case.inputs) + sum(len(str(op.attrs)) for op in case.body.walk())
    constants = sum(n == "constant" for n in ops)
    weight = 4 * (len(ops) - constants) + constants + 2 * len(case.inputs) + len(case.body.results) + len(case.donated)
    return weight, elements, numbers


def _valid(case: Case) -> bool:
    try:
        parse(case.text())
        return True
    except Exception:
        return False


def _copy(case: Case) -> Case:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 50_000))
    return replace(copy.deepcopy(case), source="")


def tidy(case: Case) -> Case:
    """Without ops, functions and inputs that nothing reads."""
    body = case.body
    while True:
        used = body.uses()
        kept = [op for op in body.ops if any(r in used or r in body.results for r in op.results)]
        if len(kept) == len(body.ops):
            break
        body.ops = kept
    called = {op.attrs["callee"] for op in body.walk() if op.name == "func.call"}
    while True:
        inner = {
            op.attrs["callee"]
            for n in called
            if n in case.functions
            for op in case.functions[n].walk()
            if op.name == "func.call"
        }
        if inner <= called:
            break
        called |= inner
    case.functions = {n: b for n, b in case.functions.items() if n in called}
    alive = [i for i, a in enumerate(body.args) if a in used or a in body.results]
    case.donated = {alive.index(i): o for i, o in case.donated.items() if i in alive and (o < len(body.results))}
    case.inputs = [case.inputs[i] for i in alive]
    body.args = [body.args[i] for i in alive]
    for number, value in enumerate(body.args):
        value.index = number
    return case


# ---- steps: each gives candidates ----------------------------------------------------------------------------------


def only_needed(case: Case) -> Iterator[Case]:
    """Without what nothing reads."""
    yield tidy(_copy(case))


def only_op(case: Case) -> Iterator[Case]:
    """One op alone, its operands as inputs."""
    known = _values(case)
    if not known:
        return
    places = {r: (p, k) for p, op in enumerate(case.body.ops) for k, r in enumerate(op.results)}
    for place, op in enumerate(case.body.ops):
        if op.name == "constant":
            continue
        new = _copy(case)
        wanted = new.body.ops[place]
        free = {v for v in [*op.operands, *(v for r in op.regions for v in r.free())] if v in places}
        for p, k in sorted(places[v] for v in free):
            if new.body.ops[p].name != "constant":
                _to_input(new, new.body.ops[p].results[k], known[p * 64 + k])
        new.body.ops = [o for o in new.body.ops if o.name == "constant" or o is wanted]
        new.body.results = list(wanted.results)
        new.donated = {}
        yield tidy(new)


def stop_early(case: Case) -> Iterator[Case]:
    """What the ops up to one give, as far as that one needs them."""
    for place, op in enumerate(case.body.ops):
        if op.name != "constant":
            new = _copy(case)
            new.body.results = list(new.body.ops[place].results)
            new.donated = {}
            yield tidy(new)


def fewer_outputs(case: Case) -> Iterator[Case]:
    """One output alone, or one less."""
    count = len(case.body.results)
    if count < 2:
        return
    for keep in [[i] for i in range(count)] + [[j for j in range(count) if j != i] for i in range(count)]:
        new = _copy(case)
        new.body.results = [new.body.results[i] for i in keep]
        new.donated = {i: keep.index(o) if o in keep else -1 for i, o in new.donated.items()}
        yield tidy(new)


def no_donation(case: Case) -> Iterator[Case]:
    """Nothing donated."""
    if case.donated:
        yield replace(_copy(case), donated={})


def earlier_outputs(case: Case) -> Iterator[Case]:
    """An operand of the op that gives an output, in place of that output."""
    for number, value in enumerate(case.body.results):
        for which in range(len(value.op.operands) if value.op else 0):
            new = _copy(case)
            op = new.body.results[number].op
            assert op is not None
            new.body.results[number] = op.operands[which]
            new.donated = {}
            yield tidy(new)


def _values(case: Case) -> dict[int, np.ndarray]:
    """What main's values are, by place of the op and the result."""
    runner = Shaken(case, None)
    try:
        with np.errstate(all="ignore"):
            runner(case.body, case.inputs)
    except Endless:
        return {}
    out = {}
    for place, op in enumerate(case.body.ops):
        for k, r in enumerate(op.results):
            out[place * 64 + k] = runner.values[r]
    return out


def _to_input(case: Case, value: Value, array: np.ndarray) -> None:
    argument = Value(value.type, None, len(case.body.args))
    case.body.args.append(argument)
    case.inputs.append(np.array(array))
    _replace(case.body, value, argument)


def ops_to_inputs(case: Case) -> Iterator[Case]:
    """Instead of an op, inputs with the values that it gave."""
    known = _values(case)
    if not known:
        return
    for place in reversed(range(len(case.body.ops))):
        if case.body.ops[place].name == "constant":
            continue
        new = _copy(case)
        op = new.body.ops.pop(place)
        for k, result in enumerate(op.results):
            _to_input(new, result, known[place * 64 + k])
        yield tidy(new)


def ops_to_operands(case: Case) -> Iterator[Case]:
    """Instead of an op, one of its operands of the same type."""
    for block in range(sum(1 for _ in _blocks(case))):
        for place in range(len(_block(case, block).ops)):
            op = _block(case, block).ops[place]
            for which, operand in enumerate(op.operands):
                if len(op.results) == 1 and operand.type == op.result.type:
                    new = _copy(case)
                    target = _block(new, block)
                    gone = target.ops.pop(place)
                    _replace(target, gone.result, gone.operands[which])
                    yield tidy(new)


def inlined(case: Case) -> Iterator[Case]:
    """A branch, one turn of a loop, or a called function in place of the op."""
    for place, op in enumerate(case.body.ops):
        count = {"if": 2, "case": len(op.regions), "while": 1, "func.call": 1}.get(op.name, 0)
        for choice in range(count):
            new = _copy(case)
            old = new.body.ops[place]
            if old.name == "func.call":
                region, args = new.functions[old.attrs["callee"]], old.operands
            elif old.name == "while":
                region, args = old.regions[1], old.operands
            else:
                region, args = old.regions[choice], []
            before, after = new.body.ops[:place], new.body.ops[place + 1 :]
            new.body.ops = before
            results = inline(new.body, region, args)
            new.body.ops += after
            for result, value in zip(old.results, results, strict=True):
                _replace(new.body, result, value)
            yield tidy(new)


def inner_ops(case: Case) -> Iterator[Case]:
    """Dead ops in regions go; a result of a region becomes an argument of it or a value from around it."""
    for number, block in enumerate(_blocks(case)):
        if number == 0:
            continue
        for k, result in enumerate(block.results):
            for choice, value in enumerate([*block.args, *(op.result for op in block.ops if len(op.results) == 1)]):
                if value.type == result.type and value is not result:
                    new = _copy(case)
                    target = _block(new, number)
                    options = [*target.args, *(op.result for op in target.ops if len(op.results) == 1)]
                    target.results[k] = options[choice]
                    yield tidy(new)
        used = block.uses()
        for place, op in enumerate(block.ops):
            if not any(r in used or r in block.results for r in op.results):
                new = _copy(case)
                _block(new, number).ops.pop(place)
                yield tidy(new)


def fewer_sizes(case: Case) -> Iterator[Case]:
    """One size that occurs, smaller wherever it occurs, attributes included."""
    sizes = sorted({s for v in _all_values(case) for s in v.shape if s > 1}, reverse=True)
    for size in sizes:
        for smaller in sorted({1, 2, size // 2, size - 1}):
            if 0 < smaller < size:
                new = _copy(case)
                if _resized(new, size, smaller):
                    yield new


def plain_attributes(case: Case) -> Iterator[Case]:
    """Strides 1, padding 0 and the like, where the result type follows."""
    for place, op in enumerate(case.body.ops):
        for name, value in op.attrs.items():
            for change in _plainer(name, value):
                new = _copy(case)
                target = new.body.ops[place]
                target.attrs = {**target.attrs, name: change}
                if _inferred_again(new):
                    yield new


def plain_inputs(case: Case) -> Iterator[Case]:
    """Ones or zeros as an input."""
    for number, array in enumerate(case.inputs):
        for fill in (0, 1):
            if array.size and not (array == np.full_like(array, fill)).all():
                new = _copy(case)
                new.inputs[number] = np.full_like(array, fill)
                yield new
        flat = array.reshape(-1)
        if 1 < array.size <= 64:
            for k in range(array.size):
                if flat[k] != 0:
                    new = _copy(case)
                    changed = np.array(array).reshape(-1)
                    changed[k] = 0
                    new.inputs[number] = changed.reshape(array.shape)
                    yield new


STEPS: tuple[Callable[[Case], Iterator[Case]], ...] = (
    only_needed,
    only_op,
    stop_early,
    fewer_outputs,
    no_donation,
    earlier_outputs,
    ops_to_inputs,
    ops_to_operands,
    inlined,
    inner_ops,
    fewer_sizes,
    plain_attributes,
    plain_inputs,
)


# ---- tools of the steps -------------------------------------------------------------------------------------------


def _blocks(case: Case) -> Iterator[Block]:
    def visit(block: Block) -> Iterator[Block]:
        yield block
        for op in block.ops:
            for region in op.regions:
                yield from visit(region)

    for block in (case.body, *case.functions.values()):
        yield from visit(block)


def _block(case: Case, number: int) -> Block:
    return next(b for i, b in enumerate(_blocks(case)) if i == number)


def _all_values(case: Case) -> list[Value]:
    return [v for b in _blocks(case) for v in (*b.args, *(r for op in b.ops for r in op.results))]


def _replace(block: Block, old: Value, new: Value) -> None:
    block.results = [new if v is old else v for v in block.results]
    for op in block.ops:
        op.operands = [new if v is old else v for v in op.operands]
        for region in op.regions:
            _replace(region, old, new)


def _cut(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.array(array[tuple(slice(s) for s in shape)])


def _resized(case: Case, size: int, smaller: int) -> bool:
    """Changes a size everywhere; False if that leaves something out of shape at once."""

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(changed(v) for v in value)
        return smaller if value == size and not isinstance(value, bool) else value

    for value in _all_values(case):
        if isinstance(value.type, Tensor):
            value.type = Tensor(changed(value.shape), value.dtype)
    for block in _blocks(case):
        for op in block.ops:
            for name in ("slice_sizes", "limit_indices", "window_dimensions", "fft_length", "broadcast_sizes", "k"):
                if name in op.attrs:
                    op.attrs = {**op.attrs, name: changed(op.attrs[name])}
            if op.name == "constant":
                op.attrs = {"value": _cut(op.attrs["value"], op.result.shape)}
    case.inputs = [_cut(x, a.shape) for x, a in zip(case.inputs, case.body.args, strict=True)]
    return _inferred_again(case)


def _inferred_again(case: Case) -> bool:
    """Gives main's results the types that follow from their operands."""
    from ferrule.errors import FerruleError

    for block in _blocks(case):
        for op in block.ops:
            rule = OPS[op.name].infer if op.name in OPS else None
            if rule is None or op.name == "func.call":
                continue
            try:
                for result, kind in zip(op.results, rule(op), strict=True):
                    result.type = kind
            except (FerruleError, AssertionError, LookupError, TypeError, ValueError):
                return False
    return True


def _plainer(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, ConvDims) or not isinstance(value, tuple):
        return
    default = {"padding": (0, 0), "window_reversal": False}.get(name)
    if "strides" in name or "dilation" in name:
        default = 1
    if "padding_" in name or name in ("interior_padding", "start_indices"):
        default = 0
    if default is None:
        return
    for k, item in enumerate(value):
        if item != default:
            yield (*value[:k], default, *value[k + 1 :])
