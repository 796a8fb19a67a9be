"""Loops of small kernels are one function; others stay steps."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Case, Launch, Program, While
from jax import lax


def compiled(function, *args: np.ndarray) -> Program:
    from jaxlib.mlir.dialects import stablehlo

    module = (
        jax.jit(function, keep_unused=True).trace(*args).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    )
    return compile_program(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))


def summed(x):
    return lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(x.shape[1], x.dtype), x)


def until(x):
    """The condition is a kernel, too."""

    def body(c):
        x, i = c
        return x.at[i].multiply(0.5), (i + 1) % x.shape[0]

    return lax.while_loop(lambda c: c[0].sum() > 1, body, (x, 0))


def shared(x):
    """A kernel that the loop calls runs outside of it as well."""
    y = x[::-1] * 2
    return lax.fori_loop(0, 50, lambda i, c: (c[1][::-1] * 2, c[0]), (y, x)), y


def branched(x):
    """A branch is part of the function; the index of a switch may be out of range."""

    def body(i, c):
        c = lax.cond(c[0] > c[1], lambda c: c * 0.5, lambda c: c[::-1] + 0.25, c)
        return lax.switch(i % 5 - 1, [lambda c: c, lambda c: c + 1, lambda c: c[::-1] * lax.cond(c[0] > 1, f, g, c)], c)

    f, g = (lambda c: c.sum()), (lambda c: c.max())
    return lax.fori_loop(0, 40, body, x)


def nested(x):
    """Loops in a loop: one that keeps its carries in registers, one of steps, one of unknown length, in a branch."""

    def inner(j, c):
        return c.at[j].set(c.sum() * 0.1)

    def until(c):
        return lax.while_loop(lambda c: c[0].max() > 0.1, lambda c: (c[0][::-1] * 0.5, c[1] + 1), (c, 0))[0]

    def body(i, c):
        c = lax.fori_loop(0, 3, inner, c) + 1
        return lax.cond(c[0] > 1, until, lambda c: c[::-1] * 2, c)

    return lax.fori_loop(0, 20, body, x)


def steps(program: Program, kind: type) -> list:
    return [s for block in program.blocks for s in block if isinstance(s, kind)]


@pytest.mark.parametrize("function", [summed, until, shared, branched, nested], ids=lambda f: f.__name__)
def test_one_function(function):
    x = np.random.RandomState(0).rand(6, 5).astype(np.float32)
    program = compiled(function, x if function is summed else x[0])
    assert not steps(program, While) and not steps(program, Case)
    named = {s.function for s in steps(program, Launch)}
    assert named == set(range(len(program.functions)))  # what only the loop calls is not there a second time


@pytest.mark.parametrize("width", [50_000])
def test_large_bodies_stay(width):
    """Their kernels are spread over threads."""
    program = compiled(summed, np.ones((6, width), np.float32))
    assert len(steps(program, While)) == 1


def test_library_calls_stay():
    def function(w, x):
        return lax.fori_loop(0, 9, lambda i, c: w @ c, x)

    large, small = (compiled(function, np.ones((n, n), np.float32), np.ones(n, np.float32)) for n in (300, 90))
    assert len(steps(large, While)) == 1
    assert not steps(small, While)
