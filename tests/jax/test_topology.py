"""Compiling for a topology: JAX holds Python's lock while it waits, so the compile runs in a process of its own."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

import jax


def lower(function):
    described = topologies.get_topology_desc(platform="ferrule")
    mesh = topologies.make_mesh(described, (1,), ("x",))
    argument = jax.ShapeDtypeStruct((16,), np.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    return jax.jit(function).lower(argument)


def test_compiles_and_describes():
    compiled = lower(lambda x: jnp.sin(x) * 2).compile()
    assert compiled.cost_analysis()["flops"] > 0


def test_an_error_of_the_other_process_is_the_callers():
    lowered = lower(lambda x: jax.ffi.ffi_call("nowhere", jax.ShapeDtypeStruct((16,), np.float32))(x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="nowhere"):
        lowered.compile()


def test_an_error_of_the_compiler_is_the_callers():
    lowered = lower(lambda x: x + 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="(?s)INVALID_ARGUMENT.*did you mean 'ferrule_debug'"):
        lowered.compile(compiler_options={"ferule_debug": 1})
