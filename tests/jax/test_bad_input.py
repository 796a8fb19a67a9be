"""Bad input as a JAX user meets it: the code, the line, the reason, the way out; and the next call works."""

from __future__ import annotations

import gc
import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import jax

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(autouse=True)
def nothing_is_left(device):
    """After each test the device computes, and holds what it held before."""
    step = jax.jit(lambda v: v * 2)
    np.testing.assert_array_equal(step(jnp.ones(4)), 2 * np.ones(4))
    gc.collect()
    before = device.memory_stats()["bytes_in_use"]
    yield
    np.testing.assert_array_equal(step(jnp.ones(4)), 2 * np.ones(4))
    gc.collect()
    assert device.memory_stats()["bytes_in_use"] == before


def message(code, call):
    """The text of the error that `call` raises; the error, and what its frames hold, is gone afterwards."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call()
    text = str(caught.value)
    del caught
    gc.collect()
    assert text.startswith(code + ":"), text
    return text


def test_unknown_custom_call_names_the_users_line():
    def model(x):
        return jax.ffi.ffi_call("nobody_knows", jax.ShapeDtypeStruct(x.shape, x.dtype))(x) + 1

    line = inspect.getsourcelines(model)[1] + 1
    text = message("NOT_FOUND", lambda: jax.jit(model)(jnp.ones(4)))
    for words in ("'nobody_knows'", f"\n  where: {__file__}:{line}:", "why:", "fix: register"):
        assert words in text


def test_unknown_compile_option():
    f = jax.jit(jnp.sin, compiler_options={"ferrule_dbug": 1})
    text = message("INVALID_ARGUMENT", lambda: f(jnp.ones(4)))
    assert "No such compile option: 'ferrule_dbug'" in text and "did you mean 'ferrule_debug'?" in text


def test_array_too_large():
    text = message("RESOURCE_EXHAUSTED", lambda: jax.jit(lambda x: jnp.zeros((1 << 44,), np.int8) + x)(np.int8(1)))
    for words in ("17592186044416xi8> is too large", "test_bad_input.py", "why:", "fix:"):
        assert words in text


def test_more_than_the_machine_has(device):
    elements = device.memory_stats()["bytes_limit"]  # four times the limit
    text = message("RESOURCE_EXHAUSTED", lambda: jnp.zeros(elements, jnp.float32).block_until_ready())
    assert "out of memory" in text and "fix: delete arrays" in text


def test_deleted_array():
    x = jnp.ones(4)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        jax.jit(jnp.sin)(x)


def test_donated_array():
    step = jax.jit(lambda v: v + 1, donate_argnums=0)
    x = jnp.ones(4)
    y = step(x)
    assert x.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match="deleted|donated"):
        step(x)
    np.testing.assert_array_equal(step(y), [3, 3, 3, 3])


def test_donated_twice():
    step = jax.jit(lambda a, b: (a + b, a - b), donate_argnums=(0, 1))
    x = jnp.ones(4)
    with pytest.raises((RuntimeError, ValueError), match="donate the same buffer twice"):
        step(x, x)
    np.testing.assert_array_equal(step(jnp.ones(4), jnp.ones(4))[0], [2, 2, 2, 2])


def test_an_error_stays_on_everything_that_depends_on_it(caplog):
    luck = [False]

    def host(a):
        if not luck[0]:
            raise ValueError("no such luck")
        return np.asarray(a)

    f = jax.jit(lambda v: jax.pure_callback(host, jax.ShapeDtypeStruct(v.shape, v.dtype), v) * 2)
    g = jax.jit(lambda v: v + 1)

    def chain():
        y = f(jnp.ones(3))
        z = g(g(y))
        for _ in range(2):
            assert "no such luck" in message("INTERNAL", lambda: z.block_until_ready())
        assert "no such luck" in message("INTERNAL", lambda: np.asarray(y))
        raise_again = g(y)
        raise_again.block_until_ready()

    text = message("INTERNAL", chain)
    assert "no such luck" in text
    luck[0] = True
    np.testing.assert_array_equal(g(f(jnp.ones(3))), [3, 3, 3])
    # JAX waits at its end for the last first run of a program with callbacks; let that be one without an error.
    jax.jit(lambda v: jax.pure_callback(host, jax.ShapeDtypeStruct(v.shape, v.dtype), v))(jnp.ones(3))
    caplog.clear()  # JAX logs the error with its traceback, whose frames hold the arguments


def test_a_damaged_compilation_cache_is_compiled_again(python, tmp_path):
    program = (
        "import jax, ferrule\n"
        "ferrule.register_jax()\n"
        "import jax.numpy as jnp\n"
        "print(jax.jit(lambda x: jnp.sin(x) * 2 + 1)(jnp.zeros(3)))\n"
    )
    variables = {
        "JAX_PLATFORMS": "ferrule",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first = python(program, **variables)
    assert first.returncode == 0, first.stderr
    files = list(tmp_path.rglob("*-cache"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    second = python(program, **variables)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout == "[1. 1. 1.]\n"


def test_memory_limit(python):
    done = python(
        "import ferrule, jax, gc\n"
        "ferrule.register_jax(memory_limit_bytes=1 << 20)\n"
        "import jax.numpy as jnp\n"
        "x = jnp.ones(150000)\n"
        "for _ in range(3):\n"
        "    try:\n"
        "        y = (x + 1).block_until_ready()\n"
        "    except jax.errors.JaxRuntimeError as error:\n"
        "        print(error)\n"
        "del x\n"
        "gc.collect()\n"
        "print(jnp.ones(150000).sum())\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RESOURCE_EXHAUSTED: FerruleCpuDevice(id=0, process_index=0) is out of memory") == 3
    assert "fix: delete arrays" in done.stdout and done.stdout.endswith("150000.0\n")
