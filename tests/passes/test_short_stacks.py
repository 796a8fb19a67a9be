"""Stacks of stacks with short rows, as rotation matrices are: joined of all their parts at once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.passes.expand import expand
from ferrule.passes.simplify import simplify
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.options import CompileOptions
from ferrule.stablehlo.reader import read
from ferrule.targets.cpu import host

ANGLES = np.random.default_rng(0).standard_normal(3000)


def rotation(a: Any) -> Any:
    c, s = jnp.cos(a), jnp.sin(a)
    return jnp.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def two_by_two(a: Any) -> Any:
    return jnp.stack([jnp.stack([jnp.cos(a), -jnp.sin(a)], -1), jnp.stack([jnp.sin(a), jnp.cos(a)], -1)], -2)


def beside_a_row(a: Any) -> Any:
    return jnp.concatenate([two_by_two(a), jnp.exp(a)[:, None, None] * jnp.ones(2)], 1)


def three_deep(a: Any) -> Any:
    return jnp.stack([two_by_two(a), two_by_two(2 * a)], 1)


def across(a: Any) -> Any:
    """The inner stack has other rows: its parts are not the outer one's."""
    return jnp.stack([jnp.stack([jnp.cos(a[:1500]), jnp.sin(a[:1500])], 0).reshape(-1), jnp.exp(a)], -1)


# The number of parts of each concatenation that is left.
CASES = {
    "rotation": (jax.vmap(rotation), [7]),
    "two by two": (two_by_two, [4]),
    "beside a row": (beside_a_row, [5]),
    "three deep": (three_deep, [8]),
    "across": (across, [2]),  # the inner one is written part by part
}


@pytest.mark.parametrize("name", CASES)
def test_parts(name: str) -> None:
    f, wanted = CASES[name]
    module = jax.jit(f).trace(ANGLES.astype("f")).lower(lowering_platforms=("cpu",))
    module = read(str(module.compiler_ir("stablehlo")).encode(), "mlir")
    graph = simplify(import_module(legalize(module), CompileOptions()).main.body)
    found = [len(op.operands) for op in simplify(expand(graph, host())).walk() if op.name == "concatenate"]
    assert found == wanted


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: str) -> None:
    f = CASES[name][0]
    with jax.enable_x64(dtype == "d"):
        angles = ANGLES.astype(dtype)
        found, wanted = (
            np.asarray(jax.jit(lambda a: f(a))(jax.device_put(angles, device)))
            for device in (jax.devices("ferrule")[0], jax.devices("cpu")[0])
        )
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(
        found, wanted, rtol=1e-5 if dtype == "f" else 1e-14, atol=1e-6 if dtype == "f" else 1e-14
    )
