"""Weights keep a form in a library's layout from run to run, but not where the memory may change unseen."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, Table

from ferrule import libraries
from ferrule.pipeline import compile_program

F32 = 11
CONVOLUTION = """module {
  func.func @main(%x: tensor<1x10x10x64xf32>, %w: tensor<3x3x64x64xf32>) -> tensor<1x8x8x64xf32> {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x10x10x64xf32>, tensor<3x3x64x64xf32>) -> tensor<1x8x8x64xf32>
  return %y : tensor<1x8x8x64xf32> } }"""
IN_PARTS = """module {
  func.func @main(%x: tensor<1x30x30x128xf32>, %w: tensor<3x3x128x64xf32>) -> tensor<1x28x28x64xf32> {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x30x30x128xf32>, tensor<3x3x128x64xf32>) -> tensor<1x28x28x64xf32>
  return %y : tensor<1x28x28x64xf32> } }"""
PRODUCT = """module { func.func @main(%x: tensor<4x576xf32>, %w: tensor<576x512xf32>) -> tensor<4x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x576xf32>, tensor<576x512xf32>) -> tensor<4x512xf32>
  return %y : tensor<4x512xf32> } }"""


@dataclass(frozen=True)
class Case:
    """A program of an operand and weights."""

    module: str
    left: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def terms(self) -> int:
        """Of each element of a result."""
        return int(np.prod(self.weights[:-1]))


CASES = {
    "convolution": Case(CONVOLUTION, (1, 10, 10, 64), (3, 3, 64, 64)),
    "convolution in parts": Case(IN_PARTS, (1, 30, 30, 128), (3, 3, 128, 64)),
    "product": Case(PRODUCT, (4, 576), (576, 512)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    if request.param != "product" and libraries.onednn_path() is None:
        pytest.skip("oneDNN is not installed")
    return CASES[request.param]


@pytest.fixture
def host(native: Any) -> Iterator[Host]:
    libraries.hand_over(native.lib)
    host = Host(Table.load(str(native.path)))
    yield host
    host.close()


def follows(host: Host, case: Case, weights: int, address: int) -> bool:
    """Do the results follow what is written to the weights' address between runs?"""
    run, image = host.load(compile_program(case.module.encode()).serialize()), host.put(np.ones(case.left, np.float32))
    memory = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), case.weights)
    seen = []
    for value in (1, 2, 3):
        memory[...] = value
        for _ in range(3):
            (result,) = host.execute(run, [image, weights])
            seen.append(bool((host.get(result) == value * case.terms).all()))
            host.destroy(result)
    host.destroy(image)
    host("LoadedExecutable_Destroy", executable=run)
    return all(seen)


def shape(host: Host, case: Case) -> dict[str, Any]:
    rank = len(case.weights)
    sizes = (ctypes.c_int64 * rank)(*case.weights)
    return {"client": host.client, "shape_dims": sizes, "shape_num_dims": rank, "shape_element_type": F32}


def test_memory_that_nobody_may_write_to_keeps_a_form(host: Host, case: Case) -> None:
    """The other tests would see it: a form that is kept does not follow."""
    weights = host.put(np.zeros(case.weights, np.float32))
    assert not follows(host, case, weights, host.pointer(weights))
    host.destroy(weights)


def test_memory_that_somebody_is_to_fill(host: Host, case: Case) -> None:
    weights = host("Client_CreateUninitializedBuffer", memory=host.memory(), **shape(host, case)).buffer
    assert follows(host, case, weights, host.pointer(weights))
    host.destroy(weights)


def test_an_alias_of_memory_whose_address_is_known(host: Host, case: Case) -> None:
    source = host.put(np.zeros(case.weights, np.float32))
    address = host("Buffer_UnsafePointer", buffer=source).buffer_pointer
    promised = host("Client_CreateAliasBuffer", memory=host.memory(), **shape(host, case))
    host(
        "Client_FulfillAliasBuffer",
        client=host.client,
        buffer=source,
        status_code=0,
        fulfill_alias_buffer_cb=promised.fulfill_alias_buffer_cb,
    )
    assert follows(host, case, promised.alias_buffer, address)
    host.destroy(promised.alias_buffer, source)
