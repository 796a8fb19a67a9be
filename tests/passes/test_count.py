"""Loops whose iterations can be counted, and those that cannot."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

from ferrule.ir import Block, Tensor
from ferrule.ir.types import BY_NUMPY, i1
from ferrule.passes.count import count, trips_of
from ferrule.passes.simplify import simplify
from jax import lax


def loop(dtype, start, step, limit, direction, flipped=False, op="add"):
    """`for (i = start; i <direction> limit; i += step)`."""
    type = Tensor((), BY_NUMPY[np.dtype(dtype)])

    def number(block, value):
        return block.add("constant", [], type, {"value": np.array(value, dtype)}).result

    cond, body, out = Block([type]), Block([type]), Block([])
    pair = [cond.args[0], number(cond, limit)]
    attrs = {"comparison_direction": direction, "compare_type": "SIGNED"}
    cond.results = [cond.add("compare", pair[::-1] if flipped else pair, Tensor((), i1), attrs).result]
    body.results = [body.add(op, [body.args[0], number(body, step)], type).result]
    return out.add("while", [number(out, start)], type, {}, [cond, body])


@pytest.mark.parametrize(
    ("trips", "what"),
    [
        (10, (np.int32, 0, 1, 10, "LT")),
        (11, (np.int32, 0, 1, 10, "LE")),
        (4, (np.int64, 0, 3, 10, "LT")),
        (3, (np.int32, 0, 3, 9, "LT")),
        (0, (np.int32, 5, 1, 5, "LT")),
        (0, (np.int32, 7, 1, 5, "LT")),
        (5, (np.int32, 5, -1, 0, "GT")),
        (6, (np.int32, 5, -1, 0, "GE")),
        (3, (np.int32, 5, -2, 0, "GT")),
        (5, (np.uint8, 250, 1, 255, "LT")),
        (None, (np.uint8, 250, 1, 255, "LE")),  # wraps around: for ever
        (None, (np.int8, 100, 20, 125, "LT")),  # wraps around and goes on
        (None, (np.int32, 0, -1, 10, "LT")),
        (0, (np.int32, 10, -1, 10, "LT")),
        (4, (np.int32, 0, 2, 8, "NE")),
        (None, (np.int32, 0, 3, 8, "NE")),
        (None, (np.int32, 0, 1, 3, "EQ")),
        (10, (np.int32, 10, 1, 0, "LT", True, "subtract")),  # 0 < i, i -= 1
        (None, (np.int32, 0, 0, 10, "LT")),
        (None, (np.int32, 1, 2, 10, "LT", False, "multiply")),
    ],
)
def test_trips(trips, what):
    assert trips_of(loop(*what)) == trips


def test_the_loops_of_jax_are_counted():
    x = np.ones((7, 3), np.float32)
    for f, trips in (
        (lambda x: lax.fori_loop(2, 12, lambda i, c: c * 0.5 + i, x), {10}),
        (lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(3), x), {7}),
        (lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(3), x, reverse=True), {7}),
        (lambda x: lax.while_loop(lambda c: jnp.sum(c) < 100.0, lambda c: c * 2, x), {None}),
    ):
        block = count(simplify(graph(f, x)))
        assert {op.attrs.get("trips") for op in block.walk() if op.name == "while"} == trips
