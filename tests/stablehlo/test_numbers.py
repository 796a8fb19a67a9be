"""What was read means what JAX meant: each op's NumPy meaning, run over the graph, gives XLA's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import lower, programs
from test_importer import evaluate

import jax
from ferrule.stablehlo import load

# These call LAPACK or Python, which the NumPy meaning has not.
PROGRAMS = [p for p in programs() if p[0] not in ("linalg", "callback")]


@pytest.mark.parametrize("name, f, args", PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_same_numbers_as_xla(name: str, f: Any, args: Any) -> None:
    rng = np.random.default_rng(0)
    if name == "random":
        inputs = [np.asarray(jax.random.key_data(args[0]))]
    else:
        args = tuple(a if a.dtype.kind in "iuV" else (a * rng.uniform(0.1, 0.9, a.shape)).astype(a.dtype) for a in args)
        inputs = list(args)
    found = evaluate(load(lower(f, *args)).main.body, inputs)
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(f)(*args))]
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
    for a, b in zip(found, expected, strict=True):
        tolerance = 2e-2 if b.dtype.itemsize <= 2 else 1e-4
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance)
