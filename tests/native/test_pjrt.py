"""The runtime behind the PJRT table: errors, events, client, topology, memories, buffers."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pjrt_host import MUTABLE_ZERO_COPY, ONLY_DURING_CALL, ZERO_COPY, Host, PjrtError, Table, aligned

from ferrule.pjrt import abi, ctypes_abi
from ferrule.pjrt.ctypes_abi import make, text


@pytest.fixture(scope="session")
def table(native: Any) -> Table:
    return Table.load(str(native.path))


@pytest.fixture
def host(table: Table) -> Iterator[Host]:
    host = Host(table, num_devices=2)
    yield host
    host.close()


def message(table: Table, name: str, code: str = "INVALID_ARGUMENT", **values: Any) -> str:
    """The text of the error that a call gives."""
    with pytest.raises(PjrtError) as caught:
        table.call("PJRT_" + name, **values)
    assert caught.value.code == code
    return caught.value.message


# --- the table and struct sizes


def test_table(table: Table) -> None:
    assert table.version == (0, 114)
    assert all(getattr(table.api, f.name) for f in abi.FUNCTIONS)
    assert set(table.extensions()) == {"Layouts", "Shardings", "MemoryDescriptions", "FFI"}


def test_every_function_refuses_a_short_struct_and_survives_null(table: Table) -> None:
    for function in abi.FUNCTIONS:
        if function.name in abi.VOID_FUNCTIONS:
            continue
        call = table.function(function.name)
        with pytest.raises(PjrtError, match="argument struct is null"):
            table.check(call(None))
        args = make(function.args)
        args.struct_size = 8
        if abi.STRUCTS_BY_NAME[function.args].oldest_size > 8:
            with pytest.raises(PjrtError, match=r"has 8 bytes, at least \d+ are needed"):
                table.check(call(ctypes.addressof(args)))


def test_null_handles(table: Table) -> None:
    for function in abi.FUNCTIONS:
        fields = abi.STRUCTS_BY_NAME[function.args].fields
        if len(fields) < 3 or fields[2].direction != "in" or not fields[2].type.endswith(" *"):
            continue
        pointed = fields[2].type.removeprefix("const ").removesuffix(" *")
        if not pointed.startswith("PJRT_") or pointed in ("PJRT_NamedValue",) or function.name in abi.VOID_FUNCTIONS:
            continue
        if function.name.endswith("_Destroy"):
            table.call(function.name)
        else:
            with pytest.raises(PjrtError, match="null"):
                table.call(function.name)


def test_an_older_caller_gets_no_late_field(host: Host) -> None:
    spec = abi.STRUCTS_BY_NAME["PJRT_Device_MemoryStats_Args"]
    args = make(spec.name, device=host.devices()[0])
    args.struct_size = spec.field("peak_pool_bytes_is_set").end
    ctypes.memset(ctypes.addressof(args) + args.struct_size, 0x5A, spec.size - args.struct_size)
    host.table.check(host.table.function("PJRT_Device_MemoryStats")(ctypes.addressof(args)))
    assert args.peak_pool_bytes_is_set
    rest = ctypes.string_at(ctypes.addressof(args) + args.struct_size, spec.size - args.struct_size)
    assert set(rest) == {0x5A}


def test_a_newer_caller_is_served(host: Host) -> None:
    args = make("PJRT_Client_ProcessIndex_Args", client=host.client)
    raw = (ctypes.c_char * 64).from_buffer_copy(bytes(args) + bytes(64 - ctypes.sizeof(args)))
    ctypes.c_size_t.from_buffer(raw).value = 64
    host.table.check(host.table.function("PJRT_Client_ProcessIndex")(ctypes.addressof(raw)))


def test_errors_can_be_read_in_both_ways(table: Table) -> None:
    args = make("PJRT_Client_LookupDevice_Args")
    error = table.function("PJRT_Client_LookupDevice")(ctypes.addressof(args))
    vtable = ctypes_abi.struct("PJRT_Error_FunctionTable").from_address(ctypes.c_void_p.from_address(error).value or 0)
    assert vtable.struct_size == 56
    code = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(vtable.get_code)(error)
    assert code == abi.ENUMS["PJRT_Error_Code"].values["PJRT_Error_Code_INVALID_ARGUMENT"]
    visits: list[int] = []
    visitor = ctypes_abi.callback("PJRT_Error_PayloadVisitor")(lambda *_: visits.append(1))
    table.call("PJRT_Error_ForEachPayload", error=error, visitor=visitor)
    assert not visits
    with pytest.raises(PjrtError, match="`client` is null"):
        table.check(error)
    table.call("PJRT_Event_Destroy")
    nothing = make("PJRT_Error_Destroy_Args")
    table.function("PJRT_Error_Destroy")(ctypes.addressof(nothing))


# --- events


def test_event_callbacks(host: Host) -> None:
    event = host("Event_Create").event
    fired: list[bool] = []

    @ctypes_abi.callback("PJRT_Event_OnReadyCallback")
    def callback(error: int | None, _: Any) -> None:
        fired.append(error is not None)
        if error:
            destroy = make("PJRT_Error_Destroy_Args", error=error)
            host.table.function("PJRT_Error_Destroy")(ctypes.addressof(destroy))
        if len(fired) == 2:  # as JAX does: from inside the callback, while the plugin still sets the event
            host("Event_Destroy", event=event)

    for _ in range(2):
        host("Event_OnReady", event=event, callback=callback)
    assert not host.ready(event)
    assert "not ready" in message(host.table, "Event_Error", "FAILED_PRECONDITION", event=event)
    host("Event_Set", event=event, error_code=9, error_message="too bad", error_message_size=7)
    assert fired == [True, True]


def test_event_outcome(host: Host) -> None:
    event = host("Event_Create").event
    host("Event_Set", event=event, error_code=8, error_message="full", error_message_size=4)
    assert host.ready(event)
    for _ in range(2):
        assert message(host.table, "Event_Error", "RESOURCE_EXHAUSTED", event=event) == "full"
        assert message(host.table, "Event_Await", "RESOURCE_EXHAUSTED", event=event) == "full"
    assert "set before" in message(host.table, "Event_Set", "FAILED_PRECONDITION", event=event)
    host("Event_Destroy", event=event)


# --- plugin, client, devices, topology


def test_plugin_attributes(table: Table) -> None:
    args = table.call("PJRT_Plugin_Attributes")
    found = ctypes_abi.read_named_values(args.attributes, args.num_attributes)
    assert found["xla_version"] == 2
    assert len(found["stablehlo_current_version"]) == len(found["stablehlo_minimum_version"]) == 3


def test_client(host: Host) -> None:
    name = host("Client_PlatformName", client=host.client)
    assert text(name.platform_name, name.platform_name_size) == "ferrule"
    version = host("Client_PlatformVersion", client=host.client)
    assert text(version.platform_version, version.platform_version_size).startswith("Ferrule ")
    first, second = host.devices()
    assert host("Client_LookupDevice", client=host.client, id=1).device == second
    assert host("Client_LookupAddressableDevice", client=host.client, local_hardware_id=0).addressable_device == first
    assert "no device with id 7" in message(host.table, "Client_LookupDevice", client=host.client, id=7)
    description = host("Device_GetDescription", device=second).device_description
    shown = host("DeviceDescription_ToString", device_description=description)
    assert text(shown.to_string, shown.to_string_size) == "FerruleCpuDevice(id=1, process_index=0)"
    attributes = host("Device_GetAttributes", device=first)
    assert ctypes_abi.read_named_values(attributes.attributes, attributes.num_attributes)["target"] == "cpu"
    assert attributes.attributes_deleter and attributes.device_attributes
    host("Client_UpdateGlobalProcessInfo", client=host.client)


def test_default_assignment(host: Host) -> None:
    ids = (ctypes.c_int * 2)(9, 9)
    values = {"client": host.client, "num_partitions": 1, "default_assignment": ids}
    host("Client_DefaultDeviceAssignment", num_replicas=2, default_assignment_size=2, **values)
    assert list(ids) == [0, 1]
    assert "FERRULE_NUM_DEVICES" in message(
        host.table, "Client_DefaultDeviceAssignment", num_replicas=3, default_assignment_size=3, **values
    )
    assert "room for 1" in message(
        host.table, "Client_DefaultDeviceAssignment", num_replicas=2, default_assignment_size=1, **values
    )


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"num_device": 2}, "INVALID_ARGUMENT", "did you mean `num_devices`"),
        ({"zzz": 2}, "INVALID_ARGUMENT", "known options: platform_name"),
        ({"num_devices": 0}, "INVALID_ARGUMENT", "between 1 and 1024"),
        ({"num_devices": True}, "INVALID_ARGUMENT", "must be a whole number"),
        ({"num_devices": "many"}, "INVALID_ARGUMENT", "must be a whole number"),
        ({"num_nodes": 2}, "UNIMPLEMENTED", "one process"),
        ({"target": "cuda"}, "UNIMPLEMENTED", "FERRULE_TARGET=cpu"),
        ({"target": "xpu:pvc"}, "INVALID_ARGUMENT", "compile for without the device"),
        ({"platform_name": "cuda"}, "UNIMPLEMENTED", "NVIDIA"),
        ({"target": "tpu9"}, "INVALID_ARGUMENT", "unknown target `tpu9`"),
    ],
)
def test_client_options(table: Table, options: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(PjrtError) as caught:
        Host(table, **options)
    assert caught.value.code == code
    assert words in caught.value.message


def test_the_platform_name_comes_from_the_list_of_plugins(table: Table, native: Any) -> None:
    os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"other:/nowhere.so,mine:{native.path}"
    try:
        host = Host(table)
    finally:
        del os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"]
    name = host("Client_PlatformName", client=host.client)
    assert text(name.platform_name, name.platform_name_size) == "mine"
    host.close()


def test_topology(host: Host) -> None:
    topology = host("TopologyDescription_Create", topology_name="cpu:3", topology_name_size=5).topology
    assert host("TopologyDescription_GetDeviceDescriptions", topology=topology).num_descriptions == 3
    args = host("TopologyDescription_Serialize", topology=topology)
    data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_topology_deleter)(args.serialized_topology)
    again = host(
        "TopologyDescription_Deserialize", serialized_topology=data, serialized_topology_size=len(data)
    ).topology
    prints = {host("TopologyDescription_Fingerprint", topology=t).fingerprint for t in (topology, again)}
    assert len(prints) == 1
    own = host("Client_TopologyDescription", client=host.client).topology
    assert host("TopologyDescription_Fingerprint", topology=own).fingerprint not in prints
    for each in (topology, again):
        host("TopologyDescription_Destroy", topology=each)
    for damaged in (b"", b"nonsense", data[:-3]):
        with pytest.raises(PjrtError):
            host("TopologyDescription_Deserialize", serialized_topology=damaged, serialized_topology_size=len(damaged))


@pytest.mark.parametrize(("name", "devices"), [("cpu:2x3", 6), ("2x2", 4), ("5", 5), ("cpu", 1), ("", 1)])
def test_names_of_topologies(host: Host, name: str, devices: int) -> None:
    topology = host("TopologyDescription_Create", topology_name=name, topology_name_size=len(name)).topology
    assert host("TopologyDescription_GetDeviceDescriptions", topology=topology).num_descriptions == devices
    host("TopologyDescription_Destroy", topology=topology)


@pytest.mark.parametrize("name", ["cpu:", "cpu:2x", "x", "cpu:2x2x", "cpu:0x2", "cpu:99x99", "v5e:2x2", "cpu:-3"])
def test_senseless_names_of_topologies(host: Host, name: str) -> None:
    with pytest.raises(PjrtError) as caught:
        host("TopologyDescription_Create", topology_name=name, topology_name_size=len(name))
    assert caught.value.code == "INVALID_ARGUMENT"


def test_canonical_shapes(host: Host) -> None:
    """As XLA's ShapeProto: element type, dimensions, layout, none of them dynamic."""
    name = "TopologyDescription_MakeCanonicalShapeForMemorySpace"
    values = {"topology": host("Client_TopologyDescription", client=host.client).topology}
    order = make("PJRT_Buffer_MemoryLayout_Tiled", minor_to_major=[0, 1], minor_to_major_size=2)
    columns = make("PJRT_Buffer_MemoryLayout", type=0, tiled=order)
    for dims, dtype, layout, expected in (
        ([2, 3], 11, None, "100b1a0202032a040a02010032020000"),
        ([2, 3], 11, columns, "100b1a0202032a040a02000132020000"),
        ([], 13, None, "10102a00"),
        ([300], 14, None, "100f1a02ac022a030a0100320100"),
    ):
        shape = {"dims": dims, "num_dims": len(dims), "element_type": dtype, "layout": layout}
        args = host(name, memory_space_kind_id=1, **shape, **values)
        assert ctypes.string_at(args.serialized_shape, args.serialized_shape_size).hex() == expected
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_shape_deleter)(args.serialized_shape)
    assert "kind id 7" in message(host.table, name, memory_space_kind_id=7, element_type=11, **values)


def test_memories(host: Host) -> None:
    device = host.devices()[1]
    kinds = []
    for memory in host.memories(device):
        args = host("Memory_Kind", memory=memory)
        kinds.append(text(args.kind, args.kind_size))
        users = host("Memory_AddressableByDevices", memory=memory)
        assert host.list(users.devices, users.num_devices) == [device]
    assert kinds == ["device", "pinned_host", "unpinned_host"]
    assert host.memory(1) == host.memories(device)[0]
    args = host("Client_AddressableMemories", client=host.client)
    listed = host.list(args.addressable_memories, args.num_addressable_memories)
    assert [host("Memory_Id", memory=m).id for m in listed] == list(range(6))
    description = host("Device_GetDescription", device=device).device_description
    described = host.table.extension_call(
        "MemoryDescriptions", "PJRT_DeviceDescription_MemoryDescriptions", device_description=description
    )
    pointers = host.list(described.memory_descriptions, described.num_memory_descriptions)
    for pointer, kind in zip(pointers, kinds):
        got = host.table.extension_call("MemoryDescriptions", "PJRT_MemoryDescription_Kind", memory_description=pointer)
        assert text(got.kind, got.kind_size) == kind


def test_memory_user_data(host: Host) -> None:
    memory = host.memory()
    vtable = ctypes_abi.struct("PJRT_Memory_FunctionTable").from_address(
        ctypes.c_void_p.from_address(memory).value or 0
    )
    dropped: list[int] = []
    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(dropped.append)
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(vtable.get_user_data)
    put = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(vtable.set_user_data)
    assert get(memory, 1) is None
    put(memory, 1, 111, ctypes.cast(destroy, ctypes.c_void_p))
    assert get(memory, 1) == 111
    put(memory, 1, 222, None)
    assert get(memory, 1) == 222
    assert dropped == [111]


# --- buffers


def arrays() -> list[np.ndarray]:
    base = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    return [
        base,
        base.T,
        base[::-1, :, ::-2],
        base[1:3, 2:4, 3:5],
        np.broadcast_to(np.float32(3), (3, 4)),
        np.broadcast_to(base[:, :1], (4, 5, 6)),
        np.array(7, np.float32),
        np.zeros((0, 3), np.float32),
        np.arange(7, dtype=np.int8)[::3],
        np.arange(10000, dtype=np.int16).reshape(100, 100).T,
        (np.arange(12) * 1j).reshape(3, 4).T,
        np.array([True, False, True]),
        np.arange(100.0).reshape(10, 10)[::2].T,
    ]


@pytest.mark.parametrize("semantics", range(4))
@pytest.mark.parametrize("index", range(len(arrays())))
def test_round_trip(host: Host, index: int, semantics: int) -> None:
    array = arrays()[index]
    buffer = host.put(array, semantics)
    np.testing.assert_array_equal(host.get(buffer), array)
    assert host("Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes == array.nbytes
    host.destroy(buffer)


def test_every_type_crosses(host: Host) -> None:
    from ferrule.ir.types import BY_NUMPY

    for dtype in BY_NUMPY:
        array = np.array([0, 1, 1, 0], dtype=dtype)
        buffer = host.put(array)
        assert host.get(buffer).tobytes() == array.tobytes(), dtype
        host.destroy(buffer)


def test_host_layouts(host: Host) -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    buffer = host.put(array)
    order = make("PJRT_Buffer_MemoryLayout_Tiled", minor_to_major=[0, 2, 1], minor_to_major_size=3)
    layout = make("PJRT_Buffer_MemoryLayout", type=0, tiled=order)
    got = host.get(buffer, layout)
    np.testing.assert_array_equal(got.ravel().reshape(3, 4, 2).transpose(2, 0, 1), array)
    strides = make("PJRT_Buffer_MemoryLayout_Strides", byte_strides=[4, 8, 24], num_byte_strides=3)
    layout = make("PJRT_Buffer_MemoryLayout", type=1, strides=strides)
    got = host.get(buffer, layout)
    np.testing.assert_array_equal(got.ravel().reshape(4, 3, 2).T, array)
    strides = make("PJRT_Buffer_MemoryLayout_Strides", byte_strides=[4], num_byte_strides=1)
    layout = make("PJRT_Buffer_MemoryLayout", type=1, strides=strides)
    with pytest.raises(PjrtError, match="1 strides"):
        host.get(buffer, layout)
    assert host("Buffer_ToHostBuffer", src=buffer).dst_size == 96
    small = np.empty(3, np.int32)
    with pytest.raises(PjrtError, match="12 bytes"):
        host("Buffer_ToHostBuffer", src=buffer, dst=small.ctypes.data, dst_size=12)
    host.destroy(buffer)


def test_zero_copy_pins_the_host_array(host: Host) -> None:
    array = aligned(np.arange(1000, dtype=np.float32))
    buffer, done = host.put(array, ZERO_COPY, keep=True)
    assert host.pointer(buffer) == array.ctypes.data
    assert not host.ready(done)
    host("Buffer_Delete", buffer=buffer)
    assert host.ready(done)
    host.wait(done)
    host.destroy(buffer)


def test_copies_leave_the_host_array_alone(host: Host) -> None:
    array = np.arange(1000, dtype=np.float32)
    for source, semantics in [
        (aligned(array), ONLY_DURING_CALL),
        (aligned(array, 4), ZERO_COPY),
        (aligned(array.reshape(10, 100)).T, ZERO_COPY),
        (aligned(array, 8), MUTABLE_ZERO_COPY),
    ]:
        buffer, done = host.put(source, semantics, keep=True)
        assert host.ready(done)
        expected = source.copy()
        source[...] = 0
        np.testing.assert_array_equal(host.get(buffer), expected)
        host.wait(done)
        host.destroy(buffer)


def test_bad_host_buffers(host: Host) -> None:
    values = {"client": host.client, "type": 11, "memory": host.memory(), "data": np.zeros(4).ctypes.data}
    name = "Client_BufferFromHostBuffer"
    assert "negative" in message(host.table, name, dims=[-1], num_dims=1, **values)
    assert "address space" in message(host.table, name, dims=[1 << 40, 1 << 40], num_dims=2, **values)
    assert "not supported" in message(host.table, name, **{**values, "type": 99})
    strides = {"byte_strides": [4], "num_byte_strides": 1}
    assert "1 strides for 2" in message(host.table, name, dims=[1, 1], num_dims=2, **strides, **values)
    assert "neither" in message(host.table, name, **{**values, "memory": None})
    assert "`data` is null" in message(host.table, name, dims=[1], num_dims=1, **{**values, "data": None})
    for orders in ([0, 0], [0, 2], [0]):
        order = make("PJRT_Buffer_MemoryLayout_Tiled", minor_to_major=orders, minor_to_major_size=len(orders))
        layout = make("PJRT_Buffer_MemoryLayout", type=0, tiled=order)
        shape = {"dims": [2, 2], "num_dims": 2, "device_layout": layout}
        assert "not a permutation" in message(host.table, name, **shape, **values)
    strides = make("PJRT_Buffer_MemoryLayout_Strides", byte_strides=[4, 8], num_byte_strides=2)
    shape["device_layout"] = make("PJRT_Buffer_MemoryLayout", type=1, strides=strides)
    assert "row-major" in message(host.table, name, "UNIMPLEMENTED", **shape, **values)


def test_delete(host: Host) -> None:
    buffer = host.put(np.arange(4))
    before = host("Buffer_ReadyEvent", buffer=buffer).event
    for _ in range(2):
        host("Buffer_Delete", buffer=buffer)
    assert host.deleted(buffer)
    host.wait(before)
    with pytest.raises(PjrtError, match="deleted or donated"):
        host.wait(host("Buffer_ReadyEvent", buffer=buffer).event)
    with pytest.raises(PjrtError, match="deleted or donated"):
        host.get(buffer)
    with pytest.raises(PjrtError, match="deleted or donated"):
        host("Buffer_CopyToMemory", buffer=buffer, dst_memory=host.memory(1))
    host.destroy(buffer)


def test_external_references_keep_memory(host: Host) -> None:
    buffer = host.put(np.arange(1000))
    used = host.stats().bytes_in_use
    host("Buffer_IncreaseExternalReferenceCount", buffer=buffer)
    address = host.pointer(buffer)
    host("Buffer_Delete", buffer=buffer)
    assert host.stats().bytes_in_use == used
    np.testing.assert_array_equal((ctypes.c_int64 * 1000).from_address(address), np.arange(1000))
    host("Buffer_DecreaseExternalReferenceCount", buffer=buffer)
    assert host.stats().bytes_in_use < used
    assert "no external references" in message(host.table, "Buffer_DecreaseExternalReferenceCount", buffer=buffer)
    host.destroy(buffer)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_copies_between_devices_and_memories(host: Host, size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    source = host.put(array)
    made = [
        host("Buffer_CopyToMemory", buffer=source, dst_memory=memory).dst_buffer
        for device in host.devices()
        for memory in host.memories(device)
    ]
    made.append(host("Buffer_CopyToDevice", buffer=source, dst_device=host.devices()[1]).dst_buffer)
    host.destroy(source)
    for buffer in made:
        np.testing.assert_array_equal(host.get(buffer), array)
    assert host("Buffer_Memory", buffer=made[4]).memory == host.memories(host.devices()[1])[1]
    assert host("Buffer_Device", buffer=made[6]).device == host.devices()[1]
    host.destroy(*made)


def test_raw_copies(host: Host) -> None:
    buffer = host.put(np.arange(10, dtype=np.int32))
    out = np.zeros(3, np.int32)
    host.wait(host("Buffer_CopyRawToHost", buffer=buffer, dst=out.ctypes.data, offset=8, transfer_size=12).event)
    assert list(out) == [2, 3, 4]
    assert "not inside" in message(
        host.table, "Buffer_CopyRawToHost", buffer=buffer, dst=out.ctypes.data, offset=32, transfer_size=12
    )
    args = host("Buffer_CopyRawToHostFuture", buffer=buffer, offset=0, transfer_size=12)
    ready = make("PJRT_Buffer_CopyRawToHostFuture_Callback_Args", callback_data=args.callback_data, dst=out.ctypes.data)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.future_ready_callback)(ctypes.addressof(ready))
    host.wait(args.event)
    assert list(out) == [0, 1, 2]
    host.destroy(buffer)


def test_views_of_foreign_memory(host: Host) -> None:
    array = aligned(np.arange(6, dtype=np.float32))
    released: list[int] = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda data, _: released.append(data))
    values = {"client": host.client, "element_type": 11, "dims": [2, 3], "num_dims": 2, "memory": host.memory()}
    buffer = host(
        "Client_CreateViewOfDeviceBuffer",
        device_buffer_ptr=array.ctypes.data,
        on_delete_callback=ctypes.cast(callback, ctypes.c_void_p).value,
        **values,
    ).buffer
    np.testing.assert_array_equal(host.get(buffer), array.reshape(2, 3))
    assert not released
    host.destroy(buffer)
    assert released == [array.ctypes.data]
    assert "not aligned" in message(
        host.table, "Client_CreateViewOfDeviceBuffer", device_buffer_ptr=array.ctypes.data + 1, **values
    )


def test_error_and_uninitialized_buffers(host: Host) -> None:
    shape = {"client": host.client, "shape_dims": [4], "shape_num_dims": 1, "shape_element_type": 11}
    failed = host(
        "Client_CreateErrorBuffer",
        error_code=15,
        error_message="lost",
        error_message_size=4,
        memory=host.memory(),
        **shape,
    ).buffer
    for use in (
        lambda: host.get(failed),
        lambda: host.wait(host("Buffer_ReadyEvent", buffer=failed).event),
        lambda: host.get(host("Buffer_CopyToMemory", buffer=failed, dst_memory=host.memory(1)).dst_buffer),
        lambda: host.pointer(failed),
    ):
        with pytest.raises(PjrtError, match="lost") as caught:
            use()
        assert caught.value.code == "DATA_LOSS"
    empty = host("Client_CreateUninitializedBuffer", memory=host.memory(), **shape).buffer
    assert host.get(empty).shape == (4,)
    host.destroy(failed, empty)


def test_alias_buffers(host: Host) -> None:
    shape = {"client": host.client, "shape_dims": [3], "shape_num_dims": 1, "shape_element_type": 4}
    for error in (0, 13):
        promised = host("Client_CreateAliasBuffer", memory=host.memory(), **shape)
        event = host("Buffer_ReadyEvent", buffer=promised.alias_buffer).event
        copy = host("Buffer_CopyToMemory", buffer=promised.alias_buffer, dst_memory=host.memory(1)).dst_buffer
        assert not host.ready(event)
        source = host.put(np.arange(3, dtype=np.int32))
        host(
            "Client_FulfillAliasBuffer",
            client=host.client,
            buffer=None if error else source,
            status_code=error,
            error_message="no luck",
            error_message_size=7,
            fulfill_alias_buffer_cb=promised.fulfill_alias_buffer_cb,
        )
        if error:
            with pytest.raises(PjrtError, match="no luck"):
                host.wait(event)
            with pytest.raises(PjrtError, match="no luck"):
                host.get(copy)
        else:
            host.wait(event)
            assert list(host.get(copy)) == [0, 1, 2]
        host.destroy(promised.alias_buffer, copy, source)


def test_bitcast_shares_memory(host: Host) -> None:
    buffer = host.put(np.arange(4, dtype=np.float32))
    values = {"buffer": buffer, "element_type": 8, "num_dims": 2}
    other = host("Buffer_Bitcast", dims=[2, 2], **values).out_buffer
    assert host.pointer(other) == host.pointer(buffer)
    assert "16 bytes" in message(host.table, "Buffer_Bitcast", dims=[2, 3], **values)
    host.destroy(buffer, other)


def test_transfer_manager(host: Host) -> None:
    dims = (ctypes.c_int64 * 1)(6)
    specs = [make("PJRT_ShapeSpec", dims=dims, num_dims=1, element_type=4) for _ in range(3)]
    manager = host(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=host.client,
        shape_specs=specs,
        num_shape_specs=3,
        memory=host.memory(),
    ).transfer_manager
    name = "AsyncHostToDeviceTransferManager_"
    assert host(name + "BufferCount", transfer_manager=manager).buffer_count == 3
    buffers = [host(name + "RetrieveBuffer", transfer_manager=manager, buffer_index=i).buffer_out for i in range(3)]
    events = [host("Buffer_ReadyEvent", buffer=b).event for b in buffers]
    data = np.arange(6, dtype=np.int32)
    piece = {"transfer_manager": manager, "buffer_index": 0, "transfer_size": 12}
    for offset in (12, 0):
        sent = host(
            name + "TransferData",
            data=data.ctypes.data + offset,
            offset=offset,
            is_last_transfer=offset == 0,
            **piece,
        )
        host.wait(sent.done_with_h2d_transfer)
        assert host.ready(events[0]) == (offset == 0)
    assert "complete" in message(
        host.table, name + "TransferData", "FAILED_PRECONDITION", data=data.ctypes.data, **piece
    )
    host(
        name + "SetBufferError",
        transfer_manager=manager,
        buffer_index=1,
        error_code=14,
        error_message="gone",
        error_message_size=4,
    )
    host(name + "Destroy", transfer_manager=manager)
    np.testing.assert_array_equal(host.get(buffers[0]), data)
    host.wait(events[0])
    for event, words in zip(events[1:], ("gone", "abandoned")):
        with pytest.raises(PjrtError, match=words):
            host.wait(event)
    host.destroy(*buffers)


def test_layouts(host: Host) -> None:
    buffer = host.put(np.zeros((2, 3, 4)))
    args = host.table.extension_call("Layouts", "PJRT_Layouts_PJRT_Buffer_MemoryLayout", buffer=buffer)
    shown = host.table.extension_call("Layouts", "PJRT_Layouts_MemoryLayout_Serialize", layout=args.layout)
    assert text(shown.serialized_bytes, shown.serialized_bytes_size) == "{2,1,0}"
    assert host("Buffer_DynamicDimensionIndices", buffer=buffer).num_dynamic_dims == 0
    layout = host("Buffer_GetMemoryLayout", buffer=buffer).layout
    assert list((ctypes.c_int64 * 3).from_address(layout.tiled.minor_to_major)) == [2, 1, 0]
    host.destroy(buffer)


# --- memory


def test_memory_statistics(table: Table) -> None:
    host = Host(table)
    buffers = [host.put(np.zeros(1 << 18)) for _ in range(3)]
    stats = host.stats()
    assert stats.bytes_in_use == stats.peak_bytes_in_use == 3 << 21
    assert stats.num_allocs == 3 and stats.largest_alloc_size == 1 << 21
    host.destroy(*buffers)
    stats = host.stats()
    assert stats.bytes_in_use == 0 and stats.peak_bytes_in_use == 3 << 21
    host("Device_ClearMemoryStats", device=host.devices()[0])
    assert host.stats().peak_bytes_in_use == 0
    host.close()


def test_out_of_memory_says_what_to_do_and_the_next_call_works(table: Table) -> None:
    host = Host(table, memory_limit_bytes=4 << 20)
    big = host.put(np.zeros(3 << 17))
    with pytest.raises(PjrtError) as caught:
        host.put(np.zeros(2 << 17))
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    for words in ("requested: 2.0 MiB", "in use: 3.0 MiB", "limit: 4.0 MiB", "largest live buffers: 3.0 MiB", "fix:"):
        assert words in caught.value.message
    host.destroy(big)
    host.destroy(host.put(np.zeros(2 << 17)))
    host.close()


def test_copies_go_on_after_the_client_is_closed(table: Table) -> None:
    host = Host(table)
    buffer, memory = host.put(np.arange(1 << 20)), host.memory()
    host.close()
    for _ in range(3):  # more than one: each may find the thread of the one before gone
        copy = host("Buffer_CopyToMemory", buffer=buffer, dst_memory=memory).dst_buffer
        assert host.get(copy)[-1] == (1 << 20) - 1
        host.destroy(copy)
    host.destroy(buffer)


def test_blocks_are_reused(table: Table) -> None:
    host = Host(table)
    first = host.put(np.zeros(1000))
    address = host.pointer(first)
    host.destroy(first)
    second = host.put(np.ones(990))
    if "asan" not in str(os.environ.get("LD_PRELOAD", "")):
        assert host.pointer(second) == address
    host.destroy(second)
    host.close()


def test_buffers_outlive_the_client(table: Table) -> None:
    host = Host(table)
    buffer = host.put(np.arange(5))
    host.close()
    assert list(host.get(buffer)) == [0, 1, 2, 3, 4]
    host.destroy(buffer)
    gc.collect()


def test_the_environment_sets_devices_and_limit(native: Any) -> None:
    script = """
from pjrt_host import Host, Table
import sys
host = Host(Table.load(sys.argv[1]))
print(len(host.devices()), host.stats().bytes_limit)
"""
    environment = {**os.environ, "FERRULE_NUM_DEVICES": "5", "FERRULE_MEMORY_LIMIT": "2G"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", script, str(native.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", str(2 << 30)]
