"""What JAX keeps behind lists of known platforms: donation, compilation cache, DLPack, FFI."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

import ferrule
import jax
from ferrule.frameworks.jax import rules

pytestmark = pytest.mark.usefixtures("device")


def test_donation_reuses_memory():
    f = jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jnp.arange(1000.0) + 0
    address = x.unsafe_buffer_pointer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = f(x)
    assert x.is_deleted() and y.unsafe_buffer_pointer() == address
    with pytest.raises((RuntimeError, ValueError), match="deleted|donated"):
        np.asarray(x)
    np.testing.assert_array_equal(y, np.arange(1000.0) * 2)


CACHED = """
import jax, jax.numpy as jnp
events = []
jax.monitoring.register_event_listener(lambda name, **kw: events.append(name))
f = jax.jit(lambda x: jnp.tanh(x) @ x)
print(float(f(jnp.ones((8, 8)))[0, 0]))
print(sum("cache_hits" in e for e in events), sum("cache_misses" in e for e in events))
print(sum(e.endswith("tasks_using_cache") for e in events))
"""


def test_compilation_cache(python, tmp_path, device):
    start = "import ferrule.frameworks.jax as f; f.initialize()\n"
    variables = {
        "JAX_PLATFORMS": device.platform,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first, second = (python(start + CACHED, **variables) for _ in range(2))
    value, counts, tasks = first.stdout.split("\n")[:3]
    assert counts.startswith("0 ") and counts != "0 0", first.stderr
    assert tasks == "1"
    again, hits = second.stdout.split("\n")[:2]
    assert again == value
    assert hits.endswith(" 0") and hits != "0 0", second.stderr


def test_serialized_executable(device):
    f = jax.jit(lambda x: jnp.linalg.eigvalsh(x @ x.T))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4)), jnp.float32)
    saved = serialize_executable.serialize(f.lower(x).compile())
    loaded = serialize_executable.deserialize_and_load(*saved, backend=device.platform)
    np.testing.assert_array_equal(loaded(x), f(x))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "float32", "complex64"])
def test_dlpack_to_numpy(dtype, device):
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    y = np.from_dlpack(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.asarray(x))
    if not hasattr(device, "stand_in"):  # only memory that is the host's own is lent
        assert y.__array_interface__["data"][0] == x.unsafe_buffer_pointer()


def test_dlpack_keeps_the_memory():
    y = np.from_dlpack(jnp.arange(1000.0) + 1)
    others = [jnp.zeros(1000) + i for i in range(10)]
    np.testing.assert_array_equal(y, np.arange(1000.0) + 1)
    del others


def test_dlpack_between_platforms(device):
    host = np.arange(8, dtype=np.float32)
    x = jax.dlpack.from_dlpack(host, device=device)
    assert x.devices() == {device}
    on_cpu = jax.dlpack.from_dlpack(x)
    np.testing.assert_array_equal(on_cpu, host)
    bf = jax.dlpack.from_dlpack(jnp.ones(4, jnp.bfloat16))
    assert bf.dtype == jnp.bfloat16


def test_dlpack_says_no():
    x = jnp.arange(4.0)
    with pytest.raises(BufferError, match="streams"):
        x.__dlpack__(stream=3)
    with pytest.raises(BufferError, match="no name"):
        jnp.ones(3, jnp.int4).__dlpack__()


def test_ffi_targets(device):
    from ferrule.frameworks.jax import ffi

    with pytest.raises(ferrule.FerruleError, match="API version 0"):
        jax.ffi.register_ffi_target("old", jax.ffi.pycapsule(1), platform=device.platform, api_version=0)
    with pytest.raises(ferrule.FerruleError, match="execute"):
        ffi.register_handler("no_stage", {"prepare": jax.ffi.pycapsule(1)})


def test_ffi_unknown_target():
    f = jax.jit(lambda x: jax.ffi.ffi_call("lapack_sgetrq_ffi", jax.ShapeDtypeStruct((3,), np.float32))(x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="lapack_sgetrq_ffi"):
        f(jnp.ones(3, np.float32))


def test_every_rule_that_is_taken_exists(device):
    from jax._src.interpreters import mlir

    names = {p.name for p in mlir._platform_specific_lowerings[device.platform]}
    assert names >= rules.TAKEN | {"pure_callback", "io_callback", "debug_callback", "approx_top_k"}


def test_checks(device):
    from jax.experimental import checkify

    def root(x):
        checkify.debug_check(x > 0, "never raised")
        return jnp.sqrt(x)

    assert jax.jit(root)(4.0) == 2
    error, _ = jax.jit(checkify.checkify(lambda x: checkify.check(x > 0, "negative: {x}", x=x)))(-1.0)
    assert "negative" in error.get()
    with pytest.raises(ValueError, match="checkify"):
        jax.jit(lambda x: checkify.check(x > 0, "negative"))(1.0)


def test_no_new_cpu_rule_is_overlooked():
    """A JAX release with another rule for cpu needs a decision in rules.py."""
    from jax._src.interpreters import mlir

    decided = rules.TAKEN | rules.LEFT
    assert {p.name for p in mlir._platform_specific_lowerings["cpu"]} <= decided


def test_dlpack_memory_may_be_freed_while_an_exception_is_raised():
    with pytest.raises(ZeroDivisionError):
        print(np.from_dlpack(jnp.arange(5.0)), 1 // 0)


def test_pallas_kernels_over_a_mesh_are_interpreted():
    """JAX's rule for them names the platforms that it serves. Two cores run as threads that wait for each other."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    out = jax.ShapeDtypeStruct((2, 8, 128), jnp.float32)
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=2)
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.REGULAR]

    @pl.kernel(mesh=mesh, out_type=out, scratch_types=scratch, interpret=pltpu.InterpretParams())
    def kernel(x, y, part, met):
        core = jax.lax.axis_index("core")
        for other in range(2):
            pl.semaphore_signal(met, 1, core_index=other)
        pl.semaphore_wait(met, 2)
        pltpu.sync_copy(x.at[core], part)
        part[...] = part[...] * 2 + core.astype(jnp.float32)
        pltpu.sync_copy(part, y.at[core])

    x = np.arange(2 * 8 * 128, dtype=np.float32).reshape(2, 8, 128)
    np.testing.assert_array_equal(jax.jit(kernel)(x), x * 2 + np.arange(2).reshape(2, 1, 1))
