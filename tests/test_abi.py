"""The ABI table against facts that were observed independently, and against the C++ compiler's layout."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrule.pjrt import abi, abi_ffi, ctypes_abi, header
from ferrule.pjrt.layout import Struct, lay_out, parse_structs

# Arguments of functions that the FFI's versions 4 and 5 added.
NEWER_FFI_STRUCTS = ("XLA_FFI_InvokeContext_FindExtension_Args", "XLA_FFI_CustomOptions_Get_Args")

FACTS = Path(__file__).resolve().parents[2] / "shared" / "pjrt" / "abi.json"


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    if not FACTS.exists():
        pytest.skip("the observed facts (../shared/pjrt/abi.json) are not beside this repository")
    return json.loads(FACTS.read_text())


def test_version(facts: dict[str, Any]) -> None:
    version = facts["version"]
    assert (version["pjrt_api_major"], version["pjrt_api_minor"]) == (abi.MAJOR, abi.MINOR)
    assert (version["xla_ffi_major"], version["xla_ffi_minor"]) <= abi.FFI_VERSION
    assert version["oldest_minor_in_changelog"] == abi.OLDEST_MINOR


def test_functions(facts: dict[str, Any]) -> None:
    assert [(f.name, f.since or None) for f in abi.FUNCTIONS] == [
        (f["name"], f["added_minor"]) for f in facts["functions"]
    ]
    assert len(abi.FUNCTIONS) == 138
    for fact in facts["functions"]:
        assert abi.STRUCTS_BY_NAME["PJRT_Api"].field(fact["name"]).offset == fact["offset"]
        assert (fact["name"] in abi.VOID_FUNCTIONS) == (fact["returns"] == "void")


def ffi_structs(minor: int) -> dict[str, Struct]:
    """The FFI's structs as they were in that minor version."""
    newest = parse_structs(abi_ffi.FFI_STRUCTS)
    then = [replace(s, fields=tuple(f for f in s.fields if f.since <= minor)) for s in newest]
    return lay_out(then, enums=abi.ENUMS, scalars=abi.SCALARS, pointers=abi.CALLBACKS)


def layout(struct: Struct) -> list[tuple[str, int, int]]:
    return [(f.name, f.offset, f.size) for f in struct.fields]


def test_structs(facts: dict[str, Any]) -> None:
    # The facts are of an older FFI: newer fields and functions are left out before the comparison.
    minor = facts["version"]["xla_ffi_minor"]
    pjrt = {name: s for name, s in abi.STRUCTS_BY_NAME.items() if not name.startswith("XLA_FFI")}
    ffi = {name: s for name, s in ffi_structs(minor).items() if name not in NEWER_FFI_STRUCTS}
    assert set(ffi) == {name for name in facts["structs"] if name.startswith("XLA_FFI")}
    for name, struct in {**pjrt, **ffi}.items():
        fact = facts["structs"][name]
        assert [[f.name, f.type, f.offset, f.size] for f in struct.fields] == fact["fields"], name
        assert (struct.size, struct.align, struct.struct_size) == (fact["sizeof"], fact["align"], fact["struct_size"])
        if name != "PJRT_Api" and name not in ffi:
            since = {f.name: f.since for f in struct.fields if f.since}
            assert since == fact.get("field_added_minor", {}), name
        directions = {f.name: f.direction for f in struct.fields if f.direction != "in"}
        assert directions == fact.get("direction", {}), name


def test_older_ffi_layouts() -> None:
    old = parse_structs(abi_ffi.FFI_OLD_STRUCTS)
    assert len(old) == 4
    for struct in old:
        name, _, minor = struct.name.rpartition("_0_")
        then, spelled = ffi_structs(int(minor))[name], abi.STRUCTS_BY_NAME[struct.name]
        assert layout(then) == layout(spelled)
        assert (then.size, then.struct_size) == (spelled.size, spelled.struct_size)


def test_every_core_struct_is_there(facts: dict[str, Any]) -> None:
    core = {name for name, s in facts["structs"].items() if s["header"].endswith("/pjrt_c_api.h")}
    assert core <= set(abi.STRUCTS_BY_NAME)


def test_enums(facts: dict[str, Any]) -> None:
    for name, enum in abi.ENUMS.items():
        if name.startswith("XLA_FFI"):
            known = {m: v for m, v in enum.values.items() if enum.since.get(m, 0) <= facts["version"]["xla_ffi_minor"]}
            assert known == facts["enums"][name]
            continue
        assert dict(enum.values) == facts["enums"][name]
        assert dict(enum.since) == {
            member: minor for member, minor in facts["enum_member_added_minor"].items() if member in enum.values
        }


def test_callbacks(facts: dict[str, Any]) -> None:
    for name, signature in abi.CALLBACKS.items():
        fact = facts["callbacks"]["pointer_typedefs"][name]
        arguments = ", ".join(f"{type} {argument}" for type, argument in fact["args"])
        assert signature == f"{fact['returns']} ({arguments})"


def test_extensions(facts: dict[str, Any]) -> None:
    for name, (struct, version) in abi.EXTENSIONS.items():
        assert (struct, version) == (facts["extensions"][name]["struct"], facts["extensions"][name]["version"])


def test_ctypes_layout() -> None:
    for name, struct in abi.STRUCTS_BY_NAME.items():
        made = ctypes_abi.struct(name)
        assert ctypes.sizeof(made) == struct.size
        for field in struct.fields:
            if not field.union:
                assert getattr(made, field.name).offset == field.offset
    for function in abi.FUNCTIONS:
        ctypes_abi.callback(function.name)


def test_the_compiler_agrees(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "pjrt_abi.h").write_text(header.header())
    (tmp_path / "checks.cc").write_text(header.layout_checks())
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-invalid-offsetof", "checks.cc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_header_needs_only_the_standard_library(tmp_path: Path) -> None:
    out = tmp_path / "pjrt_abi.h"
    subprocess.run([sys.executable, "-S", "-I", header.__file__, str(out)], cwd=tmp_path, check=True)
    assert out.read_text() == header.header()
