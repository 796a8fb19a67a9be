"""Compiles one program in a process of its own: `python -m ferrule.compile_process`, started by libferrule.so.

The usual compile runs in the framework's process (ferrule.bridge). This one serves when Python's lock cannot be had
there, because the framework holds it while it waits for the compile (native/compile_process.cc).

stdin: code, format, options, target, each as a u64 length and the bytes. stdout: the name of a status code as a u64
length and the bytes, then the serialized program or the message.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from typing import BinaryIO

from ferrule.errors import FerruleError


def _read(stream: BinaryIO) -> bytes:
    (size,) = struct.unpack("<Q", stream.read(8))
    return stream.read(size)


def _compile(source: BinaryIO) -> tuple[str, bytes]:
    code, format, options, target = (_read(source) for _ in range(4))
    try:
        from ferrule.cache import compile_cached

        return "OK", compile_cached(code, format.decode(), options, target.decode())
    except FerruleError as error:
        return error.code, str(error).encode()
    except MemoryError:
        return "RESOURCE_EXHAUSTED", b"the compiler ran out of memory"


def main() -> None:
    """Serves one request."""
    # What others print must not come between the bytes of the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    name, payload = _compile(sys.stdin.buffer)
    answer.write(struct.pack("<Q", len(name)) + name.encode() + payload)
    answer.flush()


if __name__ == "__main__":
    threading.stack_size(256 << 20)  # graphs can be deep
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
