"""PJRT_Buffer: every element type, shapes, strides and layouts, reading, deleting, copying."""

from __future__ import annotations

import ctypes

import numpy as np
from context import ONE, S32, U32, Context, Event, aligned, array_of
from registry import Unsupported, group

from ferrule.client import Buffer, PjrtError
from ferrule.ir.types import DTYPES, DType
from ferrule.pjrt.ctypes_abi import make

check = group("buffers")
bad = group("bad_input")


def _one_type(dtype: DType) -> None:
    def run(c: Context) -> None:
        # Every bit pattern of small types, some of the large ones.
        raw = np.arange(256 if dtype.bits >= 8 else 1 << dtype.bits, dtype=np.uint8)
        if dtype.name == "i1":
            array = np.array([0, 1, 1, 0, 1], np.bool_)
        elif dtype.bits < 8:
            array = raw.view(np.int8).astype(np.int8).view(dtype.numpy)[: 1 << dtype.bits]
            array = np.arange(1 << dtype.bits).astype(dtype.numpy) if dtype.is_int else array
        else:
            array = np.resize(raw, 256 * dtype.itemsize).view(dtype.numpy)
        buffer = c.put(array)
        assert c.call("Buffer_ElementType", buffer=buffer.handle).type == dtype.pjrt
        got = c.get(buffer)
        assert got.tobytes() == array.tobytes(), f"{array[:6]} came back as {got[:6]}"

    run.__name__ = "elements_of_type_" + "".join(ch if ch.isalnum() else "_" for ch in dtype.name).strip("_")
    one = " (one byte per element at the border to the host)" if dtype.bits < 8 else ""
    run.__doc__ = f"Arrays of type {dtype.name} go to the device and back bit by bit{one}."
    check(run)


for _dtype in DTYPES.values():
    _one_type(_dtype)


@check(required=True)
def shapes_of_any_rank(c: Context) -> None:
    """Scalars, vectors, arrays without elements and arrays of rank 8 keep their dimensions and contents."""
    for shape in ((), (1,), (7,), (0,), (3, 0, 2), (2, 3, 4), (1, 2, 1, 3, 1, 2, 1, 2)):
        array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
        buffer = c.put(array)
        assert buffer.shape == shape
        np.testing.assert_array_equal(c.get(buffer), array)


@check(required=True)
def a_large_array(c: Context) -> None:
    """An array of 32 MiB goes to the device and back."""
    array = np.random.default_rng(0).integers(0, 2**62, 1 << 22)
    np.testing.assert_array_equal(c.get(c.put(array)), array)


@check(required=True)
def no_strides_mean_row_major(c: Context) -> None:
    """Without strides the host array is dense and row-major."""
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(c.get(c.put(array, strides=False)), array)


def _strided(name: str, demand: str, *arrays: np.ndarray) -> None:
    def run(c: Context) -> None:
        for array in arrays:
            np.testing.assert_array_equal(c.get(c.put(array)), array)

    run.__name__, run.__doc__ = name, demand
    check(required=True)(run)


_BASE = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
_strided(
    "transposed_arrays",
    "Byte strides may be in any order: a transposed host array arrives as it reads.",
    _BASE.T,
    _BASE.transpose(1, 0, 2),
    np.arange(10000, dtype=np.int16).reshape(100, 100).T,
)
_strided(
    "sliced_arrays",
    "Byte strides may leave gaps: a slice of a host array arrives as it reads.",
    _BASE[1:3, 2:4, 3:5],
    np.arange(70, dtype=np.int8)[::7],
    np.arange(100.0).reshape(10, 10)[::2, 1::3],
)
_strided(
    "broadcast_arrays",
    "Byte strides may be zero: a broadcast host array arrives with every element repeated.",
    np.broadcast_to(np.float32(3), (3, 4)),
    np.broadcast_to(_BASE[:, :1], (4, 5, 6)),
)
_strided(
    "reversed_arrays",
    "Byte strides may be negative, with `data` at the first logical element.",
    _BASE[::-1, :, ::-2],
    np.arange(9, dtype=np.int64)[::-1],
)


@check(required=True)
def unaligned_arrays(c: Context) -> None:
    """Host arrays may have any alignment: slices come as they are."""
    raw = np.zeros(64, np.uint8)
    for offset in (1, 2, 3, 5):
        view = raw[offset : offset + 40].view(np.uint8)
        view[:] = np.arange(40)
        values = np.frombuffer(raw.data, np.float64, 5, offset)
        np.testing.assert_array_equal(c.get(c.put(values)).tobytes(), values.tobytes())


@check(required=True)
def many_host_semantics(c: Context) -> None:
    """Each of the four host buffer semantics transfers the same contents."""
    for semantics in range(4):
        for array in (_BASE, _BASE.T, np.float32(3).reshape(()), np.zeros((0, 2), np.float32)):
            array = np.asarray(array)
            buffer = c.put(aligned(array) if array.flags.c_contiguous else array, semantics)
            np.testing.assert_array_equal(c.get(buffer), array)


@check
def reading_in_another_order(c: Context) -> None:
    """ToHostBuffer writes the host layout that the caller asks for by a minor-to-major order."""
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    order = make("PJRT_Buffer_MemoryLayout_Tiled", minor_to_major=[0, 2, 1], minor_to_major_size=3)
    got = c.get(c.put(array), make("PJRT_Buffer_MemoryLayout", type=0, tiled=order))
    np.testing.assert_array_equal(got.ravel().reshape(3, 4, 2).transpose(2, 0, 1), array)


@check
def reading_with_strides(c: Context) -> None:
    """ToHostBuffer writes the host layout that the caller asks for by byte strides."""
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    strides = make("PJRT_Buffer_MemoryLayout_Strides", byte_strides=[4, 8, 24], num_byte_strides=3)
    try:
        got = c.get(c.put(array), make("PJRT_Buffer_MemoryLayout", type=1, strides=strides))
    except PjrtError as error:
        if "not support" in error.message:
            raise Unsupported(error.message) from None
        raise
    np.testing.assert_array_equal(got.ravel().reshape(4, 3, 2).T, array)


@check(required=True)
def asking_for_the_size_only(c: Context) -> None:
    """ToHostBuffer with a null destination only reports the size in bytes."""
    for array in (np.arange(24, dtype=np.int32), np.float64(1).reshape(()), np.zeros((0, 3), np.float32)):
        args = c.call("Buffer_ToHostBuffer", src=c.put(np.asarray(array)))
        assert args.dst_size == array.nbytes, f"{args.dst_size} bytes for {array.nbytes}"


@check(required=True)
def a_destination_too_small_is_refused(c: Context) -> None:
    """ToHostBuffer with too little room is an error and writes nothing past the end."""
    out = np.full(8, 0x5A5A5A5A, np.int32)
    c.fails("Buffer_ToHostBuffer", src=c.put(np.arange(8, dtype=np.int32)), dst=out.ctypes.data, dst_size=12)
    assert set(out[3:].tolist()) == {0x5A5A5A5A}


@check(required=True)
def reading_in_several_threads(c: Context) -> None:
    """One buffer may be read by several threads at once."""
    array = np.arange(100_000)
    buffer = c.put(array)
    c.in_threads(4, lambda _: np.testing.assert_array_equal(c.get(buffer), array))


@check
def static_shapes_have_no_padding(c: Context) -> None:
    """For static shapes UnpaddedDimensions are the dimensions and no dimension is dynamic."""
    buffer = c.put(np.zeros((2, 3)))
    args = c.call("Buffer_UnpaddedDimensions", buffer=buffer.handle)
    assert array_of(args.unpadded_dims, args.num_dims, ctypes.c_int64) == [2, 3]
    assert c.call("Buffer_DynamicDimensionIndices", buffer=buffer.handle).num_dynamic_dims == 0


@check(required=True)
def a_buffer_knows_its_place(c: Context) -> None:
    """Buffer_Device and Buffer_Memory are handles that the client lists, the ones it was made for."""
    for device in c.client.devices:
        for memory in c.memories(device):
            buffer = c.put(ONE, memory=memory)
            assert c.call("Buffer_Memory", buffer=buffer.handle).memory == memory
            assert c.call("Buffer_Device", buffer=buffer.handle).device == device.handle
        buffer = c.put(ONE, device=device.handle)
        assert c.call("Buffer_Memory", buffer=buffer.handle).memory == c.memory(device)


@check
def the_size_on_the_device(c: Context) -> None:
    """OnDeviceSizeInBytes is at least the size of the contents."""
    buffer = c.put(np.zeros((5, 7), np.float32))
    size = c.call("Buffer_OnDeviceSizeInBytes", buffer=buffer.handle).on_device_size_in_bytes
    assert size >= 140, size


@check
def memory_that_the_host_can_read(c: Context) -> None:
    """Where IsOnCpu is true, OpaqueDeviceMemoryDataPointer gives memory with the contents, row-major."""
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer = c.put(array)
    pointer = c.pointer(buffer)
    assert array_of(pointer, 24, ctypes.c_float) == array.ravel().tolist()


@check
def a_pointer_for_the_user(c: Context) -> None:
    """UnsafePointer gives a number for users, the same as long as the buffer lives."""
    buffer = c.put(np.arange(24))
    found = {c.call("Buffer_UnsafePointer", buffer=buffer.handle).buffer_pointer for _ in range(2)}
    assert len(found) == 1 and all(found)


@check
def references_from_outside_keep_the_memory(c: Context) -> None:
    """While the external reference count is above zero, the memory stays, even after Delete."""
    array = np.arange(1000)
    buffer = c.put(array)
    pointer = c.pointer(buffer)
    c.call("Buffer_IncreaseExternalReferenceCount", buffer=buffer.handle)
    buffer.delete()
    others = [c.put(np.zeros(1000, np.int64)) for _ in range(20)]
    assert array_of(pointer, 1000, ctypes.c_int64) == array.tolist(), "the memory was used again"
    c.call("Buffer_DecreaseExternalReferenceCount", buffer=buffer.handle)
    del others


@bad
def a_reference_that_nobody_holds_is_refused(c: Context) -> None:
    """DecreaseExternalReferenceCount without an increase is an error."""
    buffer = c.put(ONE)
    c.pointer(buffer)
    c.fails("Buffer_DecreaseExternalReferenceCount", buffer=buffer.handle)


@check(required=True)
def deleting_keeps_the_handle(c: Context) -> None:
    """Delete may be repeated and keeps the handle; IsDeleted says so, type and dimensions can still be read."""
    buffer = c.put(np.zeros((2, 3)))
    assert not buffer.is_deleted
    for _ in range(2):
        buffer.delete()
        assert buffer.is_deleted
    assert buffer.shape == (2, 3)


@check(required=True)
def a_deleted_buffer_cannot_be_used(c: Context) -> None:
    """Reading or copying a deleted buffer is an error; its ready event is a failed one."""
    buffer = c.put(ONE)
    buffer.delete()
    c.error_of(lambda: c.get(buffer), what="reading a deleted buffer")
    c.error_of(lambda: c.ready_event(buffer).wait(), what="the ready event of a deleted buffer")
    c.error_of(
        lambda: c.call("Buffer_CopyToMemory", buffer=buffer.handle, dst_memory=c.memories()[-1]),
        what="copying a deleted buffer",
    )


@check(required=True)
def an_earlier_ready_event_is_not_affected(c: Context) -> None:
    """A ready event from before Delete still says that the contents were ready."""
    buffer = c.put(ONE)
    event = c.ready_event(buffer)
    buffer.delete()
    event.wait()


@check
def destroying_no_buffer_is_allowed(c: Context) -> None:
    """Buffer_Destroy accepts null."""
    try:
        c.call("Buffer_Destroy", buffer=None)
    except PjrtError as error:
        raise Unsupported(f"{error.code}: {error.message}") from None


@check(required=True)
def copies_to_every_memory(c: Context) -> None:
    """CopyToMemory gives a new buffer in the other memory, of any device; it outlives its source."""
    array = np.arange(1000, dtype=np.float32)
    source = c.put(array)
    copies = []
    for device in c.client.devices:
        for memory in c.memories(device):
            made = c.call("Buffer_CopyToMemory", buffer=source.handle, dst_memory=memory).dst_buffer
            copies.append((memory, Buffer(c.client, made)))
    del source
    for memory, copy in copies:
        np.testing.assert_array_equal(c.get(copy), array)
        assert c.call("Buffer_Memory", buffer=copy.handle).memory == memory


@check
def copies_to_another_device(c: Context) -> None:
    """CopyToDevice gives a new buffer in the default memory of the other device."""
    _, second = c.device_pair()
    array = np.arange(1000, dtype=np.float32)
    args = c.call("Buffer_CopyToDevice", buffer=c.put(array), dst_device=second.handle)
    copy = Buffer(c.client, args.dst_buffer)
    np.testing.assert_array_equal(c.get(copy), array)
    assert c.call("Buffer_Device", buffer=copy.handle).device == second.handle


@check
def raw_bytes(c: Context) -> None:
    """CopyRawToHost copies a range of the buffer's bytes."""
    c.since(56)
    out = np.zeros(3, np.int32)
    buffer = c.put(np.arange(10, dtype=np.int32))
    args = c.call("Buffer_CopyRawToHost", buffer=buffer.handle, dst=out.ctypes.data, offset=8, transfer_size=12)
    Event(c, args.event).wait()
    assert out.tolist() == [2, 3, 4]


@bad
def raw_bytes_outside_are_refused(c: Context) -> None:
    """CopyRawToHost of bytes that the buffer does not have is an error, at once or in the event."""
    c.since(56)
    out = np.zeros(16, np.int32)
    buffer = c.put(np.arange(10, dtype=np.int32))

    def copy(offset: int, size: int) -> None:
        args = c.call(
            "Buffer_CopyRawToHost", buffer=buffer.handle, dst=out.ctypes.data, offset=offset, transfer_size=size
        )
        Event(c, args.event).wait()

    copy(0, 40)
    for offset, size in ((32, 12), (-4, 8), (4096, 4)):
        c.note(f"offset {offset}, size {size}")
        c.error_of(lambda o=offset, s=size: copy(o, s), what=f"copying {size} bytes at {offset} of 40")


@check
def raw_bytes_to_a_later_place(c: Context) -> None:
    """CopyRawToHostFuture copies once its callback has told where to, or fails with the callback's error."""
    c.since(84)
    buffer = c.put(np.arange(10, dtype=np.int32))
    out = np.zeros(3, np.int32)
    for code in (0, 13):
        args = c.call("Buffer_CopyRawToHostFuture", buffer=buffer.handle, offset=0, transfer_size=12)
        answer = make(
            "PJRT_Buffer_CopyRawToHostFuture_Callback_Args",
            callback_data=args.callback_data,
            dst=None if code else out.ctypes.data,
            error_code=code,
            error_message="no room",
            error_message_size=7,
        )
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.future_ready_callback)(ctypes.addressof(answer))
        failure = Event(c, args.event).failure()
        assert (failure is not None) == bool(code), failure
        assert failure is None or "no room" in failure.message
    assert out.tolist() == [0, 1, 2]


@check
def another_view_of_the_same_bytes(c: Context) -> None:
    """Bitcast gives a buffer of another type and shape over the same bytes."""
    c.since(98)
    array = np.arange(4, dtype=np.float32)
    args = c.call("Buffer_Bitcast", buffer=c.put(array), element_type=U32, dims=[2, 2], num_dims=2)
    other = Buffer(c.client, args.out_buffer)
    np.testing.assert_array_equal(c.get(other), array.view(np.uint32).reshape(2, 2))


@bad
def a_view_of_another_size_is_refused(c: Context) -> None:
    """Bitcast to a shape of another size is an error."""
    c.since(98)
    c.fails("Buffer_Bitcast", buffer=c.put(ONE), element_type=S32, dims=[2, 3], num_dims=2)


@check
def giving_away_with_a_dependency(c: Context) -> None:
    """DonateWithControlDependency gives the contents to a new buffer that is ready once the callback was called; the
    old one is deleted."""
    c.since(88)
    buffer = c.put(ONE)
    args = c.call("Buffer_DonateWithControlDependency", buffer=buffer.handle)
    other = Buffer(c.client, args.out_buffer)
    event = c.ready_event(other)
    assert buffer.is_deleted
    assert not event.ready
    ready = make("PJRT_Buffer_DonateWithControlDependency_Callback_Args", callback_data=args.callback_data)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.dependency_ready_callback)(ctypes.addressof(ready))
    event.wait()
    assert c.get(other).tolist() == ONE.tolist()


@check
def the_layout_in_memory(c: Context) -> None:
    """GetMemoryLayout gives a minor-to-major order of all dimensions, or strides."""
    buffer = c.put(np.zeros((2, 3, 4)))
    layout = c.call("Buffer_GetMemoryLayout", buffer=buffer).layout
    if layout.type == 0:
        order = array_of(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size, ctypes.c_int64)
        assert sorted(order) == [0, 1, 2], order
    else:
        assert layout.strides.num_byte_strides == 3
