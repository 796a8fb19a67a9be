"""The ABI table as ctypes: structs, callback types, and calls through any plugin's table.

    table = Table.load("libferrule.so")
    client = table.call("PJRT_Client_Create").client
    name = table.call("PJRT_Client_PlatformName", client=client)
    text(name.platform_name, name.platform_name_size)

Every pointer is a plain address (int or None). `make` and `call` also take str, bytes, ctypes objects and lists where
C wants a pointer, and keep them alive as long as the struct.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

from ferrule.errors import FerruleError

from . import abi
from .layout import Field

_SCALARS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "intptr_t": ctypes.c_ssize_t,
    "uintptr_t": ctypes.c_size_t,
}


class PjrtError(FerruleError):
    """An error that a plugin returned: `code` is its name ("INVALID_ARGUMENT"), `message` its text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def c_type(type: str) -> Any:
    """The ctypes type of a C type of the table; pointers become plain addresses."""
    type = abi.SCALARS.get(type, type)
    if type.endswith("*") or "(*)" in type or type in abi.CALLBACKS:
        return ctypes.c_void_p
    if type in abi.ENUMS:
        return ctypes.c_int
    if type in abi.STRUCTS_BY_NAME:
        return struct(type)
    return _SCALARS[type]


@cache
def struct(name: str) -> Any:
    """The ctypes.Structure of that name."""
    fields: list[tuple[str, Any]] = []
    anonymous: list[str] = []
    members: list[Field] = []

    def close_union() -> None:
        if members:
            union = type(f"{name}_union", (ctypes.Union,), {"_fields_": [(f.name, c_type(f.type)) for f in members]})
            anonymous.append(f"union_{len(fields)}")
            fields.append((anonymous[-1], union))
            members.clear()

    for field in abi.STRUCTS_BY_NAME[name].fields:
        if field.union:
            members.append(field)
            continue
        close_union()
        fields.append((field.name, c_type(field.type)))
    close_union()
    return type(name, (ctypes.Structure,), {"_anonymous_": anonymous, "_fields_": fields})


@cache
def callback(name: str) -> Any:
    """The CFUNCTYPE of a callback (`PJRT_Event_OnReadyCallback`) or of any function of the tables."""
    signature = abi.CALLBACKS.get(name) or abi.FFI_FUNCTION_TYPES.get(name) or f"PJRT_Error * ({name}_Args * args)"
    match = re.fullmatch(r"(.+?) ?\((.*)\)", signature)
    assert match is not None
    returns, parameters = match.groups()
    result = None if returns == "void" or name in (*abi.VOID_FUNCTIONS, *abi.FFI_VOID_FUNCTIONS) else c_type(returns)
    return ctypes.CFUNCTYPE(result, *(c_type(p.rsplit(" ", 1)[0]) for p in parameters.split(", ")))


def make(name: str, /, **values: Any) -> Any:
    """A struct with its struct_size set and the given fields filled in."""
    spec = abi.STRUCTS_BY_NAME[name]
    made = struct(name)()
    made.kept = []
    if spec.fields[0].name == "struct_size" and spec.struct_size is not None:
        made.struct_size = spec.struct_size
    for field, value in values.items():
        setattr(made, field, _plain(value, spec.field(field), made.kept))
    return made


def _plain(value: Any, field: Field, kept: list[Any]) -> Any:
    """`value` as the field wants it; what it points to is added to `kept`."""
    if not (field.is_pointer or field.type in abi.CALLBACKS):
        kept.append(value)  # a struct by value may point to more
        return value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        value = ctypes.create_string_buffer(value, len(value) + 1)
    elif isinstance(value, list | tuple):
        value = _array(value, field)
    kept.append(value)
    if field.type in abi.CALLBACKS or "(*)" in field.type:
        return ctypes.cast(value, ctypes.c_void_p)
    return ctypes.addressof(value)


def _array(values: list[Any] | tuple[Any, ...], field: Field) -> Any:
    pointed = field.type.removeprefix("const ").removesuffix("*").removesuffix("const ").strip().removesuffix("const")
    item = c_type(pointed.strip())
    if values and isinstance(values[0], ctypes.Structure):
        array = (item * len(values))(*values)
        array.kept = list(values)  # what the items point to
        return array
    return (item * len(values))(*values)


def named_value(name: str, value: str | int | float | bool | list[int]) -> Any:
    """A PJRT_NamedValue."""
    kinds = abi.ENUMS["PJRT_NamedValue_Type"].values
    if isinstance(value, bool):
        kind, field, size = "kBool", "bool_value", 1
    elif isinstance(value, int):
        kind, field, size = "kInt64", "int64_value", 1
    elif isinstance(value, float):
        kind, field, size = "kFloat", "float_value", 1
    elif isinstance(value, str):
        kind, field, size = "kString", "string_value", len(value.encode())
    else:
        kind, field, size = "kInt64List", "int64_array_value", len(value)
    type = kinds["PJRT_NamedValue_" + kind]
    return make(
        "PJRT_NamedValue", name=name, name_size=len(name.encode()), type=type, value_size=size, **{field: value}
    )


def read_named_values(address: int | None, count: int) -> dict[str, Any]:
    """The attributes in an array of PJRT_NamedValue."""
    found: dict[str, Any] = {}
    for value in (struct("PJRT_NamedValue") * count).from_address(address) if address and count else ():
        name = text(value.name, value.name_size)
        match value.type:
            case 0:
                found[name] = text(value.string_value, value.value_size)
            case 1:
                found[name] = value.int64_value
            case 2:
                found[name] = list((ctypes.c_int64 * value.value_size).from_address(value.int64_array_value))
            case 3:
                found[name] = value.float_value
            case _:
                found[name] = value.bool_value
    return found


def text(address: int | None, size: int) -> str:
    """The string at an address."""
    return ctypes.string_at(address, size).decode(errors="replace") if address else ""


class Table:
    """A plugin's PJRT_Api, called by name. Errors become PjrtError."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.api = struct("PJRT_Api").from_address(address)

    @classmethod
    def load(cls, path: str) -> Table:
        """Opens a plugin and asks it for its table."""
        library = ctypes.CDLL(path)
        library.GetPjrtApi.restype = ctypes.c_void_p
        table = cls(library.GetPjrtApi())
        table.library = library
        return table

    library: ctypes.CDLL | None = None

    @property
    def version(self) -> tuple[int, int]:
        """The version that the plugin declares."""
        return self.api.pjrt_api_version.major_version, self.api.pjrt_api_version.minor_version

    def function(self, name: str) -> Any:
        """The function as a ctypes callable on its argument struct; UNIMPLEMENTED when the plugin has none."""
        offset = abi.STRUCTS_BY_NAME["PJRT_Api"].field(name).offset
        address = getattr(self.api, name) if offset < self.api.struct_size else None
        if not address:
            raise PjrtError("UNIMPLEMENTED", f"the plugin's table has no {name}")
        return callback(name)(address)

    def call(self, name: str, /, **values: Any) -> Any:
        """Calls a function with a fresh argument struct and returns that struct."""
        args = make(name + "_Args", **values)
        self.check(self.function(name)(ctypes.addressof(args)))
        return args

    def check(self, error: int | None) -> None:
        """Raises and destroys an error; does nothing for success."""
        if not error:
            return
        message = make("PJRT_Error_Message_Args", error=error)
        self.function("PJRT_Error_Message")(ctypes.addressof(message))
        code = make("PJRT_Error_GetCode_Args", error=error)
        self.function("PJRT_Error_GetCode")(ctypes.addressof(code))
        enum = abi.ENUMS["PJRT_Error_Code"]
        names = {number: full.removeprefix(enum.prefix) for full, number in enum.values.items()}
        raised = PjrtError(names.get(code.code, str(code.code)), text(message.message, message.message_size))
        destroy = make("PJRT_Error_Destroy_Args", error=error)  # a name: the struct must live during the call
        self.function("PJRT_Error_Destroy")(ctypes.addressof(destroy))
        raise raised

    def extensions(self) -> dict[str, Any]:
        """The extension structs that the plugin chains to its table and that this ABI knows, by name."""
        numbers = {
            v: k.removeprefix("PJRT_Extension_Type_") for k, v in abi.ENUMS["PJRT_Extension_Type"].values.items()
        }
        found: dict[str, Any] = {}
        node = self.api.extension_start
        while node:
            base = struct("PJRT_Extension_Base").from_address(node)
            name = numbers.get(base.type, str(base.type))
            known = abi.EXTENSIONS.get(name)
            found.setdefault(name, struct(known[0]).from_address(node) if known else base)
            node = base.next
        return found

    def extension_call(self, extension: str, name: str, /, **values: Any) -> Any:
        """Calls a function of an extension, like `call`. `name` is the function's full C name."""
        table = self.extensions().get(extension)
        fields = abi.STRUCTS_BY_NAME[abi.EXTENSIONS[extension][0]].fields
        field = next(f.name for f in fields if f.type == name + " *")
        address = getattr(table, field) if table is not None else None
        if not address:
            raise PjrtError("UNIMPLEMENTED", f"the plugin does not offer {name}")
        args = make(name + "_Args", **values)
        self.check(callback(name)(address)(ctypes.addressof(args)))
        return args
