"""Running totals of few long lines are formed in parts where there are threads for them (passes/parallel_scan.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_passes import graph

from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block
from jax import lax

R = np.random.default_rng(6)


def matched(kind: str, x: np.ndarray, threads: int, axis: int = 0, reverse: bool = False):
    block = simplify(graph(lambda x: getattr(lax, kind)(x, axis=axis, reverse=reverse), x))
    return match(block, replace(host(), threads=threads))


@pytest.mark.parametrize("kind, dtype", [("cumsum", "f4"), ("cumsum", "i4"), ("cummax", "f4"), ("cumprod", "f4")])
@pytest.mark.parametrize("shape, axis", [((1 << 17,), 0), ((2, 100_000), 1), ((131_072, 1), 0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_parts(kind: str, dtype: str, shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    x = (R.standard_normal(shape) * (1e-3 if kind == "cumprod" else 9) + (kind == "cumprod")).astype(dtype)
    block = matched(kind, x, 16, axis, reverse)
    assert [op.name for op in block.ops].count("running_total") == 2
    of = {"cumsum": np.add, "cummax": np.maximum, "cumprod": np.multiply}[kind]
    y = np.flip(x, axis) if reverse else x
    wanted = of.accumulate(y.astype(np.float64), axis)
    wanted = np.flip(wanted, axis) if reverse else wanted
    found = evaluate_block(block, [x])[0]
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-3 if kind == "cumsum" else 0)


@pytest.mark.parametrize(
    "shape, axis, threads",
    [((1 << 17,), 0, 3), ((5, 1 << 17), 1, 16), ((4096,), 0, 16), ((131_071,), 0, 16), ((1 << 16, 8), 0, 16)],
    ids=["few threads", "many lines", "short", "prime", "many columns"],
)
def test_what_stays(shape: tuple[int, ...], axis: int, threads: int) -> None:
    block = matched("cumsum", np.zeros(shape, np.float32), threads, axis)
    assert "running_total" not in [op.name for op in block.ops]
