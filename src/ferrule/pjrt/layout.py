"""How the ABI table is written down, and the C layout (offsets, sizes) that follows from it.

A struct is a line with its name, then one indented line per field, `type name`. Two fields come first without being
written: `size_t struct_size` and `PJRT_Extension_Base * extension_start`. Marks:

    NAME raw            every field is written, there are no implied ones
    NAME unsized        has no struct_size constant
    NAME until=FIELD    its struct_size constant ends after FIELD although more fields follow (an oddity of the ABI)
    @61 type name       the field exists since minor version 61: older callers' structs end before it (when it stands in
                        the middle, as some of the FFI's do, older callers have another layout: see abi_ffi.py)
    out / inout         the callee writes it
    | type name         member of a union with the neighbouring `|` lines

Types are C spellings of LP64 Linux. Only the standard library is used: this runs at build time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

POINTER = 8
_SCALAR_BYTES = {
    "bool": 1,
    "char": 1,
    "float": 4,
    "int": 4,
    "int32_t": 4,
    "uint32_t": 4,
    "int64_t": 8,
    "uint64_t": 8,
    "size_t": 8,
    "intptr_t": 8,
    "uintptr_t": 8,
}


@dataclass(frozen=True)
class Field:
    """One field; `since` is 0 when it is as old as the oldest version served."""

    name: str
    type: str
    since: int = 0
    direction: str = "in"
    union: bool = False
    offset: int = 0
    size: int = 0

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*") or "(*)" in self.type

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Struct:
    """A struct with its C layout. `struct_size` is what callers put into the field of that name."""

    name: str
    fields: tuple[Field, ...]
    raw: bool = False
    unsized: bool = False
    until: str = ""
    size: int = 0
    align: int = 1

    @property
    def struct_size(self) -> int | None:
        if self.unsized:
            return None
        if self.until:
            return self.field(self.until).end
        return max(f.end for f in self.fields)

    @property
    def oldest_size(self) -> int:
        """The struct_size of the oldest caller: where the fields without a version mark end."""
        return max((f.end for f in self.fields if not f.since), default=0)

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)


@dataclass(frozen=True)
class Function:
    """An entry of PJRT_Api; `name` is the full C name."""

    name: str
    since: int = 0

    @property
    def args(self) -> str:
        return self.name + "_Args"


@dataclass(frozen=True)
class Enum:
    """An enum: full C names of the members, their values, and the minor version that brought late ones."""

    name: str
    prefix: str
    values: Mapping[str, int]
    since: Mapping[str, int]


def _mark(word: str) -> tuple[int, str]:
    if not word.startswith("@"):
        return 0, word
    version, _, rest = word[1:].partition(":")
    return int(version), rest


def parse_enums(text: str) -> dict[str, Enum]:
    """Enums by name, from the notation in abi.py."""
    enums: dict[str, Enum] = {}
    name = prefix = ""
    for line in filter(None, text.splitlines()):
        if not line.startswith(" "):
            name, prefix = line.split()
            prefix = "" if prefix == "-" else prefix
            enums[name] = Enum(name, prefix, {}, {})
            continue
        values, since = dict(enums[name].values), dict(enums[name].since)
        for word in line.split():
            minor, rest = _mark(word)
            member, _, value = rest.partition("=")
            values[prefix + member] = int(value)
            if minor:
                since[prefix + member] = minor
        enums[name] = Enum(name, prefix, values, since)
    return enums


def parse_functions(text: str) -> tuple[Function, ...]:
    """The functions in table order."""
    marked = map(_mark, text.split())
    return tuple(Function("PJRT_" + name, minor) for minor, name in marked)


def parse_field(line: str) -> Field:
    """One field from its line."""
    text, since, direction, union = line.strip(), 0, "in", False
    if text.startswith("@"):
        mark, text = text.split(" ", 1)
        since = int(mark[1:])
    for word in ("inout", "out"):
        if text.startswith(word + " "):
            direction, text = word, text[len(word) + 1 :]
            break
    if text.startswith("| "):
        union, text = True, text[2:]
    type, name = text.rsplit(" ", 1)
    return Field(name, type, since, direction, union)


_HEADER = (Field("struct_size", "size_t"), Field("extension_start", "PJRT_Extension_Base *"))
_FFI_HEADER = (Field("struct_size", "size_t"), Field("extension_start", "XLA_FFI_Extension_Base *"))


def parse_structs(text: str) -> list[Struct]:
    """Structs in order, without layout yet."""
    structs: list[Struct] = []
    for line in filter(None, text.splitlines()):
        if line.startswith(" "):
            structs[-1] = replace(structs[-1], fields=(*structs[-1].fields, parse_field(line)))
            continue
        name, *marks = line.split()
        until = next((m[6:] for m in marks if m.startswith("until=")), "")
        raw = "raw" in marks
        implied = _FFI_HEADER if name.startswith("XLA_FFI") else _HEADER
        structs.append(Struct(name, () if raw else implied, raw, "unsized" in marks, until))
    return structs


def api_struct(functions: Iterable[Function]) -> list[Struct]:
    """PJRT_Api itself: header, version, then one pointer per function."""
    fields = [*_HEADER, Field("pjrt_api_version", "PJRT_Api_Version")]
    fields += [Field(f.name, f.name + " *", f.since) for f in functions]
    return [Struct("PJRT_Api", tuple(fields))]


def lay_out(
    structs: Iterable[Struct], *, enums: Mapping[str, Enum], scalars: Mapping[str, str], pointers: Iterable[str]
) -> dict[str, Struct]:
    """Gives every field its offset and size by the C rules; structs may contain earlier ones."""
    done: dict[str, Struct] = {}

    def measure(field: Field) -> tuple[int, int]:
        if field.is_pointer or field.type in pointers:
            return POINTER, POINTER
        if field.type in enums:
            return 4, 4
        if field.type in done:
            return done[field.type].size, done[field.type].align
        size = _SCALAR_BYTES[scalars.get(field.type, field.type)]
        return size, size

    for struct in structs:
        fields: list[Field] = []
        at, align, union_start, union_end, in_union = 0, 1, 0, 0, False
        for field in struct.fields:
            size, need = measure(field)
            align = max(align, need)
            if field.union and in_union:
                offset = union_start
            else:
                offset = -(-at // need) * need
            if field.union and not in_union:
                union_start, union_end = offset, offset
                # A union is aligned like its widest member.
                members = _union_run(struct.fields, struct.fields.index(field))
                widest = max(measure(m)[1] for m in members)
                offset = union_start = -(-at // widest) * widest
                union_end = offset + -(-max(measure(m)[0] for m in members) // widest) * widest
            at = union_end if field.union else offset + size
            in_union = field.union
            fields.append(replace(field, offset=offset, size=size))
        done[struct.name] = replace(struct, fields=tuple(fields), size=-(-at // align) * align, align=align)
    return done


def _union_run(fields: tuple[Field, ...], start: int) -> tuple[Field, ...]:
    end = start
    while end < len(fields) and fields[end].union:
        end += 1
    return fields[start:end]
