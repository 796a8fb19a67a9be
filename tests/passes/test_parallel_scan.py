"""Running totals of few long lines are formed in parts where there are threads for them (passes/parallel_scan.py)."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.codegen.kernel import Kernel, emit_kernel
from ferrule.passes.fuse import fuse
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
@pytest.mark.parametrize(
    "shape, axis", [((1 << 17,), 0), ((131_071,), 0), ((2, 100_003), 1), ((131_072, 1), 0), ((50_021, 3), 0)]
)
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
    [((1 << 17,), 0, 1), ((9, 1 << 17), 1, 16), ((32_767,), 0, 16), ((1 << 16, 9), 0, 16)],
    ids=["one thread", "many lines", "short", "many columns"],
)
def test_what_stays(shape: tuple[int, ...], axis: int, threads: int) -> None:
    block = matched("cumsum", np.zeros(shape, np.float32), threads, axis)
    assert "running_total" not in [op.name for op in block.ops]


def last_that_is_not_zero(a, b):
    """Of many steps; associative, but not commutative."""
    return jnp.where(jnp.tanh(jnp.sin(b)) == b - b, a, b)


def filled(x, axis: int, reverse: bool):
    n, rank = x.shape[axis], x.ndim
    window, reach = [1] * rank, [(0, 0)] * rank
    window[axis], reach[axis] = n, (0, n - 1) if reverse else (n - 1, 0)
    return lax.reduce_window(x, np.zeros((), x.dtype), last_that_is_not_zero, window, (1,) * rank, reach)


# Shapes, threads, and in how many strips each line is.
STRIPS = {
    "one line": ((2000,), 2, 61),
    "padded": ((1031,), 1, 32),
    "few lines": ((3, 500), 2, 15),
    "many lines": ((300, 40), 2, 1),
    "short lines": ((30, 9), 2, 1),
    "columns of one": ((2, 640, 1), 1, 20),
}


def expected(x: np.ndarray, axis: int, reverse: bool, log: bool) -> np.ndarray:
    """In f64 and in the order of the elements. (XLA:CPU exchanges both sides in long forward windows.)"""
    x = np.flip(x.astype("d"), axis) if reverse else x.astype("d")
    if log:
        found = np.logaddexp.accumulate(x, axis)
    else:
        found = np.moveaxis(x, axis, 0).copy()
        for i in range(1, len(found)):
            earlier, later = (found[i], found[i - 1]) if reverse else (found[i - 1], found[i])
            found[i] = np.where(later == 0, earlier, later)
        found = np.moveaxis(found, 0, axis)
    return np.flip(found, axis) if reverse else found


@pytest.mark.parametrize("name", STRIPS)
@pytest.mark.parametrize("dtype", ["f4", "f8", jnp.bfloat16])
@pytest.mark.parametrize("reverse", [False, True])
def test_strips(name: str, dtype, reverse: bool) -> None:
    """Lanes go along parts of lines where each step takes long."""
    shape, threads, strips = STRIPS[name]
    axis = max(d for d, n in enumerate(shape) if n > 1)
    x = (R.standard_normal(shape) * 3).astype(dtype)
    y = np.where(R.random(shape) < 0.1, x, 0).astype(dtype)
    cases = (lambda x: lax.cumlogsumexp(x, axis, reverse), x, True), (lambda x: filled(x, axis, reverse), y, False)
    with jax.enable_x64(True):
        for f, value, log in cases:
            block = match(simplify(graph(f, value)), replace(host(), threads=threads))
            scans = [op for op in block.ops if op.name == "reduce_window"]
            lines = value.size // shape[axis]
            assert scans[0].operands[0].shape[1:] == (lines, strips) and len(scans) == (2 if strips > 1 else 1)
            tolerance = 0 if not log else 0.1 if dtype == jnp.bfloat16 else 1e-5
            want = expected(value, axis, reverse, log)
            device = jax.devices("ferrule")[0]
            for got in (evaluate_block(block, [value])[0], np.asarray(jax.jit(f)(jax.device_put(value, device)))):
                np.testing.assert_allclose(got.astype("d"), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, axis", [((50,), 0), ((70, 20), 0), ((20, 9, 3), 1)])
def test_order(shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    """What does not commute is done in the order of the elements."""
    x = np.where(R.random(shape) < 0.2, R.standard_normal(shape), 0).astype("f")
    found = jax.jit(lambda x: filled(x, axis, reverse))(jax.device_put(x, jax.devices("ferrule")[0]))
    np.testing.assert_array_equal(found, expected(x, axis, reverse, False).astype("f"))


def test_vectors_side_by_side() -> None:
    """So that an operation need not wait for the one before it; and threads share what costs so much."""
    machine = replace(host(), vector_bytes=32, threads=2)

    def kernel(columns: int) -> Kernel:
        block = simplify(graph(lambda x: lax.cumlogsumexp(x, 0), np.zeros((64, columns), "f")))
        return emit_kernel(fuse(block, machine).ops[-1].regions[0], "k", machine)

    many = kernel(128)
    assert "<32 x float>" in many.text and "<64 x float>" not in many.text
    assert many.grid == 4 and many.grain < 4
    assert "<32 x float>" not in kernel(32).text


@pytest.mark.parametrize("shape", [(100,), (640, 8), (3, 40)], ids=["short", "many columns", "few short lines"])
def test_no_strips(shape: tuple[int, ...]) -> None:
    block = simplify(graph(lambda x: lax.cumlogsumexp(x, 1 if shape == (3, 40) else 0), np.zeros(shape, "f")))
    assert [op.name for op in match(block, replace(host(), threads=2)).ops] == ["constant", "reduce_window"]
