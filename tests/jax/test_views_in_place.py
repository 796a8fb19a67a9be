"""In-place updates of a reshaped array whose other shape is still read: neither overwrites the other."""

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax

X = np.arange(2 * 30 * 7, dtype=np.float32).reshape(2, 30, 7)
U = -np.ones(11, np.float32)
AT = np.array([5, 2, 400], np.int32)


def update(flat, u, at):
    return lax.dynamic_update_slice(flat, u, (at[0],))


def scatter(flat, u, at):
    return flat.at[at].add(u[:3])


def loop(flat, u, at):
    return lax.fori_loop(0, 5, lambda i, c: c.at[i + at[1]].add(c[i] + u[i]), flat)


def loop_of_an_unknown_number(flat, u, at):
    return lax.fori_loop(at[1], at[0], lambda i, c: lax.dynamic_update_slice(c, u, (i,)), flat)


def twice(flat, u, at):
    return scatter(update(flat, u, at), u, at)


def two_shapes(flat, u, at):
    return update(flat, u, at).reshape(60, 7).at[at[1]].set(u[:7]).reshape(-1)


CHANGES = [update, scatter, loop, loop_of_an_unknown_number, twice, two_shapes]


def with_the_other_shape(change):
    def f(x, *more):
        y = x * 2.0
        return change(y.reshape(-1), *more), y

    return f


def with_a_third_shape(change):
    def f(x, *more):
        y = x * 2.0
        return y.reshape(60, 7), change(y.reshape(-1), *more)

    return f


def each_on_its_own(change):
    def f(x, *more):
        y = x * 2.0
        return change(y.reshape(-1), *more), change(y.reshape(60, 7).reshape(-1), *more), y.reshape(7, 60)

    return f


def read_after(change):
    def f(x, *more):
        y = x * 2.0
        changed = change(y.reshape(-1), *more)
        return changed, jnp.flip(y, 0) + changed[7]

    return f


def in_a_loop(change):
    def f(x, *more):
        def body(i, carry):
            y, total = carry
            z = y * 0.5
            return change(z.reshape(-1), *more).reshape(y.shape) + i, total + z

        return lax.fori_loop(0, 3, body, (x, jnp.zeros_like(x)))

    return f


def of_the_argument(change):
    def f(x, *more):
        flat = x.reshape(-1)
        return change(flat, *more), x, flat[::3]

    return f


SHAPES = [with_the_other_shape, with_a_third_shape, each_on_its_own, read_after, in_a_loop, of_the_argument]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_what_is_read_stays(device, shape, change, donate) -> None:
    f = shape(change)
    found = jax.jit(f, donate_argnums=0 if donate else ())(jnp.array(X), U, AT)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = jax.jit(f)(X, U, AT)
    assert found[0].devices() == {device} and expected[0].devices() != {device}
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
