"""Execute: arguments, donation, asynchrony, errors, several devices; programs are written by hand."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pjrt_host import ZERO_COPY, Host, PjrtError, Table, aligned

from ferrule.ir.types import BY_NUMPY, Tensor
from ferrule.pjrt import ctypes_abi
from ferrule.pjrt.ctypes_abi import make, text
from ferrule.program import (
    ARENA,
    OUTPUT,
    PARAM,
    PYTHON,
    SMALL,
    TIMED,
    Call,
    Copy,
    Launch,
    Output,
    Param,
    Program,
    Slot,
)

# out[i] = a[i] + b[i]; the second kernel does it slowly, so that the caller is back before it is done.
KERNELS = """
define void @add(ptr %p, i64 %begin, i64 %end) {
  br label %head
head:
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %b = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %p, i64 2
  %o = load ptr, ptr %p2
  br label %loop
loop:
  %i = phi i64 [%begin, %head], [%next, %loop]
  %pa = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %pa
  %pb = getelementptr float, ptr %b, i64 %i
  %y = load float, ptr %pb
  %z = fadd float %x, %y
  %po = getelementptr float, ptr %o, i64 %i
  store float %z, ptr %po
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %end
  br i1 %done, label %exit, label %loop
exit:
  ret void
}
define void @slow_add(ptr %p, i64 %begin, i64 %end) {
  br label %wait
wait:
  %n = phi i64 [0, %0], [%m, %wait]
  %m = add i64 %n, 1
  %ignored = load volatile i64, ptr %p
  %enough = icmp eq i64 %m, 40000000
  br i1 %enough, label %go, label %wait
go:
  call void @add(ptr %p, i64 %begin, i64 %end)
  ret void
}
"""

F4 = Tensor((4,), next(d for d in BY_NUMPY.values() if d.numpy == np.float32))
ONE = np.ones(4, np.float32)


@pytest.fixture(scope="session")
def table(native: Any) -> Table:
    return Table.load(str(native.path))


@pytest.fixture
def host(table: Table) -> Iterator[Host]:
    host = Host(table, num_devices=2)
    yield host
    host.close()


@pytest.fixture(scope="session")
def code(assemble: Callable[..., bytes]) -> bytes:
    return assemble(KERNELS)


@pytest.fixture(scope="session")
def adder(code: bytes) -> Callable[..., bytes]:
    """The serialized program out = a + b with the given properties."""

    def build(*, slow: bool = False, alias: int = -1, other: int = -1, flags: int = SMALL, **fields: Any) -> bytes:
        return Program(
            name="adder",
            params=[Param(F4, alias), Param(F4, other)],
            outputs=[Output(F4)],
            flags=flags,
            objects=[code],
            functions=[(0, "slow_add" if slow else "add")],
            slots=[Slot(PARAM, 0, 16), Slot(PARAM, 1, 16), Slot(OUTPUT, 0, 16)],
            blocks=[[Launch(0, 4, 4, (0, 1, 2))]],
            fingerprint="abc",
            cost={"flops": 4.0},
            **fields,
        ).serialize()

    return build


def test_runs_inline_when_small(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder())
    a, b = host.put(ONE), host.put(2 * ONE)
    (out,) = host.execute(executable, [a, b], complete=False)
    event = host("Buffer_ReadyEvent", buffer=out).event
    assert host.ready(event)
    host.wait(event)
    assert list(host.get(out)) == [3, 3, 3, 3]
    assert not host.deleted(a)
    host.destroy(a, b, out)
    host("LoadedExecutable_Destroy", executable=executable)


@pytest.mark.parametrize("slow", [False, True])
def test_runs_inline_after_a_short_run(table: Table, adder: Callable[..., bytes], slow: bool) -> None:
    host = Host(table, memory_limit_bytes=1 << 20)
    executable = host.load(adder(slow=slow, flags=TIMED, arena_bytes=1 << 19))
    x = host.put(ONE)

    def fails_at_once() -> bool:
        """Only a run on the caller's thread fails for want of memory within the call; others fail their outputs."""
        block = host.put(np.ones(3 << 16, np.float32))
        try:
            (out,) = host.execute(executable, [x, x], complete=False)
            with pytest.raises(PjrtError, match="out of memory"):
                host.get(out)
            return False
        except PjrtError:
            return True
        finally:
            host.destroy(block)

    found = []
    for _ in range(2 if slow else 100):  # a run may take long for reasons of its own
        assert list(host.get(host.execute(executable, [x, x])[0])) == [2, 2, 2, 2]
        found.append(fails_at_once())
        if found[-1]:
            break
    assert any(found) is not slow
    host.close()


def test_chains_without_waiting(host: Host, adder: Callable[..., bytes]) -> None:
    slow, quick = host.load(adder(slow=True, flags=0)), host.load(adder())
    a = host.put(ONE)
    (first,) = host.execute(slow, [a, a], complete=False)
    (second,) = host.execute(quick, [first, a], complete=False)
    events = [host("Buffer_ReadyEvent", buffer=b).event for b in (first, second)]
    copy = host("Buffer_CopyToMemory", buffer=second, dst_memory=host.memory(1)).dst_buffer
    assert not host.ready(events[0]) and not host.ready(events[1])
    host.destroy(a, first)  # what runs holds what it needs
    assert list(host.get(copy)) == [3, 3, 3, 3]
    assert list(host.get(second)) == [3, 3, 3, 3]
    for event in events:
        host.wait(event)
    host.destroy(second, copy)


def test_wrong_arguments(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder())
    good, other = host.put(ONE), host.put(ONE, memory=host.memory(1))
    for row, words in [
        ([good], "takes 2 arguments, got 1"),
        ([good, host.put(np.ones(5, np.float32))], r"argument 1 of `adder` must be f32\[4\], got f32\[5\]"),
        ([host.put(np.ones(4, np.int32)), good], r"argument 0 of `adder` must be f32\[4\], got s32\[4\]"),
        ([good, None], "argument 1 of `adder` is null"),
        ([good, other], r"argument 1 of `adder` lies on FerruleCpuDevice\(id=1"),
    ]:
        with pytest.raises(PjrtError, match=words) as caught:
            host.execute(executable, row)  # type: ignore[arg-type]
        assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(PjrtError, match="runs on 1 devices, argument lists for 2"):
        host.execute(executable, [good, good], [good, good])
    host("Buffer_Delete", buffer=good)
    with pytest.raises(PjrtError, match=r"argument 0 of `adder` .*deleted or donated"):
        host.execute(executable, [good, other])
    again = host.put(ONE)
    assert list(host.get(host.execute(executable, [again, again])[0])) == [2, 2, 2, 2]


@pytest.mark.parametrize("slow", [False, True])
def test_donation_reuses_memory(host: Host, adder: Callable[..., bytes], slow: bool) -> None:
    executable = host.load(adder(alias=0, slow=slow, flags=0 if slow else SMALL))
    x, b = host.put(ONE), host.put(ONE)
    address = host.pointer(x)
    for step in range(4):
        (y,) = host.execute(executable, [x, b], complete=False)
        assert host.deleted(x) and not host.deleted(b)
        if step == 3:
            with pytest.raises(PjrtError, match="deleted or donated"):
                host.execute(executable, [x, b])
        host.destroy(x)
        x = y
    assert list(host.get(x)) == [5, 5, 5, 5]
    assert host.pointer(x) == address
    host.destroy(x, b)


def test_donation_that_must_copy(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder(alias=0))
    b = host.put(ONE)
    # Someone outside reads the memory.
    pinned = host.put(ONE)
    host("Buffer_IncreaseExternalReferenceCount", buffer=pinned)
    address = host.pointer(pinned)
    (out,) = host.execute(executable, [pinned, b])
    assert host.deleted(pinned) and host.pointer(out) != address
    assert list((ctypes.c_float * 4).from_address(address)) == [1, 1, 1, 1]
    host("Buffer_DecreaseExternalReferenceCount", buffer=pinned)
    # The memory is the host array's own.
    array = aligned(ONE)
    borrowed, done = host.put(array, ZERO_COPY, keep=True)
    (other,) = host.execute(executable, [borrowed, b])
    assert list(array) == [1, 1, 1, 1]
    assert host.ready(done)
    # Another buffer shares the memory.
    shared = host.put(ONE)
    twin = host("Buffer_Bitcast", buffer=shared, element_type=8, dims=[4], num_dims=1).out_buffer
    (third,) = host.execute(executable, [shared, b])
    assert host.get(twin)[0] == np.ones(1, np.float32).view(np.uint32)[0]
    for each in (out, other, third):
        assert list(host.get(each)) == [2, 2, 2, 2]


def test_donation_can_be_refused(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder(alias=0))
    x, b = host.put(ONE), host.put(ONE)
    host.execute(executable, [x, b], keep=(0,))
    assert not host.deleted(x)
    for row in ([x, x],):
        with pytest.raises(PjrtError, match="arguments 0 and 1, and one of them is donated"):
            host.execute(executable, row)
    assert not host.deleted(x)
    host.execute(executable, [x, x], keep=(0,))
    both = host.load(adder(alias=0, other=-2))
    with pytest.raises(PjrtError, match="both are donated"):
        host.execute(both, [x, x])
    host.execute(both, [x, b])
    assert host.deleted(x) and host.deleted(b)


def test_failed_inputs_fail_what_consumes_them(host: Host, adder: Callable[..., bytes]) -> None:
    failed = host(
        "Client_CreateErrorBuffer",
        client=host.client,
        error_code=15,
        error_message="lost",
        error_message_size=4,
        shape_dims=[4],
        shape_num_dims=1,
        shape_element_type=11,
        memory=host.memory(),
    ).buffer
    x = host.put(ONE)
    for flags in (SMALL, 0):
        executable = host.load(adder(flags=flags))
        (out,) = host.execute(executable, [failed, x], complete=False)
        (next_out,) = host.execute(executable, [x, out], complete=False)
        for buffer in (out, next_out):
            with pytest.raises(PjrtError, match="lost"):
                host.get(buffer)
        with pytest.raises(PjrtError, match="lost"):
            host.execute(executable, [failed, x])  # here from the completion event
    assert list(host.get(host.execute(executable, [x, x])[0])) == [2, 2, 2, 2]


def test_failure_while_running_is_on_every_output(table: Table) -> None:
    host = Host(table, memory_limit_bytes=1 << 20)
    big = Program(
        name="big",
        params=[Param(F4)],
        outputs=[Output(F4), Output(F4)],
        slots=[Slot(PARAM, 0, 16), Slot(OUTPUT, 0, 16), Slot(OUTPUT, 1, 16), Slot(ARENA, 0, 64)],
        blocks=[[Copy(1, 0, 16), Copy(2, 0, 16)]],
        arena_bytes=1 << 30,
    )
    executable = host.load(big.serialize())
    x = host.put(ONE)
    outs = host.execute(executable, [x], outputs=2, complete=False)
    for out in outs:
        with pytest.raises(PjrtError, match="out of memory") as caught:
            host.get(out)
        assert caught.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(PjrtError, match="out of memory"):
        host.execute(executable, [x], outputs=2)
    assert host.stats().bytes_in_use == 64  # the input
    # A small program runs while the caller waits, so the call itself fails.
    big.flags = SMALL
    executable = host.load(big.serialize())
    with pytest.raises(PjrtError, match="out of memory"):
        host.execute(executable, [x], outputs=2, complete=False)
    assert host.stats().bytes_in_use == 64
    host.destroy(x, *outs)
    host.close()


def test_out_of_memory_before_the_start_leaves_inputs(table: Table, adder: Callable[..., bytes]) -> None:
    host = Host(table, memory_limit_bytes=192)
    executable = host.load(adder(other=0))
    x, y, z = (host.put(ONE) for _ in range(3))
    host("Buffer_IncreaseExternalReferenceCount", buffer=y)  # so that it cannot be reused
    with pytest.raises(PjrtError, match="out of memory"):
        host.execute(executable, [x, y])
    assert not host.deleted(y) and list(host.get(y)) == [1, 1, 1, 1]
    host.destroy(z)
    (out,) = host.execute(executable, [x, y])
    assert list(host.get(out)) == [2, 2, 2, 2]
    host.close()


def test_runs_on_every_device(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder(replicas=2, device_assignment=(1, 0)))
    rows = [[host.put(ONE * (d + 1), memory=host.memory(d)) for _ in range(2)] for d in (1, 0)]
    (first,), (second,) = host.execute(executable, *rows)
    assert list(host.get(first)) == [4, 4, 4, 4] and list(host.get(second)) == [2, 2, 2, 2]
    assert host("Buffer_Device", buffer=first).device == host.devices()[1]
    ids = host("LoadedExecutable_AddressableDeviceLogicalIds", executable=executable)
    assert ids.num_addressable_device_logical_ids == 2
    args = host("LoadedExecutable_GetDeviceAssignment", executable=executable)
    data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
    assert data == bytes([8, 2, 16, 1, 26, 4, 10, 2, 1, 0])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_device_assignment_deleter)(
        args.serialized_device_assignment
    )
    with pytest.raises(PjrtError, match="argument 0"):
        host.execute(executable, rows[1], rows[0])


def test_the_options_place_a_program(host: Host, adder: Callable[..., bytes]) -> None:
    assignment = bytes([8, 1, 16, 1, 26, 3, 10, 1, 1])
    build = bytes([74, len(assignment)]) + assignment
    options = bytes([26, len(build)]) + build
    executable = host.load(adder(), options)
    args = host("LoadedExecutable_AddressableDevices", executable=executable)
    assert host.list(args.addressable_devices, 1) == [host.devices()[1]]
    assignment = bytes([8, 1, 16, 1, 26, 3, 10, 1, 9])
    build = bytes([74, len(assignment)]) + assignment
    with pytest.raises(PjrtError, match="assigned to device 9"):
        host.load(adder(), bytes([26, len(build)]) + build)
    with pytest.raises(PjrtError, match="not a valid CompileOptionsProto"):
        host.load(adder(), b"\x1a\xff")


def test_metadata(host: Host, adder: Callable[..., bytes]) -> None:
    data = adder(alias=0)
    loaded = host.load(data)
    executable = host("LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    name = host("Executable_Name", executable=executable)
    assert text(name.executable_name, name.executable_name_size) == "adder"
    assert host("Executable_NumOutputs", executable=executable).num_outputs == 1
    assert host("Executable_NumReplicas", executable=executable).num_replicas == 1
    assert host("Executable_NumPartitions", executable=executable).num_partitions == 1
    stats = host("Executable_GetCompiledMemoryStats", executable=executable)
    assert (stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.alias_size_in_bytes) == (32, 16, 16)
    cost = host("Executable_GetCostAnalysis", executable=executable)
    assert ctypes_abi.read_named_values(cost.properties, cost.num_properties) == {"flops": 4.0}
    shown = host("Executable_Fingerprint", executable=executable)
    assert text(shown.executable_fingerprint, shown.executable_fingerprint_size) == "abc"
    dims = host("Executable_OutputDimensions", executable=executable)
    assert (ctypes.c_int64.from_address(dims.dims).value, dims.num_outputs) == (4, 1)
    kinds = host("Executable_OutputMemoryKinds", executable=executable)
    assert ctypes.string_at(ctypes.c_void_p.from_address(kinds.memory_kinds).value or 0, 6) == b"device"
    shardings = host.table.extension_call(
        "Shardings", "PJRT_Shardings_PJRT_Executable_OutputShardings", executable=executable
    )
    assert shardings.num_outputs == 1
    layouts = host.table.extension_call(
        "Layouts", "PJRT_Layouts_PJRT_Executable_GetParameterLayouts", executable=executable
    )
    assert layouts.num_parameters == 2
    with pytest.raises(PjrtError, match="not kept as StableHLO"):
        host("Executable_OptimizedProgram", executable=executable, program=make("PJRT_Program"))
    host("LoadedExecutable_Destroy", executable=loaded)
    args = host("Executable_Serialize", executable=executable)
    host("Executable_Destroy", executable=executable)
    assert ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size) == data
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_executable_deleter)(args.serialized_executable)


def test_deleted_executables(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder())
    x = host.put(ONE)
    host("LoadedExecutable_Delete", executable=executable)
    assert host("LoadedExecutable_IsDeleted", executable=executable).is_deleted
    with pytest.raises(PjrtError, match="has been deleted"):
        host.execute(executable, [x, x])
    host("LoadedExecutable_Destroy", executable=executable)


def test_damaged_programs(host: Host, adder: Callable[..., bytes]) -> None:
    data = adder()
    for damaged in (b"", b"FERRULE\0", data[:-1], data[:40] + b"\xff" + data[41:], b"x" + data[1:]):
        with pytest.raises(PjrtError):
            host.load(damaged)
    with pytest.raises(PjrtError, match="target") as caught:
        host.load(adder(target="xpu"))
    assert caught.value.code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED")


def test_a_small_program_that_calls_python_is_queued(host: Host, adder: Callable[..., bytes]) -> None:
    executable = host.load(adder(flags=SMALL | PYTHON))
    x = host.put(ONE)
    out = host.execute(executable, [x, x])
    assert list(host.get(out[0])) == [2, 2, 2, 2]


def test_many_threads(host: Host, adder: Callable[..., bytes]) -> None:
    quick, queued = host.load(adder(alias=0)), host.load(adder(alias=0, flags=0))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            b, x = host.put(ONE), host.put(ONE * seed)
            for step in range(100):
                (y,) = host.execute(queued if (step + seed) % 3 else quick, [x, b], complete=False)
                host.destroy(x)
                x = y
            assert list(host.get(x)) == [seed + 100] * 4
            host.destroy(x, b)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_nothing_leaks(table: Table, adder: Callable[..., bytes]) -> None:
    host = Host(table)
    executable = host.load(adder(alias=0))
    before = host.stats().bytes_in_use
    for flags in range(50):
        x, b = host.put(ONE), host.put(ONE)
        if flags % 2:
            with pytest.raises(PjrtError):
                host.execute(executable, [x, x])
        else:
            host.destroy(*host.execute(executable, [x, b]))
        host.destroy(x, b)
    assert host.stats().bytes_in_use == before
    host("LoadedExecutable_Destroy", executable=executable)
    host.close()


def test_unknown_calls_are_refused_when_loading(host: Host) -> None:
    program = Program(
        name="caller",
        params=[Param(F4)],
        outputs=[Output(F4)],
        slots=[Slot(PARAM, 0, 16), Slot(OUTPUT, 0, 16)],
        blocks=[[Call("no.such.call", False, ((0, F4),), ((1, F4),), {})]],
    )
    with pytest.raises(PjrtError, match="no.such.call"):
        host.load(program.serialize())
