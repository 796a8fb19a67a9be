"""Host callbacks on Ferrule: values, order, errors, life time."""

from __future__ import annotations

import gc
import time
import weakref

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jax

pytestmark = pytest.mark.usefixtures("device")


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64", "int4", "float8_e4m3fn"]
)
def test_pure_callback_dtypes(dtype):
    x = jnp.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    y = jax.jit(lambda v: jax.pure_callback(lambda a: np.asarray(a)[::-1], like(v), v))(x)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x)[::-1])
    assert y.dtype == x.dtype


def test_pure_callback_several_results_and_empty():
    def host(a, b):
        return np.asarray(a).sum(dtype=np.float32), np.asarray(b) * 2

    x, y = jnp.arange(3.0), jnp.zeros((0, 4))
    shapes = (jax.ShapeDtypeStruct((), np.float32), like(y))
    total, empty = jax.jit(lambda a, b: jax.pure_callback(host, shapes, a, b))(x, y)
    assert float(total) == 3.0 and empty.shape == (0, 4)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap(method):
    def row(v):
        return jax.pure_callback(lambda a: np.sin(a), like(v), v, vmap_method=method)

    x = jnp.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(jax.jit(jax.vmap(row))(x), np.sin(x), rtol=1e-6)


def test_in_loops_and_branches():
    calls = []

    def host(a):
        calls.append(int(a))
        return np.asarray(a) + 1

    def body(i, c):
        return jax.lax.cond(i % 2 == 0, lambda v: jax.pure_callback(host, like(v), v), lambda v: v * 10, c)

    assert int(jax.jit(lambda v: jax.lax.fori_loop(0, 4, body, v))(jnp.int32(1))) == 210
    assert calls == [1, 20]


def test_ordered_io():
    seen = []

    def step(x):
        for i in range(5):
            io_callback(lambda v, i=i: seen.append((i, float(v))), None, x, ordered=True)
        return x + 1

    f = jax.jit(step)
    f(f(jnp.float32(0)))
    jax.effects_barrier()
    assert seen == [(i, v) for v in (0.0, 1.0) for i in range(5)]


def test_io_callback_result():
    counter = iter(range(100))
    f = jax.jit(lambda: io_callback(lambda: np.int32(next(counter)), jax.ShapeDtypeStruct((), np.int32)))
    assert [int(f()), int(f()), int(f())] == [0, 1, 2]


@pytest.mark.parametrize("ordered", [False, True])
def test_debug_print(capsys, ordered):
    def f(x):
        jax.debug.print("x = {x} at {where}", x=x, where="here", ordered=ordered)
        return x * 2

    jax.jit(f)(jnp.arange(3)).block_until_ready()
    jax.effects_barrier()
    assert capsys.readouterr().out == "x = [0 1 2] at here\n"


def test_debug_callback_under_transformations():
    seen = []

    def f(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x**2

    jax.jit(jax.grad(f))(3.0)
    jax.jit(jax.vmap(f))(jnp.arange(3.0))
    jax.jit(jax.grad(jax.checkpoint(f)))(5.0)
    jax.effects_barrier()
    assert seen[0] == 3.0 and sorted(seen[1:4]) == [0.0, 1.0, 2.0] and 5.0 in seen[4:]


def test_error_reaches_the_user_and_the_next_call_works():
    fails = True

    def host(a):
        if fails:
            raise ValueError("no such luck")
        return np.asarray(a)

    f = jax.jit(lambda v: jax.pure_callback(host, like(v), v) + 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such luck"):
        f(jnp.ones(3)).block_until_ready()
    fails = False
    np.testing.assert_array_equal(f(jnp.ones(3)), 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda a: np.zeros(7, np.float32), "Incorrect output shape for return value #0"),
        (lambda a: np.zeros(3, np.int16), "Incorrect output dtype for return value #0"),
    ],
)
def test_wrong_result(wrong, words):
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        jax.jit(lambda v: jax.pure_callback(wrong, like(v), v))(jnp.ones(3)).block_until_ready()


def test_function_lives_until_the_program_has_run():
    # The executable is dropped while the program may still run.
    for i in range(20):
        y = jax.jit(lambda v, i=i: jax.pure_callback(lambda a: np.asarray(a) + i, like(v), v))(jnp.ones(1000))
        np.testing.assert_array_equal(y, 1 + i)


def test_function_is_freed_with_the_executable():
    def use():
        def host(a):
            return np.asarray(a)

        jax.jit(lambda v: jax.pure_callback(host, like(v), v))(jnp.ones(3)).block_until_ready()
        return weakref.ref(host)

    gone = use()
    jax.clear_caches()
    gc.collect()
    for _ in range(200):  # the thread that ran the program may hold it a moment longer than the result waits
        if gone() is None:
            break
        time.sleep(0.05)
    assert gone() is None


def test_cannot_be_saved():
    from jax.experimental import serialize_executable

    compiled = jax.jit(lambda v: jax.pure_callback(np.negative, like(v), v)).lower(jnp.ones(3)).compile()
    with pytest.raises(Exception, match="cannot be saved"):
        serialize_executable.serialize(compiled)


def test_the_address_of_a_pending_result_does_not_block_its_callback():
    # JAX asks for the address with the GIL held, and the callback needs the GIL.
    f = jax.jit(lambda x: jax.pure_callback(lambda v: v + 1, jax.ShapeDtypeStruct((4,), jnp.float32), x))
    y = f(jnp.ones(4))
    assert y.unsafe_buffer_pointer()
    np.testing.assert_array_equal(y, 2 * np.ones(4))


def test_a_failed_ordered_callback_does_not_fail_the_next_one():
    """Its error was on the token that JAX hands to every later ordered callback of the process."""
    seen = []

    def host(x):
        if x < 0:
            raise ValueError("negative")
        seen.append(float(x))

    f = jax.jit(lambda x: io_callback(host, None, x, ordered=True))
    f(1.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="negative"):
        f(-1.0)
        jax.effects_barrier()
    f(2.0)
    jax.effects_barrier()
    assert seen == [1.0, 2.0]


THREADS = """
import signal, threading
from concurrent.futures import ThreadPoolExecutor
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback

signal.alarm(100)
barrier = threading.Barrier(3)

def inner(x):
    io_callback(lambda: (barrier.wait(60), None)[1], None)
    return (x * 2).sum()

# Compiled before: threads that call one jitted function for the first time wait for each other in JAX.
inner = jax.jit(inner).lower(np.zeros(1000, np.float32)).compile()

def host(x):
    with ThreadPoolExecutor(3) as pool:
        return np.float32(sum(map(float, pool.map(inner, [np.full(1000, x, np.float32)] * 3))))

outer = jax.jit(lambda x: io_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x))
print(outer(1.0), outer(outer(0.5)))
"""


def test_a_callback_runs_programs_in_other_threads(python):
    """They waited in the device's queue for the program that waited for them."""
    start = "import ferrule; ferrule.register_jax()\n"
    done = python(start + THREADS, JAX_PLATFORMS="ferrule,cpu")
    assert done.stdout.split() == ["6000.0", "1.8e+07"], done.stderr
