"""Extensions of the table: layouts, shardings, foreign functions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import programs
from context import F32, ONE, Context, array_of
from registry import Unsupported, group

from ferrule.pjrt import abi, ctypes_abi
from ferrule.pjrt.ctypes_abi import make

layouts = group("layouts_extension")
shardings = group("shardings_extension")
ffi = group("ffi_extension")


def layout_text(c: Context, layout: int, owned: bool = True) -> str:
    """A layout as text."""
    args = c.ext("Layouts", "PJRT_Layouts_MemoryLayout_Serialize", layout=layout)
    text = ctypes_abi.text(args.serialized_bytes, args.serialized_bytes_size)
    assert args.serialized_layout_deleter, "the deleter is null"
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_layout_deleter)(args.serialized_layout)
    if owned:
        c.ext("Layouts", "PJRT_Layouts_MemoryLayout_Destroy", layout=layout)
    return text


@layouts
def the_layout_of_a_buffer(c: Context) -> str:
    """The extension's buffer layout works and is a text like {1,0}; it must not be UNIMPLEMENTED."""
    c.extension("Layouts")
    buffer = c.put(np.zeros((2, 3, 4), np.float32))
    text = layout_text(c, c.ext("Layouts", "PJRT_Layouts_PJRT_Buffer_MemoryLayout", buffer=buffer.handle).layout)
    assert text.startswith("{2,1,0"), text
    return text


@layouts
def the_default_layout(c: Context) -> str:
    """The default layout of a shape is that of a buffer of the shape, for scalars and arrays."""
    c.extension("Layouts")
    for dims in ([], [3], [2, 3]):
        args = c.ext(
            "Layouts",
            "PJRT_Layouts_PJRT_Client_GetDefaultLayout",
            client=c.client.handle,
            type=F32,
            dims=dims,
            num_dims=len(dims),
        )
        text = layout_text(c, args.layout)
        buffer = c.put(np.zeros(dims, np.float32))
        of_buffer = c.ext("Layouts", "PJRT_Layouts_PJRT_Buffer_MemoryLayout", buffer=buffer.handle).layout
        assert text == layout_text(c, of_buffer), f"{dims}: {text}"
    return text


@layouts
def the_default_layout_of_a_topology(c: Context) -> str:
    """The default layout is known without a client, too."""
    c.extension("Layouts")
    topology = c.call("Client_TopologyDescription", client=c.client.handle).topology
    name = "PJRT_Layouts_PJRT_Topology_GetDefaultLayout"
    args = c.ext("Layouts", name, topology_description=topology, type=F32, dims=[2, 3], num_dims=2)
    return layout_text(c, args.layout)


@layouts
def the_layouts_of_a_program(c: Context) -> str:
    """Arguments and results of a program have a layout each."""
    c.extension("Layouts")
    program = c.compile(programs.THREE_RESULTS)
    found = []
    for kind, count, field in (("Parameter", 1, "num_parameters"), ("Output", 3, "num_outputs")):
        args = c.ext("Layouts", f"PJRT_Layouts_PJRT_Executable_Get{kind}Layouts", executable=program.executable)
        assert getattr(args, field) == count
        found += [layout_text(c, layout, owned=False) for layout in array_of(args.layouts, count)]
    return " ".join(found)


@shardings
def every_argument_and_result_has_one(c: Context) -> str:
    """Per argument and result there is a serialized OpSharding (empty: replicated), or null arrays: unknown."""
    c.extension("Shardings")
    program = c.compile(programs.THREE_RESULTS)
    known = []
    for kind, count, field in (("Parameter", 1, "num_parameters"), ("Output", 3, "num_outputs")):
        args = c.ext("Shardings", f"PJRT_Shardings_PJRT_Executable_{kind}Shardings", executable=program.executable)
        if args.shardings:
            assert getattr(args, field) == count
            sizes = array_of(args.sharding_sizes, count, ctypes.c_size_t)
            pointers = array_of(args.shardings, count)
            known += [ctypes.string_at(p, s) if s else b"" for p, s in zip(pointers, sizes)]
    return f"{len(known)} shardings" if known else "unknown"


CALLS: list[str] = []
BAD_CALLS: list[str] = []


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def scale(frame_address: int) -> int | None:
    """An FFI handler: multiplies by the attribute `scale`; answers a question about itself first."""
    try:
        frame = ctypes_abi.struct("XLA_FFI_CallFrame").from_address(frame_address)
        if frame.extension_start:
            extension = ctypes_abi.struct("XLA_FFI_Metadata_Extension").from_address(frame.extension_start)
            metadata = ctypes_abi.struct("XLA_FFI_Metadata").from_address(extension.metadata)
            metadata.api_version.major_version, metadata.api_version.minor_version = 0, 1
            CALLS.append("metadata")
            return None
        if frame.stage != abi.ENUMS["XLA_FFI_ExecutionStage"].values["XLA_FFI_ExecutionStage_EXECUTE"]:
            CALLS.append(f"stage {frame.stage}")
            return None
        buffers = [
            ctypes_abi.struct("XLA_FFI_Buffer").from_address(array_of(side, 1)[0])
            for side in (frame.args.args, frame.rets.rets)
        ]
        factor = 0.0
        for n in range(frame.attrs.size):
            name = ctypes_abi.struct("XLA_FFI_ByteSpan").from_address(array_of(frame.attrs.names, frame.attrs.size)[n])
            if ctypes.string_at(name.ptr, name.len) == b"scale":
                scalar = ctypes_abi.struct("XLA_FFI_Scalar").from_address(
                    array_of(frame.attrs.attrs, frame.attrs.size)[n]
                )
                factor = ctypes.c_float.from_address(scalar.value).value
        count = int(np.prod(array_of(buffers[0].dims, buffers[0].rank, ctypes.c_int64)))
        source = (ctypes.c_float * count).from_address(buffers[0].data)
        target = (ctypes.c_float * count).from_address(buffers[1].data)
        for i in range(count):
            target[i] = source[i] * factor
        CALLS.append("execute")
    except Exception as error:  # cannot leave through C
        BAD_CALLS.append(f"{type(error).__name__}: {error}")
    return None


def register(c: Context, name: str, handler: Any) -> None:
    c.extension("FFI")
    platform = c.client.platform
    c.ext(
        "FFI",
        "PJRT_FFI_Register_Handler",
        target_name=name,
        target_name_size=len(name),
        handler=ctypes.cast(handler, ctypes.c_void_p).value,
        platform_name=platform,
        platform_name_size=len(platform),
        traits=0,
    )


@ffi
def a_program_calls_a_handler(c: Context) -> str:
    """A handler that was registered is asked for its metadata and then called with operands, results and attributes."""
    CALLS.clear()
    name = "surface_scale"
    if name not in _REGISTERED:
        register(c, name, scale)
        _REGISTERED.add(name)
    result = c.client.compile(programs.custom_call(name))(2 * ONE)[0]
    assert not BAD_CALLS, BAD_CALLS
    assert result.tolist() == [5, 5, 5, 5], result
    assert "execute" in CALLS
    return ", ".join(dict.fromkeys(CALLS))


_REGISTERED: set[str] = set()


@ffi
def an_unknown_handler_is_refused(c: Context) -> str:
    """A program that calls a handler that nobody registered is an error at compilation or execution, with its name."""
    c.extension("FFI")
    name = "surface_nobody_registered_this"
    error = c.error_of(
        lambda: c.client.compile(programs.custom_call(name))(ONE),
        *[n.removeprefix("PJRT_Error_Code_") for n in abi.ENUMS["PJRT_Error_Code"].values],
        what="calling it",
    )
    assert name in error.message, error.message
    return error.code


# A type without functions; plugins may read it as long as the process lives.
TYPE_INFO = make("PJRT_FFI_Type_Info")


def type_id(c: Context, name: str) -> int:
    """Registers a type of user data."""
    info = ctypes.addressof(TYPE_INFO)
    args = c.ext("FFI", "PJRT_FFI_Type_Register", type_name=name, type_name_size=len(name), type_id=0, type_info=info)
    return args.type_id


@ffi
def types_of_user_data_get_ids(c: Context) -> str:
    """A type of user data gets an id that is not zero, and two types two ids."""
    c.extension("FFI")
    ids = [type_id(c, name) for name in ("surface.first", "surface.second")]
    assert len(set(ids)) == 2, ids
    return str(ids)


@ffi
def user_data_belongs_to_a_context(c: Context) -> None:
    """User data may be added to an execute context."""
    c.extension("FFI")
    try:
        context = c.call("ExecuteContext_Create").context
    except ctypes_abi.PjrtError as error:
        raise Unsupported(f"no execute context: {error.message}") from None
    data = make("PJRT_FFI_UserData", type_id=type_id(c, "surface.data"), data=4711)
    c.ext("FFI", "PJRT_FFI_UserData_Add", context=context, user_data=data)
    a = c.put(ONE)
    (outputs,), (event,) = c.launch(c.compile(programs.ADD), [a, a], context=context)
    event.wait()
    c.call("ExecuteContext_Destroy", context=context)
    assert c.get(outputs[0]).tolist() == [2, 2, 2, 2]
