"""Compile and run StableHLO programs from Python, without a framework."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ferrule.client import Client, LoadedExecutable, Plugin, compile_options
from ferrule.native import library_path


def client(target: str = "cpu") -> Client:
    """The process's client for a target; made at the first call."""
    return _client(target)


@cache
def _client(target: str) -> Client:
    # Apart from `client`: the cache would tell client() from client("cpu"), and their buffers do not mix.
    return Plugin(library_path()).client(target=target)


def compile(program: str | bytes | Path, target: str = "cpu", **options: str | bool | int | float) -> LoadedExecutable:
    """Compiles a StableHLO program for a target and returns it, ready to be called with NumPy arrays.

    `program` is MLIR text, a portable artifact or MLIR bytecode (bytes), or the path of a file with one of these.
    `options` are Ferrule's compile options (`ferrule_debug`, `ferrule_dump`). Raises `FerruleError`.
    """
    if isinstance(program, Path) or (isinstance(program, str) and "\n" not in program and Path(program).is_file()):
        program = Path(program).read_bytes()
    code = program.encode() if isinstance(program, str) else program
    owner = client(target)
    return owner.compile(code, options=compile_options([owner.devices[0].id], user=options))


def load(artifact: bytes | Path, target: str = "cpu") -> LoadedExecutable:
    """Loads a program that `LoadedExecutable.serialize` (or `ferrule compile -o`) wrote."""
    return client(target).load(artifact.read_bytes() if isinstance(artifact, Path) else artifact)
