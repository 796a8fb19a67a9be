"""What goes wrong on one device, or in two threads at once: an error for everybody, and never a hang."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from meshes import COUNT, P, grid, line, numbers, put

import jax
from jax import lax

A = numbers(COUNT, 4)


def still_works() -> None:
    f = jax.jit(jax.shard_map(lambda a: lax.psum(a, "i"), mesh=line(), in_specs=P("i"), out_specs=P()))
    np.testing.assert_allclose(f(A), A.sum(0, keepdims=True), rtol=1e-4, atol=1e-5)


def test_a_callback_fails_on_one_device() -> None:
    def host(i: Any) -> Any:
        if int(i) == 2:
            raise ValueError("the third device has had enough")
        return np.float32(i)

    def body(a: Any) -> Any:
        value = jax.pure_callback(host, jax.ShapeDtypeStruct((), np.float32), lax.axis_index("i"))
        return lax.psum(a * value, "i")

    f = jax.jit(jax.shard_map(body, mesh=line(), in_specs=P("i"), out_specs=P(), check_vma=False))
    with pytest.raises(Exception, match="the third device has had enough"):
        f(A).block_until_ready()
    still_works()


def test_devices_that_never_meet() -> None:
    """Half of the devices sum, the others do not: JAX forbids it, unless told not to look."""

    def body(a: Any) -> Any:
        return lax.cond(lax.axis_index("i") < COUNT // 2, lambda: lax.psum(a, "i"), lambda: a)

    f = jax.jit(jax.shard_map(body, mesh=line(), in_specs=P("i"), out_specs=P("i"), check_vma=False))
    with pytest.raises(Exception, match=r"ABORTED[\s\S]*device 0 in all_reduce[\s\S]*fix: every device"):
        f(A).block_until_ready()
    still_works()


def test_an_array_that_does_not_divide() -> None:
    with pytest.raises(Exception, match="partitioned"):
        put(numbers(COUNT + 1, 4), line(), "i")


def test_threads() -> None:
    """Programs of several threads come to all devices in one order."""
    programs = [
        jax.jit(jax.shard_map(lambda a: lax.psum(a, "i") * 2, mesh=line(), in_specs=P("i"), out_specs=P())),
        jax.jit(jax.shard_map(lambda a: lax.psum(a, ("x", "y")), mesh=grid(), in_specs=P(("x", "y")), out_specs=P())),
        jax.jit(lambda a: a.sum(0, keepdims=True) * 3),
    ]
    wrong: list[Any] = []

    def work(number: int) -> None:
        a = put(A + number, line(), "i")
        for k in range(40):
            which = (k + number) % 3
            expected = (A + number).sum(0, keepdims=True) * (2, 1, 3)[which]
            if not np.allclose(programs[which](a), expected, rtol=1e-4, atol=1e-4):
                wrong.append((number, k))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads) and not wrong


def test_many_runs_in_flight() -> None:
    f = jax.jit(jax.shard_map(lambda a: lax.pmean(a, "i") + a, mesh=line(), in_specs=P("i"), out_specs=P("i")))
    value, expected = put(A, line(), "i"), A
    for _ in range(50):
        value = f(value) / 2
        expected = (expected.mean(0) + expected) / 2
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def test_waits_of_all_devices_at_once() -> None:
    """Every device's thread waits for its own commands at the same time (SYCL's CPU device hung)."""
    f = jax.pmap(lambda x: lax.psum(jnp.sin(x) * 2, "i") + x.sum(), axis_name="i")
    g = jax.pmap(lambda x: (x @ x.T).sum(0) + x[0, 0])
    for k in range(150):
        a = numbers(COUNT, 3, k % 7 + 1, seed=k)
        expected = (np.sin(a) * 2).sum(0) + a.sum((1, 2))[:, None, None]
        np.testing.assert_allclose(f(a), expected, rtol=1e-3, atol=1e-4)
        for _ in range(5):
            f(a)
        g(a)


def test_an_array_on_too_few_devices() -> None:
    one = jax.device_put(jnp.ones(3), jax.devices()[1])
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(lambda a, b: a + b)(put(A[0, :3], line()), one)
