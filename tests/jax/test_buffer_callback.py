"""jax.experimental.buffer_callback: functions on the program's own buffers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.errors import FailedPrecondition

buffers = pytest.importorskip("jax.experimental.buffer_callback")
pytestmark = pytest.mark.usefixtures("device")


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def test_writes_results_in_place():
    kept = []

    def add(ctx, out, a, *, b):
        assert ctx.stage == buffers.ExecutionStage.EXECUTE
        assert (a.shape, a.dtype, a.writeable, out.writeable) == ((2, 3), np.float32, False, True)
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(a)[...] = 0
        np.asarray(out)[...] = np.from_dlpack(a) + np.asarray(b, np.float32)
        kept.append(out)

    a, b = jnp.ones((2, 3)), jnp.arange(6).reshape(2, 3)
    call = jax.jit(lambda a, b: buffers.buffer_callback(add, like(a))(a * 2, b=b) + 1)
    np.testing.assert_array_equal(call(a, b), np.arange(6).reshape(2, 3) + 3)
    with pytest.raises(FailedPrecondition, match="after the function had returned"):
        np.asarray(kept[0])


def test_aliased_operands_keep_their_values_for_others():
    def double(ctx, out, x):
        y = np.asarray(out)
        assert y.ctypes.data == np.asarray(x).ctypes.data
        y *= 2

    call = buffers.buffer_callback(double, jax.ShapeDtypeStruct((4,), np.float32), input_output_aliases={0: 0})
    x = jnp.arange(4, dtype=jnp.float32)
    both = jax.jit(lambda x: (call(x), x + 1))(x)
    np.testing.assert_array_equal(both[0], [0, 2, 4, 6])
    np.testing.assert_array_equal(both[1], [1, 2, 3, 4])
    np.testing.assert_array_equal(x, [0, 1, 2, 3])


def test_errors_and_return_values():
    def returns(ctx, out, x):
        return 1

    with pytest.raises(jax.errors.JaxRuntimeError, match="must not return any values"):
        jax.block_until_ready(buffers.buffer_callback(returns, like(jnp.ones(2)))(jnp.ones(2)))
