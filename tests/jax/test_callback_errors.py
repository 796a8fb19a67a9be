"""An error in a host callback comes out of the call that ran it, once, as on JAX's own cpu platform."""

from __future__ import annotations

import pytest

PROGRAM = """
import numpy as np, jax, jax.numpy as jnp, ferrule
from jax.experimental import io_callback
ferrule.register_jax()
way = {way!r}

def host(a):
    raise ValueError("no such luck")

def f(v):
    like, ordered = jax.ShapeDtypeStruct(v.shape, v.dtype), "ordered" in way
    if "debug" in way:
        jax.debug.callback(host, v, ordered=ordered)
        return v
    return io_callback(host, like, v, ordered=ordered) if "io" in way else jax.pure_callback(host, like, v)

with jax.default_device(jax.devices("ferrule")[0]):
    try:
        jax.jit(f)(jnp.ones(3))
    except jax.errors.JaxRuntimeError as error:
        assert "no such luck" in str(error)
        print("caught")
"""


@pytest.mark.parametrize("way", ["pure", "io", "ordered io", "debug", "ordered debug"])
def test_an_error_is_not_reported_again_at_exit(python, way):
    done = python(PROGRAM.format(way=way))
    assert done.stdout == "caught\n", done.stderr
    assert "atexit" not in done.stderr, done.stderr


NESTED = """
import numpy as np, jax, jax.numpy as jnp, ferrule
ferrule.register_jax()
device = jax.devices("ferrule")[0]
later = []
inner = jax.jit(lambda v: jax.pure_callback(lambda a: a + 1, jax.ShapeDtypeStruct(v.shape, v.dtype), v))
x = jax.device_put(np.ones(3, np.float32), device)
inner(x).block_until_ready()

def host(a):
    later.append(inner(x))  # launched by the callback's thread, which does not wait for it
    return a

with jax.default_device(device):
    jax.jit(lambda v: jax.pure_callback(host, jax.ShapeDtypeStruct(v.shape, v.dtype), v))(x).block_until_ready()
print(np.asarray(later[0]))
"""


def test_a_callback_may_launch_a_program_with_callbacks(python):
    done = python(NESTED)
    assert done.stdout == "[2. 2. 2.]\n", done.stderr
