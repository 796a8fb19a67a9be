"""Conversions by way of a type that changes nothing (passes/conversions.py)."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir.types import BY_NUMPY, DTYPES, holds
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block

SMALL = [name for name, d in DTYPES.items() if d.bits <= 8 and not d.is_complex]
TYPES = [*SMALL, "i16", "ui16", "f16", "bf16"]


def every(name: str) -> np.ndarray:
    """All values of a type, each once."""
    d = DTYPES[name]
    if d.kind == "bool":
        return np.array([False, True])
    if d.is_int:
        info = ml_dtypes.iinfo(d.numpy)
        return np.arange(int(info.min), int(info.max) + 1).astype(d.numpy)
    return np.arange(1 << d.bits, dtype=f"u{d.itemsize}").view(d.numpy)


@pytest.mark.parametrize("narrow", TYPES)
def test_what_a_type_holds(narrow: str) -> None:
    """All values come back as they were, or not all do; f8E8M0FNU has neither zeros nor signs to come back to."""
    values = every(narrow)
    for name in ("i8", "ui8", "i16", "ui16", "i32", "ui32", "f16", "bf16", "f32"):
        wide = DTYPES[name]
        if DTYPES[narrow].is_float and wide.is_int:
            assert not holds(wide, DTYPES[narrow])
            continue
        with np.errstate(all="ignore"):
            exact = values.astype(np.float64)
            there = exact.astype(np.int64).astype(wide.numpy) if wide.is_int else values.astype(wide.numpy)
            same = np.array_equal(there.astype(np.float64), exact, equal_nan=True)
        assert holds(wide, DTYPES[narrow]) == same, (name, narrow)


# JAX's CPU has no conversions of the smallest types.
BYTES = [name for name in TYPES if DTYPES[name].bits >= 8]
STARTS = ["int8", "uint8", "bool", "float16", "bfloat16"]


@pytest.mark.parametrize("first, way", list(itertools.product(STARTS, BYTES)))
def test_what_comes_out(first: str, way: str) -> None:
    """One conversion where the type on the way holds all values, two elsewhere; the same values either way."""
    x, stop = every(BY_NUMPY[np.dtype(jnp.dtype(first))].name), DTYPES[way].numpy
    last = "float32"
    block = simplify(graph(lambda x: x.astype(stop).astype(last), x))
    conversions = [op for op in block.ops if op.name == "convert"]
    source = BY_NUMPY[x.dtype]
    direct = stop == x.dtype or (holds(DTYPES[way], source) and (DTYPES[way].is_float or not source.is_float))
    assert len(conversions) == (1 if direct else 2)
    # NumPy has other integers for what is too large; XLA:CPU, told not to optimize, has NaNs of f8 elsewhere.
    with np.errstate(all="ignore"), jax.default_device(jax.devices("cpu")[0]):
        by_numpy = DTYPES[way].is_float
        wanted = x.astype(stop).astype(last) if by_numpy else jax.jit(lambda x: x.astype(stop).astype(last))(x)
        np.testing.assert_array_equal(evaluate_block(block, [x])[0], wanted)
