"""What is put into an array that is needed as it was is joined with what is around it (passes/placed.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.placed import placed
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from jax import lax

X, Y, Z = normal(40, 50), normal(38, 48, seed=1), normal(5, 20, 30)
MOVING = {"scatter", "dynamic_update_slice"}


def names(f: Callable, *args: np.ndarray, donated: Sequence[int] = ()) -> list[str]:
    block = simplify(graph(f, *args))
    kept = [arg for n, arg in enumerate(block.args) if n not in donated]
    return [op.name for op in placed(block, kept).walk()]


def flow(x):
    return x[2:, 1:-1] + x[:-2, 1:-1] - x[1:-1, 2:] * x[1:-1, :-2]


def outer(x):
    """Each iteration needs what an outer value was."""
    s = jnp.sin(x)
    return lax.fori_loop(0, 3, lambda _, u: s.at[:-2, 2:].set(jnp.cos(u)[2:, :-2]), x)


JOINED: dict[str, tuple[Callable, list[np.ndarray]]] = {
    "middle": (lambda x, y: x.at[1:-1, 1:-1].set(y), [X, Y]),
    "of itself": (lambda x: x.at[1:-1, 1:-1].set(flow(x)), [X]),
    "added": (lambda x: x.at[1:-1, 1:-1].add(flow(x)), [X]),
    "multiplied": (lambda x, y: x.at[2:, :48].multiply(y), [X, Y]),
    "maximum": (lambda x, y: x.at[:38, 2:].max(y), [X, Y]),
    "minimum": (lambda x, y: x.at[:38, 1:-1].min(y), [X, Y]),
    "rows": (lambda x: x.at[3:-2].set(jnp.sin(x[5:])), [X]),
    "columns": (lambda x: x.at[:, :-1].add(x[:, 1:]), [X]),
    "of three dimensions": (lambda z: z.at[1:, 2:-1].set(z[:-1, 3:] * 2), [Z]),
    "pixels": (lambda z: z.at[1:-1].set(z[2:] - z[:-2]), [normal(40, 30, 3)]),
    "pixels inside": (lambda z: z.at[1:-1, 2:].add(z[2:, :-2]), [normal(40, 30, 3)]),
    "pixels into zeros": (lambda z: jnp.zeros((42, 33, 3), "f").at[1:-1, 2:-1].set(z), [normal(40, 30, 3)]),
    "integers": (lambda x, y: x.astype(int).at[1:-1, 1:-1].set(x.astype(int)[2:, 2:]), [9 * X, Y]),
    "dynamic_update_slice": (lambda x, y: lax.dynamic_update_slice(x, y, (1, 2)), [X, Y]),
    "moved to fit": (lambda x, y: lax.dynamic_update_slice(x, y, (-3, 20)), [X, Y]),
    "into zeros": (lambda y: jnp.zeros((40, 50), "f").at[1:-1, 1:-1].set(y), [Y]),
    "added to ones": (lambda y: jnp.ones((40, 50), "f").at[2:, :48].add(y), [Y]),
    "one of three rows": (lambda x: x.at[1].set(x[0] - x[2]), [normal(3, 600)]),
    "a column": (lambda x: x.at[:, 1].add(x[:, 0] * 2), [normal(900, 2)]),
    "loop": (lambda x: lax.fori_loop(0, 7, lambda _, u: u.at[1:-1, 1:-1].add(0.1 * flow(u)), x), [X]),
    "of an outer array": (outer, [X]),
}


def expected(f: Callable, args: list[np.ndarray]) -> np.ndarray:
    with jax.default_device(jax.devices("cpu")[0]):
        return np.asarray(f(*map(jnp.asarray, args)))


@pytest.mark.parametrize("name", JOINED)
def test_joined(name: str) -> None:
    f, args = JOINED[name]
    found = names(f, *args)
    assert not MOVING & set(found) and {"concatenate", "pad"} & set(found)
    got = jax.jit(f)(*jax.device_put(args, jax.devices("ferrule")[0]))
    np.testing.assert_allclose(np.asarray(got), expected(f, args), rtol=1e-6, atol=1e-6)


ROWS = lax.ScatterDimensionNumbers((0, 1), (), (0,))
MANY = lax.ScatterDimensionNumbers((1, 2), (), (0,))


@pytest.mark.parametrize("form", ["set", "add"])
def test_all_of_it(form: str) -> None:
    """What replaces all of an array is the result."""
    x = normal(1, 2000)

    def f(x: jax.Array) -> jax.Array:
        return getattr(x.at[0], form)(jnp.sin(x[0]))

    assert not (MOVING | {"concatenate", "pad"}) & set(names(f, x, donated=[0]))
    got = jax.jit(f)(jax.device_put(x, jax.devices("ferrule")[0]))
    np.testing.assert_allclose(np.asarray(got), np.sin(x) + (x if form == "add" else 0), rtol=1e-6, atol=1e-6)


LEFT: dict[str, tuple[Callable, list[np.ndarray], list[int]]] = {
    "donated": (lambda x, y: x.at[1:-1, 1:-1].set(y), [X, Y], [0]),
    "computed": (lambda x, y: jnp.sin(x).at[1:-1, 1:-1].set(y), [X, Y], []),
    "in three dimensions": (lambda z: z.at[1:, 2:-1, 3:].set(z[:-1, 3:, :-3] * 2), [Z], []),
    "small": (lambda x, y: x.at[:3].set(y[:3, :1]), [X, Y], []),
    "less than half of itself": (lambda x, y: x.at[:18].set(x[2:20] * 2), [X, Y], [0]),
    "of few elements": (lambda x, y: x[0].at[1:].set(y[0, 0]), [X, Y], []),
    "one row": (lambda x, y: x.at[3].set(jnp.ones(50)), [X, Y], []),
    "carried": (lambda x, y: lax.fori_loop(0, 7, lambda _, u: u.at[1:-1, 1:-1].set(y), x), [X, Y], [0]),
    "unknown place": (lambda x, y: lax.dynamic_update_slice(x, y, (y[0, 0].astype(int), 0)), [X, Y], []),
    "outside": (lambda x, y: lax.scatter(x, np.int32([5]), x[2:] + 1, ROWS, mode="drop"), [X, Y], []),
    "several": (lambda x, y: lax.scatter(x, np.int32([[0], [9]]), y[:2, None, :1] + x[:9], MANY), [X, Y], []),
    "by a product, in a loop": (
        lambda x, y: lax.fori_loop(0, 3, lambda _, u: u.at[1:].set(jnp.tanh(0.01 * u @ y)[1:]), x),
        [normal(200, 200), normal(200, 200, seed=1)],
        [],
    ),
    "by a product": (lambda x, y: x.at[1:-1, 1:-1].set(x[:38] @ jnp.ones((50, 48))), [X, Y], [0]),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    f, args, donated = LEFT[name]
    found = set(names(f, *args, donated=donated))
    assert MOVING & found and not {"concatenate", "pad"} & found
    got = jax.jit(f)(*jax.device_put(args, jax.devices("ferrule")[0]))
    np.testing.assert_allclose(np.asarray(got), expected(f, args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form, moved", [("set", "dynamic_update_slice"), ("add", "scatter")])
def test_one_part_is_put_into_a_slice(form: str, moved: str) -> None:
    """Where the rest lies where it is to be already."""

    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        return getattr(jnp.sin(x).at[1:-1, 1:-1], form)(y)

    assert MOVING & set(names(f, X, Y)) == {moved}
    got = jax.jit(f)(*jax.device_put([X, Y], jax.devices("ferrule")[0]))
    np.testing.assert_allclose(np.asarray(got), expected(f, [X, Y]), rtol=1e-6, atol=1e-6)


def test_signs_of_zeros() -> None:
    """Zeros are added to as a scatter adds to them; what is put down stays as it is."""
    y = np.full((38, 48), -0.0, np.float32)
    x = jax.device_put(y, jax.devices("ferrule")[0])
    put = jax.jit(lambda y: jnp.zeros((40, 50), "f").at[1:-1, 1:-1].set(y))(x)
    added = jax.jit(lambda y: jnp.zeros((40, 50), "f").at[1:-1, 1:-1].add(y))(x)
    assert np.signbit(np.asarray(put)).sum() == y.size and not np.signbit(np.asarray(added)).any()


def test_one_kernel() -> None:
    """What is computed of all of an array, and put into its middle, is one kernel that writes all of the result."""
    block = simplify(graph(lambda x: x.at[1:-1, 1:-1].set(x[1:-1, 1:-1] + 0.1 * flow(x)), normal(200, 300)))
    block = fuse(expand(placed(block, block.args), host()), host())
    assert [op.name for op in block.ops] == ["fusion"]


def fused(f: Callable, *args: np.ndarray) -> list[int]:
    """How many kernels, and how often each computes an exponential."""
    block = fuse(expand(simplify(graph(f, *args)), host()), host())
    kernels = [op for op in block.ops if op.name == "fusion"]
    return [sum(inner.name == "exponential" for inner in kernel.regions[0].ops) for kernel in kernels]


def test_costly_parts_of_joined_arrays() -> None:
    """They are computed where the array is read, if its rows are long, and nobody else would compute them again."""
    x, y = normal(30, 300), normal(30, 300, seed=1)
    short = normal(300, 20)

    def sides(x):
        return jnp.pad(jnp.exp(x), ((0, 0), (1, 1)))

    assert fused(lambda x, y: x + sides(y[:, 1:-1]), x, y) == [1]
    assert fused(lambda x, y: jnp.concatenate([jnp.exp(x), y], 1) * 2, x, y) == [1]
    assert fused(lambda x: sides(x)[:, 2:] - sides(x)[:, :-2], x) == [1, 0]
    assert fused(lambda x: jnp.concatenate([x[:, 1:], jnp.exp(x[:, :1])], 1) * 2, short) == [1, 0]
