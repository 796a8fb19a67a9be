"""The worker process: MLIR passes run there, because a failed check inside of MLIR ends its process.

One worker per Python process, started when it is first needed and again after a crash. Messages go over stdin and
stdout: the length of a JSON header and of a payload (two 8-byte numbers), then both.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

from ferrule.errors import FailedPrecondition, FerruleError, Internal, InvalidArgument, Unsupported

TIME_LIMIT = 300.0
"""Seconds that one request may take."""

_FIX_SHAPE = "compile for fixed shapes, one program per shape"
_HEADER = struct.Struct("<QQ")
_MAX_MESSAGE = 1 << 40


def python_executable() -> str:
    """The interpreter to start. In an embedding program `sys.executable` may be that program, or empty."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [os.environ.get("FERRULE_PYTHON", ""), sys.executable, getattr(sys, "_base_executable", "")]
    for prefix in (sys.prefix, sys.base_prefix):
        candidates += [os.path.join(prefix, "bin", name) for name in (version, "python3")]
    candidates += [shutil.which(version) or "", shutil.which("python3") or ""]
    for path in candidates:
        if path and os.path.basename(path).lower().startswith("python") and os.access(path, os.X_OK):
            return path
    raise FailedPrecondition(
        "no Python interpreter was found to start the MLIR worker with",
        why=f"this process is {sys.executable or 'an embedding program'}",
        fix=f"set FERRULE_PYTHON to a {version} executable",
    )


class Worker:
    """A handle on the worker process; `convert` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = 0

    def convert(self, code: bytes, format: str, steps: list[str]) -> bytes:
        """Turns a program into a portable artifact in the worker; see `mlir.convert`."""
        with self._lock:
            header, payload = self._request({"format": format, "steps": steps}, code)
        if "error" not in header:
            return payload
        if header["error"] == "no jaxlib":
            raise FailedPrecondition(
                "this program needs jaxlib's MLIR bindings",
                why=f"only portable StableHLO bytecode is read without them ({header['why']})",
                fix="pip install jaxlib",
            )
        if header["error"] == "open shape":
            raise Unsupported("a shape is not known when the program is compiled", why=header["why"], fix=_FIX_SHAPE)
        raise _refused(header["why"])

    def _start(self) -> None:
        environment = dict(os.environ)
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [package, *(p for p in sys.path if p), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
        self._log = tempfile.TemporaryFile()
        command = [python_executable(), "-m", "ferrule.stablehlo.worker"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the user's program
        )
        self._owner = os.getpid()

    def stop(self) -> None:
        """Ends the worker; the next request starts a new one."""
        process, self._process = self._process, None
        if self._log:
            self._log.close()
            self._log = None
        if process and self._owner == os.getpid():
            for stream in (process.stdin, process.stdout):
                if stream:
                    with contextlib.suppress(OSError):
                        stream.close()
            process.kill()
            process.wait()

    def _stderr_tail(self) -> str:
        if not self._log:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode("utf-8", "replace").strip()

    def _request(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.stop()
            self._start()
        process = self._process
        assert process and process.stdin and process.stdout
        deadline = time.monotonic() + TIME_LIMIT
        try:
            text = json.dumps(header).encode()
            process.stdin.write(_HEADER.pack(len(text), len(payload)) + text + payload)
            process.stdin.flush()
            sizes = _HEADER.unpack(self._receive(process.stdout, _HEADER.size, deadline))
            answer: dict[str, Any] = json.loads(self._receive(process.stdout, sizes[0], deadline))
            return answer, self._receive(process.stdout, sizes[1], deadline)
        except TimeoutError:
            self.stop()
            raise Internal(
                "the MLIR worker did not answer",
                why=f"it ran longer than {TIME_LIMIT:.0f} s and was ended",
                fix="send the program as a portable StableHLO artifact",
            ) from None
        except (EOFError, OSError):
            code = process.wait()
            tail = self._stderr_tail()
            self.stop()
            raise InvalidArgument(
                "the program cannot be read",
                why=f"MLIR ended its process (exit code {code}) while it worked on it. Its last words: {tail}",
                fix="check the program with another StableHLO tool; the process you are in is not harmed",
            ) from None

    @staticmethod
    def _receive(stream: IO[bytes], size: int, deadline: float) -> bytes:
        if size > _MAX_MESSAGE:
            raise EOFError
        parts = []
        fd = stream.fileno()
        while size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError
            part = os.read(fd, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _refused(why: str) -> FerruleError:
    """The error for what MLIR said; its diagnostics begin with `error: "file":line:column:`."""
    found = re.search(r'error: (?:loc\()?"([^"\n]*)"(?:\([^)\n]*\))?:(\d+):(\d+)', why)
    where = ""
    if found and found[2] != "0":
        in_text = f"line {found[2]}, column {found[3]} of the program's text"
        where = in_text if found[1] == "-" else f"{found[1]}:{found[2]}:{found[3]}"
    if "unregistered operation" in why or "unregistered dialect" in why:
        known = "use ops of StableHLO, CHLO and func only"
        return Unsupported("the program has an op that is not known", where=where, why=why, fix=known)
    send = "send StableHLO: a portable artifact, MLIR bytecode, or text that a StableHLO tool accepts"
    return InvalidArgument("the program cannot be read", where=where, why=why, fix=send)


WORKER = Worker()
atexit.register(WORKER.stop)


def _serve() -> None:
    """The worker's side: answers requests until stdin ends."""
    source = sys.stdin.buffer
    # What MLIR or an import prints must not mix with the messages.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        head = source.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return
        header_size, payload_size = _HEADER.unpack(head)
        request = json.loads(source.read(header_size))
        code = source.read(payload_size)
        answer, payload = _answer(request, code)
        text = json.dumps(answer).encode()
        sink.write(_HEADER.pack(len(text), len(payload)) + text + payload)
        sink.flush()


def _answer(request: dict[str, Any], code: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        import jaxlib.mlir.ir  # noqa: F401

        from ferrule.stablehlo.mlir import OpenShape, Refused, convert
    except ImportError as error:
        return {"error": "no jaxlib", "why": str(error)}, b""
    try:
        return {}, convert(code, request["format"], request["steps"])
    except OpenShape as error:
        return {"error": "open shape", "why": str(error)}, b""
    except Refused as error:
        return {"error": "refused", "why": str(error)}, b""
    except Exception as error:  # whatever a binding raises is an answer, not the worker's end
        return {"error": "refused", "why": f"{type(error).__name__}: {error}"}, b""


if __name__ == "__main__":
    _serve()
