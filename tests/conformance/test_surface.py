"""The PJRT surface of libferrule.so: our suite and pypjrt.conform find no failure and miss only what is listed here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ferrule.native import library_path
from ferrule.pjrt.header import header

SUITE = Path(__file__).parent / "surface" / "run.py"

# What Ferrule does not offer, with the reason.
UNSUPPORTED: dict[str, str] = {}
PYPJRT_UNSUPPORTED = {
    "abi.unknown_slot_is_clean_error": "about tables that are older than pypjrt's",
    "triton.compile": "an extension for GPUs",
    "device.coords": "a CPU has no coordinates",
    "topology.create_by_name": "asks for a TPU's topology (v5e:2x2); XLA's CPU plugin has no topologies by name at all",
    "abi_version.extension_present": "an extension that XLA's CPU plugin lacks, too",
    "abi_version.executable_proto": "an extension that XLA's CPU plugin lacks, too",
    "abi_version.is_compatible_with_executable": "an extension that XLA's CPU plugin lacks, too",
    "stream.external_ready_events": "an extension for GPUs",
}


def run(library: Path | str, report: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs the suite as a user does; its exit status and report."""
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "PJRT_NAMES_AND_LIBRARY_PATHS")}
    command = [sys.executable, str(SUITE), "--library", str(library), "--json", str(report), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert report.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(report.read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("pypjrt")
    path = tmp_path_factory.mktemp("surface") / "report.json"
    return run(library_path(), path, "--option", "num_devices=2", "--pypjrt")[1]


def outcomes(checks: list[dict[str, Any]], outcome: str) -> dict[str, str]:
    return {c["id"]: c["detail"] for c in checks if c["outcome"] == outcome}


def test_our_suite_finds_no_failure(report: dict[str, Any]) -> None:
    assert len(report["checks"]) > 400
    assert not outcomes(report["checks"], "fail")


def test_only_what_is_listed_is_unsupported(report: dict[str, Any]) -> None:
    found = outcomes(report["checks"], "unsupported")
    assert set(found) == set(UNSUPPORTED), found


def test_pypjrt_finds_no_failure(report: dict[str, Any]) -> None:
    assert len(report["pypjrt"]["checks"]) > 50
    assert not outcomes(report["pypjrt"]["checks"], "fail")


def test_pypjrt_misses_only_what_is_listed(report: dict[str, Any]) -> None:
    found = outcomes(report["pypjrt"]["checks"], "unsupported")
    assert set(found) == set(PYPJRT_UNSUPPORTED), found


# A plugin with one client and one device, and with faults: what each check must notice.
FAULTY = """
#include <cstdlib>
#include <unistd.h>
#include "pjrt_abi.h"

static PJRT_Api table;
static char thing[64];
static PJRT_Device* const devices[] = {reinterpret_cast<PJRT_Device*>(thing)};

static PJRT_Error* Nothing(void*) { return nullptr; }
static PJRT_Error* Create(PJRT_Client_Create_Args* a) {
  a->client = reinterpret_cast<PJRT_Client*>(thing); return nullptr;
}
static PJRT_Error* Name(PJRT_Client_PlatformName_Args* a) {
  a->platform_name = "faulty"; a->platform_name_size = 6; return nullptr;
}
static PJRT_Error* Version(PJRT_Client_PlatformVersion_Args* a) {
  a->platform_version = "1"; a->platform_version_size = 0; return nullptr;  // empty
}
static PJRT_Error* Addressable(PJRT_Client_AddressableDevices_Args* a) {
  a->addressable_devices = devices; a->num_addressable_devices = 1; return nullptr;
}
static PJRT_Error* Description(PJRT_Device_GetDescription_Args* a) {
  a->device_description = reinterpret_cast<PJRT_DeviceDescription*>(thing); return nullptr;
}
static PJRT_Error* Id(PJRT_DeviceDescription_Id_Args* a) { a->id = 0; return nullptr; }
static PJRT_Error* Kind(PJRT_DeviceDescription_Kind_Args* a) {
  a->device_kind = "f"; a->device_kind_size = 1; return nullptr;
}
static PJRT_Error* Text(PJRT_DeviceDescription_ToString_Args* a) {
  a->to_string = "f"; a->to_string_size = 1; return nullptr;
}
static PJRT_Error* Crash(void*) { std::abort(); }
static PJRT_Error* Hang(void*) { for (;;) sleep(1); }

extern "C" const PJRT_Api* GetPjrtApi() {
  table.struct_size = PJRT_Api_STRUCT_SIZE;
  table.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  table.pjrt_api_version.minor_version = 90;
#define SET(name, f) table.PJRT_##name = reinterpret_cast<decltype(table.PJRT_##name)>(f)
  SET(Plugin_Initialize, Nothing);
  SET(Client_Create, Create);
  SET(Client_Destroy, Nothing);
  SET(Client_PlatformName, Name);
  SET(Client_PlatformVersion, Version);
  SET(Client_AddressableDevices, Addressable);
  SET(Device_GetDescription, Description);
  SET(DeviceDescription_Id, Id);
  SET(DeviceDescription_Kind, Kind);
  SET(DeviceDescription_ToString, Text);
  SET(Client_Devices, Crash);
  SET(Client_LookupDevice, Hang);
  return &table;
}
"""


def test_the_suite_notices_faults(tmp_path: Path) -> None:
    """Missing entries, an empty text, a crash and a hang fail their own checks; lacking capabilities do not."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "pjrt_abi.h").write_text(header())
    (tmp_path / "faulty.cc").write_text(textwrap.dedent(FAULTY))
    library = tmp_path / "faulty.so"
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-I", str(tmp_path), "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "faulty.cc")], check=True)
    names = ("client.the_platform*", "client.devices_are_*", "table.every*", "table.the_version*", "buffers.raw_bytes")
    status, report = run(library, tmp_path / "r.json", "--time-limit", "3", *(w for n in names for w in ("--only", n)))
    assert status == 1
    found = {c["id"]: (c["outcome"], c["detail"]) for c in report["checks"]}
    assert found["client.the_platform_has_a_name"][0] == "pass"
    assert found["table.the_version_is_one_that_frameworks_take"] == ("pass", "0.90")
    assert found["client.the_platform_has_a_version"][0] == "fail"
    assert found["client.devices_are_listed"] == ("fail", "the process died: signal SIGABRT")
    assert found["client.devices_are_found_by_id"] == ("fail", "not finished after 3 s")
    # Required, so UNIMPLEMENTED is a failure; optional, so it is a difference.
    assert found["client.devices_are_found_by_local_id"][0] == "fail"
    assert "PJRT_Event_Await" in found["table.every_declared_function_is_there"][1]
    assert found["buffers.raw_bytes"][0] == "unsupported"


def test_every_check_says_what_is_demanded() -> None:
    done = subprocess.run([sys.executable, str(SUITE), "--list"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > 400
    assert all(line.partition(": ")[2].strip().endswith(".") for line in lines), lines
