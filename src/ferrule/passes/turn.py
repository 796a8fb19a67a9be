"""Turn: the matrices of products in a loop, the same in every iteration, are laid out for them once before the loop.

The right side of a product is read in rows of narrow panels. A product of few rows, a recurrent network's step, spends
more time on rearranging it, or on rows that lie far apart, than on multiplying. So the panels are made before the loop
(`gemm.pack` in native/gemm.cc); where these do not fit, a transposed matrix is transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.passes.count import trips_of
from ferrule.passes.sides import strides_of

# More rows are worth the rearrangement in each product. Smaller matrices are in the nearest cache; larger ones are not
# to lie in memory twice.
ROWS, SMALLEST, LARGEST = 64, 1 << 13, 1 << 24
OWN = frozenset({"f32", "f64"})  # of the runtime's own loops; libraries keep their own arrangement
# Columns of which all panels are a part; iterations that panels are worth. Of the program's own parameters from so many
# bytes on the runtime keeps the panels, also for later runs (native/packed.h).
PANEL, TRIPS, KEPT = 64, 4, 1 << 20


def turn(block: Block, panels: bool = True) -> Block:
    """Changes the program's block, and returns it. `panels`: do the runtime's own loops compute its products?"""
    return _turn(block, frozenset(block.args), panels)


def _turn(block: Block, params: frozenset[Value], panels: bool) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        if op.name == "while" and op.attrs.get("trips", 2) > 1:
            body = op.regions[1]
            inside = set(_defined(body))
            turned: dict[Value, Value] = {}
            packed: dict[tuple[Value, object], Value] = {}
            often = panels and (TRIPS if (trips := trips_of(op)) is None else trips) >= TRIPS
            for inner in body.walk():
                if often and _packs(inner, inside, params):
                    about, matrix = inner.attrs["attrs"], inner.operands[1]
                    key = (matrix, (about["k"], about["n"], tuple(about["b_strides"])))
                    if key not in packed:
                        packed[key] = _in_panels(ops, inner)
                    where = {"b_strides": (0, about["n"], 1), "packed": True}
                    inner.operands = [inner.operands[0], packed[key], *inner.operands[2:]]
                    inner.attrs = {**inner.attrs, "attrs": {**about, **where}}
                elif inner.name == "library" and inner.attrs["target"] == "gemm" and _across(inner, inside):
                    matrix = inner.operands[1]
                    if matrix not in turned:
                        turned[matrix] = _transposed(ops, inner)
                    about = inner.attrs["attrs"]
                    strides = {"b_strides": (0, about["n"], 1)}
                    inner.operands = [inner.operands[0], turned[matrix], *inner.operands[2:]]
                    inner.attrs = {**inner.attrs, "attrs": {**about, **strides}}
        for region in op.regions:
            _turn(region, params, panels)
        ops.append(op)
    block.ops = ops
    return block


def _defined(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            yield from _defined(region)


def _packs(op: Op, inside: set[Value], params: frozenset[Value]) -> bool:
    """Is this a product of few rows and a matrix of f32 from outside that is not packed yet?"""
    if op.name != "library" or op.attrs["target"] != "gemm" or op.attrs["attrs"].get("packed"):
        return False
    about, matrix = op.attrs["attrs"], op.operands[1]
    if matrix in inside or {matrix.dtype.name, op.operands[0].dtype.name, op.result.dtype.name} != {"f32"}:
        return False
    k, n = about["k"], about["n"]
    if matrix in params and 4 * k * n >= KEPT:
        return False
    few = about["batch"] == 1 and 1 < about["m"] <= min(ROWS, n)
    return few and n % PANEL == 0 and prod(matrix.shape) == k * n and SMALLEST <= 4 * k * n <= LARGEST


def _in_panels(ops: list[Op], op: Op) -> Value:
    about, matrix = op.attrs["attrs"], op.operands[1]
    what = {name: about[name] for name in ("k", "n", "b_strides")}
    attrs = {"target": "gemm.pack", "ffi": False, "attrs": what}
    found = Op("library", [matrix], [Tensor((about["k"], about["n"]), matrix.dtype)], attrs, (), op.loc)
    ops.append(found)
    return found.result


def _across(op: Op, inside: set[Value]) -> bool:
    """Is the right side a matrix from outside that lies in memory column by column?"""
    about, matrix = op.attrs["attrs"], op.operands[1]
    if matrix in inside or matrix.dtype.name not in OWN or op.result.dtype.name not in OWN:
        return False
    k, n = about["k"], about["n"]
    if about["batch"] != 1 or not 1 < about["m"] <= ROWS or not SMALLEST <= k * n * matrix.dtype.itemsize <= LARGEST:
        return False
    return tuple(about["b_strides"][1:]) == (1, k) and prod(matrix.shape) == k * n and k > 1 and n > 1


def _transposed(ops: list[Op], op: Op) -> Value:
    about, matrix = op.attrs["attrs"], op.operands[1]
    k, n = about["k"], about["n"]
    flat = Op("reshape", [matrix], [Tensor((n, k), matrix.dtype)], {}, (), op.loc)
    found = Op("transpose", [flat.result], [Tensor((k, n), matrix.dtype)], {"permutation": (1, 0)}, (), op.loc)
    ops += [flat, found]
    assert strides_of(found.result.shape) == (n, 1)
    return found.result
