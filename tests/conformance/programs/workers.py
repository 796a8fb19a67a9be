"""Processes that may crash or hang: each runs one program at a time for the parent, which notices and starts another.

They are forked from a parent that has everything imported and no threads, so a new one costs milliseconds.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Serve = Callable[[Any], Any]


@dataclass
class Answer:
    """What became of a request: "ok" with the value, "error" with the text, "crash" or "timeout"."""

    state: str
    value: Any = None
    seconds: float = 0.0


class Worker:
    """One process. `start` runs in it once and returns the function that serves requests."""

    def __init__(self, start: Callable[[], Serve], limit: float) -> None:
        self.start, self.limit, self.pid = start, limit, 0
        self.served = 0

    def _fork(self) -> None:
        down, up = os.pipe(), os.pipe()
        self.errors = tempfile.TemporaryFile()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setpgid(0, 0)
                faulthandler.disable()
                os.close(down[1])
                os.close(up[0])
                os.dup2(self.errors.fileno(), 2)
                os.dup2(self.errors.fileno(), 1)
                _serve(down[0], up[1], self.start)
                status = 0
            finally:
                os._exit(status)
        os.close(down[0])
        os.close(up[1])
        self.pid, self.send, self.receive, self.served = pid, down[1], up[0], 0

    def ask(self, request: Any) -> None:
        """Sends a request; the answer is fetched by `answer`."""
        if not self.pid:
            self._fork()
        self.asked = time.monotonic()
        self.data = b""
        try:
            payload = pickle.dumps(request)
            os.write(self.send, struct.pack("<Q", len(payload)))
            _write(self.send, payload)
        except BrokenPipeError:
            pass

    def answer(self) -> Answer:
        """Waits for the answer, up to the limit."""
        while True:
            left = self.limit - (time.monotonic() - self.asked)
            ready = select.select([self.receive], [], [], max(0.0, left))[0]
            spent = time.monotonic() - self.asked
            if not ready:
                self.stop()
                return Answer("timeout", f"no answer after {self.limit:.0f} s", spent)
            chunk = os.read(self.receive, 1 << 20)
            if not chunk:
                return Answer("crash", self._end(), spent)
            self.data += chunk
            if len(self.data) >= 8 and len(self.data) >= 8 + struct.unpack("<Q", self.data[:8])[0]:
                self.served += 1
                state, value = pickle.loads(self.data[8:])
                return Answer(state, value, spent)

    def __call__(self, request: Any) -> Answer:
        self.ask(request)
        return self.answer()

    def _end(self) -> str:
        """How the process ended, with the last of what it said."""
        _, status = os.waitpid(self.pid, 0)
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip()
        self._forget()
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        lines = [line for line in said.splitlines() if line.strip()]
        told = next((line for line in lines if "ERROR" in line or "terminate" in line or "Check" in line), "")
        return f"{how}: {told or (lines[-1] if lines else '')}"[:400]

    def stop(self) -> None:
        """Ends the process."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._forget()

    def _forget(self) -> None:
        os.close(self.send)
        os.close(self.receive)
        self.errors.close()
        self.pid = 0


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, count: int) -> bytes:
    out = b""
    while len(out) < count:
        chunk = os.read(fd, count - len(out))
        if not chunk:
            os._exit(0)
        out += chunk
    return out


def _serve(requests: int, answers: int, start: Callable[[], Serve]) -> None:
    serve: Serve | None = None
    while True:
        (size,) = struct.unpack("<Q", _read(requests, 8))
        request = pickle.loads(_read(requests, size))
        try:
            serve = serve or start()
            reply = ("ok", serve(request))
        except Exception as error:
            reply = ("error", f"{type(error).__name__}: {error}")
        payload = pickle.dumps(reply)
        _write(answers, struct.pack("<Q", len(payload)) + payload)
