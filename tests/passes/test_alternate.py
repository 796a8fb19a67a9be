"""Loops whose new state cannot lie where the old one does: two or three iterations in one need no copies."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from simulate import simulate
from test_passes import graph, normal

import jax
from ferrule.ir.verifier import verify
from ferrule.passes.allocate import allocate
from ferrule.passes.alternate import alternate
from ferrule.passes.carries import drop_carries, late_carries
from ferrule.passes.count import count
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block
from jax import lax


def around(u):
    return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 1) - 2 * u


def wave(steps):
    def step(state, _):
        u, before = state
        return (2 * u - before + 0.1 * around(u), u), None

    return lambda u: lax.scan(step, (u, u * 0.5), None, length=steps)[0]


def heat(steps):
    return lambda u: lax.fori_loop(0, steps, lambda i, u: u + 0.1 * around(u) + i, u)


def three(steps):
    """A method of two steps back: the places change roles in threes."""

    def step(_, state):
        u, v, w = state
        return u + 0.1 * (around(u) - v + w * 0.5), u, v

    return lambda u: lax.fori_loop(0, steps, step, (u, u + 1, u * 2))


def nested(u):
    return lax.fori_loop(0, 3, lambda i, u: lax.fori_loop(0, 5, lambda j, u: u + around(u) * 0.1, u) * (i + 1), u)


def kept(u):
    """Every state is kept, too."""
    return lax.scan(lambda u, _: (u + 0.1 * around(u), u.sum(0)), u, None, length=6)


def exchanged(u):
    return lax.fori_loop(0, 7, lambda i, c: (c[1] * 2, c[0] + i), (u, u + 1))


def in_place(u):
    return lax.fori_loop(0, 8, lambda i, u: u * 2 + 1, u)


def edges(u):
    """What is changed afterwards lies where the new state does."""

    def step(i, u):
        u = (u + 0.1 * around(u)).at[0].set(1.0)
        return u.at[:, -1].set(u[:, -2])

    return lax.fori_loop(0, 8, step, u)


def short(u):
    return lax.fori_loop(0, 3, lambda i, u: u + around(u), u)


def until(u):
    return lax.while_loop(lambda c: c[0][0, 0] < 1e3, lambda c: (c[0] * 2 + around(c[1]) * 0 + 1, c[0]), (abs(u), u))[0]


# How many iterations become one, and how many copies are left in the loops' bodies.
PROGRAMS = {
    "wave of 10": (wave(10), [2], 0),
    "wave of 11": (wave(11), [2], 0),
    "heat of 4": (heat(4), [2], 0),
    "heat of 9": (heat(9), [2], 0),
    "three of 12": (three(12), [3], 0),
    "three of 13": (three(13), [3], 0),
    "three of 14": (three(14), [3], 0),
    "nested": (nested, [1, 2], 0),
    "kept": (kept, [2], 0),
    "exchanged": (exchanged, [1], 0),
    "edges": (edges, [2], 0),
    "in place": (in_place, [1], 0),
    "short": (short, [1], 1),
    "until": (until, [1], None),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("donate", [False, True])
def test_copies(name, donate):
    function, times, copies = PROGRAMS[name]
    x = normal(256, 260)
    block = drop_carries(count(expand(simplify(graph(function, x)), host())))
    want = evaluate_block(block, [x])
    with jax.default_device(jax.devices("cpu")[0]):
        for a, b in zip(jax.tree.leaves(function(x)), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    fused = late_carries(fuse(block, host()))
    trips = [op.attrs.get("trips", 0) for op in fused.walk() if op.name == "while"]
    fused = alternate(fused)
    verify(fused, "alternate")
    after = [op.attrs.get("trips", 0) for op in fused.walk() if op.name == "while"]
    assert sorted(a // max(b, 1) or 1 for a, b in zip(trips, after, strict=True)) == times
    aliases = [0] if donate else [-1]
    plan = allocate(fused, aliases)
    bodies = [op.regions[1] for op in fused.walk() if op.name == "while"]
    if copies is not None:
        assert sum(len(plan.at_end.get(body, ())) for body in bodies) == copies
    for got, wanted in zip(simulate(fused, plan, [x], aliases, donate), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_small_states_stay():
    block = drop_carries(count(simplify(graph(wave(10), normal(8, 15)))))
    fused = late_carries(fuse(block, host()))
    assert alternate(fused) is fused
