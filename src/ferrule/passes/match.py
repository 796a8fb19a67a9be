"""Match: what a library does better becomes a `library` op.

A `library` op calls a target of the runtime (`attrs["target"]`, see native/gemm.cc, conv.cc, sort.cc, …)
or an XLA FFI handler (`attrs["ffi"]`); `attrs["attrs"]` are the call's own attributes, a region is a function that the
call gets compiled (a sort's comparator).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import Block, ConvDims, DotDims, DType, Op, Tensor, Type, Value, rewrite, tensor
from ferrule.ir import types as t
from ferrule.passes import device_fft, device_scan, device_sort
from ferrule.passes.comparators import sort_keys
from ferrule.passes.eigh import eigh
from ferrule.passes.lapack import batch_dims
from ferrule.passes.lu import lu, never_refused
from ferrule.passes.match_device import PRODUCTS, device_rule
from ferrule.passes.match_mkl import mkl_rule
from ferrule.passes.middle_dots import in_memory_order, middle_dot, order_is_free
from ferrule.passes.narrow_products import BYTES, from_bytes, sums, taken_as
from ferrule.passes.parallel_scan import parallel_running_total, running_in_lanes
from ferrule.passes.pointwise import few_features
from ferrule.passes.qr import qr
from ferrule.passes.ragged import ragged_dot
from ferrule.passes.sides import sides
from ferrule.passes.slices import cut
from ferrule.passes.small_dots import small_dot, turned_dot
from ferrule.passes.svd import svd
from ferrule.passes.vector_dots import STORED, made_here, vector_dot
from ferrule.stablehlo.tables import TypedFloat, TypedInt
from ferrule.targets.gpu import Gpu
from ferrule.targets.machine import Machine

Matcher = Callable[[Block, Op, list[Value]], Sequence[Value] | None]
MATCHERS: dict[str, Matcher] = {}


def match(block: Block, machine: Machine | None = None) -> Block:
    """Replaces dots, convolutions, sorts, FFTs, factorizations and custom calls by library ops."""

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if isinstance(machine, Gpu):
            if (results := mkl_rule(out, op, operands, machine)) is not None:
                return results
            match op.name:
                case "sort":
                    return device_sort.sort(out, op, operands, _order(op.regions[0]), machine)
                case "top_k":
                    return device_sort.top_k(out, op, operands, machine)
                case "fft" if not machine.host_access:
                    # Where the host reads the memory itself, its library is faster than generated kernels.
                    if (transformed := device_fft.fft(out, op, operands)) is not None:
                        return transformed
                case "reduce_window":
                    return device_scan.running_total(out, op, operands, machine)
            if op.name in PRODUCTS:
                return device_rule(out, op, operands, machine)
        if op.name == "reduce_window" and machine is not None:
            total = parallel_running_total(out, op, operands, machine)
            return total if total or machine.grouped else running_in_lanes(out, op, operands, machine)
        if op.name == "convolution" and machine is not None and not machine.grouped:
            if (few := few_features(out, op, operands)) is not None:
                (found,) = rule(out, few, few.operands) or ()
                return [out.add("reshape", [found], op.result.type, {}, (), op.loc).result]
        if op.name in ("dot", "dot_general") and machine is not None:
            if (product := small_dot(out, op, operands, machine)) is not None:
                return [product]
            if not machine.grouped and (product := vector_dot(out, op, operands)) is not None:
                return [product]
            if not machine.grouped and op.name == "dot_general":
                if (product := ragged_dot(out, op, operands, machine.multiplies_bf16)) is not None:
                    return [product]
                if (product := middle_dot(out, op, operands, op.result in free)) is not None:
                    return [product]
                if op.result in free and (other := in_memory_order(op, operands)) is not None:
                    dot, order = other
                    (found,) = rule(out, dot, dot.operands) or ()
                    return out.add("transpose", [found], [op.result.type], {"permutation": order}, (), op.loc).results
            if (product := turned_dot(out, op, operands, machine)) is not None:
                return [product]
        return MATCHERS[op.name](out, op, operands) if op.name in MATCHERS else None

    free = order_is_free(block) if machine is not None and not machine.grouped else set()
    return rewrite(block, rule, ours=True)


def matcher(*names: str) -> Callable[[Matcher], Matcher]:
    def attach(function: Matcher) -> Matcher:
        MATCHERS.update(dict.fromkeys(names, function))
        return function

    return attach


def library(
    out: Block, op: Op, target: str, operands: Sequence[Value], attrs: dict[str, Any], regions: Sequence[Block] = ()
) -> Sequence[Value]:
    """Adds a call of a runtime target that gives the results of `op`."""
    about = {"target": target, "ffi": False, "attrs": attrs}
    return out.add("library", operands, [r.type for r in op.results], about, regions, op.loc).results


# --- matrix products --------------------------------------------------------------------------------------------
def _cast(out: Block, value: Value, dtype: DType, op: Op) -> Value:
    if value.dtype == dtype:
        return value
    return out.add("convert", [value], [Tensor(value.shape, dtype)], {}, (), op.loc).result


@matcher("dot_general", "dot")
def _dot(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    type, narrow = sums(op, operands), from_bytes(op, operands)
    operands = [_cast(out, v, taken_as(op, v.dtype), op) for v in operands]
    call = product_call(out, op, operands, "gemm", type, narrow or _as_stored(out, op, operands))
    return [_cast(out, call, op.result.dtype, op)]


# So many vectors meet a matrix where it lies in memory, narrow as it is (native/gemm_vectors.cc); of smaller ones the
# converted form stays in a cache. For so many in f32 it is converted while it is packed, unless that can be done once,
# before a loop; more are as fast either way.
VECTORS, LARGE = 8, 1 << 18
PACKED, LARGER = range(24, 513), 1 << 20


def _as_stored(out: Block, op: Op, operands: list[Value]) -> list[Value] | None:
    """The operands, but a large matrix that few vectors meet without its conversion from a narrower type; None where
    they stay as they are."""
    if op.name == "dot" or operands[0].dtype != operands[1].dtype:
        return None
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    lhs, rhs = operands
    joined = [*dims.lhs_batching_dimensions, *dims.lhs_contracting_dimensions]
    depth = max(1, prod(lhs.shape[d] for d in joined))

    def stored(matrix: Value, vectors: Value) -> Value:
        count, size = tensor(vectors).size // depth, tensor(matrix).size
        few = count <= VECTORS and size >= LARGE
        some = count in PACKED and size >= LARGER and vectors.dtype == t.f32
        if not few and not (some and made_here(out, matrix)):
            return matrix
        return _unconverted(out, matrix) or matrix

    if tensor(lhs).size < tensor(rhs).size:
        return [lhs, stored(rhs, lhs)]
    return [stored(lhs, rhs), rhs]


def _unconverted(out: Block, value: Value) -> Value | None:
    """What a value is converted from, perhaps before it is transposed."""
    op = value.op
    if op is not None and op.name == "convert":
        source = op.operands[0]
        return source if value.dtype.name in STORED.get(source.dtype.name, ()) else None
    if op is not None and op.name == "transpose":
        source_ = _unconverted(out, op.operands[0])
        if source_ is not None:
            type = Tensor(value.shape, source_.dtype)
            return out.add("transpose", [source_], [type], dict(op.attrs), (), op.loc).result
    return None


def product_call(
    out: Block, op: Op, operands: list[Value], target: str, type: Type, stored: list[Value] | None = None
) -> Value:
    """The call of `target` for a dot, described by strides. `stored`: the operands to read in their place."""
    lhs, rhs = operands
    if op.name == "dot":
        dims = DotDims((), (), (len(lhs.shape) - 1,), (0,))
    else:
        dims = op.attrs["dot_dimension_numbers"]
    if lhs.dtype != rhs.dtype:
        lhs, rhs = (_cast(out, v, op.result.dtype, op) for v in (lhs, rhs))
    lhs, rhs = stored or (lhs, rhs)
    a, b = sides(lhs, rhs, dims)
    for side in (a, b):
        if side.view() is None:
            side.make_dense(out, op)
    (batch, a_batch), (m, a_row), (k, a_col) = a.view()  # type: ignore[misc]
    (_, b_batch), (n, b_col), (_, b_row) = b.view()  # type: ignore[misc]
    batch = 1
    for d in a.batch:
        batch *= a.value.shape[d]
    m, n, k = (prod(s.value.shape[d] for d in g) for s, g in ((a, a.free), (b, b.free), (a, a.contract)))
    attrs = {
        **{"batch": batch, "m": m, "n": n, "k": k},
        "a_strides": (a_batch, a_row, a_col),
        "b_strides": (b_batch, b_row, b_col),
    }
    about = {"target": target, "ffi": False, "attrs": attrs}
    return out.add("library", [a.value, b.value], [type], about, (), op.loc).result


@matcher("convolution")
def _convolution(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    type, operands = sums(op, operands), [_cast(out, v, taken_as(op, v.dtype), op) for v in operands]
    image, kernel = from_bytes(op, operands) or operands
    kernel, reversal = _unreversed(op, kernel)
    call = convolution_call(out, op, [image, kernel], "conv", type, reversal)
    return [_cast(out, call, op.result.dtype, op)]


def _unreversed(op: Op, kernel: Value) -> tuple[Value, tuple[int, ...]]:
    """The kernel before a `reverse` of its taps, which gradients of convolutions have, and the `window_reversal` that
    says the same: the call copies the kernel anyway, or need not turn it around at all."""
    spatial = op.attrs["dimension_numbers"].kernel_spatial_dimensions
    reversal = [int(r) for r in op.attrs.get("window_reversal") or (0,) * len(spatial)]
    while (about := kernel.op) is not None and about.name == "reverse" and set(about.attrs["dimensions"]) <= {*spatial}:
        reversal = [r ^ (d in about.attrs["dimensions"]) for r, d in zip(reversal, spatial, strict=True)]
        kernel = about.operands[0]
    return kernel, tuple(reversal)


def convolution_call(
    out: Block, op: Op, operands: list[Value], target: str, type: Type, reversal: tuple[int, ...] | None = None
) -> Value:
    """The call of `target` for a convolution; `reversal` stands for the op's own window_reversal."""
    dims: ConvDims = op.attrs["dimension_numbers"]
    rank = len(dims.input_spatial_dimensions)
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    attrs = {
        "window_strides": tuple(op.attrs.get("window_strides") or (1,) * rank),
        "padding": tuple(int(p) for pair in padding for p in pair),
        "lhs_dilation": tuple(op.attrs.get("lhs_dilation") or (1,) * rank),
        "rhs_dilation": tuple(op.attrs.get("rhs_dilation") or (1,) * rank),
        "window_reversal": tuple(int(r) for r in reversal or op.attrs.get("window_reversal") or (0,) * rank),
        "feature_group_count": int(op.attrs.get("feature_group_count", 1)),
        "batch_group_count": int(op.attrs.get("batch_group_count", 1)),
        **{name: getattr(dims, name) for name in ConvDims.__dataclass_fields__},
    }
    lhs, rhs = operands
    if lhs.dtype != rhs.dtype and not (target == "conv" and lhs.dtype in BYTES and rhs.dtype in BYTES):
        lhs, rhs = (_cast(out, v, op.result.dtype, op) for v in (lhs, rhs))
    about = {"target": target, "ffi": False, "attrs": attrs}
    return out.add("library", [lhs, rhs], [type], about, (), op.loc).result


# A sort moves all operands once for each key.
MOST_KEYS = 8


# --- sort, FFT, factorizations ----------------------------------------------------------------------------------
@matcher("sort")
def _sort(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    rank = len(operands[0].shape)
    if rank == 0:
        return operands
    attrs = {
        "dimension": int(op.attrs.get("dimension", -1)) % rank,
        "is_stable": bool(op.attrs.get("is_stable", False)),
    }
    keys = sort_keys(op.regions[0])
    if not 0 < len(keys) <= MOST_KEYS:
        return library(out, op, "sort", operands, attrs, [op.regions[0]])
    # What has keys is not compared by compiled code. Sorts by numbers are stable: by the key that decides first last.
    values = list(operands)
    for i, key in enumerate(keys):
        if key.part:
            x = operands[key.operand]
            keys[i] = replace(key, operand=len(values), part="")
            values.append(out.add(key.part, [x], Tensor(x.shape, x.dtype.part), {}, (), op.loc).result)
    for key in reversed(keys):
        about = {"target": "sort", "ffi": False, "attrs": attrs | key.attributes(values[key.operand].dtype.is_float)}
        values = list(out.add("library", values, [v.type for v in values], about, (), op.loc).results)
    return values[: len(operands)]


def _order(block: Block) -> device_sort.Order | None:
    """The order of a comparator, when it is that of one operand."""
    match sort_keys(block):
        case [key] if not key.part:
            return device_sort.Order(key.operand, key.rising, not key.canonical)
    return None


@matcher("fft")
def _fft(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    return library(out, op, "fft", operands, {"type": op.attrs["fft_type"], "length": tuple(op.attrs["fft_length"])})


@matcher("cholesky")
def _cholesky(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    return library(out, op, "cholesky", operands, {"lower": bool(op.attrs.get("lower", False))})


@matcher("triangular_solve")
def _triangular_solve(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    attrs = {k: bool(op.attrs[k]) for k in ("left_side", "lower", "unit_diagonal")}
    return library(out, op, "triangular_solve", operands, attrs | {"transpose_a": op.attrs["transpose_a"]})


# Of rows this long, from one element in so many on, the largest are taken from the sorted row.
SORTED_FROM, SORTED_PART = 1024, 8


@matcher("top_k")
def _top_k(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    (x,), k = operands, int(op.attrs.get("k", op.results[0].shape[-1]))
    length = x.shape[-1]
    if length < SORTED_FROM or k < length / SORTED_PART:
        return library(out, op, "topk", operands, {"k": k})
    last = len(x.shape) - 1
    place = out.add("iota", [], Tensor(x.shape, t.i32), {"iota_dimension": last}, (), op.loc).result
    attrs = {"dimension": last, "is_stable": True, "key": 0, "order": "gt", "total": x.dtype.is_float}
    about = {"target": "sort", "ffi": False, "attrs": attrs | {"total_canonical": False}}
    whole = out.add("library", [x, place], [x.type, place.type], about, (), op.loc).results
    starts, ends, steps = (0,) * (last + 1), (*x.shape[:-1], k), (1,) * (last + 1)
    return [cut(out, v, starts, ends, steps, op) for v in whole]


# --- custom calls -----------------------------------------------------------------------------------------------
# Targets of the runtime itself that a program may call by name.
BUILTIN = ("ferrule.python_callback", "ferrule.lu_permutation")
# Marks a value as used for other compilers' dead code elimination; nothing is left to do for it here.
SINKS = ("dce_sink",)


def _typed(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose numbers keep their types: a handler that wants u8 refuses i64."""
    typed: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            typed[key] = _typed(value)
        elif isinstance(value, TypedInt | TypedFloat) and value.dtype.name not in ("i64", "f64"):
            typed[key] = np.array(value, value.dtype.numpy)
        else:
            typed[key] = value
    return typed


@matcher("custom_call")
def _custom_call(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    target = op.attrs["call_target_name"]
    if target in SINKS and not op.results:
        return []
    if (factors := lu(out, op, operands)) is not None:
        return factors
    if (vectors := eigh(out, op, operands)) is not None:
        return vectors
    if (reflections := qr(out, op, operands)) is not None:
        return reflections
    if (singular := svd(out, op, operands)) is not None:
        return singular
    config = op.attrs.get("backend_config")
    version = int(op.attrs.get("api_version", 1))
    if isinstance(older := op.attrs.get("mhlo.backend_config"), dict):
        # jax.ffi's spelling of a typed call, from a time when StableHLO had only strings there.
        config, version = older, 4
    typed = _typed(config) if isinstance(config, dict) else {}
    if target not in BUILTIN and version != 4:
        near = difflib.get_close_matches(target, BUILTIN, 1)
        raise Unsupported(
            f"custom call {target!r} with API version {version} is not supported",
            where=op.loc,
            why="Ferrule calls XLA FFI handlers (API version 4) and its own targets "
            f"({', '.join(BUILTIN)}){'; did you mean ' + near[0] + '?' if near else ''}",
            fix="register the handler with jax.ffi.register_ffi_target(name, capsule, platform=…) and call it with "
            "jax.ffi.ffi_call",
        )
    if (batch := batch_dims(op)) is not None:
        typed["ferrule.batch"] = batch
    reads = [v for v in operands if isinstance(v.type, Tensor)]
    about = {
        **{"target": target, "ffi": target not in BUILTIN, "attrs": typed},
        "has_side_effect": bool(op.attrs.get("has_side_effect", False)),
        "aliases": tuple(
            ((a.output_tuple_indices or (0,))[0], a.operand_index) for a in op.attrs.get("output_operand_aliases") or ()
        ),
    }
    return out.add("library", reads, [r.type for r in op.results], about, (), op.loc).results


MATCHERS["compare"] = never_refused
