"""The SYCL driver on the OpenCL CPU device: memory, kernels, order, errors."""

from __future__ import annotations

import numpy as np
import pytest
import spirv_kernels
from driver_binding import DEVICE, HOST, SHARED, DriverError

N = 1024


def test_devices_say_what_they_are(driver):
    infos = driver.devices()
    last = infos[-1]
    assert last.kind == b"cpu" and last.backend == b"opencl" and last.host_access == 1
    assert last.memory_bytes > 0 and last.compute_units > 0 and last.max_group_size >= 64
    assert last.sub_group_sizes[0] > 0 and last.driver_version
    assert all(i.kind == b"gpu" for i in infos[:-1])


def test_kernels_run_in_the_order_of_their_events(device):
    kernel = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.add("plus"))), "plus")
    given = np.arange(N, dtype=np.float32)
    a, b = device.put(given), device.allocate(given.nbytes)
    event = device.join([])
    for _ in range(50):
        event = device.launch(kernel, N // 64, 64, [a, b], [event])
        event = device.launch(kernel, N // 64, 64, [b, a], [event])
    np.testing.assert_array_equal(device.get(a, given, [event]), given + 100)
    for data in (a, b):
        device.free(data)


@pytest.mark.parametrize("kind", [DEVICE, HOST, SHARED])
def test_memory_is_aligned_and_copies(device, kind):
    given = np.arange(N, dtype=np.float32)
    data = device.allocate(given.nbytes, kind)
    assert data % 64 == 0
    event = device.copy(data, given.ctypes.data, given.nbytes)
    np.testing.assert_array_equal(device.get(data, given, [event]), given)
    device.free(data)


def test_no_memory_is_an_error_of_its_own(device):
    with pytest.raises(DriverError, match="device has .* bytes in all") as caught:
        device.allocate(1 << 50)
    assert caught.value.code == 8


def test_code_that_is_no_spirv_is_refused(device):
    with pytest.raises(DriverError, match="no SPIR-V module") as caught:
        device.load(b"hello")
    assert caught.value.code == 3


def test_a_kernel_that_is_not_there(device):
    module = device.load(spirv_kernels.spirv(spirv_kernels.add("plus")))
    with pytest.raises(DriverError, match="minus") as caught:
        device.kernel(module, "minus")
    assert caught.value.code == 5


def test_opening_a_device_that_is_not_there(driver):
    with pytest.raises(DriverError, match="no device 99") as caught:
        driver.open(99)
    assert caught.value.code == 5
