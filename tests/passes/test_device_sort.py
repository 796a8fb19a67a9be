"""Sorts and running totals that devices do in steps mean what the ops mean."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir import Block, Tensor
from ferrule.ir.types import BY_NUMPY, i32
from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.targets.gpu import find
from ferrule.targets.reference import evaluate_block
from jax import lax

GPU = find("xpu:kind=gpu,units=64")


def names(block):
    return {op.name for op in block.walk()}


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (64,), (100,), (5, 33), (0,), (7, 2)])
@pytest.mark.parametrize("dimension", [0, -1])
def test_sort_is_stable_with_two_operands(shape, dimension):
    keys = (np.random.default_rng(1).integers(0, 9, shape)).astype(np.int32)
    places = np.arange(keys.size, dtype=np.int32).reshape(shape)
    block = graph(lambda k, p: lax.sort((k, p), dimension=dimension, num_keys=1), keys, places)
    matched = match(block, GPU)
    assert not names(matched) & {"sort", "library"}
    order = np.argsort(keys, axis=dimension, kind="stable")
    for found, array in zip(evaluate_block(matched, [keys, places]), (keys, places), strict=True):
        np.testing.assert_array_equal(found, np.take_along_axis(array, order, dimension))


def test_top_k_of_floats_and_integers():
    for x in (np.random.default_rng(2).standard_normal((3, 50)).astype(np.float32), np.arange(40, dtype=np.uint8)):
        block = Block([Tensor(x.shape, BY_NUMPY[x.dtype])])
        shape = (*x.shape[:-1], 4)
        types = [Tensor(shape, BY_NUMPY[x.dtype]), Tensor(shape, i32)]
        block.results = block.add("top_k", block.args, types, {"k": 4}).results
        values, places = evaluate_block(match(block, GPU), [x])
        order = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :4]
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


PROCESSOR = find("xpu:kind=cpu,units=2")
KEYS = [np.int8, np.int32, np.uint16, np.int64, np.float32, np.float64]


@pytest.mark.parametrize("dtype", KEYS, ids=[k.__name__ for k in KEYS])
@pytest.mark.parametrize("falling", [False, True])
def test_long_lines_are_sorted_by_digits(dtype, falling):
    """NaN are last and equal, -0 is 0, and what is equal keeps its order, as in lax.sort."""
    rng = np.random.default_rng(4)
    keys = (rng.standard_normal((2, 2300)) * 50).astype(dtype)
    keys[:, ::7] = keys[:, :1]
    if keys.dtype.kind == "f":
        keys[0, 1:40:4], keys[0, 2:40:4], keys[0, 3:40:4] = np.nan, 0.0, -0.0
        keys[1, 5], keys[1, 6], keys[1, 8] = -np.nan, np.inf, -np.inf
    places = np.broadcast_to(np.arange(2300, dtype=np.int32), keys.shape).copy()
    sign = -1 if falling else 1
    with jax.enable_x64(True):
        block = graph(lambda k, p: lax.sort((k, p), dimension=1, num_keys=1, is_stable=True), keys, places)
    if falling:
        compare = next(op for op in block.walk() if op.name == "compare" and op.attrs["comparison_direction"] == "LT")
        compare.attrs["comparison_direction"] = "GT"
    matched = match(block, PROCESSOR)
    assert "digit_scatter" in names(matched) and not names(matched) & {"sort", "merge_runs"}
    found, order = evaluate_block(matched, [keys, places])
    wide = np.where(np.isnan(keys), np.inf, keys) if keys.dtype.kind == "f" else keys.astype(object)
    last = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(keys.shape, bool)
    for row in range(2):
        line = [(sign * int(last[row, i]), sign * wide[row, i]) for i in range(2300)]
        expected = sorted(range(2300), key=line.__getitem__)
        np.testing.assert_array_equal(order[row], expected)
        np.testing.assert_array_equal(found[row], keys[row][expected])


def test_orders_of_two_operands_and_of_bits():
    """Two keys are merged; floats in the total order are sorted by their bits, -NaN first and -0 before 0."""
    x = np.array([np.nan, 0.0, -0.0, -np.nan, 1.0, -np.inf] * 400, np.float32)
    two = match(graph(lambda a, b: lax.sort((a, b), num_keys=2), x, x), PROCESSOR)
    assert "merge_runs" in names(two) and "digit_scatter" not in names(two)
    block = Block([Tensor(x.shape, BY_NUMPY[x.dtype])])
    types = [Tensor((4,), BY_NUMPY[x.dtype]), Tensor((4,), i32)]
    block.results = block.add("top_k", block.args, types, {"k": 4}).results
    matched = match(block, PROCESSOR)
    assert "digit_scatter" in names(matched)
    np.testing.assert_array_equal(evaluate_block(matched, [x])[1], [0, 6, 12, 18])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin])
def test_running_totals(function, reverse):
    x = np.random.default_rng(3).uniform(0.5, 1.5, (3, 301)).astype(np.float32)
    numpy = {"cumsum": np.cumsum, "cumprod": np.cumprod}.get(function.__name__)
    numpy = numpy or (np.maximum if function is lax.cummax else np.minimum).accumulate
    block = match(simplify(graph(lambda x: function(x, axis=1, reverse=reverse), x)), GPU)
    assert "running_total" in names(block) and "reduce_window" not in names(block)
    (found,) = evaluate_block(block, [x])
    line = x.astype(np.float64)[:, :: -1 if reverse else 1]
    np.testing.assert_allclose(found, numpy(line, axis=1)[:, :: -1 if reverse else 1], rtol=1e-5)


def test_narrow_sums_are_rounded_once():
    x = np.ones(4096, jnp.bfloat16)
    (found,) = evaluate_block(match(simplify(graph(lambda x: lax.cumsum(x), x)), GPU), [x])
    assert found[-1] == 4096 and found[300] == np.asarray(301, jnp.bfloat16)
