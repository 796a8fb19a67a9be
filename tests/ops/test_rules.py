"""Type rules: what does not fit is refused with the op, the user's line and the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrule.errors import InvalidArgument
from ferrule.ir import Block, ConvDims, DotDims, GatherDims, Loc, Op, Tensor, Token, Type
from ferrule.ir.types import c64, f32, i1, i32, i64, ui32, ui64
from ferrule.ops import OPS, lookup
from ferrule.ops.samples import Region, compare_body, inferred, scalar_body

LOC = Loc("jit(f)/add", "model.py", 12, 3)
M, V, S = Tensor((3, 5), f32), Tensor((5,), f32), Tensor((), f32)
IMAGE = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))


def op_of(name: str, types: list[Type], attrs: dict[str, Any], results: list[Type], regions: list[Region]) -> Op:
    return Op(name, Block(types).args, results, attrs, [r() for r in regions], LOC)


# (op, operand types, attributes, result types, regions, a part of the message)
REFUSED: list[tuple[str, list[Type], dict[str, Any], list[Type], list[Region], str]] = [
    ("add", [M, V], {}, [], [], "operands 0 and 1 differ"),
    ("add", [M], {}, [], [], "takes 2 operands, got 1"),
    ("add", [M, Token()], {}, [], [], "not a tensor"),
    ("negate", [Tensor((2,), i1)], {}, [], [], "element type i1"),
    ("floor", [Tensor((2,), i32)], {}, [], [], "the op is defined for float"),
    ("popcnt", [M], {}, [], [], "element type f32"),
    ("compare", [M, M], {}, [], [], "'comparison_direction' is missing"),
    ("compare", [M, M], {"comparison_direction": "??"}, [], [], "unknown"),
    ("compare", [Tensor((), c64)] * 2, {"comparison_direction": "LT"}, [], [], "no order"),
    ("select", [M, M, M], {}, [], [], "not i1"),
    ("select", [Tensor((3,), i1), M, M], {}, [], [], "fits neither"),
    ("clamp", [V, M, S], {}, [], [], "fits neither"),
    ("reduce_precision", [M], {"exponent_bits": 0, "mantissa_bits": 3}, [], [], "must be 1 or more"),
    ("bitcast_convert", [M], {}, [Tensor((3, 5), i64)], [], "must be 2"),
    ("complex", [Tensor((2,), i32)] * 2, {}, [], [], "made of f32 or f64"),
    ("iota", [], {"iota_dimension": 2}, [M], [], "rank 2"),
    ("broadcast_in_dim", [V], {"broadcast_dimensions": (0,)}, [M], [], "it must be 1 or 3"),
    ("broadcast_in_dim", [V], {"broadcast_dimensions": (0, 1)}, [M], [], "2 entries"),
    ("reshape", [M], {}, [Tensor((4, 4), f32)], [], "15 elements"),
    ("transpose", [M], {"permutation": (0, 0)}, [], [], "twice"),
    ("transpose", [M], {"permutation": (0,)}, [], [], "does not fit"),
    ("reverse", [M], {"dimensions": (2,)}, [], [], "dimension 2"),
    ("slice", [V], {"start_indices": (2,), "limit_indices": (9,), "strides": (1,)}, [], [], "[2:9:1]"),
    ("slice", [M], {"start_indices": (2,), "limit_indices": (3,), "strides": (1,)}, [], [], "1 entries"),
    ("pad", [V, M], {"edge_padding_low": (0,), "edge_padding_high": (0,)}, [], [], "not a scalar"),
    ("pad", [V, S], {"edge_padding_low": (-4,), "edge_padding_high": (-4,)}, [], [], "negative shape"),
    ("concatenate", [M, V], {"dimension": 0}, [], [], "may differ in dimension 0 only"),
    ("dynamic_slice", [M, Tensor((), i32)], {"slice_sizes": (1, 1)}, [], [], "1 start indices"),
    ("dynamic_slice", [V, S], {"slice_sizes": (1,)}, [], [], "not an integer scalar"),
    ("dynamic_update_slice", [V, Tensor((6,), f32), Tensor((), i32)], {}, [], [], "does not fit into"),
    ("reduce", [M, S], {"dimensions": (2,)}, [], [scalar_body("add", f32)], "dimension 2"),
    ("reduce", [M, V], {"dimensions": (0,)}, [], [scalar_body("add", f32)], "not a scalar"),
    ("reduce", [M, S], {"dimensions": (0,)}, [], [], "has 1 regions, got 0"),
    ("reduce_window", [V, S], {"window_dimensions": (0,)}, [], [scalar_body("add", f32)], "must be 1 or more"),
    ("sort", [M], {"dimension": 0}, [], [compare_body("LT", (i32,))], "comparator region is tensor<i32>"),
    ("sort", [M], {"dimension": 2}, [], [compare_body("LT", (f32,))], "dimension 2"),
    ("top_k", [M], {"k": 6}, [], [], "k = 6"),
    ("dot_general", [M, M], {"dot_dimension_numbers": DotDims((), (), (1,), (0,))}, [M], [], "joined but differ"),
    ("convolution", [M, M], {"dimension_numbers": IMAGE}, [M], [], "must have rank 4"),
    ("cholesky", [M], {}, [], [], "not a stack of square matrices"),
    ("triangular_solve", [Tensor((3, 3), f32), V], {}, [], [], "do not fit"),
    ("fft", [M], {"fft_type": "FFT", "fft_length": (5,)}, [], [], "element type f32"),
    ("fft", [M], {"fft_type": "RFFT", "fft_length": (4,)}, [], [], "differs from the last dimensions"),
    ("rng_bit_generator", [Tensor((4,), ui32)], {"rng_algorithm": "PHILOX"}, [M, M], [], "values of ui64"),
    ("rng_bit_generator", [Tensor((2,), ui64)], {"rng_algorithm": "X"}, [M, M], [], "is unknown"),
    (
        *("gather", [M, Tensor((2, 1), i32)]),
        {"dimension_numbers": GatherDims((1,), (0,), (), (), (0,), 1), "slice_sizes": (2, 5)},
        *([], [], "must be 1 in the dimensions (0,)"),
    ),
    ("while", [M], {}, [], [scalar_body("add", f32)] * 2, "condition region takes 2 values, not 1"),
    ("if", [M], {}, [], [], "not a scalar i1"),
    ("get_tuple_element", [M], {"index": 0}, [], [], "takes one tuple"),
]


@pytest.mark.parametrize(
    "name, types, attrs, results, regions, part", REFUSED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_refused(name: str, types: Any, attrs: Any, results: Any, regions: Any, part: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        inferred(op_of(name, types, attrs, results, regions))
    text = str(caught.value)
    assert part in text
    assert repr(name) in text and "model.py:12:3" in text
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.samples))
def test_samples_have_the_inferred_types(name: str) -> None:
    make = OPS[name].samples
    assert make is not None
    for sample in make():
        (op,) = sample.block().ops
        assert [r.type for r in op.results] == list(inferred(op)), sample


def test_every_op_is_defined_whole() -> None:
    for name, op in OPS.items():
        assert op.infer is not None, name
        # What the partitioner takes apart has a meaning for several devices only.
        assert op.evaluate is not None or name.startswith(("sdy.", "ferrule.S")), name


def test_unknown_op() -> None:
    with pytest.raises(Exception, match="nearest op that Ferrule knows is 'add'"):
        lookup(op_of("addd", [M, M], {}, [M], []))


def test_shapes() -> None:
    cases: list[tuple[str, list[Type], dict[str, Any], list[Type], list[Region], list[str]]] = [
        ("abs", [Tensor((2,), c64)], {}, [], [], ["tensor<2xf32>"]),
        ("slice", [V], {"start_indices": (1,), "limit_indices": (5,), "strides": (3,)}, [], [], ["tensor<2xf32>"]),
        ("fft", [M], {"fft_type": "RFFT", "fft_length": (5,)}, [], [], ["tensor<3x3xcomplex<f32>>"]),
        ("top_k", [M], {"k": 2}, [], [], ["tensor<3x2xf32>", "tensor<3x2xi32>"]),
        ("dot", [M, V], {}, [V], [], ["tensor<3xf32>"]),
        ("constant", [], {"value": np.zeros((2, 0), np.int8)}, [], [], ["tensor<2x0xi8>"]),
        ("all_gather", [M], {"all_gather_dim": 0, "replica_groups": np.array([[0, 1]])}, [M], [], ["tensor<6x5xf32>"]),
    ]
    for name, types, attrs, results, regions, wanted in cases:
        assert [str(t) for t in inferred(op_of(name, types, attrs, results, regions))] == wanted
