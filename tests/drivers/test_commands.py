"""The SYCL driver on the OpenCL CPU device: memory, kernels, order, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_the_compilers_log_is_in_the_message(device):
    code = spirv_kernels.spirv("""
declare spir_func float @nowhere(float)
define spir_kernel void @k(ptr addrspace(1) %p) {
  %x = load float, ptr addrspace(1) %p
  %y = call spir_func float @nowhere(float %x)
  store float %y, ptr addrspace(1) %p
  ret void
}""")
    with pytest.raises(DriverError, match=r"(?s)loading a module of .* rejects the module .* nowhere") as caught:
        device.load(code)
    assert caught.value.code == 13


def test_code_that_is_cut_short_is_refused(device):
    code = spirv_kernels.spirv(spirv_kernels.add("plus"))
    with pytest.raises(DriverError, match="has no end") as caught:
        device.load(code[: len(code) // 8 * 4])
    assert caught.value.code == 3


def test_launches_that_the_device_cannot_do(device):
    kernel = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.add("plus"))), "plus")
    data = device.put(np.zeros(N, np.float32))
    for groups, size, arguments in ((1, 1 << 20, [data, data]), (1, 64, [data])):
        with pytest.raises(DriverError, match="launching kernel plus") as caught:
            device.launch(kernel, groups, size, arguments)
        assert caught.value.code == 3
    device.free(data)


def test_no_groups_is_no_work(device):
    kernel = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.add("plus"))), "plus")
    device.launch(kernel, 0, 64, [0, 0]).wait()
    device.copy(0, 0, 0).wait()


@pytest.fixture
def several(driver):
    opened = [driver.open(len(driver.devices()) - 1) for _ in range(4)]
    yield opened
    for one in opened:
        one.close()


def test_one_device_opened_several_times(several):
    """Copies and dependencies between them: each adds one to what the one before gives."""
    given = np.arange(N, dtype=np.float32)
    code = spirv_kernels.spirv(spirv_kernels.add("plus"))
    kernels = [d.kernel(d.load(code), "plus") for d in several]
    places = [(d.allocate(given.nbytes), d.allocate(given.nbytes)) for d in several]
    event = several[0].copy(places[0][0], given.ctypes.data, given.nbytes)
    for _ in range(5):
        for i, device in enumerate(several):
            into, out = places[i]
            event = device.launch(kernels[i], N // 64, 64, [into, out], [event])
            event = several[(i + 1) % 4].copy(places[(i + 1) % 4][0], out, given.nbytes, [event])
    np.testing.assert_array_equal(several[0].get(places[0][0], given, [event]), given + 20)


def test_a_join_waits_for_all(several):
    device, other = several[:2]
    slow = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.work("work", 20000))), "work")
    quick = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.add("plus"))), "plus")
    parts = [device.put(np.zeros(N, np.float32)) for _ in range(4)]
    events = [device.launch(slow, N // 64, 64, [p]) for p in parts]
    joined = other.join([*events, device.join([]), other.join(events[:1])])
    out = device.allocate(4 * N)
    done = [other.copy(out, p, 4 * N, [joined]) for p in parts]
    after = device.launch(quick, N // 64, 64, [parts[0], out], done)
    value = device.get(out, np.zeros(N, np.float32), [after])
    # exp(x) / 2 again and again grows without end; a kernel that did not wait would have seen a 0.
    assert np.all(value == value[0]) and value[0] > 1


def test_independent_kernels_overlap_and_times_say_so(driver, monkeypatch):
    monkeypatch.setenv("FERRULE_DEBUG", "2")
    device = driver.open(len(driver.devices()) - 1)
    kernel = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.work("work", 1000000))), "work")
    parts = [device.put(np.zeros(1, np.float32)) for _ in range(2)]
    overlapped = False
    for _ in range(10):  # on a busy machine one of the two may start late
        events = [device.launch(kernel, 1, 1, [p]) for p in parts]
        chained = device.launch(kernel, 1, 1, [parts[0]], events)
        chained.wait()
        (a, b), (c, d), (e, f) = (event.times() for event in (*events, chained))
        assert a < b and c < d and max(b, d) <= e < f
        overlapped = overlapped or max(a, c) < min(b, d)
    assert overlapped or driver.devices()[-1].compute_units == 1
    device.close()


def test_times_need_the_debug_level(device, monkeypatch):
    data = device.put(np.zeros(4, np.float32))
    with pytest.raises(DriverError, match="FERRULE_DEBUG") as caught:
        device.copy(data, data + 8, 8).times()
    assert caught.value.code == 12


def test_events_outlive_their_device_and_are_counted(driver):
    device = driver.open(len(driver.devices()) - 1)
    data = device.put(np.zeros(N, np.float32))
    event = device.copy(data, data + 8, 8)
    device.table.retain(event.handle)
    device.table.release(event.handle)
    device.free(data)
    device.close()
    event.wait()


def test_threads_wait_while_others_submit(device):
    kernel = device.kernel(device.load(spirv_kernels.spirv(spirv_kernels.work("work", 200))), "work")
    data = device.put(np.zeros(N, np.float32))
    events = [device.join([])]
    with ThreadPoolExecutor(4) as pool:
        waits = []
        for _ in range(200):
            events.append(device.launch(kernel, N // 64, 64, [data], events[-1:]))
            waits.append(pool.submit(events[-1].wait))
        for wait in waits:
            wait.result(timeout=60)
    device.free(data)


def test_no_device_says_what_was_found(driver):
    """In a process of its own, because SYCL enumerates once."""
    script = "from driver_binding import Driver; d = Driver(); print(len(d.devices()), d.error())"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "ONEAPI_DEVICE_SELECTOR": "level_zero:cpu",  # there is no such thing
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 ") and "no Intel GPU and no OpenCL CPU device" in done.stdout
