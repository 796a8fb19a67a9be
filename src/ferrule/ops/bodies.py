"""Regions that combine scalars: what reduce, scatter, sort and map have in common.

A body is applied to whole arrays at once where its ops allow that (they nearly always do); bodies that are one
well-known op are recognised, so that NumPy's and the libraries' own forms of them can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ferrule.ir import Block, DType, Op, Tensor, Type, Value, splat
from ferrule.ir.types import f32, f64
from ferrule.ops import numerics as n
from ferrule.ops.checks import expect, reject
from ferrule.ops.definition import OPS, Run

Combine = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

_COMMUTATIVE = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")


def monoid(block: Block) -> str | None:
    """The op's name if the body just applies one associative, commutative op to its two scalar arguments."""
    if len(block.ops) == 1 and len(block.args) == 2 and len(block.results) == 1:
        op = block.ops[0]
        if op.name in _COMMUTATIVE and set(op.operands) == set(block.args) and block.results[0] is op.result:
            return op.name
    return None


def uniform(value: Value) -> np.generic | None:
    """The one element of an array, where a constant fills it, also one that is spread over it."""
    while value.op is not None and value.op.name in ("broadcast_in_dim", "sdy.sharding_constraint"):
        (value,) = value.op.operands
    return splat(value)


def starts_with_identity(body: Block, init: Value) -> bool:
    """Is the body a known operation on its two arguments and `init` its identity? Then `init` may enter many times."""
    name, start = monoid(body), uniform(init)
    if name is None or start is None:
        return False
    dtype = init.dtype
    if dtype.kind == "complex":
        return bool(start == {"add": 0, "multiply": 1}.get(name))
    if dtype.kind == "bool":
        return bool(start) == {"and": True, "minimum": True, "multiply": True}.get(name, False)
    signed = dtype.kind == "int"
    low, high = -(1 << (dtype.bits - 1)) if signed else 0, (1 << (dtype.bits - signed)) - 1
    if dtype.is_float:
        low, high = -np.inf, np.inf
    identity = {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "or": 0, "xor": 0}.get(name)
    return identity is not None and bool(start == identity)


def total_type(dtype: DType, name: str | None, has_f64: bool = True) -> DType:
    """What a running total is kept in: for sums and products of floats the next wider type, in which the error does not
    grow with the length. `name` is the monoid's."""
    if name not in ("add", "multiply") or not dtype.is_float or dtype.bits >= 64:
        return dtype
    return f64 if dtype == f32 and has_f64 else f32


def returned_argument(block: Block) -> int | None:
    """The argument that the body returns untouched, if that is all it does (scatter: 1 means "replace")."""
    if len(block.results) == 1 and block.results[0] in block.args:
        return block.args.index(block.results[0])
    return None


def comparison(block: Block) -> tuple[str, int] | None:
    """(direction, key) for a comparator that compares the two values of one operand, as in LT of args 2k and 2k+1."""
    if len(block.ops) == 1 and len(block.results) == 1 and block.ops[0].name == "compare":
        left, right = block.ops[0].operands
        if left in block.args and right in block.args and block.results[0] is block.ops[0].result:
            a, b = block.args.index(left), block.args.index(right)
            if a % 2 == 0 and b == a + 1:
                return block.ops[0].attrs["comparison_direction"], a // 2
    return None


def _acts_on_arrays(block: Block) -> bool:
    return not block.free() and all(
        (op.name == "constant" and isinstance(op.result.type, Tensor) and op.result.type.rank == 0)
        or (op.name in OPS and OPS[op.name].elementwise)
        for op in block.ops
    )


def vectorized(block: Block, run: Run) -> Combine:
    """The body as a function of arrays of one shape, each argument standing for many scalars."""
    if _acts_on_arrays(block):
        return lambda xs: [np.broadcast_to(y, np.shape(xs[0])) for y in run(block, xs)]

    def one_by_one(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        shape = np.shape(xs[0])
        outs = [np.empty(shape, r.type.dtype.numpy) for r in block.results]  # type: ignore[union-attr]
        for at in np.ndindex(shape):
            for out, y in zip(outs, run(block, [np.asarray(x[at]) for x in xs]), strict=True):
                out[at] = y
        return outs

    return one_by_one


def fold(block: Block, run: Run, inits: Sequence[np.ndarray], xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Combines the last dimension of `xs` with the body, starting at `inits`.

    Known sums run in a wider type; everything else is folded in halves, neighbours first, so that an associative
    body sees its values in order.
    """
    kind, dtypes = monoid(block), [n.dtype_of(np.asarray(i)) for i in inits]
    out_types = [r.type.dtype for r in block.results]  # type: ignore[union-attr]
    if kind is not None and len(xs) == 1 and n.dtype_of(xs[0]) == out_types[0]:
        return [_fold_monoid(kind, np.asarray(inits[0]), xs[0])]
    combine = vectorized(block, run)
    shape = xs[0].shape[:-1]
    start = [np.broadcast_to(np.asarray(i), shape) for i in inits]
    parts = [n.convert(x, d) for x, d in zip(xs, out_types, strict=True)]
    start = [n.convert(s, d) for s, d in zip(start, out_types, strict=True)]
    if parts[0].shape[-1] == 0:
        return [np.array(s) for s in start]
    del dtypes
    while parts[0].shape[-1] > 1:
        even = parts[0].shape[-1] // 2 * 2
        tail = [p[..., even:] for p in parts]
        pairs = combine([p[..., 0:even:2] for p in parts] + [p[..., 1:even:2] for p in parts])
        parts = [np.concatenate([p, t], axis=-1) for p, t in zip(pairs, tail, strict=True)]
    return [np.array(r) for r in combine([*start, *(p[..., 0] for p in parts)])]


def _fold_monoid(kind: str, init: np.ndarray, x: np.ndarray) -> np.ndarray:
    d = n.dtype_of(x)
    full = np.concatenate([np.broadcast_to(init, (*x.shape[:-1], 1)), x], axis=-1)
    if kind in ("maximum", "minimum"):
        return _extreme(kind, full)
    wide = n.widen(full)
    if d.kind == "bool":
        ufunc = {"add": np.logical_or, "or": np.logical_or, "multiply": np.logical_and, "and": np.logical_and}
        return np.asarray(ufunc.get(kind, np.logical_xor).reduce(wide, axis=-1))
    by_name = {"add": np.add, "multiply": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or}
    work = n.precise(full) if d.is_float or d.is_complex else wide
    with n.silent():
        return n.narrow(by_name.get(kind, np.bitwise_xor).reduce(work, axis=-1, dtype=work.dtype), d)


def _extreme(kind: str, x: np.ndarray) -> np.ndarray:
    pick = n.choose(larger=kind == "maximum")
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        x = np.concatenate([pick(x[..., 0:even:2], x[..., 1:even:2]), x[..., even:]], axis=-1)
    return np.array(x[..., 0])


def check_body(op: Op, block: Block, args: Sequence[Type], results: Sequence[Type], what: str) -> None:
    """The region's signature must be scalars of these element types (`results` empty: not checked)."""
    found = [a.type for a in block.args]
    expect(op, len(found) == len(args), f"the {what} region takes {len(found)} values, not {len(args)}")
    for i, (a, b) in enumerate(zip(found, args, strict=True)):
        if a != b:
            reject(op, f"argument {i} of the {what} region is {a}, not {b}")
    if results and [r.type for r in block.results] != list(results):
        got = ", ".join(str(r.type) for r in block.results)
        reject(op, f"the {what} region returns ({got}), not ({', '.join(map(str, results))})")
