"""Where denormal numbers count as zero: in programs of the cpu, on x86, unless they are to be kept.

`tests/native/test_denormals.py` runs what needs them with FERRULE_FLUSH_DENORMALS=0.
"""

from __future__ import annotations

import os
import platform

import pytest

import jax


def flushed(device: jax.Device) -> bool:
    kept = os.environ.get("FERRULE_FLUSH_DENORMALS") == "0"
    return device.platform == "ferrule" and platform.machine() == "x86_64" and not kept


def need(device: jax.Device) -> None:
    """Skips where a test's numbers would be zeros."""
    if flushed(device):
        pytest.skip("denormal numbers count as zero; tests/native/test_denormals.py runs this with them kept")
