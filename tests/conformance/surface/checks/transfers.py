"""Host memory and its owner: semantics of BufferFromHostBuffer, views, promised and failed buffers, async transfers."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import programs
from context import (
    CODES,
    F32,
    ONE,
    ONLY_DURING_CALL,
    S32,
    UNTIL_TRANSFER_COMPLETES,
    ZERO_COPY,
    Context,
    Event,
    aligned,
)
from registry import group

from ferrule.client import Buffer, PjrtError
from ferrule.pjrt.ctypes_abi import make

check = group("host_buffers")
bad = group("bad_input")
view_check = group("views")
kinds_check = group("special_buffers")
async_check = group("async_transfers")
MANAGER = "AsyncHostToDeviceTransferManager_"


@check(required=True)
def memory_is_free_after_the_call(c: Context) -> None:
    """ImmutableOnlyDuringCall: the host memory may be overwritten as soon as the call returns."""
    for size in (4, 1 << 20):
        array = np.arange(size, dtype=np.float32)
        buffer, done = c.put_with_event(array, ONLY_DURING_CALL)
        array[:] = -1
        np.testing.assert_array_equal(c.get(buffer), np.arange(size, dtype=np.float32))
        done.wait()


@check(required=True)
def memory_is_free_after_the_transfer(c: Context) -> None:
    """ImmutableUntilTransferCompletes: the host memory may be overwritten once the event is ready."""
    for size in (4, 1 << 20):
        array = aligned(np.arange(size, dtype=np.float32))
        buffer, done = c.put_with_event(array, UNTIL_TRANSFER_COMPLETES)
        done.wait()
        array[:] = -1
        np.testing.assert_array_equal(c.get(buffer), np.arange(size, dtype=np.float32))


@check(required=True)
def memory_is_free_after_the_buffer(c: Context) -> str:
    """ImmutableZeroCopy: the event is ready at the latest when the buffer is gone."""
    array = aligned(np.arange(1000, dtype=np.float32))
    buffer, done = c.put_with_event(array, ZERO_COPY)
    c.ready_event(buffer).wait()
    before = done.ready
    buffer.delete()
    done.wait()
    return "copied" if before else "shared"


@check(required=True)
def memory_stays_as_it_is(c: Context) -> None:
    """ImmutableZeroCopy: the plugin never writes into the host memory, not even when the buffer is donated."""
    array = aligned(ONE)
    buffer, done = c.put_with_event(array, ZERO_COPY)
    out = c.compile(programs.DONATE).execute([buffer, c.put(ONE)])[0]
    assert c.get(out).tolist() == [2, 2, 2, 2]
    assert array.tolist() == [1, 1, 1, 1], "the host array was written to"
    del out, buffer
    done.wait()


@check(required=True)
def memory_lives_as_long_as_a_program_reads_it(c: Context) -> None:
    """ImmutableZeroCopy: the event is not ready while a running program still reads the memory."""
    count = c.compile(programs.COUNT)
    array = aligned(np.zeros(4, np.int32))
    buffer, done = c.put_with_event(array, ZERO_COPY)
    c.ready_event(buffer).wait()
    shared = not done.ready
    (outputs,), (event,) = c.launch(count, [c.put(c.slow(count, 0.2)), buffer])
    buffer.delete()
    if shared and done.ready:
        assert event.ready, "the event was ready while the program was running"
    event.wait()
    done.wait()
    assert len(set(c.get(outputs[0]).tolist())) == 1


@bad
def a_place_is_needed(c: Context) -> None:
    """Exactly one of memory and device is given; neither is an error."""
    c.error_of(lambda: c.put(ONE, memory=None), what="a buffer without a place")


@bad
def wrong_shapes_are_refused(c: Context) -> None:
    """Negative dimensions, a size beyond the address space, and a number of strides that is not the rank are errors."""
    for inputs in (
        {"dims": [-1], "num_dims": 1},
        {"dims": [1 << 40, 1 << 40], "num_dims": 2},
        {"dims": [2, 2], "num_dims": 2, "byte_strides": [4], "num_byte_strides": 1},
    ):
        c.note(str(inputs))
        c.error_of(lambda i=inputs: c.put(ONE, strides=False, **i), what=f"a buffer with {inputs}")


@bad
def wrong_element_types_are_refused(c: Context) -> None:
    """An element type that does not exist is an error."""
    for number in (0, 99, -1):
        c.note(str(number))
        c.error_of(lambda n=number: c.put(ONE, type=n), what=f"a buffer of element type {number}")


@check
def a_layout_on_the_device(c: Context) -> None:
    """device_layout asks for a layout in the device's memory; the contents read the same."""
    order = make("PJRT_Buffer_MemoryLayout_Tiled", minor_to_major=[0, 1], minor_to_major_size=2)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = c.put(array, device_layout=make("PJRT_Buffer_MemoryLayout", type=0, tiled=order))
    np.testing.assert_array_equal(c.get(buffer), array)


@check(required=True)
def the_usual_layout_may_be_said(c: Context) -> None:
    """device_layout may name row-major, which is also what null means."""
    order = make("PJRT_Buffer_MemoryLayout_Tiled", minor_to_major=[1, 0], minor_to_major_size=2)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = c.put(array, device_layout=make("PJRT_Buffer_MemoryLayout", type=0, tiled=order))
    np.testing.assert_array_equal(c.get(buffer), array)


# --- views of foreign memory


def view(c: Context, array: np.ndarray, released: list[int], argument: int = 77, **more: Any) -> Buffer:
    """A buffer over the array's memory; `released` gets the argument of the delete callback."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda _, user: released.append(user))
    c.kept += [callback, array]
    args = c.call(
        "Client_CreateViewOfDeviceBuffer",
        client=c.client.handle,
        device_buffer_ptr=array.ctypes.data,
        dims=list(array.shape),
        num_dims=array.ndim,
        on_delete_callback=ctypes.cast(callback, ctypes.c_void_p).value,
        on_delete_callback_arg=argument,
        **({"device": c.device.handle, "element_type": F32} | more),
    )
    return Buffer(c.client, args.buffer)


def host_readable(c: Context) -> None:
    c.pointer(c.put(ONE))  # unsupported where the device's memory is not the host's


@view_check
def foreign_memory_can_be_wrapped(c: Context) -> None:
    """CreateViewOfDeviceBuffer wraps memory of the caller; the delete callback fires once, with its argument, when the
    last use is over."""
    host_readable(c)
    array, released = aligned(np.arange(4, dtype=np.float32)), []
    buffer = view(c, array, released)
    assert c.get(buffer).tolist() == [0, 1, 2, 3]
    assert c.compile(programs.ADD).execute([buffer, buffer])
    assert not released
    buffer.delete()
    assert released == [77], released
    del buffer
    assert released == [77]


@view_check
def a_view_is_released_after_its_last_use(c: Context) -> None:
    """The delete callback does not fire while a program still reads the memory."""
    host_readable(c)
    count = c.compile(programs.COUNT)
    array, released = aligned(np.zeros(4, np.int32)), []
    buffer = view(c, array, released, 5, element_type=S32)
    n = c.put(c.slow(count, 0.2))
    (outputs,), (event,) = c.launch(count, [n, buffer])
    del buffer
    if released:
        assert event.ready, "the memory was released while the program was running"
    event.wait()
    assert c.get(outputs[0]).tolist() == [int(c.get(n))] * 4
    del outputs
    for _ in range(100):
        if released:
            break
        time.sleep(0.01)
    assert released == [5], released


@view_check
def a_view_is_never_written(c: Context) -> None:
    """A view that is donated gives a right result, and its callback fires once."""
    host_readable(c)
    array, released = aligned(ONE), []
    buffer = view(c, array, released)
    out = c.compile(programs.DONATE).execute([buffer, c.put(ONE)])[0]
    assert c.get(out).tolist() == [2, 2, 2, 2]
    del buffer, out
    assert released == [77], released


# --- buffers without contents of their own


@kinds_check
def an_uninitialized_buffer_has_its_shape(c: Context) -> None:
    """CreateUninitializedBuffer gives a buffer of the shape that can be read, whatever is in it."""
    c.since(69)
    args = c.call("Client_CreateUninitializedBuffer", client=c.client.handle, memory=c.memory(), **c.shape(2, 3))
    assert c.get(Buffer(c.client, args.buffer)).shape == (2, 3)


@kinds_check
def an_error_buffer_fails_whoever_uses_it(c: Context) -> None:
    """CreateErrorBuffer gives a buffer whose error comes out of its ready event, of reading, and of copies."""
    c.since(82)
    buffer = c.error_buffer("DATA_LOSS", "lost for good")
    assert buffer.shape == (4,)
    for what, use in (
        ("the ready event", lambda: c.ready_event(buffer).wait()),
        ("reading", lambda: c.get(buffer)),
        (
            "a copy",
            lambda: c.get(
                Buffer(
                    c.client,
                    c.call("Buffer_CopyToMemory", buffer=buffer.handle, dst_memory=c.memories()[-1]).dst_buffer,
                )
            ),
        ),
    ):
        error = c.error_of(use, "DATA_LOSS", what=what)
        assert "lost for good" in error.message, error.message


@kinds_check
def an_error_buffer_fails_the_program(c: Context) -> None:
    """A program that gets a failed buffer gives failed results with its message; the next run is not affected."""
    c.since(82)
    failed, one, add = c.error_buffer(), c.put(ONE), c.compile(programs.ADD)
    (outputs,), _ = c.launch(add, [failed, one], events=False)
    (following,), _ = c.launch(add, [one, outputs[0]], events=False)
    for buffer in (outputs[0], following[0]):
        assert "lost" in c.error_of(lambda b=buffer: c.get(b), what="reading the result").message
    assert c.get(add.execute([one, one])[0]).tolist() == [2, 2, 2, 2]


@kinds_check
def a_promise_is_kept(c: Context) -> None:
    """An alias buffer becomes ready with the contents of the buffer that fulfils it; what was queued on it follows."""
    c.since(77)
    args = c.call("Client_CreateAliasBuffer", client=c.client.handle, memory=c.memory(), **c.shape(4))
    promised = Buffer(c.client, args.alias_buffer)
    event = c.ready_event(promised)
    assert not event.ready
    source = c.put(3 * ONE)
    c.call(
        "Client_FulfillAliasBuffer",
        client=c.client.handle,
        buffer=source.handle,
        status_code=0,
        fulfill_alias_buffer_cb=args.fulfill_alias_buffer_cb,
    )
    event.wait()
    assert c.get(promised).tolist() == [3, 3, 3, 3]
    assert c.get(c.compile(programs.ADD).execute([promised, promised])[0]).tolist() == [6, 6, 6, 6]


@kinds_check
def a_promise_is_broken(c: Context) -> None:
    """An alias buffer that is fulfilled with an error fails with that error."""
    c.since(77)
    args = c.call("Client_CreateAliasBuffer", client=c.client.handle, memory=c.memory(), **c.shape(4))
    promised = Buffer(c.client, args.alias_buffer)
    try:
        c.call(
            "Client_FulfillAliasBuffer",
            client=c.client.handle,
            status_code=CODES["ABORTED"],
            error_message="no luck",
            error_message_size=7,
            fulfill_alias_buffer_cb=args.fulfill_alias_buffer_cb,
        )
    except PjrtError as error:
        assert "no luck" in error.message  # some hand the error back as well
    assert "no luck" in c.error_of(lambda: c.get(promised), what="reading it").message


# --- async transfers


def manager(c: Context, *sizes: int) -> tuple[int, list[Buffer]]:
    """A transfer manager for vectors of int32, and its buffers."""
    c.since(62)
    specs = [make("PJRT_ShapeSpec", dims=[n], num_dims=1, element_type=S32) for n in sizes]
    handle = c.call(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=c.client.handle,
        shape_specs=specs,
        num_shape_specs=len(specs),
        memory=c.memory(),
    ).transfer_manager
    buffers = [
        c.call(MANAGER + "RetrieveBuffer", transfer_manager=handle, buffer_index=i).buffer_out
        for i in range(len(sizes))
    ]
    return handle, [Buffer(c.client, b) for b in buffers]


def send(c: Context, handle: int, index: int, data: np.ndarray, offset: int, last: bool) -> Event:
    args = c.call(
        MANAGER + "TransferData",
        transfer_manager=handle,
        buffer_index=index,
        data=data.ctypes.data,
        offset=offset,
        transfer_size=data.nbytes,
        is_last_transfer=last,
    )
    c.kept.append(data)
    return Event(c, args.done_with_h2d_transfer)


def destroy(c: Context, handle: int) -> None:
    c.call(MANAGER + "Destroy", transfer_manager=handle)


@async_check
def a_manager_knows_its_buffers(c: Context) -> None:
    """BufferCount, BufferSize and Device describe what the manager was made for."""
    handle, buffers = manager(c, 6, 8)
    assert c.call(MANAGER + "BufferCount", transfer_manager=handle).buffer_count == 2
    sizes = [c.call(MANAGER + "BufferSize", transfer_manager=handle, buffer_index=i).buffer_size for i in range(2)]
    assert sizes == [24, 32], sizes
    assert c.call(MANAGER + "Device", transfer_manager=handle).device_out == c.device.handle
    assert [b.shape for b in buffers] == [(6,), (8,)]
    for index, size in enumerate((6, 8)):
        send(c, handle, index, np.zeros(size, np.int32), 0, True).wait()
    destroy(c, handle)


@async_check
def a_buffer_is_ready_after_its_last_chunk(c: Context) -> None:
    """Buffers are there before the data; each becomes ready with the chunk flagged last, in any order of offsets."""
    handle, (buffer,) = manager(c, 6)
    event = c.ready_event(buffer)
    data = np.arange(6, dtype=np.int32)
    send(c, handle, 0, data[3:].copy(), 12, False).wait()
    assert not event.ready, "ready before the last chunk"
    send(c, handle, 0, data[:3].copy(), 0, True).wait()
    event.wait()
    assert c.get(buffer).tolist() == data.tolist()
    destroy(c, handle)


@async_check
def a_program_waits_for_the_data(c: Context) -> None:
    """A program may be launched on a buffer whose data has not arrived; it computes with the data."""
    handle, (buffer,) = manager(c, 4)
    (outputs,), _ = c.launch(c.compile(programs.COUNT), [c.put(np.array(5, np.int32)), buffer], events=False)
    send(c, handle, 0, np.arange(4, dtype=np.int32), 0, True).wait()
    assert c.get(outputs[0]).tolist() == [5, 6, 7, 8]
    destroy(c, handle)


@async_check
def a_buffer_can_be_given_up(c: Context) -> None:
    """SetBufferError fails one buffer with the error; the others are not affected."""
    handle, (first, second) = manager(c, 4, 4)
    c.call(
        MANAGER + "SetBufferError",
        transfer_manager=handle,
        buffer_index=0,
        error_code=CODES["UNAVAILABLE"],
        error_message="source gone",
        error_message_size=11,
    )
    send(c, handle, 1, np.arange(4, dtype=np.int32), 0, True).wait()
    error = c.error_of(lambda: c.get(first), what="reading the failed buffer")
    assert "source gone" in error.message, error.message
    assert c.get(second).tolist() == [0, 1, 2, 3]
    destroy(c, handle)


@async_check
def an_abandoned_buffer_fails(c: Context) -> None:
    """Destroying the manager fails the buffers that are not complete, instead of leaving their readers waiting."""
    handle, (buffer,) = manager(c, 4)
    destroy(c, handle)
    c.error_of(lambda: c.get(buffer), what="reading an abandoned buffer")


@bad
def data_outside_a_buffer_is_refused(c: Context) -> None:
    """Chunks outside the buffer, and a buffer that the manager does not have, are errors."""
    handle, (buffer,) = manager(c, 4)
    data = np.arange(4, dtype=np.int32)
    for index, offset in ((0, 8), (0, -4), (3, 0), (-1, 0)):
        c.note(f"buffer {index}, offset {offset}")
        c.error_of(
            lambda i=index, o=offset: send(c, handle, i, data, o, False).wait(), what=f"buffer {index}, offset {offset}"
        )
    send(c, handle, 0, data, 0, True).wait()
    assert c.get(buffer).tolist() == [0, 1, 2, 3]
    destroy(c, handle)


@async_check
def a_literal_is_a_transfer_of_its_own(c: Context) -> None:
    """TransferLiteral sends a whole array, and the buffer is ready then."""
    c.since(83)
    handle, (buffer,) = manager(c, 4)
    data = np.arange(4, dtype=np.int32)
    args = c.call(
        MANAGER + "TransferLiteral",
        transfer_manager=handle,
        buffer_index=0,
        data=data.ctypes.data,
        **c.shape(4, type=S32),
    )
    Event(c, args.done_with_h2d_transfer).wait()
    assert c.get(buffer).tolist() == data.tolist()
    destroy(c, handle)


@async_check
def notes_can_be_attached(c: Context) -> None:
    """AddMetadata takes named values about a transfer."""
    from ferrule.pjrt.ctypes_abi import named_value

    handle, (buffer,) = manager(c, 4)
    values = [named_value("source", "a file"), named_value("part", 3)]
    try:
        c.call(MANAGER + "AddMetadata", transfer_manager=handle, transfer_metadata=values, num_metadata=2)
    finally:
        send(c, handle, 0, np.arange(4, dtype=np.int32), 0, True).wait()
        destroy(c, handle)
    del buffer
