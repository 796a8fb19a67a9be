"""PJRT_Executable and PJRT_LoadedExecutable: what they say of themselves, serialization, deletion."""

from __future__ import annotations

import ctypes

import numpy as np
import programs
from context import F32, ONE, Context, array_of
from registry import group

from ferrule.client import LoadedExecutable, PjrtError
from ferrule.pjrt import ctypes_abi
from ferrule.pjrt.ctypes_abi import make

check = group("executable")
bad = group("bad_input")
loaded_check = group("loaded_executable")
serialize_check = group("serialization")


@check(required=True)
def names_and_counts(c: Context) -> str:
    """Name, number of replicas, partitions and results are those of the program."""
    program = c.compile(programs.THREE_RESULTS)
    assert program.num_outputs == 3 and program.name
    for function, field in (("NumReplicas", "num_replicas"), ("NumPartitions", "num_partitions")):
        assert getattr(c.call("Executable_" + function, executable=program.executable), field) == 1
    return program.name


@check
def types_of_the_results(c: Context) -> None:
    """OutputElementTypes lists the element type of each result."""
    args = c.call("Executable_OutputElementTypes", executable=c.compile(programs.THREE_RESULTS).executable)
    assert array_of(args.output_types, args.num_output_types, ctypes.c_int) == [F32, F32, 1]


@check
def dimensions_of_the_results(c: Context) -> None:
    """OutputDimensions gives the dimensions of all results, one after the other, and the rank of each."""
    for code, expected in ((programs.THREE_RESULTS, [[2, 3], [3, 2], [2, 3]]), (programs.GIVE, [[]])):
        args = c.call("Executable_OutputDimensions", executable=c.compile(code).executable)
        ranks = array_of(args.dim_sizes, args.num_outputs, ctypes.c_size_t)
        dims = array_of(args.dims, sum(ranks), ctypes.c_int64)
        assert [[dims.pop(0) for _ in range(r)] for r in ranks] == expected


@check
def memory_kinds_of_the_results(c: Context) -> None:
    """OutputMemoryKinds names a memory of the device for each result."""
    args = c.call("Executable_OutputMemoryKinds", executable=c.compile(programs.THREE_RESULTS).executable)
    texts = array_of(args.memory_kinds, args.num_outputs)
    sizes = array_of(args.memory_kind_sizes, args.num_outputs, ctypes.c_size_t)
    kinds = {c.memory_kind(m) for m in c.memories()}
    assert len(texts) == 3 and {ctypes_abi.text(t, s) for t, s in zip(texts, sizes)} <= kinds


@check
def memory_kinds_of_the_arguments(c: Context) -> None:
    """ParameterMemoryKinds names a memory of the device for each argument."""
    c.since(102)
    args = c.call("Executable_ParameterMemoryKinds", executable=c.compile(programs.ADD).executable)
    texts = array_of(args.memory_kinds, args.num_parameters)
    sizes = array_of(args.memory_kind_sizes, args.num_parameters, ctypes.c_size_t)
    kinds = {c.memory_kind(m) for m in c.memories()}
    assert len(texts) == 2 and {ctypes_abi.text(t, s) for t, s in zip(texts, sizes)} <= kinds


@check
def the_size_of_the_code(c: Context) -> str:
    """SizeOfGeneratedCodeInBytes is written and plausible."""
    size = c.call("Executable_SizeOfGeneratedCodeInBytes", executable=c.compile(programs.ADD).executable).size_in_bytes
    assert -1 <= size < 1 << 30, size
    return f"{size} bytes"


@check
def the_cost_is_in_floats(c: Context) -> str:
    """Cost properties are floats with names; a matrix product of 8x16 by 16x4 has at least 512 floating-point steps."""
    args = c.call("Executable_GetCostAnalysis", executable=c.compile(programs.DOT).executable)
    values = (ctypes_abi.struct("PJRT_NamedValue") * args.num_properties).from_address(args.properties)
    assert {v.type for v in values} <= {3}
    found = ctypes_abi.read_named_values(args.properties, args.num_properties)
    assert found.get("flops", 512) >= 512, found
    return ", ".join(f"{k}={v:g}" for k, v in sorted(found.items()))[:200]


@check
def memory_statistics_of_a_program(c: Context) -> str:
    """GetCompiledMemoryStats gives the bytes of arguments, results and aliases, and writes every field."""
    spec = ctypes_abi.struct("PJRT_Executable_GetCompiledMemoryStats_Args")
    args = make("PJRT_Executable_GetCompiledMemoryStats_Args")
    ctypes.memset(ctypes.addressof(args) + 24, 0x5A, args.struct_size - 24)
    args.executable = c.compile(programs.DONATE).executable
    c.plugin.table.check(c.plugin.table.function("PJRT_Executable_GetCompiledMemoryStats")(ctypes.addressof(args)))
    garbage = int.from_bytes(b"\x5a" * 8, "little")
    wrong = [n for n, _ in spec._fields_ if getattr(args, n) == garbage]
    assert not wrong, f"not written: {', '.join(wrong)}"
    assert (args.argument_size_in_bytes, args.output_size_in_bytes, args.alias_size_in_bytes) == (32, 16, 16)
    return f"peak {args.peak_memory_in_bytes} bytes"


@check
def the_fingerprint_tells_programs_apart(c: Context) -> str:
    """Executable_Fingerprint is the same for the same program and differs for another one."""
    c.since(35)

    def fingerprint(code: bytes) -> str:
        program = c.client.compile(code)
        return c.text("Executable_Fingerprint", "executable_fingerprint", executable=program.executable)

    first, again, other = (fingerprint(code) for code in (programs.ADD, programs.ADD, programs.MULTIPLY))
    assert first and first == again, "it changes from one compilation to the next"
    assert first != other, "two programs have the same"
    return first[:32].encode("ascii", "replace").decode()


@check
def the_optimized_program_can_be_read(c: Context) -> str:
    """OptimizedProgram first gives the size, then fills the caller's buffer; the format is one that frameworks read."""
    executable = c.compile(programs.DOT).executable
    program = make("PJRT_Program")
    c.call("Executable_OptimizedProgram", executable=executable, program=program)
    format, size = ctypes_abi.text(program.format, program.format_size), program.code_size
    assert format in ("hlo_with_config", "hlo", "mlir") and size, f"{format}, {size} bytes"
    code = ctypes.create_string_buffer(size)
    program = make("PJRT_Program", code=code, code_size=size)
    c.call("Executable_OptimizedProgram", executable=executable, program=program)
    assert any(code.raw), "the buffer was left empty"
    return f"{format}, {size} bytes"


@check
def a_buffer_too_small_for_the_program_is_refused(c: Context) -> None:
    """OptimizedProgram with too little room is an error and writes nothing past the end."""
    executable = c.compile(programs.DOT).executable
    program = make("PJRT_Program")
    c.call("Executable_OptimizedProgram", executable=executable, program=program)
    code = ctypes.create_string_buffer(b"\x5a" * (program.code_size + 16))
    small = make("PJRT_Program", code=code, code_size=8)
    c.fails("Executable_OptimizedProgram", executable=executable, program=small)
    assert set(code.raw[8:-1]) == {0x5A}, "it wrote past the end"


@check(required=True)
def it_outlives_the_loaded_program(c: Context) -> None:
    """GetExecutable gives a reference of its own; it and the loaded program may be destroyed in either order."""
    for first in ("executable", "loaded"):
        program = c.client.compile(programs.ADD)
        another = c.call("LoadedExecutable_GetExecutable", loaded_executable=program.handle).executable
        if first == "executable":
            c.call("Executable_Destroy", executable=another)
            assert program(ONE, ONE)[0].tolist() == [2, 2, 2, 2]
        else:
            del program
            assert c.call("Executable_NumOutputs", executable=another).num_outputs == 1
            c.call("Executable_Destroy", executable=another)


@loaded_check(required=True)
def it_knows_its_devices(c: Context) -> None:
    """AddressableDevices lists the devices that the program runs on."""
    args = c.call("LoadedExecutable_AddressableDevices", executable=c.compile(programs.ADD).handle)
    assert array_of(args.addressable_devices, args.num_addressable_devices) == [c.device.handle]


@loaded_check
def it_knows_its_assignment(c: Context) -> str:
    """GetDeviceAssignment gives a serialized DeviceAssignmentProto (none for a portable program) and a deleter."""
    c.since(79)
    args = c.call("LoadedExecutable_GetDeviceAssignment", executable=c.compile(programs.ADD).handle)
    data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size) if args.serialized_bytes_size else b""
    assert args.serialized_device_assignment_deleter, "the deleter is null"
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_device_assignment_deleter)(
        args.serialized_device_assignment
    )
    assert not data or data[:4] == bytes([8, 1, 16, 1]), data.hex()  # one replica, one computation
    return f"{len(data)} bytes"


@loaded_check
def it_knows_its_logical_devices(c: Context) -> None:
    """AddressableDeviceLogicalIds gives replica and partition for each addressable device."""
    c.since(96)
    args = c.call("LoadedExecutable_AddressableDeviceLogicalIds", executable=c.compile(programs.ADD).handle)
    ids = array_of(
        args.addressable_device_logical_ids,
        args.num_addressable_device_logical_ids,
        ctypes_abi.struct("PJRT_LogicalDeviceIds"),
    )
    assert [(i.replica, i.partition) for i in ids] == [(0, 0)]


@loaded_check
def its_fingerprint_tells_programs_apart(c: Context) -> None:
    """LoadedExecutable_Fingerprint differs between two programs."""
    prints = [
        c.text("LoadedExecutable_Fingerprint", "executable_fingerprint", executable=c.compile(code).handle)
        for code in (programs.ADD, programs.MULTIPLY)
    ]
    assert prints[0] != prints[1] and all(prints), prints


@loaded_check(required=True)
def a_deleted_program_keeps_its_handle(c: Context) -> None:
    """Delete drops the resources and keeps the handle; IsDeleted says so, and a second Delete is harmless."""
    program = c.client.compile(programs.ADD)
    assert not c.call("LoadedExecutable_IsDeleted", executable=program.handle).is_deleted
    for _ in range(2):
        c.call("LoadedExecutable_Delete", executable=program.handle)
        assert c.call("LoadedExecutable_IsDeleted", executable=program.handle).is_deleted


@bad
def a_deleted_program_cannot_be_executed(c: Context) -> str:
    """Executing a deleted program is an error."""
    program, a = c.client.compile(programs.ADD), c.put(ONE)
    c.call("LoadedExecutable_Delete", executable=program)
    return c.error_of(lambda: program.execute([a, a]), what="executing a deleted program").code


@serialize_check
def a_program_comes_back_from_its_bytes(c: Context) -> str:
    """Serialize and DeserializeAndLoad give a program that does the same."""
    data = c.compile(programs.THREE_RESULTS).serialize()
    loaded = c.client.load(data)
    assert loaded.num_outputs == 3
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(loaded(a)[1], a.T)
    return f"{len(data)} bytes"


@serialize_check
def donations_survive(c: Context) -> None:
    """A loaded program donates what the original donates."""
    loaded = c.client.load(c.compile(programs.DONATE).serialize())
    a, b = c.put(ONE), c.put(ONE)
    assert c.get(loaded.execute([a, b])[0]).tolist() == [2, 2, 2, 2]
    assert a.is_deleted and not b.is_deleted


@serialize_check
def the_bytes_belong_to_their_holder(c: Context) -> None:
    """The bytes live until the deleter is called with the holder, also after the executable is gone."""
    program = c.client.compile(programs.ADD)
    args = c.call("Executable_Serialize", executable=program.executable)
    before = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
    del program
    assert ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size) == before
    assert args.serialized_executable_deleter, "the deleter is null"
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_executable_deleter)(args.serialized_executable)
    assert c.client.load(before)(ONE, ONE)[0].tolist() == [2, 2, 2, 2]


@serialize_check
def another_client_loads_the_bytes(c: Context) -> None:
    """The bytes load in another client of the same plugin."""
    data = c.compile(programs.ADD).serialize()
    other = c.new_client()
    assert other.load(data)(ONE, ONE)[0].tolist() == [2, 2, 2, 2]


@serialize_check
def options_can_be_overridden(c: Context) -> None:
    """Compile options given to DeserializeAndLoad replace the stored ones: the program runs on the device they name."""
    c.since(71)
    _, second = c.device_pair()
    data = c.compile(programs.ADD).serialize()
    from ferrule.client import compile_options

    options = compile_options([second.id])
    args = c.call(
        "Executable_DeserializeAndLoad",
        client=c.client.handle,
        serialized_executable=data,
        serialized_executable_size=len(data),
        overridden_serialized_compile_options=options,
        overridden_serialized_compile_options_size=len(options),
    )
    program = LoadedExecutable(c.client, args.loaded_executable)
    devices = c.call("LoadedExecutable_AddressableDevices", executable=program.handle)
    assert array_of(devices.addressable_devices, devices.num_addressable_devices) == [second.handle]


@serialize_check
def damaged_bytes_are_refused(c: Context) -> str:
    """Bytes that this plugin and version did not write are answered with an error: frameworks then compile again."""
    data = c.compile(programs.ADD).serialize()
    c.client.load(data)
    for damaged in (b"", b"nonsense", data[: len(data) // 2], b"x" + data[1:], data[:-1]):
        c.note(f"{len(damaged)} of {len(data)} bytes")
        error = c.error_of(lambda d=damaged: c.client.load(d), what=f"loading {len(damaged)} damaged bytes")
    return error.code


@bad
def a_flipped_bit_is_noticed(c: Context) -> None:
    """A bit that changed on the way never gives a program that crashes or computes something else."""
    data = c.compile(programs.ADD).serialize()
    c.client.load(data)
    for step in range(40):
        place = (step * 2654435761) % len(data)
        c.note(f"byte {place} of {len(data)}")
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        try:
            result = c.client.load(bytes(damaged))(ONE, 2 * ONE)
        except PjrtError:
            continue
        assert result[0].tolist() == [3, 3, 3, 3], f"byte {place} changed the result to {result[0]}"
