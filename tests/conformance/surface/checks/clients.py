"""PJRT_Client: identity, devices, memories, look-ups, assignments."""

from __future__ import annotations

import ctypes

import numpy as np
import programs
from context import ONE, Context, array_of
from registry import Unsupported, group

from ferrule.pjrt import ctypes_abi
from ferrule.pjrt.ctypes_abi import make

check = group("client")
bad = group("bad_input")


@check(required=True)
def the_platform_has_a_name(c: Context) -> str:
    """PlatformName is a text that is not empty, at the same address each time, for the client's life."""
    found = [c.call("Client_PlatformName", client=c.client.handle) for _ in range(2)]
    assert found[0].platform_name == found[1].platform_name and c.client.platform
    return c.client.platform


@check(required=True)
def the_platform_has_a_version(c: Context) -> str:
    """PlatformVersion is a text that is not empty; it goes into the keys of compilation caches."""
    assert c.client.platform_version
    return c.client.platform_version.splitlines()[0][:80]


@check(required=True)
def the_process_index_is_zero(c: Context) -> None:
    """A job of one process has process index 0."""
    assert c.call("Client_ProcessIndex", client=c.client.handle).process_index == 0


@check(required=True)
def devices_are_listed(c: Context) -> str:
    """Devices lists every device of the job, AddressableDevices those of this process, both stable."""
    lists = []
    for _ in range(2):
        every = c.call("Client_Devices", client=c.client.handle)
        mine = c.call("Client_AddressableDevices", client=c.client.handle)
        lists.append(
            (
                array_of(every.devices, every.num_devices),
                array_of(mine.addressable_devices, mine.num_addressable_devices),
            )
        )
    assert lists[0] == lists[1], "the lists change"
    every, mine = lists[0]
    assert mine and set(mine) <= set(every)
    return f"{len(mine)} of {len(every)}"


@check(required=True)
def devices_are_found_by_id(c: Context) -> None:
    """LookupDevice finds each device by its global id."""
    for device in c.client.devices:
        assert c.call("Client_LookupDevice", client=c.client.handle, id=device.id).device == device.handle


@check(required=True)
def devices_are_found_by_local_id(c: Context) -> None:
    """LookupAddressableDevice finds each device by its local hardware id."""
    for device in c.client.devices:
        local = c.call("Device_LocalHardwareId", device=device.handle).local_hardware_id
        found = c.call("Client_LookupAddressableDevice", client=c.client.handle, local_hardware_id=local)
        assert found.addressable_device == device.handle


@check(required=True)
def unknown_devices_are_refused(c: Context) -> None:
    """An id that no device has is INVALID_ARGUMENT or NOT_FOUND."""
    codes = ("INVALID_ARGUMENT", "NOT_FOUND")
    for number in (99999, -1):
        c.fails("Client_LookupDevice", *codes, client=c.client.handle, id=number)
        c.fails("Client_LookupAddressableDevice", *codes, client=c.client.handle, local_hardware_id=99999 + number)


@check(required=True)
def memories_are_listed(c: Context) -> str:
    """AddressableMemories of the client are exactly those of its devices."""
    args = c.call("Client_AddressableMemories", client=c.client.handle)
    listed = array_of(args.addressable_memories, args.num_addressable_memories)
    assert listed and len(set(listed)) == len(listed)
    assert set(listed) == {m for d in c.client.devices for m in c.memories(d)}
    return f"{len(listed)} memories"


@check
def the_default_assignment_uses_each_device_once(c: Context) -> None:
    """DefaultDeviceAssignment fills replicas x partitions ids, row-major, into the caller's array."""
    known = {d.id for d in c.client.devices}
    for replicas, partitions in ((1, 1), (len(known), 1), (1, len(known))):
        ids = (ctypes.c_int * (replicas * partitions))(*[-7] * replicas * partitions)
        c.call(
            "Client_DefaultDeviceAssignment",
            client=c.client.handle,
            num_replicas=replicas,
            num_partitions=partitions,
            default_assignment_size=len(ids),
            default_assignment=ids,
        )
        assert len(set(ids)) == len(ids) and set(ids) <= known, list(ids)


@bad
def an_assignment_to_too_many_devices_is_refused(c: Context) -> None:
    """More replicas x partitions than devices is an error, as is an array with too little room."""
    many = c.call("Client_Devices", client=c.client.handle).num_devices + 4096
    ids = (ctypes.c_int * many)(*[-7] * many)
    values = {"client": c.client.handle, "num_partitions": 1, "default_assignment": ids}
    c.fails("Client_DefaultDeviceAssignment", num_replicas=many, default_assignment_size=many, **values)
    c.fails("Client_DefaultDeviceAssignment", num_replicas=1, default_assignment_size=0, **values)
    assert set(ids) == {-7}


@check
def callbacks_of_one_process_are_not_read(c: Context) -> None:
    """Without num_nodes > 1 in its options the key-value callbacks are garbage: the client must not use them."""
    values = [ctypes_abi.named_value(k, v) for k, v in c.options.items()]
    given = {"create_options": values, "num_options": len(values)} if values else {}
    names = ("kv_get_callback", "kv_get_user_arg", "kv_put_callback", "kv_put_user_arg")
    args = make("PJRT_Client_Create_Args", **given)
    for name in (*names, "kv_try_get_callback", "kv_try_get_user_arg"):
        setattr(args, name, 0x5A5A5A5A5A5A)
    c.plugin.table.check(c.plugin.table.function("PJRT_Client_Create")(ctypes.addressof(args)))
    c.call("Client_Destroy", client=args.client)


@check
def two_clients_live_side_by_side(c: Context) -> None:
    """A process may have several clients; each computes, and one goes without the other."""
    first, second = c.new_client(), c.new_client()
    programs_ = [client.compile(programs.ADD) for client in (first, second)]
    assert programs_[0](ONE, ONE)[0].tolist() == [2, 2, 2, 2]
    programs_[0] = programs_[1]
    del first
    assert programs_[1](ONE, 2 * ONE)[0].tolist() == [3, 3, 3, 3]


@bad
def a_client_takes_no_memory_of_another(c: Context) -> None:
    """A buffer in a memory of another client is refused."""
    other = c.new_client()
    memory = c.call("Device_DefaultMemory", device=other.devices[0].handle).memory
    c.error_of(lambda: c.put(ONE, memory=memory), what="a buffer in another client's memory")


@check
def clients_come_and_go(c: Context) -> None:
    """Creating and destroying clients again and again leaves no threads behind."""
    import gc
    from pathlib import Path

    def threads() -> int:
        gc.collect()  # our own handles refer to each other
        return len(list(Path("/proc/self/task").iterdir()))

    for _ in range(2):
        c.new_client().compile(programs.ADD)(ONE, ONE)
    before = threads()
    for _ in range(8):
        c.new_client().compile(programs.ADD)(ONE, ONE)
    assert threads() <= before + 4, f"{before} threads before, {threads()} after eight more clients"


@check
def news_of_other_processes_is_taken(c: Context) -> None:
    """UpdateGlobalProcessInfo succeeds, whatever the plugin does with it: a failure ends the process."""
    c.since(73)
    info = make("PJRT_ProcessInfo", task_id=0, state=3)
    c.call("Client_UpdateGlobalProcessInfo", client=c.client.handle, process_infos=[info], num_process_infos=1)


@check
def memory_can_be_mapped(c: Context) -> None:
    """DmaMap prepares host memory for transfers, DmaUnmap ends that; transfers from it work."""
    array = np.arange(4096, dtype=np.float32)
    c.call("Client_DmaMap", client=c.client.handle, data=array.ctypes.data, size=array.nbytes)
    assert c.get(c.put(array)).tolist() == array.tolist()
    c.call("Client_DmaUnmap", client=c.client.handle, data=array.ctypes.data)


@check
def an_unknown_option_is_refused(c: Context) -> None:
    """An option that the plugin does not know is an error and not ignored in silence."""
    try:
        c.plugin.client(**c.options, no_such_option_of_any_plugin=1)
    except Exception as error:
        assert "no_such_option" in str(error), error
    else:
        raise Unsupported("the plugin ignores unknown options")
