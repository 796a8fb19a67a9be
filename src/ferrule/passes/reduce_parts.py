"""Reductions of many elements to few results, in parts that threads share, and then over the parts' results.

What does not divide into parts evenly has a rest, which is reduced by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log, prod

import numpy as np

from ferrule.codegen import row_folds
from ferrule.codegen.runs import joined
from ferrule.ir import Block, Op, Tensor, Type, Value, rewrite, splat, tensor
from ferrule.ir.types import f32
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid, starts_with_identity
from ferrule.passes.device_scan import body_of
from ferrule.passes.joined_rows import IN_MEMORY
from ferrule.passes.slices import cut, elementwise
from ferrule.targets.machine import Machine

# Ops whose results lie in memory where several elements of them are read.
WRITTEN = IN_MEMORY | {"reduce"}
# Lines that the rows of a transposed array lie in, from which on a reduction along them reads it transposed (fuse.py).
CROSSED = 256
# A reduction is split when each of at most FEW results reduces over at least this many elements; one along columns when
# all do, and each over LONG.
SPLIT_FROM, LONG = 65536, 2048
FEW = 64
STAGE = 64
# Fewer parts leave threads without work. Parts of a long dimension are of so many elements, whole vectors.
LEAST_STAGES, VECTORS = 32, 64
# So many rows, each of up to so many elements, are reduced column by column.
ROWS, NARROW = 64, 7
# On a device: the elements that a group of work-items, and those that one work-item by itself, should combine. More
# leave too few groups for its units.
TEAM_ELEMENTS, ITEM_ELEMENTS = 16384, 64


def _stages(op: Op, results: int, reduced: int, machine: Machine | None) -> int:
    """How many parts a reduction is to be made in; 0 when in one."""
    inner = len(op.operands[0].shape) - 1 in op.attrs["dimensions"]
    if machine is None or not machine.grouped:
        least = SPLIT_FROM if inner else LONG  # threads share rows, but not a few columns
        return STAGE if results <= FEW and reduced >= least and results * reduced >= SPLIT_FROM else 0
    if inner:
        return reduced // TEAM_ELEMENTS if reduced >= 4 * TEAM_ELEMENTS else 0
    return reduced // ITEM_ELEMENTS if reduced >= 4 * ITEM_ELEMENTS else 0


def reduce_in_parts(out: Block, op: Op, operands: list[Value], machine: Machine | None) -> Sequence[Value] | None:
    """The results of a reduction that is better made in several; None leaves it as it is."""
    found = (
        _of_lines(out, op, operands, machine)
        or _by_columns(out, op, operands, machine)
        or _split_rows(out, op, operands, machine)
    )
    return found or _split_reduction(out, op, operands, machine)


def is_line(shape: Sequence[int], dim: int) -> bool:
    """Does an array with inner dimensions behind `dim` have one element in these? Vectors would go along them."""
    return dim < len(shape) - 1 and prod(shape[dim + 1 :]) == 1 and shape[dim] > 1


def _of_lines(out: Block, op: Op, operands: list[Value], machine: Machine | None) -> Sequence[Value] | None:
    """The reduction of columns of one element each, which lie in a line, as that of the line."""
    source, init = operands[0], operands[-1]
    shape, last = source.shape, max(op.attrs["dimensions"], default=0)
    if machine is None or len(operands) != 2 or not op.attrs["dimensions"] or not is_line(shape, last):
        return None
    line = out.add("reshape", [source], Tensor(shape[: last + 1], source.dtype), {}, (), op.loc).result
    kind = Tensor(op.result.shape[: len(op.result.shape) - len(shape) + last + 1], op.result.dtype)
    inner = Op("reduce", [line, init], [kind], op.attrs, op.regions, op.loc)
    dims = op.attrs["dimensions"]
    (total,) = reduce_in_parts(out, inner, [line, init], machine) or [_reduce(out, op, line, init, kind, dims)]
    return [out.add("reshape", [total], [op.result.type], {}, (), op.loc).result]


def _by_columns(out: Block, op: Op, operands: list[Value], machine: Machine | None) -> Sequence[Value] | None:
    """The reduction of rows of few elements, such as coordinates, = that of each column, and then of these.

    Vectors along such rows would hold several of them: what is the same for a row, or for a column, is not the same for
    a vector, nor is it read with one.
    """
    shape, dims = op.operands[0].shape, sorted(op.attrs["dimensions"])
    if machine is None or machine.grouped or len(operands) != 2 or len(dims) < 2:
        return None
    if dims != list(range(dims[0], len(shape))):
        return None
    source, init = operands
    inner = next((d for d in dims[1:] if prod(shape[d:]) <= NARROW), 0)
    rows, columns = prod(shape[dims[0] : inner]), prod(shape[inner:])
    even = columns & (columns - 1) == 0  # vectors hold whole rows
    if not inner or columns < 2 or rows < ROWS or even and prod(shape[: dims[0]]) > FEW:
        return None
    exact = op.result.dtype.kind == "bool" or row_folds.carries(op)
    if not exact or not starts_with_identity(op.regions[0], init) or joined([source], shape)[-1] > NARROW:
        return None
    kind, first = Tensor((*shape[: dims[0]], *shape[inner:]), op.result.dtype), tuple(range(dims[0], inner))
    each = Op("reduce", operands, [kind], op.attrs | {"dimensions": first}, op.regions, op.loc)
    (totals,) = _split_reduction(out, each, operands, machine) or [_reduce(out, op, source, init, kind, first)]
    return [_reduce(out, op, totals, init, op.result.type, range(dims[0], len(kind.shape)))]


def _reduce(out: Block, op: Op, source: Value, init: Value, kind: Type, dims: Iterable[int]) -> Value:
    """A reduction over other dimensions by the same operation."""
    attrs, body = op.attrs | {"dimensions": tuple(dims)}, rewrite(op.regions[0], lambda *_: None, {})
    return out.add("reduce", [source, init], [kind], attrs, [body], op.loc).result


def _split_reduction(out: Block, op: Op, operands: list[Value], machine: Machine | None) -> Sequence[Value] | None:
    """reduce over n elements = reduce over STAGE rows of (reduce over n / STAGE elements)."""
    if len(operands) != 2:
        return None
    source, init = operands
    results = tensor(op.result).size
    wanted = _stages(op, results, tensor(source).size // max(1, results), machine)
    if not wanted or not starts_with_identity(op.regions[0], init):
        return None
    name, dtype = monoid(op.regions[0]), op.result.dtype
    if name in ("add", "multiply") and dtype.is_float and dtype.bits < 32:
        return _rounded_once(out, op, operands, machine, name)
    shape, size, dims = source.shape, tensor(source).size, tuple(op.attrs["dimensions"])
    # The parts of the outermost reduced dimension are contiguous pieces of memory.
    parts = [(dim, count) for dim in sorted(dims) if (count := _divisor(shape[dim], 4, 2 * wanted))]
    if machine is not None and not machine.grouped:
        if len(dims) == len(shape) and _one_run(source):
            flat = out.add("reshape", [source], Tensor((size,), source.dtype), {}, (), op.loc).result
            return _with_rest(out, op, [flat, init], (0,), 0, *parts_of(size))
        long = [dim for dim in sorted(dims) if shape[dim] >= STAGE]
        even = [dim for dim, count in parts if count >= LEAST_STAGES]
        if long or even:
            dim = (even or long)[0]
            return _with_rest(out, op, operands, dims, dim, *parts_of(shape[dim]))
    if not parts:
        return None
    dim, count = parts[0]
    return _in_stages(out, op, operands, dims, dim, shape[dim] // count)


def _rounded_once(
    out: Block, op: Op, operands: list[Value], machine: Machine | None, name: str
) -> Sequence[Value] | None:
    """The reduction of narrow floats with the parts' results in f32."""
    source, init = operands
    wide = out.add("convert", [source], [Tensor(source.shape, f32)], {}, (), op.loc).result
    start = {"value": np.asarray(splat(init), np.float32)}
    first = out.add("constant", [], [Tensor((), f32)], start, (), op.loc).result
    inner = Op("reduce", [wide, first], [Tensor(op.result.shape, f32)], op.attrs, [body_of(name, f32)], op.loc)
    found = _split_reduction(out, inner, [wide, first], machine)
    return found and [out.add("convert", [found[0]], [op.result.type], {}, (), op.loc).result]


def _divisor(n: int, least: int, most: int) -> int:
    """The largest divisor of n from `least` to `most`; 0 when there is none."""
    return next((d for d in range(min(most, n), least - 1, -1) if n % d == 0), 0)


def parts_of(size: int) -> tuple[int, int]:
    """How many parts a dimension is best made in that threads share, and of which size; the rest is small or none."""
    if count := _divisor(size, LEAST_STAGES, 2 * STAGE):
        return count, size // count
    unit = VECTORS if size >= SPLIT_FROM else 1
    counts = range(2 * STAGE, LEAST_STAGES - 1, -1)
    part, count = min(((size // n // unit * unit, n) for n in counts), key=lambda found: size - found[0] * found[1])
    return count, part


def part_of(out: Block, op: Op, value: Value, dim: int, low: int, high: int) -> Value:
    """Of `value` what lies from `low` to before `high` along a dimension."""
    starts = [low if d == dim else 0 for d in range(len(value.shape))]
    ends = [high if d == dim else size for d, size in enumerate(value.shape)]
    return cut(out, value, starts, ends, [1] * len(starts), op)


def _computed_part(out: Block, op: Op, value: Value, dim: int, low: int, high: int) -> Value:
    """The same part, computed from parts of what the value is computed from element by element: it is not shared with
    the other parts, for which a dear one would be written to memory as a whole."""
    reshaped = value.op is not None and value.op.name == "reshape"
    top = value.op.operands[0] if value.op is not None and reshaped else value
    shape, small = top.shape, tuple(high - low if d == dim else size for d, size in enumerate(value.shape))
    done, stack = dict[Value, Value](), [top]
    while stack:
        v = stack[-1]
        inner, kind = v.op, Tensor(small, v.dtype)
        if v in done:
            stack.pop()
        elif (element := splat(v)) is not None:
            whole = {"value": np.broadcast_to(np.asarray(element, v.dtype.numpy), small)}
            done[v] = out.add("constant", [], kind, whole, (), op.loc).result
        elif inner is not None and elementwise(inner):
            missing = [o for o in inner.operands if o.shape == shape and o not in done]
            stack += missing
            if not missing:
                parts = [done.get(o, o) for o in inner.operands]
                done[v] = out.add(inner.name, parts, kind, inner.attrs, (), inner.loc).result
        else:
            run = out.add("reshape", [v], Tensor(value.shape, v.dtype), {}, (), op.loc).result if reshaped else v
            done[v] = part_of(out, op, run, dim, low, high)
    return done[top]


def _one_run(value: Value) -> bool:
    """Is the value computed element by element of arrays of its shape? Then vectors need not end with rows."""
    stack, seen = [value], set[Value]()
    while stack:
        op = (found := stack.pop()).op
        if op is None or found in seen or splat(found) is not None:
            continue
        seen.add(found)
        if op.name == "broadcast_in_dim" and prod(op.operands[0].shape) == 1:
            continue
        if op.name in OPS and OPS[op.name].elementwise:
            stack += [v for v in op.operands if v.shape]
        elif op.name not in WRITTEN and not (op.name == "transpose" and crosses(op)):
            return False
    return True


def crosses(op: Op) -> bool:
    """Do rows of a transposed array lie in more lines of memory than the nearest cache keeps for the next row?"""
    order, shape = op.attrs["permutation"], op.results[0].shape
    return bool(order) and order[-1] != len(order) - 1 and shape[-1] >= CROSSED


def _split_rows(out: Block, op: Op, operands: list[Value], machine: Machine | None) -> Sequence[Value] | None:
    """The sum of many long rows = the sum of sums of some rows each, for which codegen/row_folds.py has a loop.

    Threads share the rows then, not the columns.
    """
    if machine is None or machine.grouped or len(operands) != 2 or not op.attrs["dimensions"]:
        return None
    source, init = operands
    shape, dims = source.shape, sorted(op.attrs["dimensions"])
    rows, columns = prod(shape[d] for d in dims), prod(shape[dims[-1] + 1 :])
    if dims != list(range(dims[0], dims[-1] + 1)) or columns <= FEW or rows <= row_folds.MOST:
        return None
    line = columns * source.dtype.itemsize
    if not row_folds.is_large(tensor(source).nbytes, line, machine) or not row_folds.carries(op):
        return None
    if not starts_with_identity(op.regions[0], init) or not row_folds.in_order(source):
        return None
    # Of the rows of whole inner dimensions and of a part of the next one, about as many as wanted; where none divides
    # that, with a rest that is as small as can be.
    inner, found = 1, list[tuple[bool, int, float, int, int]]()
    for dim in reversed(dims):
        for part in range(1, min(shape[dim], row_folds.MOST // inner) + 1):
            if inner * part >= row_folds.FEWEST:
                rest, far = shape[dim] % part, abs(log(inner * part / row_folds.EACH))
                found.append((rest > 0, rest * inner, far, dim, part))
        inner *= shape[dim]
    if not found:
        return None
    _, _, _, dim, part = min(found)
    return _with_rest(out, op, operands, dims, dim, shape[dim] // part, part, [d for d in dims if d < dim])


def _with_rest(
    out: Block,
    op: Op,
    operands: list[Value],
    dims: Sequence[int],
    dim: int,
    count: int,
    part: int,
    later: Sequence[int] = (),
) -> Sequence[Value]:
    """As `_in_stages`, in so many parts of that size of `dim`, and the same of what these leave."""
    source, init = operands
    size, kind = source.shape[dim], op.result.type
    if count * part == size:
        return _in_stages(out, op, operands, dims, dim, part, later)
    first = part_of(out, op, source, dim, 0, count * part)
    (total,) = _in_stages(out, op, [first, init], dims, dim, part, later)
    rest = _computed_part(out, op, source, dim, count * part, size)
    last = _reduce(out, op, rest, init, kind, dims)
    joining = op.regions[0].results[0].op
    assert joining is not None  # see `starts_with_identity`
    return [out.add(joining.name, [total, last], kind, joining.attrs, (), op.loc).result]


def _in_stages(
    out: Block,
    op: Op,
    operands: list[Value],
    dims: Sequence[int],
    dim: int,
    part: int,
    later: Sequence[int] = (),
) -> Sequence[Value]:
    """The reduction over `dims`: within parts of that size of `dim`, then over the parts and the dimensions `later`."""
    source, init = operands
    shape = source.shape
    wide = (*shape[:dim], shape[dim] // part, part, *shape[dim + 1 :])
    view = out.add("reshape", [source], Tensor(wide, source.dtype), {}, (), op.loc).result
    shifted = [d + (d > dim) for d in dims if d != dim and d not in later]
    first_dims = sorted([*shifted, dim + 1])
    left = [d for d in range(len(wide)) if d not in first_dims]
    first = _reduce(out, op, view, init, Tensor(tuple(wide[d] for d in left), op.result.dtype), first_dims)
    return [_reduce(out, op, first, init, op.result.type, (left.index(d) for d in (*later, dim)))]
