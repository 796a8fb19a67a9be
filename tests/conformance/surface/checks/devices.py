"""PJRT_Device, PJRT_DeviceDescription and PJRT_Memory."""

from __future__ import annotations

import ctypes

import numpy as np
from context import Context, array_of
from registry import Unsupported, group

from ferrule.pjrt import ctypes_abi

check = group("devices")
memory_check = group("memories")


def attribute_types(address: int | None, count: int) -> set[int]:
    values = (ctypes_abi.struct("PJRT_NamedValue") * count).from_address(address) if address and count else ()
    return {v.type for v in values}


@check(required=True)
def ids_are_unique(c: Context) -> str:
    """A device's id is unique in the job."""
    ids = [d.id for d in c.client.devices]
    assert len(set(ids)) == len(ids) and min(ids) >= 0
    return str(ids)


@check(required=True)
def descriptions_are_complete(c: Context) -> str:
    """Process index, kind, debug string and short string of every device succeed and are not empty."""
    for device in c.client.devices:
        description = c.description(device)
        index = c.call("DeviceDescription_ProcessIndex", device_description=description).process_index
        assert index == c.call("Client_ProcessIndex", client=c.client.handle).process_index
        for function, field in (("Kind", "device_kind"), ("DebugString", "debug_string"), ("ToString", "to_string")):
            assert c.text("DeviceDescription_" + function, field, device_description=description), function
    return c.device.kind


@check(required=True)
def attributes_are_of_the_types_that_frameworks_read(c: Context) -> str:
    """Attributes of a description are strings, int64 or lists of int64; any other type ends the process of JAX."""
    args = c.call("DeviceDescription_Attributes", device_description=c.description(c.device))
    assert attribute_types(args.attributes, args.num_attributes) <= {0, 1, 2}
    return ", ".join(sorted(ctypes_abi.read_named_values(args.attributes, args.num_attributes)))


@check
def a_device_has_attributes_of_its_own(c: Context) -> str:
    """Device_GetAttributes, if present, succeeds and gives a deleter that is not null; it is called once."""
    c.since(92)
    args = c.call("Device_GetAttributes", device=c.device.handle)
    assert args.attributes_deleter, "the deleter is null"
    assert attribute_types(args.attributes, args.num_attributes) <= {0, 1, 2}
    found = ctypes_abi.read_named_values(args.attributes, args.num_attributes)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.attributes_deleter)(args.device_attributes)
    return ", ".join(sorted(found))


@check(required=True)
def addressable_devices_say_so(c: Context) -> None:
    """IsAddressable is true for the addressable devices, and their local hardware ids differ and are not negative."""
    local = []
    for device in c.client.devices:
        assert c.call("Device_IsAddressable", device=device.handle).is_addressable
        local.append(c.call("Device_LocalHardwareId", device=device.handle).local_hardware_id)
    assert len(set(local)) == len(local) and min(local) >= 0, local


@check(required=True)
def memories_of_a_device(c: Context) -> str:
    """A device has memories, the default one among them."""
    kinds = []
    for device in c.client.devices:
        memories = c.memories(device)
        assert memories and c.memory(device) in memories
        kinds = [c.memory_kind(m) for m in memories]
        assert len(set(kinds)) == len(kinds), "two memories of one kind"
    return ", ".join(kinds)


@check
def memory_statistics_follow_the_buffers(c: Context) -> str:
    """MemoryStats counts bytes in use: more with a buffer, as before without it; the peak is never lower."""
    before = c.device.memory_stats()["bytes_in_use"]
    buffer = c.put(np.zeros(1 << 20, np.uint8))
    c.ready_event(buffer).wait()
    with_it = c.device.memory_stats()
    assert with_it["bytes_in_use"] >= before + (1 << 20), f"{before} bytes before, {with_it['bytes_in_use']} after"
    assert with_it.get("peak_bytes_in_use", with_it["bytes_in_use"]) >= with_it["bytes_in_use"]
    assert with_it.get("largest_alloc_size", 1 << 20) >= 1 << 20
    buffer.delete()
    after = c.device.memory_stats()["bytes_in_use"]
    assert after <= before, f"{before} bytes before, {after} after the buffer was deleted"
    return ", ".join(sorted(with_it))


@check
def memory_statistics_are_written_completely(c: Context) -> None:
    """MemoryStats writes every is_set flag, also the unset ones: the struct is raw memory."""
    args = ctypes_abi.make("PJRT_Device_MemoryStats_Args")
    ctypes.memset(ctypes.addressof(args) + 24, 0x5A, args.struct_size - 24)
    args.device = c.device.handle
    c.plugin.table.check(c.plugin.table.function("PJRT_Device_MemoryStats")(ctypes.addressof(args)))
    raw = {n: ctypes.c_ubyte.from_buffer(args, getattr(type(args), n).offset).value for n, _ in args._fields_}
    wrong = [n for n, value in raw.items() if n.endswith("_is_set") and value not in (0, 1)]
    assert not wrong, f"not written: {', '.join(wrong)}"


@check
def peaks_can_be_cleared(c: Context) -> None:
    """ClearMemoryStats brings the peak down to what is in use."""
    c.since(106)
    del_me = c.put(np.zeros(1 << 20, np.uint8))
    del_me.delete()
    c.call("Device_ClearMemoryStats", device=c.device.handle)
    stats = c.device.memory_stats()
    if "peak_bytes_in_use" not in stats:
        raise Unsupported("the plugin counts no peak")
    assert stats["peak_bytes_in_use"] == stats["bytes_in_use"], stats


@check
def tracking_events_are_made(c: Context) -> None:
    """CreateAsyncTrackingEvent gives an event that AsyncTrackingEvent_Destroy takes."""
    c.since(86)
    args = c.call("Device_CreateAsyncTrackingEvent", device=c.device.handle, description="a", description_size=1)
    c.call("AsyncTrackingEvent_Destroy", event=args.event)


@check
def an_execution_can_be_poisoned(c: Context) -> str:
    """PoisonExecution says whether it poisoned the launch of that id; none is running."""
    c.since(85)
    args = c.call(
        "Device_PoisonExecution",
        device=c.device.handle,
        launch_id=4711,
        error_code=13,
        error_message="poison",
        error_message_size=6,
    )
    return "poisoned" if args.poisoned else "nothing to poison"


@memory_check(required=True)
def ids_and_strings(c: Context) -> None:
    """Every memory has an id of its own, a kind, a debug string and a short string."""
    ids = []
    for device in c.client.devices:
        for memory in c.memories(device):
            ids.append(c.call("Memory_Id", memory=memory).id)
            assert c.memory_kind(memory)
            assert c.text("Memory_DebugString", "debug_string", memory=memory)
            assert c.text("Memory_ToString", "to_string", memory=memory)
    assert len(set(ids)) == len(ids), ids


@memory_check(required=True)
def the_kind_is_a_constant(c: Context) -> None:
    """Memory_Kind gives the same pointer each time: it is read for every output of every execution."""
    found = {c.call("Memory_Kind", memory=c.memory()).kind for _ in range(3)}
    assert len(found) == 1


@memory_check
def kinds_have_ids(c: Context) -> str:
    """Memory_Kind_Id is the same for memories of the same kind and differs between kinds."""
    c.since(48)
    pairs = {
        (c.memory_kind(m), c.call("Memory_Kind_Id", memory=m).kind_id) for d in c.client.devices for m in c.memories(d)
    }
    assert len(pairs) == len({k for k, _ in pairs}) == len({n for _, n in pairs}), pairs
    return ", ".join(f"{k}={n}" for k, n in sorted(pairs))


@memory_check(required=True)
def a_memory_knows_its_devices(c: Context) -> None:
    """AddressableByDevices of a memory contains each device that lists the memory."""
    for device in c.client.devices:
        for memory in c.memories(device):
            args = c.call("Memory_AddressableByDevices", memory=memory)
            assert device.handle in array_of(args.devices, args.num_devices)


@memory_check
def frameworks_keep_data_with_a_memory(c: Context) -> None:
    """Since 0.105 a memory begins with a pointer to a function table, or with null: set_user_data replaces what a key
    had and destroys it, get_user_data gives it back or null."""
    c.since(105)
    memory = c.memory()
    address = ctypes.c_void_p.from_address(memory).value
    if not address:
        raise Unsupported("the memory has no function table")
    table = ctypes_abi.struct("PJRT_Memory_FunctionTable").from_address(address)
    dropped: list[int] = []
    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(dropped.append)
    c.kept.append(destroy)
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(table.get_user_data)
    put = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(table.set_user_data)
    keys = (ctypes.c_char * 2)()
    first, second = ctypes.addressof(keys), ctypes.addressof(keys) + 1
    c.kept.append(keys)
    assert get(memory, first) is None
    put(memory, first, 111, ctypes.cast(destroy, ctypes.c_void_p))
    assert get(memory, first) == 111 and get(memory, second) is None
    put(memory, first, 222, None)
    assert get(memory, first) == 222 and dropped == [111], dropped


@memory_check
def descriptions_agree_with_the_memories(c: Context) -> None:
    """The MemoryDescriptions extension describes the kinds of the device's memories and says which is the default."""
    c.extension("MemoryDescriptions")
    for device in c.client.devices:
        args = c.ext(
            "MemoryDescriptions",
            "PJRT_DeviceDescription_MemoryDescriptions",
            device_description=c.description(device),
        )
        kinds = []
        for each in array_of(args.memory_descriptions, args.num_memory_descriptions):
            kind = c.ext("MemoryDescriptions", "PJRT_MemoryDescription_Kind", memory_description=each)
            kinds.append((ctypes_abi.text(kind.kind, kind.kind_size), kind.kind_id))
        real = {(c.memory_kind(m), c.call("Memory_Kind_Id", memory=m).kind_id) for m in c.memories(device)}
        if not kinds:
            raise Unsupported("the plugin describes no memories")
        assert set(kinds) == real, f"described {kinds}, there are {sorted(real)}"
        assert kinds[args.default_memory_index][0] == c.memory_kind(c.memory(device))
