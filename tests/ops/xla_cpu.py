"""Runs samples on XLA:CPU, many in one program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib import _jax
from mlir_text import module_text

import jax
from ferrule.ops.samples import Sample


def run_xla(samples: Sequence[Sample]) -> list[list[np.ndarray]]:
    """The results of each sample."""
    device = jax.devices("cpu")[0]
    blocks = [s.block() for s in samples]
    program = module_text(blocks).encode()
    loaded = device.client.compile_and_load(program, _jax.DeviceList((device,)), _jax.CompileOptions())
    with jax.enable_x64(True):  # for this call only: the setting belongs to the process
        arrays = [jax.device_put(a, device) for s in samples for a in s.arrays]
        flat = iter([np.asarray(x) for x in loaded.execute(arrays)])
    return [[next(flat) for _ in b.results] for b in blocks]
