"""Sorts and running totals that devices do in steps mean what the ops mean."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

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


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin])
def test_running_totals(function, reverse):
    x = np.random.default_rng(3).uniform(0.5, 1.5, (3, 301)).astype(np.float32)
    numpy = {"cumsum": np.cumsum, "cumprod": np.cumprod}.get(function.__name__)
    numpy = numpy or (np.maximum if function is lax.cummax else np.minimum).accumulate
    block = match(simplify(graph(lambda x: function(x, axis=1, reverse=reverse), x)), GPU)
    assert "map" in names(block) and "reduce_window" not in names(block)
    (found,) = evaluate_block(block, [x])
    line = x.astype(np.float64)[:, :: -1 if reverse else 1]
    np.testing.assert_allclose(found, numpy(line, axis=1)[:, :: -1 if reverse else 1], rtol=1e-5)


def test_narrow_sums_are_rounded_once():
    x = np.ones(4096, jnp.bfloat16)
    (found,) = evaluate_block(match(simplify(graph(lambda x: lax.cumsum(x), x)), GPU), [x])
    assert found[-1] == 4096 and found[300] == np.asarray(301, jnp.bfloat16)
