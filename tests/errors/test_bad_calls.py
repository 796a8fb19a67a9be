"""Calls with the wrong arguments, buffers that are gone, memory that is not there, artifacts that do not fit."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sound import ADD, ONE

import ferrule
from ferrule.api import client as process_client
from ferrule.client import Buffer, Client, LoadedExecutable, Plugin
from ferrule.pjrt import abi
from ferrule.pjrt.ctypes_abi import make
from ferrule.program import FORMAT, Program

Refused = Callable[..., Any]


@pytest.fixture
def add(client: Client) -> LoadedExecutable:
    return client.compile(ADD.encode())


def test_wrong_arguments(client: Client, add: LoadedExecutable, refused: Refused) -> None:
    for arguments, words in (
        ((ONE,), "the program `main` takes 2 arguments, got 1"),
        ((ONE, ONE, ONE), "the program `main` takes 2 arguments, got 3"),
        ((ONE, np.ones(5, np.float32)), "argument 1 of `main` must be f32[4], got f32[5]"),
        ((np.ones((4, 1), np.float32), ONE), "argument 0 of `main` must be f32[4], got f32[4,1]"),
        ((ONE, np.ones(4)), "argument 1 of `main` must be f32[4], got f64[4]"),
        ((ONE, np.array(["a"] * 4)), "arrays of dtype <U1 cannot be moved to a device"),
        ((ONE, np.array([None] * 4)), "arrays of dtype object cannot be moved to a device"),
    ):
        with refused("INVALID_ARGUMENT", words):
            add(*arguments)
        np.testing.assert_array_equal(add(ONE, ONE)[0], 2 * ONE)


def test_buffer_of_another_client(plugin: Plugin, client: Client, add: LoadedExecutable, refused: Refused) -> None:
    mine, foreign = client.put(ONE), plugin.client().put(ONE)
    with refused("INVALID_ARGUMENT", "argument 1 of `main` belongs to another client", "put the data on a device"):
        add.execute([mine, foreign])
    assert process_client() is process_client("cpu")


def test_deleted_buffer(client: Client, add: LoadedExecutable, refused: Refused) -> None:
    a, b = client.put(ONE), client.put(ONE)
    b.delete()
    for use in (lambda: add.execute([a, b]), b.numpy):
        with refused("INVALID_ARGUMENT", "f32[4]", "deleted or donated", "keep a copy"):
            use()
    b.delete()  # twice is no error
    assert b.is_deleted and not a.is_deleted and b.shape == (4,)
    np.testing.assert_array_equal(add.execute([a, a])[0].numpy(), 2 * ONE)


def test_donated_buffer(client: Client, refused: Refused) -> None:
    donor = ADD.replace("%a: tensor<4xf32>", "%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}")
    program = client.compile(donor.encode())
    a, b = client.put(ONE), client.put(ONE)
    (out,) = program.execute([a, b])
    assert a.is_deleted and not b.is_deleted
    with refused("INVALID_ARGUMENT", "argument 0 of `main`", "deleted or donated", "do not donate it"):
        program.execute([a, b])
    with refused("INVALID_ARGUMENT", "arguments 0 and 1", "one of them is donated", "pass a copy"):
        program.execute([b, b])
    assert not b.is_deleted
    np.testing.assert_array_equal(program.execute([b, out])[0].numpy(), 3 * ONE)


def test_donated_twice(client: Client, refused: Refused) -> None:
    text = """func.func @main(
        %a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32> {jax.buffer_donor = true})
        -> (tensor<4xf32>, tensor<4xf32>) {
      %s = stablehlo.add %a, %b : tensor<4xf32>
      %d = stablehlo.subtract %a, %b : tensor<4xf32>
      return %s, %d : tensor<4xf32>, tensor<4xf32> }"""
    program = client.compile(text.encode())
    a = client.put(ONE)
    with refused("INVALID_ARGUMENT", "arguments 0 and 1", "both are donated", "pass a copy"):
        program.execute([a, a])
    assert not a.is_deleted
    np.testing.assert_array_equal(program.execute([a, client.put(ONE)])[0].numpy(), 2 * ONE)


def test_a_donor_that_no_output_can_take(client: Client) -> None:
    """It stays the caller's, as with XLA."""
    text = """func.func @main(%a: tensor<4xf32> {jax.buffer_donor = true}) -> tensor<2xf32> {
      %r = stablehlo.slice %a [0:2] : (tensor<4xf32>) -> tensor<2xf32>
      return %r : tensor<2xf32> }"""
    a = client.put(ONE)
    client.compile(text.encode()).execute([a])
    assert not a.is_deleted
    np.testing.assert_array_equal(a.numpy(), ONE)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"num_device": 2}, "INVALID_ARGUMENT", ("unknown option `num_device`", "did you mean `num_devices`?")),
        ({"colour": 2}, "INVALID_ARGUMENT", ("unknown option `colour`", "known options: platform_name, target")),
        ({"memory_limit_bytes": "lots"}, "INVALID_ARGUMENT", ("`memory_limit_bytes` must be a whole number", "`lots`")),
        ({"num_devices": 0}, "INVALID_ARGUMENT", ("between 1 and 1024",)),
        ({"target": "cpuu"}, "INVALID_ARGUMENT", ("unknown target `cpuu`", "known: auto, cpu")),
        ({"target": "cuda"}, "UNIMPLEMENTED", ("NVIDIA", "not in this version", "FERRULE_TARGET=cpu")),
        ({"platform_name": "cuda"}, "UNIMPLEMENTED", ("NVIDIA", "not in this version", "FERRULE_TARGET=cpu")),
    ],
)
def test_client_options(
    plugin: Plugin, client: Client, refused: Refused, options: dict[str, Any], code: str, words: tuple[str, ...]
) -> None:
    with refused(code, *words):
        plugin.client(**options)


SCRIPT = """
import sys
from ferrule.client import Plugin
from ferrule.native import library_path
try:
    Plugin(library_path()).client()
except Exception as error:
    print(error.code, error)
print("alive")
"""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FERRULE_TARGET": "abacus"}, ("INVALID_ARGUMENT", "unknown target `abacus`", "FERRULE_TARGET", "auto, cpu")),
        ({"FERRULE_TARGET": "cuda"}, ("UNIMPLEMENTED", "NVIDIA", "not in this version")),
        ({"FERRULE_MEMORY_LIMIT": "lots"}, ("INVALID_ARGUMENT", "FERRULE_MEMORY_LIMIT", "whole number", "`lots`")),
        ({"FERRULE_NUM_DEVICES": "-1"}, ("INVALID_ARGUMENT", "FERRULE_NUM_DEVICES", "whole number", "`-1`")),
    ],
)
def test_environment(variables: dict[str, str], words: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert all(w in done.stdout for w in (*words, "alive")), done.stdout + done.stderr


def test_out_of_memory(plugin: Plugin, refused: Refused) -> None:
    client = plugin.client(memory_limit_bytes=1 << 20)
    big = ADD.replace("4xf32", "150000xf32").encode()
    program, x = client.compile(big), np.ones(150000, np.float32)
    held = client.put(x)
    in_use = client.devices[0].memory_stats()["bytes_in_use"]
    words = (
        "FerruleCpuDevice(id=0",
        "out of memory",
        "requested: 600000 bytes",
        "limit: 1.0 MiB",
        "fix: delete arrays",
    )
    with refused("RESOURCE_EXHAUSTED", *words):
        client.put(x)
    with refused("RESOURCE_EXHAUSTED", *words):
        program.execute([held, held])  # no memory for the output
    gc.collect()
    assert client.devices[0].memory_stats()["bytes_in_use"] == in_use
    np.testing.assert_array_equal(client.put(ONE).numpy(), ONE)
    del held
    gc.collect()
    np.testing.assert_array_equal(client.put(x).numpy(), x)
    gc.collect()
    assert client.devices[0].memory_stats()["bytes_in_use"] == 0


@pytest.fixture(scope="session")
def artifact(plugin: Plugin) -> bytes:
    return plugin.client().compile(ADD.encode()).serialize()


def changed(data: bytes, **fields: Any) -> bytes:
    program = Program.deserialize(data)
    for name, value in fields.items():
        setattr(program, name, value)
    return program.serialize()


def test_artifacts_that_do_not_fit(client: Client, artifact: bytes, refused: Refused) -> None:
    checksum = ("the Ferrule program is damaged", "why: its checksum does not match")
    for data, code, words in (
        (b"", "INVALID_ARGUMENT", ("not a Ferrule program", "why:")),
        (b"\x7fELF" + bytes(100), "INVALID_ARGUMENT", ("not a Ferrule program", "magic bytes")),
        (artifact[:12], "INVALID_ARGUMENT", ("damaged", "cut off")),
        (artifact[:-1], "INVALID_ARGUMENT", checksum),
        (artifact[:300] + b"?" + artifact[301:], "INVALID_ARGUMENT", checksum),
        (
            artifact[:8] + struct.pack("<I", FORMAT + 9) + artifact[12:],
            "FAILED_PRECONDITION",
            (f"has format {FORMAT + 9}, this Ferrule reads format {FORMAT}", "fix: compile it again"),
        ),
        (
            changed(artifact, features="sse2,warp9"),
            "FAILED_PRECONDITION",
            ("'main' needs processor features that this machine lacks: warp9", "fix: compile it on this machine"),
        ),
        (
            changed(artifact, target="cuda"),
            "FAILED_PRECONDITION",
            ("'main' is for the target 'cuda'", "fix: compile it for this device"),
        ),
    ):
        with refused(code, *words):
            client.load(data)
        np.testing.assert_array_equal(client.load(artifact)(ONE, ONE)[0], 2 * ONE)


def test_foreign_plugin(refused: Refused) -> None:
    with refused("NOT_FOUND", "cannot open the PJRT plugin", "fix: check the path"):
        Plugin("/nowhere/libnothing.so")
    libc = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line or "/libc-" in line)
    with refused("INVALID_ARGUMENT", "is not a PJRT plugin", "why: it does not export GetPjrtApi"):
        Plugin(libc)


# --- hosts of other versions


# One call each of: client, device, memory, buffer, executable; with inputs that a sound call has.
def calls(client: Client, add: LoadedExecutable, buffer: Any) -> dict[str, dict[str, Any]]:
    device = client.devices[0]
    return {
        "Device_MemoryStats": {"device": device.handle},
        "Client_PlatformName": {"client": client.handle},
        "Client_AddressableDevices": {"client": client.handle},
        "Device_DefaultMemory": {"device": device.handle},
        "Device_GetAttributes": {"device": device.handle},
        "Buffer_Dimensions": {"buffer": buffer.handle},
        "Buffer_OnDeviceSizeInBytes": {"buffer": buffer.handle},
        "Buffer_GetMemoryLayout": {"buffer": buffer.handle},
        "Executable_GetCostAnalysis": {"executable": add.executable},
        "Executable_GetCompiledMemoryStats": {"executable": add.executable},
        "Executable_Fingerprint": {"executable": add.executable},
        "Plugin_Attributes": {},
    }


def test_older_and_newer_hosts(client: Client, add: LoadedExecutable) -> None:
    """A late field is written only when the host's struct has it; what lies behind any struct is never touched."""
    buffer = client.put(ONE)
    for name, inputs in calls(client, add, buffer).items():
        spec = abi.STRUCTS_BY_NAME[f"PJRT_{name}_Args"]
        ends = sorted({f.end for f in spec.fields if spec.oldest_size <= f.end})
        whole = bytes(make(spec.name, **inputs))
        for size in {spec.oldest_size, *ends, spec.size + 24}:
            raw = ctypes.create_string_buffer(b"\x5a" * (spec.size + 64), spec.size + 64)
            raw[: min(size, spec.size)] = whole[: min(size, spec.size)]
            ctypes.c_size_t.from_buffer(raw).value = size
            table = client.plugin.table
            table.check(table.function(f"PJRT_{name}")(ctypes.addressof(raw)))
            behind = raw.raw[min(size, spec.size) :]
            assert set(behind) == {0x5A}, (name, size)


def test_hosts_older_than_any(client: Client, add: LoadedExecutable, refused: Refused) -> None:
    buffer = client.put(ONE)
    for name, inputs in calls(client, add, buffer).items():
        spec = abi.STRUCTS_BY_NAME[f"PJRT_{name}_Args"]
        args = make(spec.name, **inputs)
        args.struct_size = 8
        if spec.oldest_size <= 8:
            continue
        table = client.plugin.table
        with refused("INVALID_ARGUMENT", name, "has 8 bytes, at least", "are needed"):
            table.check(table.function(f"PJRT_{name}")(ctypes.addressof(args)))


def test_older_execute_options(client: Client, add: LoadedExecutable) -> None:
    """An old host's PJRT_ExecuteOptions ends early: what it lacks has its default."""
    spec = abi.STRUCTS_BY_NAME["PJRT_ExecuteOptions"]
    a = client.put(ONE)
    options = ctypes.create_string_buffer(b"\x5a" * 256, 256)
    options[: spec.oldest_size] = bytes(spec.oldest_size)
    ctypes.c_size_t.from_buffer(options).value = spec.oldest_size
    inputs = (ctypes.c_void_p * 2)(a.handle, a.handle)
    outputs = (ctypes.c_void_p * 1)()
    lists = (ctypes.c_void_p * 1)(ctypes.addressof(inputs))
    output_lists = (ctypes.c_void_p * 1)(ctypes.addressof(outputs))
    client.plugin.call(
        "LoadedExecutable_Execute",
        executable=add.handle,
        options=ctypes.addressof(options),
        argument_lists=ctypes.addressof(lists),
        num_devices=1,
        num_args=2,
        output_lists=ctypes.addressof(output_lists),
    )
    np.testing.assert_array_equal(Buffer(client, outputs[0]).numpy(), 2 * ONE)


# --- errors while a program runs


def test_errors_reach_everything_that_depends_on_them(client: Client, add: LoadedExecutable, refused: Refused) -> None:
    text = b"the disk is on fire"
    dims, held = (ctypes.c_int64 * 1)(4), ctypes.create_string_buffer(text)
    memory = client.plugin.call("Device_DefaultMemory", device=client.devices[0].handle).memory
    failed = client.plugin.call(
        "Client_CreateErrorBuffer",
        client=client.handle,
        error_code=14,
        error_message=ctypes.addressof(held),
        error_message_size=len(text),
        shape_dims=ctypes.addressof(dims),
        shape_num_dims=1,
        shape_element_type=11,
        memory=ctypes.cast(memory, ctypes.c_void_p).value,
    ).buffer
    bad, good = Buffer(client, ctypes.cast(failed, ctypes.c_void_p).value or 0), client.put(ONE)
    for _ in range(2):  # sticky: it does not go away by being seen
        with refused("UNAVAILABLE", "the disk is on fire"):
            bad.numpy()
        with refused("UNAVAILABLE", "the disk is on fire"):
            add.execute([good, bad])
    np.testing.assert_array_equal(add.execute([good, good])[0].numpy(), 2 * ONE)


def test_error_in_a_callback(client: Client, refused: Refused) -> None:
    from ferrule.callbacks import Handle

    luck = [False]

    def host(x: np.ndarray) -> tuple[np.ndarray]:
        if not luck[0]:
            raise KeyError("no luck today")
        return (x * 2,)

    handle = Handle(host, "host")
    text = ADD.replace(
        "stablehlo.add %a, %b : tensor<4xf32>",
        "stablehlo.custom_call @ferrule.python_callback(%a) {api_version = 4 : i32, backend_config = "
        f"{{id = {handle.id} : i64}}}} : (tensor<4xf32>) -> tensor<4xf32>",
    )
    program = client.compile(text.encode())
    for _ in range(2):
        with pytest.raises(ferrule.FerruleError, match="no luck today") as caught:
            program(ONE, ONE)
        assert caught.value.code == "INTERNAL"  # type: ignore[attr-defined]
        del caught
    luck[0] = True
    np.testing.assert_array_equal(program(ONE, ONE)[0], 2 * ONE)
    del handle, program
