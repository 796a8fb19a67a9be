"""Dimensions that a scatter's windows cover whole become one, where they lie beside each other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

from ferrule.ir import Block
from ferrule.ir.verifier import verify
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block
from jax import lax

R = np.random.default_rng(8)
X = R.standard_normal((2, 3, 4, 5, 6)).astype(np.float32)


def one_scatter(function, *args: np.ndarray) -> tuple[int, ...]:
    """The shape of the only scatter's target in the simplified graph, whose results are those of the plain one."""
    plain = graph(function, *args)
    wanted = evaluate_block(plain, [*args])
    after: Block = simplify(plain)
    verify(after, "simplify")
    for got, want in zip(evaluate_block(after, [*args]), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    (found,) = [op for op in after.walk() if op.name == "scatter"]
    return found.operands[0].shape


CASES = {
    "front": (lambda x: x.at[1, 2].multiply(-1), (2, 3, 120)),
    "middle": (lambda x: x.at[:, 1].set(x[:, 0]), (2, 3, 120)),
    "two runs": (lambda x: x.at[:, :, 3].add(2 * x[:, :, 1]), (6, 4, 30)),
    "back": (lambda x: x.at[..., 4].min(x[..., 0]), (120, 6)),
    "parts": (lambda x: x.at[:, :, :, 1:3].add(x[:, :, :, 2:4]), (24, 5, 6)),
    "many places": (lambda x: x.at[:, jnp.array([2, 0, 2])].add(x), (2, 3, 120)),
    "outside": (lambda x: x.at[:, jnp.array([2, 7, -9])].add(x, mode="drop"), (2, 3, 120)),
}


@pytest.mark.parametrize("case", CASES)
def test_joined(case: str) -> None:
    function, shape = CASES[case]
    assert one_scatter(function, X) == shape


def test_turned_updates() -> None:
    """Windows in whose updates other dimensions stand between: those stay apart. And batches of scatters."""
    for window, inserted, shape in (((0, 2), (0,), (3, 4, 5)), ((1, 2), (0,), (3, 20))):
        dims = lax.ScatterDimensionNumbers(window, inserted, (0,))
        update = np.moveaxis(R.standard_normal((2, 4, 5)), 0, 3 - sum(window)).astype(np.float32)
        place = np.array([[2], [0]], np.int32)
        assert (
            one_scatter(lambda x, i, u, d=dims: lax.scatter_add(x, i, u, d), X[0, :, :, :, 0], place, update) == shape
        )
    dims = lax.ScatterDimensionNumbers((1, 2), (1,), (1,), (0,), (0,))
    update = R.standard_normal((2, 4, 5)).astype(np.float32)
    place = np.array([[2], [0]], np.int32)
    assert one_scatter(lambda x, i, u: lax.scatter_add(x, i, u, dims), X[..., 0], place, update) == (2, 3, 20)
