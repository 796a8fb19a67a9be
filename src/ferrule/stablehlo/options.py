"""The compile options that come with a program: CompileOptionsProto, read without a protobuf library.

Field numbers are those of PJRT's protos; unknown fields are skipped, as protobuf asks.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ferrule.errors import InvalidArgument

OptionValue = str | bool | int | float
WireValue = int | bytes


@dataclass(frozen=True)
class CompileOptions:
    """What matters of the options; `device_assignment` holds global device ids, replica by replica."""

    num_replicas: int = 1
    num_partitions: int = 1
    device_ordinal: int = -1
    device_assignment: tuple[int, ...] = ()
    portable: bool = False
    tupled_arguments: bool = False
    use_spmd_partitioning: bool = False
    use_shardy: bool = False
    propagate_to_parameters: tuple[bool, ...] = ()
    propagate_to_outputs: tuple[bool, ...] = ()
    process_index: int = 0
    process_count: int = 1
    user: Mapping[str, OptionValue] = field(default_factory=dict)


def _bad(message: str, at: int, why: str) -> InvalidArgument:
    return InvalidArgument(f"the {message} is not a valid protobuf", where=f"byte {at}", why=why)


def _varint(data: bytes, at: int, message: str) -> tuple[int, int]:
    value = shift = 0
    start = at
    while True:
        if at >= len(data) or shift > 63:
            raise _bad(message, start, "a number does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7


def fields(data: bytes, message: str) -> Iterator[tuple[int, WireValue]]:
    """The fields of a protobuf message in order: (number, integer or bytes). Fixed-width numbers come as bytes."""
    at = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at, message)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at, message)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at, message)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _bad(message, start, f"wire type {kind} is not known")
        if tag >> 3 == 0 or size > len(data) - at:
            raise _bad(message, start, f"field {tag >> 3} of {size} bytes reaches past the end")
        yield tag >> 3, data[at : at + size]
        at += size


def _signed(value: WireValue) -> int:
    assert isinstance(value, int)
    return value - (1 << 64) if value >> 63 else value


def _packed(value: WireValue, message: str) -> list[int]:
    """A repeated integer: packed into bytes, or one value per field."""
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at, message)
        found.append(_signed(number))
    return found


def _assignment(data: bytes) -> tuple[int, ...]:
    """The proto has a list of replicas' devices per partition; the result goes replica by replica."""
    columns: list[list[int]] = []
    for number, value in fields(data, "DeviceAssignmentProto"):
        if number == 3 and isinstance(value, bytes):
            ids: list[int] = []
            for inner, item in fields(value, "DeviceAssignmentProto"):
                if inner == 1:
                    ids += _packed(item, "DeviceAssignmentProto")
            columns.append(ids)
    if len({len(c) for c in columns}) > 1:
        raise InvalidArgument("the device assignment is ragged", why=f"its columns are {columns}")
    return tuple(device for row in zip(*columns, strict=True) for device in row)


def _override(data: bytes) -> tuple[str, OptionValue]:
    name, option = "", b""
    for number, value in fields(data, "CompileOptionsProto"):
        if isinstance(value, bytes):
            if number == 1:
                name = value.decode("utf-8", "replace")
            elif number == 2:
                option = value
    result: OptionValue = ""
    for number, value in fields(option, "OptionOverrideProto"):
        if number == 1 and isinstance(value, bytes):
            result = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, int):
            result = bool(value)
        elif number == 3 and isinstance(value, int):
            result = _signed(value)
        elif number == 4 and isinstance(value, bytes) and len(value) == 8:
            result = struct.unpack("<d", value)[0]
    return name, result


_BUILD_INTS = {1: "device_ordinal", 4: "num_replicas", 5: "num_partitions", 22: "process_index", 23: "process_count"}
_BUILD_BOOLS = {6: "use_spmd_partitioning", 19: "use_shardy"}
_BUILD_LISTS = {12: "propagate_to_outputs", 18: "propagate_to_parameters"}


def parse_options(data: bytes, known: Mapping[str, tuple[type, str]] | None = None) -> CompileOptions:
    """Reads CompileOptionsProto bytes. With `known` (name → type and help), other user options are refused."""
    found: dict[str, object] = {}
    overrides: dict[str, OptionValue] = {}
    lists: dict[str, list[int]] = {}
    data = bytes(data)
    for number, value in fields(data, "CompileOptionsProto"):
        if number == 2 and isinstance(value, int):
            found["tupled_arguments"] = bool(value)
        elif number == 4 and isinstance(value, int):
            found["portable"] = bool(value)
        elif number == 7 and isinstance(value, bytes):
            name, option = _override(value)
            overrides[name] = option
        elif number == 3 and isinstance(value, bytes):
            for inner, item in fields(value, "ExecutableBuildOptionsProto"):
                if inner in _BUILD_INTS and isinstance(item, int):
                    found[_BUILD_INTS[inner]] = _signed(item)
                elif inner in _BUILD_BOOLS and isinstance(item, int):
                    found[_BUILD_BOOLS[inner]] = bool(item)
                elif inner in _BUILD_LISTS:
                    lists.setdefault(_BUILD_LISTS[inner], []).extend(_packed(item, "ExecutableBuildOptionsProto"))
                elif inner == 9 and isinstance(item, bytes):
                    found["device_assignment"] = _assignment(item)
    for key in ("num_replicas", "num_partitions", "process_count"):
        count = found.get(key, 1)
        assert isinstance(count, int)
        # Protobuf leaves zero out, and the framework's default of 0 means one.
        found[key] = count or 1
        if count < 0:
            raise InvalidArgument(f"{key} is {count}", fix="it must be 1 or more")
    if known is not None:
        overrides = {name: _checked(name, value, known) for name, value in overrides.items()}
    flags = {key: tuple(bool(v) for v in values) for key, values in lists.items()}
    return CompileOptions(**found, **flags, user=overrides)  # type: ignore[arg-type]


_TRUE, _FALSE = {"true", "1", "on", "yes"}, {"false", "0", "off", "no"}


def _checked(name: str, value: OptionValue, known: Mapping[str, tuple[type, str]]) -> OptionValue:
    """The option's value in the type that the table asks for; JAX sends some values as text."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.85)
        # A few hundred names of XLA's would hide our own.
        ours = ", ".join(sorted(k for k in known if not k.startswith("xla_")))
        hint = f"did you mean {near[0]!r}?" if near else f"known options: {ours or 'none'}"
        raise InvalidArgument(f"No such compile option: {name!r}", fix=hint)
    kind = known[name][0]
    if kind is bool and isinstance(value, (str, int)) and str(value).lower() in _TRUE | _FALSE:
        return str(value).lower() in _TRUE
    if kind is str and (isinstance(value, str) or name.startswith("xla_")):  # XLA's enumerations may come as numbers
        return str(value)
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = kind(value)
            if kind is float or not isinstance(value, float) or number == value:
                return number
        except ValueError:
            pass
    raise InvalidArgument(
        f"compile option {name!r} has the value {value!r}",
        why=f"{str(value)!r} is not a valid {kind.__name__} value. The option is {known[name][1]}",
    )
