"""Kernels: a block of fused ops becomes one LLVM function. The schedule is chosen by the ops at the block's root.

loop      every result has one shape; each element is computed by its expression (loop.py)
update    the result lies in operand 0's memory; only the updated elements are written (update.py)
rows      reductions along rows are done before the elements of a row (row_loop.py)
product   a small matrix product is computed in tiles before what follows elementwise (small_products.py)
scan      a cumulative sum, product, maximum or minimum runs along its dimension once (scan.py)
radix     on devices, a pass of a radix sort (radix.py)

Reductions need no schedule of their own: a `reduce` is an element expression with a loop in it (ops/reduction.py); the
loop schedule only decides whether vector lanes run over the outputs or along the reduced dimension, and goes row by row
over large matrices whose rows are reduced (row_folds.py).
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ferrule.codegen import groups, loop, radix, row_loop, scan, small_products, tables, update
from ferrule.codegen.dialect import dialect_of
from ferrule.codegen.emitter import Family
from ferrule.codegen.llvm import Builder, V
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import BY_NUMPY
from ferrule.ops import OPS
from ferrule.targets.machine import Machine

# Code of a few dozen instructions without a loop runs for some nanoseconds however well it is compiled; LLVM's
# optimizations would take much of the compile time of programs with many of them. Functions marked noinline are left as
# they are. (optnone would save more, but LLVM 22 aborts on some vector constants without its optimizing selector.)
COLD_LINES = 60

# How often a loop is taken to run when that is not known.
UNKNOWN_TRIPS = 100


@dataclass
class Kernel:
    """A function `void symbol(ptr pointers, i64 begin, i64 end)`, on a device one of pointers, and how to launch it.

    `grid` is the number of iterations, `grain` the fewest that a thread is woken for (on a device: groups, and
    work-items per group); `flops` and `bytes` are estimates for the cost analysis. `declares` and `globals` belong
    into the function's module. `local_bytes`: of the memory that a group shares. `key` is a hash of what it computes,
    `code` the object that it was compiled into; a kernel that comes from codegen/kernel_cache.py has no text.
    """

    symbol: str
    text: str
    declares: dict[str, str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    grid: int = 1
    grain: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    local_bytes: int = 0
    key: str = ""
    code: builtins.bytes = b""


def emit_kernel(block: Block, symbol: str, machine: Machine) -> Kernel:
    """Generates the code of a fused block; the function's pointers are the block's arguments, then its results."""
    if machine.grouped:
        return groups.emit_kernel(block, symbol, machine)
    family, outputs = start(block.args, block.results, symbol, machine)
    begin, end = family.b.args[1], family.b.args[2]
    flops, nbytes = work(block)
    special = next((s for s in (row_loop, small_products) if s.plan(block)), None)
    schedule = special.emit if special else schedule_of(block)
    grid, grain = schedule(family, block, outputs, begin, end, max(flops / 8, nbytes / 10))
    b = family.b
    text = b.finish()
    if len(b.lines) <= COLD_LINES and " = phi " not in text:
        text = text.replace(" nounwind {\n", " nounwind noinline {\n", 1)
    return Kernel(symbol, text, b.declares, b.globals, grid, grain, flops, nbytes)


def emit_comparator(block: Block, symbol: str, machine: Machine) -> Kernel:
    """Generates a comparator: the pointers are those of lhs0, rhs0, lhs1, rhs1, …, and of the i1 result."""
    family, outputs = start(block.args, block.results, symbol, machine)
    em = family.at(1)
    for value, pointer in zip(block.results, outputs, strict=True):
        em.store(pointer, value.dtype, loop.ZERO, em.value(value, ()))
    b = family.b
    return Kernel(symbol, b.finish(), b.declares, b.globals)


def start(
    args: list[Value], results: list[Value], symbol: str, machine: Machine, counts: int = 2
) -> tuple[Family, list[V]]:
    """A function of pointers to these values and so many numbers; gives the results' pointers."""
    b = Builder(symbol, "void", ["ptr", *["i64"] * counts], dialect=dialect_of(machine))
    pointers = []
    for i in range(len(args) + len(results)):
        place = b.offset(b.args[0], "ptr", V("i64", str(i)))
        pointers.append(b.load("ptr", place, 8))
    family = Family(b, machine, dict(zip(args, pointers, strict=False)), results=results)
    return family, pointers[len(args) :]


def schedule_of(block: Block) -> Callable[..., tuple[int, int]]:
    root = block.results[0].op
    if root is not None and all(r.op is root for r in block.results):
        if root.name in ("dynamic_update_slice", "scatter"):
            return update.emit
        if root.name == "running_total" or (root.name == "reduce_window" and scan.direction(root) is not None):
            return scan.emit
        if root.name in ("digit_counts", "digit_scatter"):
            return radix.emit
        if root.name == "scatter_tables":
            return tables.emit
    return loop.emit


def work(block: Block) -> tuple[float, float]:
    """Estimates of the floating-point operations and the bytes moved."""
    flops = 0.0
    for op in block.ops:
        size: float = tensor(op.results[0]).size
        if op.regions:
            size = max(tensor(v).size for v in (*op.operands, *op.results))
        per = OPS[op.name].flops if op.name in OPS else 1.0
        if op.name in ("dot", "dot_general", "convolution"):
            size, per = size * _summed(op), 2.0
        elif op.name in ("map", "reduce", "reduce_window"):  # a costly body is worth a thread sooner
            per = max(per, sum(OPS[o.name].flops for r in op.regions for o in r.ops if o.name in OPS))
        elif op.name == "loop":
            per = op.attrs.get("trips", UNKNOWN_TRIPS) * sum(OPS[o.name].flops for r in op.regions for o in r.ops)
        flops += per * size
    return flops, float(sum(_touched(block)))


# Ops that read a part of operand 0 as large as their result.
_SLICES = frozenset({"slice", "dynamic_slice", "gather"})


def _touched(block: Block) -> list[int]:
    """The bytes that are read of each argument and written of each result; of a slice or an update in place its own."""
    readers: dict[Value, list[Op]] = {}
    for op in block.ops:
        for value in op.operands:
            readers.setdefault(value, []).append(op)
    escaping = set(block.results)
    touched = []
    for arg in block.args:
        whole, parts = tensor(arg).nbytes, 0
        for op in readers.get(arg, ()):
            if op.name in _SLICES and arg is op.operands[0] and arg not in op.operands[1:]:
                parts += tensor(op.results[0]).nbytes
            elif op.name == "dynamic_update_slice" and arg is op.operands[0] and arg not in op.operands[1:]:
                pass  # its memory is the result's
            else:
                parts = whole
        touched.append(whole if arg in escaping else min(whole, parts))
    for value in block.results:
        op_ = value.op
        updated = op_ is not None and op_.name == "dynamic_update_slice" and op_.operands[0] in block.args
        touched.append(tensor(op_.operands[1] if updated and op_ else value).nbytes)
    return touched


def _summed(op: Op) -> float:
    """How many products are added up for one element of a product or convolution."""
    if op.name == "convolution":
        kernel = op.operands[1]
        features = kernel.shape[op.attrs["dimension_numbers"].kernel_output_feature_dimension]
        return tensor(kernel).size / max(1, features)
    lhs = op.operands[0].shape
    if op.name == "dot":
        return float(lhs[-1])
    return float(prod(lhs[d] for d in op.attrs["dot_dimension_numbers"].lhs_contracting_dimensions))


class Spelled:
    """What is known from other blocks of the same graph."""

    def __init__(self) -> None:
        # Attributes in words, by identity: nobody changes them, and copies of an op share them.
        self.attrs: dict[int, tuple[dict[str, Any], str]] = {}
        self.keys: dict[tuple[Any, ...], str] = {}  # by the words


def structure_key(block: Block, spelled: Spelled | None = None) -> str:
    """A hash of what the block computes: equal blocks have equal code, wherever they come from."""
    spelled = spelled or Spelled()
    words: list[Any] = []
    _spell(block, {}, words, spelled.attrs)
    told = tuple(words)
    if (key := spelled.keys.get(told)) is None:
        text = "".join(map(_written, words))
        key = spelled.keys[told] = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return key


def _written(word: Any) -> str:
    return word if isinstance(word, str) else f"\n{word[0]}{list(word[1:])}"  # an op's name, what it reads


def _spell(
    block: Block, numbers: dict[Value, int], words: list[Any], spelled: dict[int, tuple[dict[str, Any], str]]
) -> None:
    for arg in block.args:
        numbers[arg] = len(numbers)
        words.append(f"a{arg.type}")
    for op in block.ops:
        words.append((op.name, *[numbers.setdefault(v, len(numbers)) for v in op.operands]))
        if op.attrs:
            known = spelled.get(id(op.attrs))
            if known is None:
                text = "".join([f";{name}={_word(op.attrs[name])}" for name in sorted(op.attrs)])
                known = spelled[id(op.attrs)] = op.attrs, text
            words.append(known[1])
        if op.regions:
            for region in op.regions:
                words.append("{")
                _spell(region, numbers, words, spelled)
                words.append("}")
        for result in op.results:
            numbers[result] = len(numbers)
            words += "r", str(result.type)
    words.append(("return", *[numbers.setdefault(v, len(numbers)) for v in block.results]))


def _word(value: object) -> str:
    """An attribute, so that equal texts mean equal values."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    splat = value.size > 1 and not any(value.strides)
    data = value.reshape(-1)[:1].tobytes().hex() + "*" if splat else value.tobytes().hex()
    kind = BY_NUMPY.get(value.dtype, value.dtype)  # NumPy takes its time to spell a type
    return f"{kind}{value.shape}{data}"
