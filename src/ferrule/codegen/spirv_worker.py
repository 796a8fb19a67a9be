"""The process that LLVM makes SPIR-V in: each module in a fork of its own.

LLVM 22's SPIR-V backend keeps things by address in static tables (types, constants, the ids of blocks) and finds the
wrong ones when a second module is made in the same process: crashes, and ids that are used twice. What it cannot
translate ends its process. A process that has made nothing yet costs a fork, some milliseconds.

stdin: a u64 length and a module's text, again and again. stdout: "K" and the module, or "E" and what went wrong, with
a u64 length before the bytes. The server reads no code of its own package but `spirv_labels`.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

import llvmlite.binding as llvm

# Extensions that drivers take; LLVM's backend must be told which it may use.
EXTENSIONS = (
    "SPV_EXT_shader_atomic_float_add",
    "SPV_EXT_shader_atomic_float_min_max",
    "SPV_KHR_bit_instructions",
)


def start() -> llvm.TargetMachine:
    """Makes the backend ready.

    Without loop strength reduction: of `i % 4` it makes a counter of two bits, which the backend keeps in eight without
    a mask.
    """
    llvm.set_option("ferrule", "-disable-lsr")
    llvm.set_option("ferrule", "--spirv-ext=" + ",".join(f"+{name}" for name in EXTENSIONS))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # The device's own compiler optimizes. LLVM 22 would narrow integers here and forget to convert them (trunc of a
    # urem by a power of two became an `and` of two widths).
    return llvm.Target.from_triple("spirv64-unknown-unknown").create_target_machine(opt=0, jit=False)


def translate(text: str, machine: llvm.TargetMachine) -> bytes:
    """One module; call it once in a process."""
    from ferrule.codegen.spirv_labels import with_unique_labels

    module = llvm.parse_assembly(text)
    module.verify()
    return with_unique_labels(machine.emit_object(module))


def _memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name), "w+b")


def _fork(text: bytes, machine: llvm.TargetMachine) -> tuple[bytes, bytes]:
    with _memory("module") as result, _memory("words") as words:
        child = os.fork()
        if not child:
            try:
                os.dup2(words.fileno(), 2)
                result.write(translate(text.decode(), machine))
                result.flush()
                os._exit(0)
            except BaseException as error:  # the answer, whatever it is
                words.write(f"{type(error).__name__}: {error}".encode())
                words.flush()
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        found = words if status else result
        found.seek(0)
        answer = found.read()
        if status and os.WIFSIGNALED(status):
            answer = f"signal {os.WTERMSIG(status)}. ".encode() + answer[-2000:]
        return b"E" if status else b"K", answer


def serve() -> None:
    """Answers until stdin ends."""
    source: BinaryIO = sys.stdin.buffer
    # What LLVM prints must not come between the bytes of an answer.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    machine = start()
    while True:
        head = source.read(8)
        if len(head) < 8:
            return
        (size,) = struct.unpack("<Q", head)
        kind, answer = _fork(source.read(size), machine)
        sink.write(kind + struct.pack("<Q", len(answer)) + answer)
        sink.flush()


if __name__ == "__main__":
    serve()
