"""Convolutions of bf16 as ones of f32 (passes/wide_convolutions.py)."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.ir.types import bf16, f32
from ferrule.passes.simplify import simplify
from ferrule.passes.wide_convolutions import wide_convolutions
from ferrule.targets.cpu import host
from ferrule.targets.machine import Machine

X86 = replace(host(), triple="x86_64-unknown-linux-gnu", cpu="haswell", features="+avx2,+fma", vector_bytes=32)
AVX512 = replace(X86, cpu="icelake-server", features="+avx512f", vector_bytes=64)
PAIRS = replace(AVX512, cpu="znver4", features="+avx512bf16")
TILES = replace(AVX512, cpu="sapphirerapids", features="+amx-bf16,+avx512bf16")
ARM = replace(X86, triple="aarch64-unknown-linux-gnu", cpu="neoverse-n1", features="+neon", vector_bytes=16)


def convolution(x, w, kind=None):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, preferred_element_type=kind)


def arrays(taps: int, dtype=jnp.bfloat16) -> tuple[np.ndarray, np.ndarray]:
    return normal(2, 9, 8, 5).astype(dtype), normal(taps, taps, 5, 7, seed=1).astype(dtype)


@pytest.mark.parametrize(
    ("machine", "taps", "widened"),
    [(X86, 3, True), (X86, 1, False), (AVX512, 3, True), (AVX512, 1, True), (PAIRS, 3, False), (TILES, 3, False),
     (ARM, 3, False)],
)  # fmt: skip
@pytest.mark.parametrize("wide", [False, True])
def test_where(machine: Machine, taps: int, widened: bool, wide: bool) -> None:
    block = simplify(graph(lambda x, w: convolution(x, w, jnp.float32 if wide else None), *arrays(taps)))
    types = [v.type for v in block.results]
    found = wide_convolutions(block, machine)
    (op,) = (op for op in found.ops if op.name == "convolution")
    assert {v.dtype for v in op.operands} == {f32 if widened else bf16}
    assert op.result.dtype == (f32 if widened or wide else bf16)
    assert [v.type for v in found.results] == types


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1"])
def test_other_types(dtype: str) -> None:
    with jax.enable_x64(True):
        block = simplify(graph(convolution, *arrays(3, dtype)))
    before = [(op, op.operands) for op in block.ops]
    assert [(op, op.operands) for op in wide_convolutions(block, X86).ops] == before


@pytest.mark.parametrize("taps", [1, 3])
def test_rounded_once(taps: int) -> None:
    """As bf16 convolutions are on any processor: the sums are f32, gradients as well."""
    x, w = arrays(taps)
    device = jax.devices("ferrule")[0]

    def both(x, w):
        y, back = jax.vjp(convolution, x, w)
        return y, *back(y)

    found = jax.jit(both)(*jax.device_put((x, w), device))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        y, back = jax.vjp(convolution, x.astype("f8"), w.astype("f8"))
        exact = y, *back(y.astype(jnp.bfloat16).astype("f8"))
    for got, want in zip(found, exact, strict=True):
        assert got.dtype == jnp.bfloat16
        want = np.asarray(want)
        apart = np.abs(np.asarray(got, "f8") - want)
        assert (apart <= np.abs(want) * 2**-8 + np.abs(want).max() * 1e-6).all()
