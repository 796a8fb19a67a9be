"""PJRT_TopologyDescription, and compiling without a client."""

from __future__ import annotations

import ctypes

import programs
from context import ONE, Context, array_of
from registry import Unsupported, group

from ferrule.client import LoadedExecutable, PjrtError, compile_options
from ferrule.pjrt import ctypes_abi
from ferrule.pjrt.ctypes_abi import make

check = group("topology")


def own(c: Context) -> int:
    """The client's topology (borrowed)."""
    c.since(36)
    return c.call("Client_TopologyDescription", client=c.client.handle).topology


def serialize(c: Context, topology: int) -> bytes:
    args = c.call("TopologyDescription_Serialize", topology=topology)
    data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
    assert args.serialized_topology_deleter, "the deleter is null"
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_topology_deleter)(args.serialized_topology)
    return data


def describe(c: Context, topology: int) -> list[tuple[int, str]]:
    """Id and kind of each device."""
    args = c.call("TopologyDescription_GetDeviceDescriptions", topology=topology)
    return [
        (
            c.call("DeviceDescription_Id", device_description=d).id,
            c.text("DeviceDescription_Kind", "device_kind", device_description=d),
        )
        for d in array_of(args.descriptions, args.num_descriptions)
    ]


def deserialize(c: Context, data: bytes) -> int:
    c.since(75)
    return c.call(
        "TopologyDescription_Deserialize", serialized_topology=data, serialized_topology_size=len(data)
    ).topology


def compile_for(c: Context, topology: int, code: bytes, client: int | None = None) -> int:
    """An executable made by PJRT_Compile."""
    program = make("PJRT_Program", code=code, code_size=len(code), format="mlir", format_size=4)
    options = compile_options([c.device.id])
    args = c.call(
        "Compile",
        topology=topology,
        program=program,
        compile_options=options,
        compile_options_size=len(options),
        client=client,
    )
    return args.executable


@check
def the_clients_topology_is_of_its_platform(c: Context) -> None:
    """The topology of a client has the client's platform name and version."""
    topology = own(c)
    assert c.text("TopologyDescription_PlatformName", "platform_name", topology=topology) == c.client.platform
    version = c.text("TopologyDescription_PlatformVersion", "platform_version", topology=topology)
    assert version == c.client.platform_version, version


@check
def the_clients_topology_describes_its_devices(c: Context) -> str:
    """The descriptions of the client's topology are those of its devices, in a stable order."""
    found = describe(c, own(c))
    assert found == describe(c, own(c))
    assert {d.id for d in c.client.devices} <= {id for id, _ in found}
    return f"{len(found)} devices"


@check
def attributes_are_of_the_types_that_frameworks_read(c: Context) -> str:
    """Attributes of a topology succeed as soon as there is a topology."""
    args = c.call("TopologyDescription_Attributes", topology=own(c))
    return ", ".join(sorted(ctypes_abi.read_named_values(args.attributes, args.num_attributes)))


@check
def the_fingerprint_is_stable(c: Context) -> str:
    """The fingerprint, part of the keys of compilation caches, is the same for equal topologies."""
    c.since(101)
    prints = {c.call("TopologyDescription_Fingerprint", topology=own(c)).fingerprint for _ in range(2)}
    other = c.new_client()
    topology = c.call("Client_TopologyDescription", client=other.handle).topology
    prints.add(c.call("TopologyDescription_Fingerprint", topology=topology).fingerprint)
    assert len(prints) == 1, prints
    return hex(prints.pop())


@check
def serializing_gives_the_same_bytes(c: Context) -> str:
    """Serialize gives bytes that belong to a holder with a deleter; equal for equal topologies."""
    data = serialize(c, own(c))
    assert data and data == serialize(c, own(c))
    return f"{len(data)} bytes"


@check
def a_topology_comes_back_from_its_bytes(c: Context) -> None:
    """Deserialize gives a topology of the caller's with the same devices, platform and fingerprint."""
    topology = deserialize(c, serialize(c, own(c)))
    try:
        assert describe(c, topology) == describe(c, own(c))
        assert c.text("TopologyDescription_PlatformName", "platform_name", topology=topology) == c.client.platform
        if c.plugin.table.version[1] >= 101:
            prints = {c.call("TopologyDescription_Fingerprint", topology=t).fingerprint for t in (topology, own(c))}
            assert len(prints) == 1, "the fingerprints differ"
    finally:
        c.call("TopologyDescription_Destroy", topology=topology)


@check
def damaged_bytes_are_no_topology(c: Context) -> None:
    """Bytes that are no topology of this plugin are refused."""
    data = serialize(c, own(c))
    c.call("TopologyDescription_Destroy", topology=deserialize(c, data))
    for damaged in (b"nonsense that is no topology", data[: len(data) // 2]):
        c.error_of(lambda d=damaged: deserialize(c, d), what=f"reading {len(damaged)} damaged bytes")


@check
def a_topology_can_be_named(c: Context) -> str:
    """TopologyDescription_Create describes devices by a name (empty: what the plugin likes best) and options."""
    topology = c.call("TopologyDescription_Create", topology_name="", topology_name_size=0).topology
    try:
        return f"{len(describe(c, topology))} devices"
    finally:
        c.call("TopologyDescription_Destroy", topology=topology)


@check
def a_grid_can_be_named(c: Context) -> str:
    """The usual form of a name is kind:AxB, the extents of the grid of devices."""
    refused: PjrtError | None = None
    for name in dict.fromkeys((f"{c.device.kind}:2x2", f"{c.client.platform}:2x2", "2x2")):
        try:
            topology = c.call("TopologyDescription_Create", topology_name=name, topology_name_size=len(name)).topology
        except PjrtError as error:
            refused = error
            continue
        found = describe(c, topology)
        c.call("TopologyDescription_Destroy", topology=topology)
        assert len(found) == 4, f"{name} has {len(found)} devices"
        return name
    raise Unsupported(f"{refused.code}: {refused.message}" if refused else "")


@check
def a_senseless_name_is_refused(c: Context) -> None:
    """A name that means nothing is an error."""
    name = "no such thing:-3"
    c.fails("TopologyDescription_Create", topology_name=name, topology_name_size=len(name))


@check
def programs_compile_without_a_client(c: Context) -> None:
    """PJRT_Compile makes an executable for a topology; a client is optional."""
    executable = compile_for(c, own(c), programs.ADD)
    try:
        assert c.call("Executable_NumOutputs", executable=executable).num_outputs == 1
    finally:
        c.call("Executable_Destroy", executable=executable)


@check
def a_compiled_program_can_be_loaded(c: Context) -> None:
    """Client_Load gives a runnable program from an executable of PJRT_Compile."""
    c.since(95)
    executable = compile_for(c, own(c), programs.ADD, c.client.handle)
    options = compile_options([c.device.id])
    loaded = c.call(
        "Client_Load",
        client=c.client.handle,
        executable=executable,
        compile_options=options,
        compile_options_size=len(options),
    ).loaded_executable
    program = LoadedExecutable(c.client, loaded)
    c.call("Executable_Destroy", executable=executable)
    assert program(ONE, ONE)[0].tolist() == [2, 2, 2, 2]


@check
def a_compiled_program_can_be_shipped(c: Context) -> None:
    """What PJRT_Compile made without a client can be serialized and loaded by a client."""
    executable = compile_for(c, own(c), programs.ADD)
    args = c.call("Executable_Serialize", executable=executable)
    data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_executable_deleter)(args.serialized_executable)
    c.call("Executable_Destroy", executable=executable)
    assert c.client.load(data)(ONE, 2 * ONE)[0].tolist() == [3, 3, 3, 3]


@check
def memory_spaces_have_kind_ids(c: Context) -> str:
    """GetMemorySpaceKindIds lists the kind ids of the memories."""
    c.since(110)
    args = c.call("TopologyDescription_GetMemorySpaceKindIds", topology=own(c))
    ids = array_of(args.memory_space_kind_ids, args.num_memory_space_kind_ids, ctypes.c_int)
    real = {c.call("Memory_Kind_Id", memory=m).kind_id for m in c.memories()}
    assert set(ids) == real, f"{ids}, the memories have {sorted(real)}"
    return str(ids)


@check
def a_shape_has_a_canonical_form(c: Context) -> str:
    """MakeCanonicalShapeForMemorySpace gives a serialized shape and a deleter for it."""
    c.since(109)
    args = c.call(
        "TopologyDescription_MakeCanonicalShapeForMemorySpace",
        topology=own(c),
        memory_space_kind_id=c.call("Memory_Kind_Id", memory=c.memory()).kind_id,
        dims=[2, 3],
        num_dims=2,
        element_type=11,
    )
    size = args.serialized_shape_size
    assert args.serialized_shape and size and args.serialized_shape_deleter
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_shape_deleter)(args.serialized_shape)
    return f"{size} bytes"
