"""What JAX's own tests found: one test for each cause."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jax


def test_rounding_of_short_bf16_code(device: jax.Device) -> None:
    """LLVM's quick instruction selector aborted the process on the mask of the rounding's bits."""

    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = jax.lax.reduce_precision(x.astype(jnp.float32), 8, 7)
        return wide.astype(jnp.bfloat16), wide

    x = jnp.asarray([1.5, -2.25, np.nan, np.inf], jnp.bfloat16)
    narrow, wide = jax.jit(f)(x)
    np.testing.assert_array_equal(narrow.astype(jnp.float32), x.astype(jnp.float32))
    np.testing.assert_array_equal(wide, x.astype(jnp.float32))


def test_complex_functions_without_an_angle(device: jax.Device) -> None:
    """tan gave ±1 for an imaginary part beyond 20, and expm1 gave 0 at -inf, whatever the other part was."""
    z = np.array([complex(-np.inf, y) for y in (0, 1, 1e23, -1e23)], np.complex64)
    nan = np.full(4, complex(np.nan, np.nan), np.complex64)
    np.testing.assert_array_equal(np.isnan(jnp.tan(z).real), np.isnan(nan.real))
    np.testing.assert_array_equal(np.isnan(jnp.tan(z).imag), np.isnan(nan.imag))
    assert np.isnan(jnp.expm1(np.complex64(complex(-np.inf, np.inf))).imag)


def test_checks_left_in_programs(device: jax.Device) -> None:
    """The platform had no rule for checkify's primitive."""

    def f(x: jax.Array) -> jax.Array:
        checkify.debug_check(x > 0, "must be positive")
        return x * 2

    assert jax.jit(f)(jnp.float32(-1)) == -2
    with pytest.raises(ValueError, match="Cannot abstractly evaluate a checkify.check"):
        jax.jit(lambda x: checkify.check(x > 0, "must be positive"))(jnp.float32(1))


def test_a_sink_is_nothing(device):
    from jax._src.lax import lax as internal

    def sunk(x):
        internal.dce_sink(x * 2, prevent_mlir_dce=True)
        return x + 1

    assert jax.jit(sunk)(1.0) == 2


def test_callbacks_of_other_primitives(device: jax.Device) -> None:
    """JAX's function for lowering rules that call back refused the platform by name."""
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    seen = []

    def lower(ctx, x):
        def called(value):
            seen.append(np.asarray(value))
            return (value + 1,)

        results, _, _ = mlir.emit_python_callback(
            ctx, called, None, [x], list(ctx.avals_in), list(ctx.avals_out), has_side_effect=True, sharding=None
        )
        return results

    primitive = Primitive("calls_back")
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, lower)
    np.testing.assert_array_equal(jax.jit(primitive.bind)(jnp.arange(3)), [1, 2, 3])
    np.testing.assert_array_equal(seen, [[0, 1, 2]])


def test_options_of_other_platforms(device: jax.Device, tmp_path: Path) -> None:
    """Options of XLA's that do not change results were refused as unknown."""
    options = {"xla_embed_ir_in_executable": True, "xla_gpu_graph_min_graph_size": 2, "xla_dump_to": str(tmp_path)}
    lowered = jax.jit(lambda x: x + 1).lower(jnp.float32(1))
    assert lowered.compile(options)(jnp.float32(1)) == 2
    assert list(tmp_path.iterdir())
    with pytest.raises(jax.errors.JaxRuntimeError, match="'perhaps' is not a valid bool value."):
        lowered.compile({"xla_embed_ir_in_executable": "perhaps"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_embed_ir'"):
        lowered.compile({"xla_embed_ir": True})


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0)])
def test_eigenvectors_of_empty_matrices(device, shape):
    """LAPACK wrote out of bounds: the process died some tests later."""
    values, vectors = jnp.linalg.eig(np.zeros(shape, np.float32))
    assert values.shape == shape[:-1] and vectors.shape == shape


def test_branches_for_the_cpu(device: jax.Device) -> None:
    """A choice by platform without a branch for us and without a default was refused."""
    assert jax.jit(lambda x: jax.lax.platform_dependent(x, cuda=jnp.sin, cpu=lambda x: x + 1))(jnp.float32(1)) == 2
    assert jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, default=lambda x: x + 1))(jnp.float32(1)) == 2
    assert jax.lax.platform_dependent(jnp.float32(1), cpu=jnp.sin, **{device.platform: lambda x: x + 1}) == 2
    with pytest.raises(NotImplementedError, match="platform_index"):
        jax.jit(lambda x: jax.lax.platform_dependent(x, cuda=jnp.sin))(1.0)


def test_exported_for_the_cpu(device: jax.Device) -> None:
    """A function exported for the cpu was refused; of several platforms, the cpu's branch is ours."""
    x = jnp.arange(4, dtype=jnp.float32)
    square = jnp.outer(x, x) + jnp.eye(4)
    exported = jax.export.export(jax.jit(jnp.linalg.eigvalsh), platforms=["cpu"])(square)
    np.testing.assert_allclose(exported.call(square), np.linalg.eigvalsh(square), atol=1e-5)

    def f(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, tpu=jnp.sin, cpu=lambda x: x + 1, default=jnp.cos)

    both = jax.export.export(jax.jit(f), platforms=["tpu", "cpu"])(x)
    np.testing.assert_array_equal(jax.jit(both.call)(x), x + 1)
    with pytest.raises(ValueError, match="exported for platforms"):
        jax.jit(jax.export.export(jax.jit(f), platforms=["tpu"])(x).call)(x)


@pytest.mark.parametrize("f", [jax.lax.lgamma, jax.lax.digamma, jax.lax.erfc, jax.lax.erf_inv])
def test_functions_of_open_shapes(device: jax.Device, f: Any) -> None:
    """Kept in one piece, they hid the sizes of an exported program from jaxlib."""
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 2"), jnp.float32)
    exported = jax.export.export(jax.jit(f))(spec)
    x = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_allclose(jax.jit(exported.call)(x), f(x), rtol=1e-5)


def test_a_compile_leaves_nothing_to_collect(device: jax.Device) -> None:
    """The compiler's graphs refer to themselves: hundreds of objects waited for the garbage collector."""
    jax.jit(jnp.cos)(1.0)  # what is made once
    gc.collect()
    debug = gc.get_debug()
    try:
        jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.zeros((3, 3))).block_until_ready()
        gc.set_debug(gc.DEBUG_SAVEALL)
        assert gc.collect() == 0, gc.garbage
    finally:
        gc.set_debug(debug)
        gc.garbage.clear()


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.float32])
def test_scatter_of_windows_of_a_power_of_two(device: jax.Device, dtype: type) -> None:
    """A loop's counter modulo 4 had two bits, and the code for devices did not keep it to them."""
    updates = np.arange(48).reshape(6, 4, 2).astype(dtype)
    start, rows = np.ones((5, 4, 2), dtype), np.array([0, 2, 1, 9, 3, 4])
    got = jax.jit(lambda x, i, u: x.at[i].set(u, mode="drop"))(start, rows, updates)
    want = start.copy()
    want[[0, 2, 1, 3, 4]] = updates[[0, 1, 2, 4, 5]]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [4, 16, 67])
@pytest.mark.parametrize("length", [3, 101, 128])
def test_one_element_of_each_row(device: jax.Device, rows: int, length: int) -> None:
    """LLVM took two offsets of 32 bits in one register for the first: a read far outside of the array."""
    random = np.random.default_rng(0)
    x, at = random.standard_normal((rows, length), np.float32), random.integers(0, length, rows, np.int32)
    want = x[np.arange(rows), at]
    np.testing.assert_array_equal(jax.jit(lambda x, i: x[jnp.arange(rows), i])(x, at), want)
    np.testing.assert_array_equal(jax.jit(lambda x, i: jnp.take_along_axis(x, i[:, None], 1))(x, at)[:, 0], want)
    np.testing.assert_array_equal(jax.jit(lambda x, i: x.ravel()[i & 7])(x, at), x.ravel()[at & 7])
