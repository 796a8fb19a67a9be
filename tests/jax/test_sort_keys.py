"""Comparators that look at several keys, or at parts of complex numbers (passes/comparators.py), beside XLA:CPU."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call

N = 3000
RNG = np.random.default_rng(5)
FEW = RNG.integers(0, 20, N).astype("i4")
FEWER = RNG.integers(0, 3, N).astype("u1")
FLOATS = RNG.standard_normal(N).astype("f4").round(1)
FLOATS[::50], FLOATS[::70], FLOATS[::33], FLOATS[::31] = np.nan, -np.nan, -0.0, 0.0
COMPLEX = (FLOATS + 1j * np.roll(FLOATS, 7).round()).astype("c8")

PROGRAMS = {
    "lexsort": (lambda a, b: jnp.lexsort((a, b)), FEW, FEWER),
    "lexsort of three": (lambda *a: jnp.lexsort(a), FEW, FLOATS, FEWER),
    "two keys of three": (lambda *a: jax.lax.sort(a, num_keys=2), FLOATS, FEW, COMPLEX),
    "three keys": (lambda *a: jax.lax.sort(a, num_keys=3), FEWER, FLOATS, FEW),
    "a key twice": (lambda a, b: jax.lax.sort((a, b, a, b), num_keys=3), FEWER, FLOATS),
    "eight keys": (lambda *a: jax.lax.sort(a, num_keys=8), *(RNG.integers(0, 2, 300).astype("i4") for _ in range(9))),
    "columns": (
        lambda a, b: jax.lax.sort((a, b), num_keys=2, dimension=0),
        FLOATS.reshape(30, 100),
        FEW.reshape(30, 100),
    ),
    "complex": (jnp.sort, COMPLEX),
    "complex, descending": (lambda x: jnp.sort(x, descending=True), COMPLEX),
    "positions of complex": (jnp.argsort, COMPLEX),
    "complex as a second key": (lambda a, b: jax.lax.sort((a, b, jnp.arange(N)), num_keys=2), FEWER, COMPLEX),
    "different rows": (
        lambda x: jnp.unique(x, axis=0, size=40),
        np.stack([FEWER, FEWER, RNG.integers(0, 2, N).astype("u1")], 1),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_keys(device, name):
    function, *args = PROGRAMS[name]
    with jax.default_device(jax.devices("cpu")[0]):
        expected = jax.tree.leaves(jax.jit(function)(*args))
    with jax.default_device(device):
        found = jax.tree.leaves(jax.jit(function)(*args))
    for x, y in zip(found, expected, strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("name", ["lexsort", "three keys", "complex", "positions of complex"])
def test_no_code_compares(name):
    function, *args = PROGRAMS[name]
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    calls = [step for block in program.blocks for step in block if isinstance(step, Call)]
    assert calls and all("comparator" not in call.attrs for call in calls)


OTHER = """
module @jit_f {
  func.func public @main(%a: tensor<6xf32>, %b: tensor<6xi32>) -> (tensor<6xf32>, tensor<6xi32>) {
    %0:2 = "stablehlo.sort"(%a, %b) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>, %k: tensor<i32>, %l: tensor<i32>):
      %less = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %same = stablehlo.compare EQ, KEYS : (TYPES) -> tensor<i1>
      %next = stablehlo.compare GT, %k, %l, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %both = stablehlo.and %same, %next : tensor<i1>
      %all = stablehlo.or %less, %both : tensor<i1>
      stablehlo.return %all : tensor<i1>
    }) : (tensor<6xf32>, tensor<6xi32>) -> (tensor<6xf32>, tensor<6xi32>)
    return %0#0, %0#1 : tensor<6xf32>, tensor<6xi32>
  }
}
"""


@pytest.mark.parametrize(
    ("keys", "types", "by_code"),
    [
        ("%x, %y, TOTALORDER", "tensor<f32>, tensor<f32>", False),
        ("%x, %y, FLOAT", "tensor<f32>, tensor<f32>", True),  # -0 equals +0 here, but is less there
        ("%k, %l, SIGNED", "tensor<i32>, tensor<i32>", True),  # of another operand
    ],
)
def test_only_an_order_by_keys_is_one(keys, types, by_code):
    program = compile_program(OTHER.replace("KEYS", keys).replace("TYPES", types).encode())
    calls = [step for block in program.blocks for step in block if isinstance(step, Call)]
    assert any("comparator" in call.attrs for call in calls) == by_code
    assert len(calls) == (1 if by_code else 2)
