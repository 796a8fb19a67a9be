"""Writes the CompileOptionsProto that PJRT takes; only the fields that a plugin needs (protobuf wire form)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _override(value: str | bool | int | float) -> bytes:
    """OptionOverrideProto: string 1, bool 2, int 3, double 4."""
    import struct

    if isinstance(value, bool):
        return _int(2, value)
    if isinstance(value, int):
        return _int(3, value)
    if isinstance(value, float):
        return _varint(4 << 3 | 1) + struct.pack("<d", value)
    return _bytes(1, value.encode())


def compile_options(
    devices: Sequence[int] = (0,),
    num_replicas: int = 1,
    num_partitions: int = 1,
    user: Mapping[str, str | bool | int | float] | None = None,
) -> bytes:
    """A serialized CompileOptionsProto; `devices` are global ids, replica-major."""
    columns = b"".join(
        _bytes(3, _bytes(1, b"".join(_varint(devices[r * num_partitions + p]) for r in range(num_replicas))))
        for p in range(num_partitions)
    )
    assignment = _int(1, num_replicas) + _int(2, num_partitions) + columns
    build = _int(1, -1) + _int(4, num_replicas) + _int(5, num_partitions) + _bytes(9, assignment)
    overrides = b"".join(
        _bytes(7, _bytes(1, name.encode()) + _bytes(2, _override(value))) for name, value in (user or {}).items()
    )
    return _bytes(3, build) + overrides
