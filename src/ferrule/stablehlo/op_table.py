"""The properties of every VHLO op, and how they become StableHLO attributes.

VHLO writes an op's properties by position, in the alphabetical order of their names. The table below lists the names;
what VHLO keeps flat (dimension numbers, layouts, channels) is gathered here into the form that StableHLO has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ferrule.ir import ConvDims, DotDims, GatherDims, ScatterDims
from ferrule.stablehlo.sdy import MeshGroups
from ferrule.stablehlo.vhlo import OutputAlias, ResultAccuracy

_CONV_DIMS = (
    "input_batch_dimension input_feature_dimension input_spatial_dimensions kernel_input_feature_dimension "
    "kernel_output_feature_dimension kernel_spatial_dimensions output_batch_dimension output_feature_dimension "
    "output_spatial_dimensions"
)
_CONV = f"{_CONV_DIMS} batch_group_count feature_group_count lhs_dilation precision_config rhs_dilation "
_CONV += "window_reversal window_strides"
_CALL = "api_version backend_config call_target_name called_computations has_side_effect operand_layouts "
_CALL += "output_operand_aliases result_layouts"
_DOT = "lhs_batching_dimensions lhs_contracting_dimensions precision_config rhs_batching_dimensions "
_DOT += "rhs_contracting_dimensions"
_DOT_ALGORITHM = "accumulation_type allow_imprecise_accumulation lhs_component_count lhs_precision_type "
_DOT_ALGORITHM += "num_primitive_operations rhs_component_count rhs_precision_type"
_GATHER = "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims start_index_map"
_GATHER_BATCH = "operand_batching_dims start_indices_batching_dims"
_SCATTER = "index_vector_dim indices_are_sorted inserted_window_dims scatter_dims_to_operand_dims unique_indices "
_SCATTER += "update_window_dims"
_COMPOSITE = "composite_attributes decomposition name version"
_TRANSFER = "channel_id channel_type is_host_transfer"

# Op name with version → property names (any order). Ops that have none stand in NO_PROPERTIES.
_WITH_PROPERTIES = {
    "all_gather_v1": "all_gather_dim channel_id replica_groups use_global_device_ids",
    "all_gather_v2": "all_gather_dim channel_id replica_groups use_global_device_ids",
    "all_reduce_v1": "channel_id replica_groups use_global_device_ids",
    "all_reduce_v2": "channel_id replica_groups use_global_device_ids",
    "all_to_all_v1": "channel_id concat_dimension replica_groups split_count split_dimension",
    "all_to_all_v2": "channel_id concat_dimension replica_groups split_count split_dimension",
    "batch_norm_grad_v1": "epsilon feature_index",
    "batch_norm_inference_v1": "epsilon feature_index",
    "batch_norm_training_v1": "epsilon feature_index",
    "broadcast_in_dim_v1": "broadcast_dimensions",
    "broadcast_v1": "broadcast_sizes",
    "call_v1": "callee",
    "cbrt_v2": "result_accuracy",
    "cholesky_v1": "lower",
    "collective_broadcast_v1": "channel_id replica_groups",
    "collective_broadcast_v2": "channel_id has_dynamic_root replica_groups",
    "collective_permute_v1": "channel_id source_target_pairs",
    "collective_reduce_v1": "channel_id has_dynamic_root replica_groups use_global_device_ids",
    "compare_v1": "compare_type comparison_direction",
    "composite_v1": _COMPOSITE,
    "composite_v2": _COMPOSITE,
    "concatenate_v1": "dimension",
    "constant_v1": "value",
    "convolution_v1": _CONV + " padding",
    "cosine_v2": "result_accuracy",
    "cross-replica-sum_v1": "replica_groups",
    "custom_call_v1": _CALL,
    "custom_call_v2": _CALL + " result_tilings",
    "dot_general_v1": _DOT,
    "dot_general_v2": f"{_DOT} {_DOT_ALGORITHM}",
    "dot_v1": "precision_config",
    "dynamic_broadcast_in_dim_v1": "broadcast_dimensions known_expanding_dimensions known_nonexpanding_dimensions",
    "dynamic_conv_v1": _CONV + " padding",
    "dynamic_conv_v2": _CONV,
    "dynamic_gather_v1": _GATHER,
    "dynamic_gather_v2": f"{_GATHER} {_GATHER_BATCH}",
    "dynamic_iota_v1": "iota_dimension",
    "dynamic_slice_v1": "slice_sizes",
    "einsum_v1": "einsum_config",
    "exponential_minus_one_v2": "result_accuracy",
    "exponential_v2": "result_accuracy",
    "fft_v1": "fft_length fft_type",
    "func_v1": "arg_attrs function_type res_attrs sym_name sym_visibility",
    "gather_v1": _GATHER + " slice_sizes",
    "gather_v2": f"{_GATHER} {_GATHER_BATCH} slice_sizes",
    "get_dimension_size_v1": "dimension",
    "get_tuple_element_v1": "index",
    "infeed_v1": "infeed_config layout",
    "iota_v1": "iota_dimension",
    "log_plus_one_v2": "result_accuracy",
    "log_v2": "result_accuracy",
    "logistic_v2": "result_accuracy",
    "map_v1": "dimensions",
    "outfeed_v1": "outfeed_config",
    "pad_v1": "edge_padding_high edge_padding_low interior_padding",
    "recv_v1": _TRANSFER,
    "recv_v2": _TRANSFER + " source_target_pairs",
    "reduce_precision_v1": "exponent_bits mantissa_bits",
    "reduce_scatter_v1": "channel_id replica_groups scatter_dimension use_global_device_ids",
    "reduce_v1": "dimensions",
    "reduce_window_v1": "base_dilations padding window_dilations window_dimensions window_strides",
    "reverse_v1": "dimensions",
    "rng_bit_generator_v1": "rng_algorithm",
    "rng_v1": "rng_distribution",
    "rsqrt_v2": "result_accuracy",
    "scatter_v1": _SCATTER,
    "scatter_v2": _SCATTER + " input_batching_dims scatter_indices_batching_dims",
    "select_and_scatter_v1": "padding window_dimensions window_strides",
    "send_v1": _TRANSFER,
    "send_v2": _TRANSFER + " source_target_pairs",
    "set_dimension_size_v1": "dimension",
    "sine_v2": "result_accuracy",
    "slice_v1": "limit_indices start_indices strides",
    "sort_v1": "dimension is_stable",
    "sqrt_v2": "result_accuracy",
    "tan_v2": "result_accuracy",
    "tanh_v2": "result_accuracy",
    "torch_index_select_v1": "batch_dims dim",
    "transpose_v1": "permutation",
    "triangular_solve_v1": "left_side lower transpose_a unit_diagonal",
    "unary_einsum_v1": "einsum_config",
}
_NO_PROPERTIES = """
    abs_v1 add_v1 after_all_v1 and_v1 async_done_v1 async_start_v1 atan2_v1 bitcast_convert_v1 case_v1 cbrt_v1 ceil_v1
    clamp_v1 complex_v1 convert_v1 cosine_v1 count_leading_zeros_v1 create_token_v1 divide_v1 dynamic_pad_v1
    dynamic_reshape_v1 dynamic_update_slice_v1 exponential_minus_one_v1 exponential_v1 floor_v1 if_v1 imag_v1
    is_finite_v1 log_plus_one_v1 log_v1 logistic_v1 maximum_v1 minimum_v1 multiply_v1 negate_v1 not_v1
    optimization_barrier_v1 or_v1 partition_id_v1 popcnt_v1 power_v1 real_dynamic_slice_v1 real_v1 remainder_v1
    replica_id_v1 reshape_v1 return_v1 round_nearest_afz_v1 round_nearest_even_v1 rsqrt_v1 select_v1 shift_left_v1
    shift_right_arithmetic_v1 shift_right_logical_v1 sign_v1 sine_v1 sqrt_v1 subtract_v1 tan_v1 tanh_v1 tuple_v1
    uniform_dequantize_v1 uniform_quantize_v1 while_v1 xor_v1
"""
PROPERTIES: dict[str, tuple[str, ...]] = {name: tuple(sorted(t.split())) for name, t in _WITH_PROPERTIES.items()}
PROPERTIES.update(dict.fromkeys(_NO_PROPERTIES.split(), ()))

# Ops of other dialects that portable artifacts hold as they are. A "?" marks a property that may be absent.
OTHER_PROPERTIES: dict[str, tuple[str, ...]] = {
    "builtin.module": ("sym_name?", "sym_visibility?"),
    "builtin.unrealized_conversion_cast": (),
    "sdy.mesh": ("mesh", "sym_name"),
    "sdy.sharding_constraint": ("sharding",),
    "sdy.reshard": ("sharding",),
    "sdy.manual_computation": ("in_shardings", "manual_axes", "out_shardings"),
    "sdy.sharding_group": ("group_id",),
    "sdy.propagation_barrier": ("allowed_direction",),
    "sdy.named_computation": ("in_shardings?", "name", "out_shardings?"),
    "sdy.return": (),
}

# The form that a property must have, by its name; names that are not here may hold anything.
_INT = """all_gather_dim api_version batch_dims batch_group_count channel_id channel_type concat_dimension dim dimension
    exponent_bits feature_group_count feature_index index index_vector_dim input_batch_dimension
    input_feature_dimension iota_dimension kernel_input_feature_dimension kernel_output_feature_dimension mantissa_bits
    output_batch_dimension output_feature_dimension scatter_dimension split_count split_dimension version"""
_BOOL = """has_dynamic_root has_side_effect indices_are_sorted is_host_transfer is_stable left_side lower unique_indices
    unit_diagonal use_global_device_ids"""
_STR = """callee call_target_name compare_type comparison_direction decomposition einsum_config fft_type name
    rng_algorithm rng_distribution sym_name sym_visibility transpose_a"""
_VECTOR = """base_dilations broadcast_dimensions broadcast_sizes collapsed_slice_dims dimensions edge_padding_high
    edge_padding_low fft_length input_batching_dims input_spatial_dimensions inserted_window_dims interior_padding
    kernel_spatial_dimensions lhs_batching_dimensions lhs_contracting_dimensions lhs_dilation limit_indices offset_dims
    operand_batching_dims output_spatial_dimensions permutation rhs_batching_dimensions rhs_contracting_dimensions
    rhs_dilation scatter_dims_to_operand_dims scatter_indices_batching_dims slice_sizes start_index_map
    start_indices start_indices_batching_dims strides update_window_dims window_dilations window_dimensions
    window_reversal window_strides"""
_FORMS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_INT.split(), int),
    **dict.fromkeys(_BOOL.split(), bool),
    **dict.fromkeys(_STR.split(), str),
    **dict.fromkeys((*_VECTOR.split(), "padding", "source_target_pairs", "value"), np.ndarray),
    **dict.fromkeys(("called_computations", "operand_layouts", "output_operand_aliases", "result_layouts"), tuple),
    **dict.fromkeys(("arg_attrs", "res_attrs", "precision_config"), tuple),
    "composite_attributes": dict,
    "backend_config": (dict, str),
    "replica_groups": (np.ndarray, MeshGroups),
    "epsilon": float,
}
_VECTORS = frozenset(_VECTOR.split())


def fits(key: str, value: Any) -> bool:
    """True if a property has the form that its name asks for."""
    form: Any = _FORMS.get(key)
    if form is None:
        return True
    found: Any = value
    if not isinstance(value, form) or (form is int and isinstance(value, bool)):
        return False
    if key in _VECTORS:
        return found.ndim == 1 and found.dtype.kind in "ib"
    if key in ("padding", "source_target_pairs"):
        return found.dtype.kind == "i" and (found.ndim == 2 or found.size == 0)
    if key in ("operand_layouts", "result_layouts"):
        return all(isinstance(v, np.ndarray) and v.ndim == 1 and v.dtype.kind == "i" for v in found)
    if key == "output_operand_aliases":
        return all(isinstance(v, OutputAlias) for v in found)
    if key in ("called_computations", "precision_config"):
        return all(isinstance(v, str) for v in found)
    if key in ("arg_attrs", "res_attrs"):
        return all(isinstance(v, dict) for v in found)
    return True


Attrs = dict[str, Any]
Finish = Callable[[Attrs], Attrs]


def _ints(value: Any) -> Any:
    return tuple(value.tolist()) if isinstance(value, np.ndarray) else value


def _pairs(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == 2:
        return tuple((low, high) for low, high in value.tolist())
    return value


def _plain(a: Attrs) -> Attrs:
    """Integer arrays become tuples, padding becomes pairs; other tensors (replica groups) stay arrays."""
    for key, value in a.items():
        if isinstance(value, np.ndarray) and key != "value" and value.ndim == 1:
            a[key] = tuple(value.tolist())
    if "padding" in a:
        a["padding"] = _pairs(a["padding"])
    accuracy = a.get("result_accuracy")
    if isinstance(accuracy, ResultAccuracy) and accuracy.mode == "DEFAULT":
        del a["result_accuracy"]
    return a


def _struct(a: Attrs, kind: Any, **defaults: Any) -> Any:
    """Gathers the fields of a dimension-number struct out of the flat properties."""
    return kind(**{f: _ints(a.pop(f)) if f in a else defaults[f] for f in kind.__dataclass_fields__})


def _dot_general(a: Attrs) -> Attrs:
    a["dot_dimension_numbers"] = _struct(a, DotDims)
    names = _DOT_ALGORITHM.split()
    algorithm = {name: a.pop(name) for name in names if name in a}
    if any(value != "none" for value in algorithm.values()):
        a["algorithm"] = algorithm
    return a


def _convolution(a: Attrs) -> Attrs:
    a["dimension_numbers"] = _struct(a, ConvDims)
    return _plain(a)


def _gather(a: Attrs) -> Attrs:
    a["dimension_numbers"] = _struct(a, GatherDims, operand_batching_dims=(), start_indices_batching_dims=())
    return _plain(a)


def _scatter(a: Attrs) -> Attrs:
    none: Attrs = {"input_batching_dims": (), "scatter_indices_batching_dims": ()}
    a["scatter_dimension_numbers"] = _struct(a, ScatterDims, **none)
    return _plain(a)


def _custom_call(a: Attrs) -> Attrs:
    for key in ("operand_layouts", "result_layouts"):
        a[key] = tuple(_ints(layout) for layout in a[key])
    # Layouts come for all values or for none. An op without operands (or results) needs none.
    return {k: v for k, v in a.items() if v != () or k == "called_computations"}


def _collective(a: Attrs) -> Attrs:
    channel = a.pop("channel_id")
    kind = a.pop("channel_type", 1)
    if channel or kind != 1:
        a["channel_handle"] = channel, kind
    return _plain(a)


def _composite(a: Attrs) -> Attrs:
    return a


_FINISH: dict[str, Finish] = {
    "dot_general": _dot_general,
    **dict.fromkeys(("convolution", "dynamic_conv"), _convolution),
    **dict.fromkeys(("gather", "dynamic_gather"), _gather),
    "scatter": _scatter,
    "custom_call": _custom_call,
    "composite": _composite,
    **dict.fromkeys(
        ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_reduce"), _collective
    ),
    **dict.fromkeys(("collective_permute", "reduce_scatter", "send", "recv"), _collective),
}


def finisher(name: str) -> Finish:
    """What turns the raw properties of the op (name without version) into its attributes."""
    return _FINISH.get(name, _plain)
