"""jit over sharded arrays: any program gives what it gives on one device, in the shardings that were asked for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from meshes import COUNT, P, X, Y, grid, line, numbers, put

import jax
from jax import lax

A = numbers(4 * COUNT, 2 * COUNT)
SPECS = [(), ("x",), ("y",), (None, "x"), ("x", "y"), ("y", "x"), (("x", "y"),), (("y", "x"), None), (None, ("x", "y"))]


def on_cpu(f: Any, *arguments: Any) -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(np.asarray, jax.jit(f)(*arguments))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("out", SPECS, ids=str)
def test_resharding(spec: Any, out: Any) -> None:
    result = jax.jit(lambda a: a, out_shardings=NamedSharding(grid(), P(*out)))(put(A, grid(), *spec))
    assert result.sharding.is_equivalent_to(NamedSharding(grid(), P(*out)), 2)
    np.testing.assert_array_equal(result, A)
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(shard.data, A[shard.index])


PROGRAMS = {
    "matmul": lambda a: a @ a.T,
    "softmax": lambda a: jax.nn.softmax(a, axis=0),
    "argmax": lambda a: jnp.argmax(a, axis=0),
    "sort": lambda a: jnp.sort(a, axis=0),
    "cumsum": lambda a: jnp.cumsum(a, axis=0),
    "elementwise": lambda a: jnp.where(a > 0, jnp.exp(a) + 1, -a) * 2,
    "roll": lambda a: jnp.roll(a, 3, axis=0),
    "gather": lambda a: a[jnp.array([3, 1, 2])],
    "update": lambda a: a.at[5:9, 2].set(7.0),
    "reshape": lambda a: a.reshape(-1, 4).sum(1),
    "conv": lambda a: lax.conv(a[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"),
    "scan": lambda a: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(a.shape[1]), a),
    "random": lambda a: a + jax.random.normal(jax.random.key(3), a.shape),
    "constrained": lambda a: lax.with_sharding_constraint(a * 2, NamedSharding(grid(), P("y", "x"))) + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("spec", [("x", "y"), (None, "x"), (("y", "x"),)], ids=str)
def test_any_program(name: str, spec: Any) -> None:
    f = PROGRAMS[name]
    if name == "constrained":
        expected: Any = A * 2 + 1
    else:
        expected = on_cpu(f, A)
    result = jax.jit(f)(put(A, grid(), *spec))
    jax.tree.map(lambda r, e: np.testing.assert_allclose(r, e, rtol=2e-4, atol=1e-4), result, expected)


def test_open_outputs() -> None:
    """Elementwise programs keep their operands' sharding; a constraint decides where there is one."""
    a = put(A, grid(), "x", "y")
    assert jax.jit(lambda a: jnp.sin(a) * 2 + 1)(a).sharding.is_equivalent_to(a.sharding, 2)
    other = NamedSharding(grid(), P(None, "x"))
    assert jax.jit(lambda a: lax.with_sharding_constraint(a, other) + 1)(a).sharding.is_equivalent_to(other, 2)


def test_elementwise_programs_move_nothing() -> None:
    a = put(A, grid(), "x", "y")
    cost = jax.jit(lambda a, b: jnp.maximum(a * 2, b) + 1).lower(a, a).compile().cost_analysis()
    assert cost["bytes accessed"] <= 3 * A.nbytes / COUNT


def test_meshes_of_another_order() -> None:
    devices = np.array(jax.devices())[::-1].reshape(Y, X)
    mesh = Mesh(devices, ("a", "b"))
    a = put(A, mesh, "a", "b")
    result = jax.jit(lambda a: (a @ a.T).T, out_shardings=NamedSharding(mesh, P("b")))(a)
    np.testing.assert_allclose(result, A @ A.T, rtol=1e-4, atol=1e-4)
    few = Mesh(np.array(jax.devices())[[2, 1]], ("a",))
    result = jax.jit(lambda a: a + 1)(put(A, few, "a"))
    np.testing.assert_array_equal(result, A + 1)
    assert {s.device.id for s in result.addressable_shards} == {2, 1}


def layer(params: Any, x: Any) -> Any:
    q, k, v = (x @ params[n] for n in "qkv")
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 4 + jnp.where(jnp.tri(x.shape[1]) > 0, 0, -1e9))
    x = x + weights @ v
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(x @ params["up"]) @ params["down"]


def step(params: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        return ((layer(params, x) - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_training_of_a_transformer() -> None:
    """Parameters split along both axes, the batch along x; three steps, with donation."""
    width = 16
    params = {n: numbers(width, width, seed=i) / 4 for i, n in enumerate("qkv")}
    params |= {"up": numbers(width, 4 * width, seed=7) / 4, "down": numbers(4 * width, width, seed=8) / 8}
    x, y = numbers(2 * X, 8, width, seed=9), numbers(2 * X, 8, width, seed=10)
    places = {n: NamedSharding(grid(), P(None, "y") if n != "down" else P("y", None)) for n in params}
    f = jax.jit(step, in_shardings=(places, None, None), out_shardings=(places, None), donate_argnums=0)
    expected, mine = params, jax.tree.map(jax.device_put, params, places)
    for _ in range(3):
        before = mine
        mine, loss = f(mine, put(x, grid(), "x"), put(y, grid(), "x"))
        expected, wanted = on_cpu(step, expected, x, y)
        assert all(v.is_deleted() for v in before.values())
        np.testing.assert_allclose(loss, wanted, rtol=1e-4)
    for name in params:
        assert mine[name].sharding.is_equivalent_to(places[name], 2)
        np.testing.assert_allclose(mine[name], expected[name], rtol=1e-3, atol=1e-4)


def test_donation() -> None:
    a = put(A, grid(), "x", "y") * 2  # computed, as memory of the host's is never overwritten
    places = [s.data.unsafe_buffer_pointer() for s in a.addressable_shards]
    b = jax.jit(lambda a: a + 1, donate_argnums=0)(a)
    assert a.is_deleted()
    np.testing.assert_array_equal(b, A * 2 + 1)
    assert [s.data.unsafe_buffer_pointer() for s in b.addressable_shards] == places


def test_callbacks_run_once() -> None:
    """A program over whole arrays calls back once, whatever the number of devices."""
    calls: list[tuple[int, ...]] = []

    def host(a: Any) -> Any:
        calls.append(a.shape)
        return np.asarray(a) * 2

    kind = jax.ShapeDtypeStruct(A.shape, np.float32)
    result = jax.jit(lambda a: jax.pure_callback(host, kind, a) + 1)(put(A, grid(), "x"))
    np.testing.assert_array_equal(result, A * 2 + 1)
    assert calls == [A.shape]
    shown: list[Any] = []
    f = jax.jit(lambda a: jax.debug.callback(lambda v: shown.append(np.asarray(v)), a.sum()))
    f(put(A, grid(), "x"))
    jax.effects_barrier()
    assert len(shown) == 1


def test_callbacks_of_parts_run_on_every_device() -> None:
    shapes: list[tuple[int, ...]] = []

    def host(a: Any) -> Any:
        shapes.append(a.shape)
        return np.asarray(a) * 2

    def body(a: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct(a.shape, a.dtype), a)

    result = jax.jit(jax.shard_map(body, mesh=line(), in_specs=P("i"), out_specs=P("i")))(A)
    np.testing.assert_array_equal(result, A * 2)
    assert shapes == [(4, 2 * COUNT)] * COUNT


def test_random_numbers_agree() -> None:
    """rng_uniform draws anew on each device; all must go on with the same numbers."""
    draw = jax.jit(lambda: lax.rng_uniform(0.0, 1.0, (COUNT, 8)), out_shardings=NamedSharding(line(), P()))
    shards = [np.asarray(s.data) for s in draw().addressable_shards]
    assert len(shards) == COUNT and all((s == shards[0]).all() for s in shards)
    assert not (np.asarray(draw()) == shards[0]).all()


def test_saved_programs() -> None:
    from jax.experimental import serialize_executable as io

    a = put(A, grid(), "x", "y")
    compiled = jax.jit(lambda a: a @ a.T, out_shardings=NamedSharding(grid(), P("y"))).lower(a).compile()
    again = io.deserialize_and_load(*io.serialize(compiled))
    np.testing.assert_allclose(again(a), A @ A.T, rtol=1e-4, atol=1e-4)
