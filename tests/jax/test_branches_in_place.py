"""Branches that update what they were given do so in its memory (passes/allocate.py), and nowhere else."""

from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax

N = 40


def collect(x, start):
    """As numpyro's MCMC collects its samples."""

    def body(i, carry):
        v, rows = carry
        v = jnp.sin(v) + 1
        return v, lax.cond(i >= start, lambda k: k.at[i - start].set(v), lambda k: k, rows)

    return lax.fori_loop(0, N, body, (x, jnp.zeros((N, x.size))))


def both_update(x, start):
    def body(i, rows):
        return lax.cond(i % 3 < start, lambda k: k.at[i].add(x), lambda k: k.at[0].multiply(2.0), rows)

    return lax.fori_loop(0, N, body, jnp.ones((N, x.size)))


def reads_after_writing(x, start):
    """The branch needs the old content after its update."""

    def body(i, rows):
        return lax.cond(i >= start, lambda k: k.at[i].set(x + i).at[0].set(k[i] + k[0]), lambda k: k, rows)

    return lax.fori_loop(0, N, body, jnp.ones((N, x.size)))


def shows_old_and_new(x, start):
    def body(i, carry):
        rows, old = carry
        return lax.cond(i >= start, lambda k, o: (k.at[i].set(x), k), lambda k, o: (k, o), rows, old)

    return lax.fori_loop(0, N, body, (jnp.ones((N, x.size)), jnp.zeros((N, x.size))))


def swaps(x, start):
    def body(i, carry):
        a, b = carry
        return lax.cond(i % 2 < start, lambda a, b: (b, a.at[i].add(x)), lambda a, b: (a.at[1].add(b[0]), b), a, b)

    return lax.fori_loop(0, N, body, (jnp.ones((N, x.size)), jnp.zeros((N, x.size))))


def used_later(x, start):
    """What the branches go on from is read after them."""

    def body(i, rows):
        new = lax.cond(i >= start, lambda k: k.at[i].set(x), lambda k: k, rows)
        return new + 0.5 * rows.sum(0)

    return lax.fori_loop(0, 5, body, jnp.ones((N, x.size)))


def updated_before_and_after(x, start):
    def body(i, rows):
        rows = rows.at[i].add(x)
        rows = lax.cond(i >= start, lambda k: k.at[i].multiply(3.0), lambda k: k, rows)
        return rows.at[0].add(rows[i])

    return lax.fori_loop(0, N, body, jnp.ones((N, x.size)))


def nested(x, start):
    def body(i, rows):
        def inner(k):
            return lax.cond(i % 2 == 0, lambda k: k.at[i].set(x), lambda k: k.at[i - 1].add(k[0]), k)

        return lax.cond(i >= start, inner, lambda k: k, rows)

    return lax.fori_loop(0, N, body, jnp.ones((N, x.size)))


def many_branches(x, start):
    def body(i, carry):
        a, b = carry
        kinds = [
            lambda a, b: (a, b),
            lambda a, b: (a.at[i].set(x), b),
            lambda a, b: (a, b.at[i].set(a[0])),
            lambda a, b: (a.at[i].set(b[i]), b.at[0].set(a[i])),
            lambda a, b: (a * 2, a),
            lambda a, b: (jnp.zeros_like(a), b.at[i].add(a[i])),
        ]
        return lax.switch((i + start) % len(kinds), kinds, a, b)

    return lax.fori_loop(0, N, body, (jnp.ones((N, x.size)), jnp.zeros((N, x.size))))


def loop_in_a_branch(x, start):
    def body(i, rows):
        def fill(k):
            return lax.fori_loop(0, start, lambda j, k: k.at[j].add(x * i), k)

        return lax.cond(i % 2 == 0, fill, lambda k: k.at[0].set(k[1]), rows)

    return lax.fori_loop(0, N, body, jnp.ones((N, x.size)))


def loop_of_loops(x, start):
    def body(i, rows):
        rows = lax.fori_loop(0, start, lambda j, k: k.at[j].add(k[i] * 0.5), rows)
        return lax.fori_loop(0, start, lambda j, k: k.at[i].add(x), rows)

    return lax.fori_loop(0, 8, body, jnp.ones((N, x.size)))


def views(x, start):
    def body(i, rows):
        flat = rows.reshape(-1)
        new = lax.cond(i >= start, lambda k: k.at[i].set(flat[3]).at[1].set(flat[i]), lambda k: k, flat)
        return new.reshape(rows.shape)

    return lax.fori_loop(0, N, body, jnp.arange(N * x.size, dtype=jnp.float32).reshape(N, x.size))


def no_loop(x, start):
    rows = jnp.outer(jnp.sin(jnp.arange(N, dtype=jnp.float32)), x)
    a = lax.cond(start > 2, lambda k: k.at[1].set(x), lambda k: k, rows)
    b = lax.cond(start > 4, lambda k: k.at[0].set(a[1]), lambda k: k, a)
    return b, lax.cond(start > 6, lambda k: (k.at[2].set(x), b[2]), lambda k: (k, b[3]), b)


def condition_from_the_array(x, start):
    def body(i, rows):
        return lax.cond(rows[0, 0] < start, lambda k: k.at[0].add(1.0), lambda k: k.at[i].set(k[0]), rows)

    return lax.fori_loop(0, N, body, jnp.zeros((N, x.size)))


PROGRAMS = [
    collect, both_update, reads_after_writing, shows_old_and_new, swaps, used_later, updated_before_and_after, nested,
    many_branches, loop_in_a_branch, loop_of_loops, views, no_loop, condition_from_the_array,
]  # fmt: skip


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("program", PROGRAMS, ids=[p.__name__ for p in PROGRAMS])
def test_results(device, program, start):
    x = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    found = jax.tree.leaves(jax.jit(program)(x, start))
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.tree.leaves(jax.jit(program)(x, start))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)


def swap_if(a, b, p):
    return lax.cond(p, lambda a, b: (b, a), lambda a, b: (a, b), a, b)


def update_if(a, b, p):
    return lax.cond(p, lambda a, b: (a.at[0].set(b[1]), b.at[0].set(a[1])), lambda a, b: (a, b), a, b)


def read_then_update(a, b, p):
    return lax.cond(p, lambda a, b: (a.at[0].set(7), a + b), lambda a, b: (b, a), a, b)


@pytest.mark.parametrize("p", [False, True])
@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("program", [swap_if, update_if, read_then_update])
def test_donated(device, program, donated, p):
    a, b = (np.random.default_rng(i).standard_normal((300, 7)).astype(np.float32) for i in range(2))
    found = jax.jit(program, donate_argnums=donated)(jax.device_put(a, device), jax.device_put(b, device), p)
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.jit(program)(a, b, p)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_not_copied():
    """An update of a row in one of two branches takes about as long as one without branches; it took 100 times that."""

    def repeated(branches):
        def body(i, rows):
            if branches:
                return lax.cond(i >= 0, lambda k: k.at[i].set(1.0), lambda k: k, rows)
            return rows.at[i].set(1.0)

        return jax.jit(lambda rows: lax.fori_loop(0, 500, body, rows + 1))

    def best(run, rows):
        run(rows).block_until_ready()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run(rows).block_until_ready()
            times.append(time.perf_counter() - start)
        return min(times)

    rows = jax.device_put(np.zeros((500, 3000), np.float32), jax.devices("ferrule")[0])
    assert best(repeated(True), rows) < 8 * best(repeated(False), rows)
