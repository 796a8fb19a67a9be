"""The MLIR bytecode container: sections, strings, dialects and op names, and where each attribute and type lies.

Nothing here knows what an op or attribute means. Positions are offsets into the whole file, so that an error can
name the byte. Every count is checked against the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from ferrule.errors import InvalidArgument

MAGIC = b"ML\xefR"
STRINGS, DIALECTS, ATTRS, ATTR_OFFSETS, IR, RESOURCES, RESOURCE_OFFSETS, DIALECT_VERSIONS, PROPERTIES = range(9)
_SECTION_NAMES = (
    *("strings", "dialects", "attributes", "attribute offsets", "IR", "resources", "resource offsets"),
    *("dialect versions", "properties"),
)


def malformed(offset: int, reason: str) -> NoReturn:
    """Raises the one error for bytes that are not a program."""
    raise InvalidArgument(
        "the program is not valid StableHLO bytecode",
        where=f"byte {offset}",
        why=reason,
        fix="send a portable artifact as written by the framework; the bytes may be truncated or damaged",
    )


def long_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a varint of any length; the caller checks that the new position is not past the end."""
    first = data[at]
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    size = (first & -first).bit_length()
    return int.from_bytes(data[at : at + size], "little") >> size, at + size


class Cursor:
    """A position in the bytes and the end of the part that may be read."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def byte(self) -> int:
        if self.at >= self.end:
            malformed(self.at, "a byte is missing at the end of its section")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        at = self.at
        if at >= self.end:
            malformed(at, "a number is missing at the end of its section")
        first = self.data[at]
        if first & 1:
            self.at = at + 1
            return first >> 1
        value, self.at = long_varint(self.data, at)
        if self.at > self.end:
            malformed(at, "a number reaches past the end of its section")
        return value

    def signed(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def count(self, what: str, least: int = 1) -> int:
        """A number of items that follow, each at least `least` bytes."""
        at, value = self.at, self.varint()
        if value * least > self.end - self.at:
            malformed(at, f"{value} {what} cannot fit in the {self.end - self.at} bytes that are left")
        return value

    def take(self, size: int, what: str) -> int:
        """Skips `size` bytes and returns where they start."""
        start = self.at
        if size > self.end - start:
            malformed(start, f"{what} of {size} bytes reaches past the end of its section")
        self.at = start + size
        return start

    def signed_list(self, what: str) -> tuple[int, ...]:
        return tuple(self.signed() for _ in range(self.count(what)))

    def section(self) -> tuple[int, int, int]:
        """Reads a section header and skips its data; returns its id, start and end."""
        at = self.at
        tag = self.byte()
        size = self.varint()
        if tag & 0x80:
            alignment = self.varint()
            if alignment == 0 or alignment & (alignment - 1) or alignment > 1 << 30:
                malformed(at, f"a section is aligned to {alignment}, which is not a power of two")
            self.take(-self.at % alignment, "padding")
        start = self.take(size, "a section")
        return tag & 0x7F, start, self.at


@dataclass
class Entry:
    """Where one attribute or type is encoded: the dialect's name, the bytes, and whether they are MLIR text."""

    dialect: str
    start: int
    end: int
    text: bool


@dataclass
class Container:
    """A parsed container. `ops` are (dialect, name) pairs, `properties` the (start, end) of each property blob."""

    data: bytes
    version: int
    producer: str
    strings: list[str] = field(default_factory=list)
    ops: list[tuple[str, str]] = field(default_factory=list)
    registered: list[bool] = field(default_factory=list)
    attrs: list[Entry] = field(default_factory=list)
    types: list[Entry] = field(default_factory=list)
    properties: list[tuple[int, int]] = field(default_factory=list)
    ir: tuple[int, int] = (0, 0)
    resources: dict[str, tuple[int, int]] = field(default_factory=dict)


def is_bytecode(data: bytes) -> bool:
    return data[:4] == MAGIC


def bytecode_version(data: bytes) -> int:
    """The version of the container format, without reading further."""
    return Cursor(data, 4, len(data)).varint()


def parse(data: bytes) -> Container:
    """Reads the container of bytecode version 6 (StableHLO since 0.15)."""
    cursor = Cursor(data, 4, len(data))
    if not is_bytecode(data):
        malformed(0, "it does not start with the MLIR bytecode magic number")
    version = cursor.varint()
    if version != 6:
        malformed(4, f"bytecode version {version} cannot be read here, version 6 is expected")
    stop = data.find(b"\0", cursor.at)
    if stop < 0:
        malformed(cursor.at, "the producer's name does not end")
    box = Container(data, version, data[cursor.at : stop].decode("utf-8", "surrogateescape"))
    cursor.at = stop + 1
    found: dict[int, Cursor] = {}
    while cursor.at < cursor.end:
        at = cursor.at
        kind, start, end = cursor.section()
        if kind >= len(_SECTION_NAMES):
            malformed(at, f"section kind {kind} is unknown")
        if kind in found:
            malformed(at, f"the section of {_SECTION_NAMES[kind]} appears twice")
        found[kind] = Cursor(data, start, end)
    for kind in (STRINGS, DIALECTS, ATTRS, ATTR_OFFSETS, IR):
        if kind not in found:
            malformed(len(data), f"the section of {_SECTION_NAMES[kind]} is missing")
    _strings(box, found[STRINGS])
    if PROPERTIES in found:
        _properties(box, found[PROPERTIES])
    dialects = _dialects(box, found[DIALECTS])
    _entries(box, dialects, found[ATTR_OFFSETS], found[ATTRS])
    if RESOURCES in found and RESOURCE_OFFSETS in found:
        _resources(box, found[RESOURCE_OFFSETS], found[RESOURCES])
    box.ir = found[IR].at, found[IR].end
    return box


def _strings(box: Container, cursor: Cursor) -> None:
    count = cursor.count("strings")
    sizes = [cursor.varint() for _ in range(count)]
    sizes.reverse()
    if sum(sizes) != cursor.end - cursor.at:
        malformed(cursor.at, "the lengths of the strings do not add up to the section's size")
    data = cursor.data
    for size in sizes:
        start = cursor.take(size, "a string")
        if size == 0:
            malformed(start, "a string has no terminator")
        box.strings.append(data[start : start + size - 1].decode("utf-8", "surrogateescape"))


def string_at(box: Container, index: int, at: int) -> str:
    if index >= len(box.strings):
        malformed(at, f"string {index} is used, but there are {len(box.strings)}")
    return box.strings[index]


def _properties(box: Container, cursor: Cursor) -> None:
    for _ in range(cursor.count("property sets")):
        size = cursor.varint()
        start = cursor.take(size, "a property set")
        box.properties.append((start, start + size))


def _dialects(box: Container, cursor: Cursor) -> list[str]:
    names = []
    for _ in range(cursor.count("dialects")):
        at, value = cursor.at, cursor.varint()
        names.append(string_at(box, value >> 1, at))
        if value & 1:
            kind, _, _ = cursor.section()
            if kind != DIALECT_VERSIONS:
                malformed(at, f"a dialect's version is in a section of kind {kind}")
    cursor.count("op names")
    while cursor.at < cursor.end:
        dialect = _dialect(names, cursor)
        for _ in range(cursor.count("op names")):
            at, value = cursor.at, cursor.varint()
            box.ops.append((dialect, string_at(box, value >> 1, at)))
            box.registered.append(bool(value & 1))
    return names


def _dialect(names: list[str], cursor: Cursor) -> str:
    at, index = cursor.at, cursor.varint()
    if index >= len(names):
        malformed(at, f"dialect {index} is used, but there are {len(names)}")
    return names[index]


def _entries(box: Container, dialects: list[str], offsets: Cursor, encoded: Cursor) -> None:
    n_attrs, n_types = offsets.count("attributes"), offsets.count("types")
    for table, total in ((box.attrs, n_attrs), (box.types, n_types)):
        while len(table) < total:
            dialect = _dialect(dialects, offsets)
            for _ in range(offsets.count("attributes or types")):
                value = offsets.varint()
                start = encoded.take(value >> 1, "an attribute or type")
                table.append(Entry(dialect, start, encoded.at, not value & 1))
            if len(table) > total:
                malformed(offsets.at, f"there are more than the {total} attributes or types announced")


def _resources(box: Container, offsets: Cursor, encoded: Cursor) -> None:
    for _ in range(offsets.count("resource groups")):
        offsets.varint()
        for _ in range(offsets.count("resources")):
            at, key = offsets.at, offsets.varint()
            size, _kind = offsets.varint(), offsets.byte()
            start = encoded.take(size, "a resource")
            box.resources[string_at(box, key, at)] = start, start + size
