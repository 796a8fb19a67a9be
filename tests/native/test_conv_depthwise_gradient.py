"""Gradients of depthwise kernels with channels innermost (native/conv_depthwise_gradient.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call, elsewhere
from test_calls import bf16, close, conv_reference, random

# (image and gradient in N…C, taps, attributes): stretches, more taps than registers, borders wider than the image,
# channels that do not fill a last vector.
SHAPES = [
    ((2, 300, 37), (2, 300, 37), (9,), {"padding": (4, 4)}),
    ((1, 40, 4), (1, 40, 4), (33,), {"padding": (16, 16)}),
    ((3, 9, 8, 20), (3, 9, 8, 20), (5, 5), {"padding": (2, 2, 2, 2)}),
    ((2, 12, 13, 96), (2, 6, 7, 96), (3, 3), {"padding": (1, 0, 1, 1), "rhs_dilation": (2, 2)}),
    ((1, 15, 15, 64), (1, 11, 11, 64), (3, 3), {"window_strides": (2, 2)}),
    ((2, 3, 2, 8), (2, 3, 2, 8), (7, 9), {"padding": (3, 3, 4, 4)}),
    ((2, 12, 12, 16), (2, 10, 10, 16), (2, 2), {"padding": (-1, 0, 0, -1)}),
    ((1, 5, 6, 7, 33), (1, 5, 6, 7, 33), (3, 1, 4), {"padding": (1, 1, 0, 0, 2, 1)}),
    ((4, 4, 160), (4, 4, 160), (4,), {"padding": (3, 0)}),
]

TYPES = ["f", "d", bf16]


def attributes(image: tuple, more: dict) -> dict:
    """A gradient as JAX writes it: channels are a batch in groups of one, images are features."""
    rank = len(image) - 2
    spatial = tuple(range(1, 1 + rank))
    at = {
        **{"window_strides": (1,) * rank, "padding": (0,) * (2 * rank), "lhs_dilation": (1,) * rank},
        **{"rhs_dilation": (1,) * rank, "window_reversal": (0,) * rank},
        **{"feature_group_count": 1, "batch_group_count": image[-1]},
        **{"input_batch_dimension": rank + 1, "input_feature_dimension": 0, "input_spatial_dimensions": spatial},
        **{"kernel_input_feature_dimension": 0, "kernel_output_feature_dimension": rank + 1},
        **{"kernel_spatial_dimensions": spatial, "output_spatial_dimensions": tuple(range(rank))},
        **{"output_batch_dimension": rank, "output_feature_dimension": rank + 1},
    }
    return at | more


def gradient(image: tuple, from_above: tuple, taps: tuple, more: dict, dtype: str) -> np.ndarray:
    x, y, at = random(image, dtype), random(from_above, dtype), attributes(image, more)
    want = conv_reference(x, y, at)
    assert want.shape == (*taps, 1, image[-1])
    got = call("conv", [x, y], [(want.shape, dtype)], at)[0]
    close(got, want, dtype, max(400, y.size // y.shape[-1]))
    return got


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shapes(number: int, dtype: str) -> None:
    gradient(*SHAPES[number], dtype)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_lesser_processors(isa: str) -> None:
    code = """
from test_conv_depthwise_gradient import SHAPES, TYPES, gradient
for shape in SHAPES:
    for dtype in TYPES:
        gradient(*shape, dtype)
"""
    elsewhere(code, FERRULE_ISA=isa)


def test_bits_do_not_depend_on_threads() -> None:
    code = """
import hashlib
from test_conv_depthwise_gradient import SHAPES, gradient
print(hashlib.sha256(b"".join(gradient(*shape, "f").tobytes() for shape in SHAPES)).hexdigest())
"""
    assert len({elsewhere(code, FERRULE_NUM_THREADS=threads) for threads in ("1", "3")}) == 1
