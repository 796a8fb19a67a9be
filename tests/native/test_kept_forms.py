"""Weights keep a form in a library's layout from run to run, but not where the memory may change unseen."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, Table

from ferrule import libraries
from ferrule.pipeline import compile_program

pytestmark = pytest.mark.skipif(libraries.onednn_path() is None, reason="oneDNN is not installed")
IMAGE, KERNEL, F32 = (1, 10, 10, 64), (3, 3, 64, 64), 11
MODULE = """module { func.func @main(%x: tensor<1x10x10x64xf32>, %w: tensor<3x3x64x64xf32>) -> tensor<1x8x8x64xf32> {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x10x10x64xf32>, tensor<3x3x64x64xf32>) -> tensor<1x8x8x64xf32>
  return %y : tensor<1x8x8x64xf32> } }"""


@pytest.fixture
def host(native: Any) -> Iterator[Host]:
    libraries.hand_over(native.lib)
    host = Host(Table.load(str(native.path)))
    yield host
    host.close()


def follows(host: Host, weights: int, address: int) -> bool:
    """Do the results follow what is written to the weights' address between runs?"""
    run, image = host.load(compile_program(MODULE.encode()).serialize()), host.put(np.ones(IMAGE, np.float32))
    memory = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), KERNEL)
    seen = []
    for value in (1, 2, 3):
        memory[...] = value
        for _ in range(3):
            (result,) = host.execute(run, [image, weights])
            seen.append(bool((host.get(result) == value * 3 * 3 * 64).all()))
            host.destroy(result)
    host.destroy(image)
    host("LoadedExecutable_Destroy", executable=run)
    return all(seen)


def shape(host: Host) -> dict[str, Any]:
    sizes = (ctypes.c_int64 * 4)(*KERNEL)
    return {"client": host.client, "shape_dims": sizes, "shape_num_dims": 4, "shape_element_type": F32}


def test_memory_that_nobody_may_write_to_keeps_a_form(host: Host) -> None:
    """The other tests would see it: a form that is kept does not follow."""
    weights = host.put(np.zeros(KERNEL, np.float32))
    assert not follows(host, weights, host.pointer(weights))
    host.destroy(weights)


def test_memory_that_somebody_is_to_fill(host: Host) -> None:
    weights = host("Client_CreateUninitializedBuffer", memory=host.memory(), **shape(host)).buffer
    assert follows(host, weights, host.pointer(weights))
    host.destroy(weights)


def test_an_alias_of_memory_whose_address_is_known(host: Host) -> None:
    source = host.put(np.zeros(KERNEL, np.float32))
    address = host("Buffer_UnsafePointer", buffer=source).buffer_pointer
    promised = host("Client_CreateAliasBuffer", memory=host.memory(), **shape(host))
    host(
        "Client_FulfillAliasBuffer",
        client=host.client,
        buffer=source,
        status_code=0,
        fulfill_alias_buffer_cb=promised.fulfill_alias_buffer_cb,
    )
    assert follows(host, promised.alias_buffer, address)
    host.destroy(promised.alias_buffer, source)
