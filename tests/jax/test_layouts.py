"""Arrays whose dimensions lie in memory in an order that the user chose."""

from __future__ import annotations

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

import jax


def order(device: jax.Device, *major_to_minor: int) -> Format:
    return Format(Layout(major_to_minor), SingleDeviceSharding(device))


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex64"])
def test_arrays(device: jax.Device, dtype: str) -> None:
    n = np.arange(6).reshape(2, 3).astype(dtype)
    x = jax.device_put(n, order(device, 1, 0))
    assert x.format.layout.major_to_minor == (1, 0)
    memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * n.nbytes).from_address(x.unsafe_buffer_pointer()))
    assert bytes(memory) == n.tobytes("F")
    np.testing.assert_array_equal(np.asarray(x), n)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)), n)
    np.testing.assert_array_equal(jax.device_put(x, jax.devices("cpu")[0]), n)
    np.testing.assert_array_equal(x[1] == n[1], [True] * 3)
    back = jax.device_put(x, order(device, 0, 1))
    assert back.format.layout.major_to_minor == (0, 1)
    np.testing.assert_array_equal(back, n)


def test_programs(device: jax.Device) -> None:
    n = np.arange(24).reshape(2, 3, 4)
    given, asked = order(device, 2, 0, 1), order(device, 1, 2, 0)
    f = jax.jit(lambda a: a.transpose(2, 0, 1) + 1, in_shardings=given, out_shardings=asked)
    x = jax.device_put(n, given)
    compiled = f.lower(x).compile()
    assert compiled.input_formats[0] == (given,) or compiled.input_formats[0][0].layout == x.format.layout
    y = compiled(x)
    assert y.format.layout.major_to_minor == (1, 2, 0)
    np.testing.assert_array_equal(y, n.transpose(2, 0, 1) + 1)
    loaded = serialize_executable.deserialize_and_load(
        *serialize_executable.serialize(compiled), backend=device.platform
    )
    np.testing.assert_array_equal(loaded(x), y)
    np.testing.assert_array_equal(f(jnp.asarray(n)), y)


def test_donation_between_layouts(device: jax.Device) -> None:
    n = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    column, row = order(device, 1, 0), order(device, 0, 1)
    for given, asked in ((column, column), (column, row), (row, column)):
        x = jax.device_put(n, given)
        y = jax.jit(lambda x: x + 1, in_shardings=given, out_shardings=asked, donate_argnums=0)(x)
        assert x.is_deleted()
        np.testing.assert_array_equal(y, n + 1)


def test_tiles_are_refused(device: jax.Device) -> None:
    tiled = Format(Layout((1, 0), tiling=((8, 128),)), SingleDeviceSharding(device))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"the layout \{0,1:T\(8,128\)\} of result 0"):
        jax.device_put(np.ones((2, 3)), tiled)
