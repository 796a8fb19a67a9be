"""What loops carry: nothing useless, and updated in place where the order allows it."""

from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np
import pytest
from simulate import simulate
from test_passes import graph, normal

from ferrule.ir.verifier import verify
from ferrule.passes.allocate import allocate
from ferrule.passes.carries import drop_carries, late_carries
from ferrule.passes.count import count
from ferrule.passes.fuse import fuse
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block
from jax import lax


def rows(x):
    def body(i, x):
        row = lax.dynamic_slice(x, (i - 1, 0), (1, x.shape[1]))
        return lax.dynamic_update_slice(x, row * 0.5 + 1, (i, 0))

    return lax.fori_loop(1, 7, body, x)


def summed(xs):
    return lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(xs.shape[1]), xs)


def swapped(x):
    return lax.fori_loop(0, 5, lambda i, c: (c[1] * 2, c[0] + i, c[2]), (x, x + 1, x * 3))


def unread(x):
    """One carry feeds another that nobody reads; one loop within another."""

    def inner(i, c):
        return c[0] * 0.5 + i, c[1] + c[2], c[2] + 1

    def outer(i, c):
        return lax.fori_loop(0, 3, inner, c)

    return lax.fori_loop(0, 4, outer, (x, x, x))[0]


def until(x):
    """The condition reads a carry that nobody else reads; another one is of no use."""
    return lax.while_loop(
        lambda c: c[1] < 40, lambda c: (c[0] + 1, c[1] * 2 + c[0][0, 0], c[2] - 1), (x, jnp.float32(1), x)
    )[0]


def escaping(x):
    """Each element until it is large, and how often: what a while_loop under vmap becomes."""

    def step(c):
        going = (abs(c[0]) < 100) & (c[1] < 30)
        return jnp.where(going, c[0] * c[0] + x, c[0]), jnp.where(going, c[1] + 1, c[1])

    return lax.while_loop(
        lambda c: ((abs(c[0]) < 100) & (c[1] < 30)).any(), step, (x * 0, jnp.zeros(x.shape, jnp.int32))
    )


def each_the_next(x):
    """Three carries, of which each is made of the next; the second is read beside its own place as well."""

    def step(i, c):
        return c[0] + c[1] * 0.5, c[1] - c[2] * 0.25, c[2] + c[0] + jnp.roll(c[1], 1)

    return lax.fori_loop(0, 5, step, (x, x + 1, x * 2))


@pytest.mark.parametrize(
    ("function", "carried", "copies"),
    [
        (escaping, 2, 0),
        (each_the_next, 3, 2),
        (swapped, 3, 0),
        (rows, 2, 0),
        (summed, 3, 0),
        (unread, None, 1),
        (until, 2, 0),
    ],
)
def test_carries(function, carried, copies):
    x = normal(7, 5)
    block = count(simplify(graph(function, x)))
    want = evaluate_block(block, [x])
    slim = drop_carries(block)
    verify(slim, "carries")
    loops = [op for op in slim.walk() if op.name == "while"]
    if carried is not None:
        assert [len(op.operands) for op in loops] == [carried]
    for a, b in zip(evaluate_block(slim, [x]), want, strict=True):
        np.testing.assert_array_equal(a, b)
    fused = late_carries(fuse(slim))
    verify(fused, "order")
    plan = allocate(fused, [-1])
    bodies = [op.regions[1] for op in fused.walk() if op.name == "while"]
    assert sum(len(plan.at_end.get(body, ())) for body in bodies) <= copies
    for got, wanted in zip(simulate(fused, plan, [x], [-1], False), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_counter_goes_with_its_loop_counted():
    block = drop_carries(count(simplify(graph(unread, normal(7, 5)))))
    assert max(len(op.operands) for op in block.walk() if op.name == "while") == 2  # the inner one's number, and x


def test_loops_in_each_other_take_no_longer_than_their_ops():
    """Each carry of each of them was asked for anew by each carry around it: hours; NUTS took 6 s of that."""

    def nest(depth, xs):
        def body(i, xs):
            xs = [a + b * 0.5 for a, b in zip(xs, [*xs[1:-1], xs[0]], strict=False)] + [xs[-1] + i]
            return nest(depth - 1, xs) if depth else xs

        return lax.while_loop(lambda c: c[0] < c[1][0], lambda c: (c[0] + 1, body(c[0], c[1])), (0.0, xs))[1]

    block = simplify(graph(lambda x: nest(5, [x + i for i in range(8)])[0], jnp.float32(3)))
    begin = time.perf_counter()
    slim = drop_carries(block)
    assert time.perf_counter() - begin < 10
    loops = [op for op in slim.walk() if op.name == "while"]
    assert [len(op.results) for op in loops] == [8] * 6
