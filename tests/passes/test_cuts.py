"""Slices of concatenations; the largest elements when they are many."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

from ferrule.ir import Block, Tensor
from ferrule.ir.types import f32, i32
from ferrule.passes.match import SORTED_FROM, match
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block


@pytest.mark.parametrize("cut", [(0, 3), (3, 8), (4, 7), (8, 9), (2, 4), (0, 9), (3, 3)])
def test_a_slice_of_one_part(cut):
    def f(a, b, c):
        return jnp.concatenate([a * 2, jnp.sin(b), c], 1)[:, cut[0] : cut[1] : 2]

    args = [np.random.RandomState(i).randn(2, n).astype(np.float32) for i, n in enumerate((3, 5, 1))]
    block = graph(f, *args)
    simple = simplify(block)
    names = [op.name for op in simple.ops]
    within = any(a <= cut[0] < cut[1] <= b for a, b in ((0, 3), (3, 8), (8, 9)))
    assert ("concatenate" in names) == (not within and cut[0] < cut[1])
    assert ("sine" in names) == (cut[0] < 8 and cut[1] > 3 and cut[0] < cut[1])
    np.testing.assert_array_equal(evaluate_block(simple, args)[0], evaluate_block(block, args)[0])


def largest(shape, k):
    block = Block([Tensor(shape, f32)])
    types = [Tensor((*shape[:-1], k), f32), Tensor((*shape[:-1], k), i32)]
    block.results = block.add("top_k", block.args, types, {"k": k}).results
    return block


@pytest.mark.parametrize("k", [SORTED_FROM // 8 - 1, SORTED_FROM // 8, SORTED_FROM])
def test_many_of_a_row_are_taken_from_the_sorted_row(k):
    calls = [op for op in match(largest((3, SORTED_FROM), k), host()).ops if op.name == "library"]
    assert [op.attrs["target"] for op in calls] == ["topk" if k < SORTED_FROM // 8 else "sort"]


def test_what_is_cut_off_is_not_computed():
    """`argpartition(x, k)[:k]` is a concatenation of the smallest and of all others, which nobody reads."""
    block = largest((1 << 12,), 100)
    rest = block.add("top_k", [block.args[0]], [Tensor((4000,), f32), Tensor((4000,), i32)], {"k": 4000}).results[1]
    both = block.add("concatenate", [block.results[1], rest], [Tensor((4100,), i32)], {"dimension": 0}).result
    cut = {"start_indices": (0,), "limit_indices": (100,), "strides": (1,)}
    block.results = [block.add("slice", [both], [Tensor((100,), i32)], cut).result]
    assert [op.name for op in simplify(block).ops] == ["top_k"]
