"""Writes the C header of `native/` from the ABI table: `python header.py OUTPUT.h`.

CMake runs this file by path with nothing but the standard library at hand: it must not need an importable `ferrule`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

if not __package__:  # run by path: find the sibling modules as a package of their own
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    __package__ = "pjrt"

from . import abi
from .layout import Field, Struct

_NAME = re.compile(r"\b(?:PJRT|XLA_FFI)_\w+")


def header() -> str:
    """The whole text of the header."""
    return "\n".join([*_prologue(), *_enums(), *_functions(), *_structs(), "", "}  // extern C", "", *_traits(), ""])


def layout_checks() -> str:
    """C++ source whose static_asserts hold exactly when the compiler lays the structs out as the table says."""
    lines = ['#include "pjrt_abi.h"', "#include <cstddef>"]
    for struct in abi.STRUCTS_BY_NAME.values():
        lines.append(
            f"static_assert(sizeof({struct.name}) == {struct.size} && alignof({struct.name}) == {struct.align});"
        )
        for field in struct.fields:
            lines.append(f"static_assert(offsetof({struct.name}, {field.name}) == {field.offset});")
            lines.append(f"static_assert(sizeof({struct.name}::{field.name}) == {field.size});")
    for enum in abi.ENUMS.values():
        lines += [f"static_assert({name} == {value});" for name, value in enum.values.items()]
    return "\n".join(lines) + "\n"


def _prologue() -> Iterator[str]:
    yield "// The C ABI of PJRT and of XLA's FFI, generated from src/ferrule/pjrt/abi.py. Do not edit."
    yield "#pragma once"
    yield "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>"
    yield 'extern "C" {'
    yield f"#define PJRT_API_MAJOR {abi.MAJOR}\n#define PJRT_API_MINOR {abi.MINOR}"
    yield f"#define XLA_FFI_API_MAJOR {abi.FFI_VERSION[0]}\n#define XLA_FFI_API_MINOR {abi.FFI_VERSION[1]}"
    for name, type in abi.SCALARS.items():
        yield f"typedef {type} {name};"
    for name in sorted(_struct_names()):
        yield f"typedef struct {name} {name};"


def _struct_names() -> set[str]:
    """Every struct of the table and every opaque handle that its types mention."""
    words: set[str] = set()
    for struct in abi.STRUCTS_BY_NAME.values():
        for field in struct.fields:
            words.update(_NAME.findall(field.type))
    for signature in (*abi.CALLBACKS.values(), *abi.FFI_FUNCTION_TYPES.values()):
        words.update(_NAME.findall(signature))
    known = {*abi.ENUMS, *abi.CALLBACKS, *abi.SCALARS, *abi.FFI_FUNCTION_TYPES, *_function_types()}
    return (words | set(abi.STRUCTS_BY_NAME)) - known


def _enums() -> Iterator[str]:
    for enum in abi.ENUMS.values():
        members = ", ".join(f"{name} = {value}" for name, value in enum.values.items())
        # A fixed type, so that a value outside the list, which a caller may pass, is not undefined behaviour.
        yield f"typedef enum : int {{ {members} }} {enum.name};"


def _function_types() -> dict[str, str]:
    """Name → signature of the functions behind the tables: PJRT_Api, the extensions, XLA_FFI_Api."""
    types: dict[str, str] = {}
    for struct in abi.STRUCTS_BY_NAME.values():
        for field in struct.fields:
            name = field.type.removesuffix(" *")
            args = name + "_Args"
            if not field.is_pointer or args not in abi.STRUCTS_BY_NAME:
                continue
            void = name in abi.VOID_FUNCTIONS or name in abi.FFI_VOID_FUNCTIONS
            error = "XLA_FFI_Error *" if name.startswith("XLA_FFI") else "PJRT_Error *"
            types[name] = f"{'void' if void else error} ({args} * args)"
    return types


def _functions() -> Iterator[str]:
    for name, signature in abi.CALLBACKS.items():
        yield f"typedef {signature.replace(' (', f' (*{name})(', 1)};"
    for name, signature in {**abi.FFI_FUNCTION_TYPES, **_function_types()}.items():
        yield f"typedef {signature.replace(' (', f' {name}(', 1)};"


def _declaration(field: Field) -> str:
    if "(*)" in field.type:
        return field.type.replace("(*)", f"(*{field.name})", 1) + ";"
    return f"{field.type} {field.name};"


def _structs() -> Iterator[str]:
    for struct in abi.STRUCTS_BY_NAME.values():
        yield f"struct {struct.name} {{"
        in_union = False
        for field in struct.fields:
            if field.union != in_union:
                yield "  union {" if field.union else "  };"
                in_union = field.union
            yield "  " + _declaration(field)
        if in_union:
            yield "  };"
        yield "};"
        if struct.struct_size is not None:
            yield f"enum : size_t {{ {struct.name}_STRUCT_SIZE = {struct.struct_size} }};"


def _subject(struct: Struct) -> Field | None:
    """The handle that a function is about: its first input, when that is a pointer to an opaque object."""
    first = struct.fields[2] if len(struct.fields) > 2 else None
    if first is None or first.direction != "in" or not first.is_pointer:
        return None
    name = first.type.removeprefix("const ").removesuffix(" *")
    opaque = name.startswith("PJRT_") and (name not in abi.STRUCTS_BY_NAME or name in ("PJRT_Memory", "PJRT_Error"))
    return first if opaque else None


def _traits() -> Iterator[str]:
    yield "// What a function of the table needs to know about its argument struct; used by native/entry.h."
    yield "namespace ferrule::abi {\ntemplate <class Args>\nstruct Traits;"
    for struct in abi.STRUCTS_BY_NAME.values():
        # Not for the FFI: its older callers' structs are not always the beginning of the newest.
        if struct.struct_size is None or struct.fields[0].name != "struct_size" or struct.name.startswith("XLA_FFI"):
            continue
        subject = _subject(struct) if struct.name.endswith("_Args") else None
        yield f"template <>\nstruct Traits<{struct.name}> {{"
        yield f'  static constexpr const char* kName = "{struct.name.removesuffix("_Args")}";'
        yield f"  static constexpr size_t kOldest = {struct.oldest_size}, kSize = {struct.struct_size};"
        yield f"  static constexpr size_t kSubject = {subject.offset if subject else 0};"
        yield f'  static constexpr const char* kSubjectName = "{subject.name if subject else ""}";'
        yield "};"
    yield "}  // namespace ferrule::abi"
    names = [f.name for f in abi.FUNCTIONS if f.name not in abi.VOID_FUNCTIONS]
    yield "// All functions of PJRT_Api that return an error, in table order."
    yield "#define FERRULE_PJRT_FUNCTIONS(X) \\\n" + " \\\n".join(f"  X({name})" for name in names)


if __name__ == "__main__":
    text = layout_checks() if "--checks" in sys.argv else header()
    Path(sys.argv[1]).write_text(text)
