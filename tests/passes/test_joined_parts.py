"""Arrays joined of joined arrays: the parts of the parts are written to their places."""

from __future__ import annotations

import numpy as np
import pytest
from test_paddings import with_anything

from ferrule.ir import Block, Tensor, Value, rewrite
from ferrule.ir.types import DTYPES
from ferrule.passes.expand import MOST_PARTS, expand
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block


def join(block: Block, parts: list[Value], dim: int) -> Value:
    shape = list(parts[0].shape)
    shape[dim] = sum(v.shape[dim] for v in parts)
    return block.add("concatenate", parts, Tensor(tuple(shape), parts[0].dtype), {"dimension": dim}).result


def written(block: Block) -> list[tuple[int, ...]]:
    """The shapes that are written, after a look at the values."""
    rng = np.random.default_rng(0)
    xs = [rng.integers(0, 99, v.shape).astype(v.dtype.numpy) for v in block.args]
    expanded = rewrite(expand(block, host()), with_anything)
    for got, want in zip(evaluate_block(expanded, xs), evaluate_block(block, xs), strict=True):
        np.testing.assert_array_equal(got, want)
    return [tuple(op.operands[1].shape) for op in expanded.ops if op.name == "dynamic_update_slice"]


def arguments(*shapes: tuple[int, ...], dtype: str = "f32") -> Block:
    return Block([Tensor(shape, DTYPES[dtype]) for shape in shapes])


@pytest.mark.parametrize("dtype", ["f32", "i8", "complex<f32>"])
def test_parts_of_parts_are_written(dtype: str) -> None:
    shapes = (2, 400), (9, 400), (3, 400), *[(14, n) for n in (1, 2, 3, 4, 5)]
    block = arguments(*shapes, dtype=dtype)
    a, b, c, left, *right = block.args
    rows = join(block, [join(block, [a, b], 0), c], 0)
    block.results = [join(block, [join(block, [left, rows], 1), *right], 1)]
    assert sorted(written(block)) == sorted(shapes)


def test_parts_of_rows_stay_joined() -> None:
    block = arguments((14, 400), (14, 1), (14, 2))
    rows, left, right = block.args
    block.results = [join(block, [join(block, [left, rows], 1), right], 1)]
    assert written(block) == []
    block = arguments((2, 50, 8), (2, 9, 8), (7, 50, 8), (7, 9, 8))  # rows of 59 x 8
    a, b, c, d = block.args
    block.results = [join(block, [join(block, [a, c], 0), join(block, [b, d], 0)], 1)]
    assert written(block) == [] and Tensor((9, 472), DTYPES["f32"]) in [
        op.result.type for op in expand(block, host()).ops
    ]


def test_short_runs_stay_one_loop() -> None:
    """Two parts of two columns each would be written in steps of 8 bytes."""
    block = arguments(*[(999, 2)] * 2, (999, 4))
    pairs = join(block, block.args[:2], 1)
    block.results = [join(block, [pairs, block.args[2]], 0)]
    assert written(block) == [(999, 4), (999, 4)]


def test_too_many_parts_of_parts() -> None:
    """Then the parts are written, each by a loop of its own."""
    count = MOST_PARTS // 2
    block = arguments(*[(1, 64)] * (3 * count))
    block.results = [join(block, [join(block, block.args[i : i + 3], 0) for i in range(0, 3 * count, 3)], 0)]
    assert written(block) == [(3, 64)] * count


def test_what_others_read_is_computed_once() -> None:
    """In the shape it has: only what is moved gets its rows in one dimension."""
    block = arguments((7, 50, 8), (7, 9, 8))
    x, y = block.args
    shared = block.add("exponential", [x], x.type, {}).result
    whole = join(block, [shared, y], 1)
    cut = {"start_indices": (0, 3, 0), "limit_indices": (7, 12, 8), "strides": (1, 1, 1)}
    moved = block.add("negate", [block.add("slice", [x], y.type, cut).result], y.type, {}).result
    block.results = [shared, whole, join(block, [moved, y], 1)]
    ops = expand(block, host()).ops
    assert [op.result.shape for op in ops if op.name == "exponential"] == [(7, 50, 8)]
    assert [op.result.shape for op in ops if op.name == "negate"] == [(7, 72)]
