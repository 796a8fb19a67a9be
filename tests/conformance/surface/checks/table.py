"""The table itself: entry point, versions, sizes, extension list, argument structs of other versions."""

from __future__ import annotations

import ctypes

import programs
from context import Context
from registry import Unsupported, group

from ferrule.pjrt import abi, ctypes_abi
from ferrule.pjrt.ctypes_abi import PjrtError, make

check = group("table")
bad = group("bad_input")

# Functions that a table may leave out at any version: callers test them for null.
MAY_BE_NULL = {"PJRT_Device_GetAttributes", "PJRT_LoadedExecutable_AddressableDeviceLogicalIds"}


def declared(c: Context) -> list[abi.Function]:
    """The functions that exist at the version that the plugin declares."""
    return [f for f in abi.FUNCTIONS if f.since <= c.plugin.table.version[1]]


@check(required=True)
def the_entry_point_always_gives_the_same_table(c: Context) -> None:
    """GetPjrtApi returns the same pointer every time, and the table stays valid until the process ends."""
    library = c.plugin.table.library
    assert library is not None
    assert {library.GetPjrtApi() for _ in range(3)} == {c.plugin.table.address}


@check(required=True)
def the_version_is_one_that_frameworks_take(c: Context) -> str:
    """The table declares major version 0 and a minor version of at least 29."""
    major, minor = c.plugin.table.version
    assert major == 0 and minor >= 29, f"{major}.{minor}"
    return f"{major}.{minor}"


@check(required=True)
def the_size_covers_the_declared_version(c: Context) -> str:
    """The table's struct_size reaches past every function of the minor version that it declares."""
    fields = abi.STRUCTS_BY_NAME["PJRT_Api"]
    last = max(fields.field(f.name).end for f in declared(c))
    assert c.plugin.table.api.struct_size >= last, f"{c.plugin.table.api.struct_size} bytes, {last} needed"
    return f"{c.plugin.table.api.struct_size} bytes"


@check(required=True)
def every_declared_function_is_there(c: Context) -> str:
    """Declaring a minor version promises every function up to it: no entry is null (what is not offered answers
    UNIMPLEMENTED), except the two that callers test for null."""
    missing = [f.name for f in declared(c) if not getattr(c.plugin.table.api, f.name) and f.name not in MAY_BE_NULL]
    assert not missing, f"null: {', '.join(missing)}"
    return f"{len(declared(c))} functions"


@check(required=True)
def the_extension_list_ends(c: Context) -> str:
    """The extensions are a linked list that ends, each node with a size that covers at least the node itself."""
    base, seen, node = ctypes_abi.struct("PJRT_Extension_Base"), [], c.plugin.table.api.extension_start
    while node:
        assert node not in seen, "the list of extensions is a ring"
        assert base.from_address(node).struct_size >= ctypes.sizeof(base), f"node {len(seen)} is too small"
        seen.append(node)
        node = base.from_address(node).next
    return ", ".join(c.plugin.table.extensions()) or "no extensions"


@check
def the_functions_of_extensions_are_there(c: Context) -> None:
    """Callers test neither an extension's size nor its functions, so a known extension has all of them."""
    found = c.plugin.table.extensions()
    for name in set(found) & set(abi.EXTENSIONS):
        spec = abi.STRUCTS_BY_NAME[abi.EXTENSIONS[name][0]]
        for field in spec.fields[1:]:
            if field.end <= found[name].base.struct_size:
                assert getattr(found[name], field.name), f"{name}: {field.name} is null"


@check(required=True)
def initializing_again_is_harmless(c: Context) -> None:
    """Plugin_Initialize succeeds, also when another framework in the process calls it a second time."""
    c.call("Plugin_Initialize")


@check(required=True)
def the_plugin_has_attributes(c: Context) -> str:
    """Plugin_Attributes succeeds; its values live as long as the process."""
    first, second = c.plugin.attributes(), c.plugin.attributes()
    assert first == second
    return ", ".join(sorted(first))


@check
def the_stablehlo_versions_are_lists_of_three(c: Context) -> str:
    """The attributes stablehlo_current_version and stablehlo_minimum_version are int64 lists of three, in order."""
    attributes = c.plugin.attributes()
    names = ("stablehlo_minimum_version", "stablehlo_current_version")
    if not set(names) & set(attributes):
        raise Unsupported("the plugin does not say which versions of StableHLO it reads")
    minimum, current = (attributes[n] for n in names)
    assert len(minimum) == len(current) == 3 and minimum <= current, f"{minimum} to {current}"
    return f"{'.'.join(map(str, minimum))} to {'.'.join(map(str, current))}"


@check
def a_larger_struct_is_accepted(c: Context) -> None:
    """A caller built for a newer version passes larger structs; the plugin reads and writes only the part it knows."""
    spec = abi.STRUCTS_BY_NAME["PJRT_Client_ProcessIndex_Args"]
    raw = (ctypes.c_char * (spec.size + 64))(*b"\x5a" * (spec.size + 64))
    args = ctypes_abi.struct(spec.name).from_buffer(raw)
    args.struct_size, args.extension_start, args.client = len(raw), None, c.client.handle
    c.plugin.table.check(c.plugin.table.function("PJRT_Client_ProcessIndex")(ctypes.addressof(raw)))
    assert args.process_index == 0
    assert set(bytes(raw)[spec.size :]) == {0x5A}, "bytes past the known fields were written"


@check
def a_smaller_struct_is_never_written_past_its_end(c: Context) -> str:
    """A caller built for an older version passes smaller structs: the plugin serves it without the late fields, or
    refuses with INVALID_ARGUMENT; it never writes past struct_size."""
    program = c.compile(programs.ADD)
    spec = abi.STRUCTS_BY_NAME["PJRT_Executable_GetCompiledMemoryStats_Args"]
    args = make(spec.name, executable=program.executable)
    args.struct_size = spec.field("temp_size_in_bytes").end
    ctypes.memset(ctypes.addressof(args) + args.struct_size, 0x5A, spec.size - args.struct_size)
    answer = "served"
    try:
        c.plugin.table.check(c.plugin.table.function(spec.name.removesuffix("_Args"))(ctypes.addressof(args)))
        assert args.argument_size_in_bytes == 32
    except PjrtError as error:
        if error.code == "UNIMPLEMENTED":
            raise
        assert error.code == "INVALID_ARGUMENT", f"{error.code}: {error}"
        answer = "refused"
    end = args.struct_size
    assert set(ctypes.string_at(ctypes.addressof(args) + end, spec.size - end)) == {0x5A}, "the end was overwritten"
    return answer


@bad
def a_struct_too_small_for_its_inputs_is_refused(c: Context) -> None:
    """A struct_size that does not even cover the inputs is answered with an error, in every function."""
    for function in declared(c):
        spec = abi.STRUCTS_BY_NAME[function.args]
        if function.name in abi.VOID_FUNCTIONS or len(spec.fields) < 3 or spec.oldest_size <= 16:
            continue
        if not getattr(c.plugin.table.api, function.name):
            continue
        c.note(function.name)
        args = make(function.args)
        args.struct_size = 8
        error = c.plugin.table.function(function.name)(ctypes.addressof(args))
        assert error, f"{function.name} accepted a struct of 8 bytes"
        args = make("PJRT_Error_Destroy_Args", error=error)
        c.plugin.table.function("PJRT_Error_Destroy")(ctypes.addressof(args))


@check
def garbage_after_the_outputs_does_not_matter(c: Context) -> None:
    """Argument structs are raw stack memory apart from the inputs: every output is written on success."""
    for function, inputs in (
        ("Client_Devices", {"client": c.client.handle}),
        ("Client_PlatformName", {"client": c.client.handle}),
        ("Device_IsAddressable", {"device": c.device.handle}),
        ("Device_DefaultMemory", {"device": c.device.handle}),
        ("Memory_Kind", {"memory": c.memory()}),
        ("Client_AddressableMemories", {"client": c.client.handle}),
    ):
        c.note(function)
        clean, dirty = (make(f"PJRT_{function}_Args") for _ in range(2))
        head = 16 + 8  # struct_size, extension_start and one input
        ctypes.memset(ctypes.addressof(dirty) + head, 0x5A, dirty.struct_size - head)
        for args in (clean, dirty):
            for name, value in inputs.items():
                setattr(args, name, value)
            c.plugin.table.check(c.plugin.table.function("PJRT_" + function)(ctypes.addressof(args)))
        known = [f for f, _ in clean._fields_]
        different = [f for f in known if getattr(clean, f) != getattr(dirty, f)]
        assert not different, f"{function} leaves {', '.join(different)} as it was"
