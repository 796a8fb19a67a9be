"""Runs checks in worker processes: a check that crashes or hangs fails, the others go on in a new process."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from registry import FAIL

# Seconds for a process to import its packages and open the plugin; they are not the check's.
START_LIMIT = 300
WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Outcome:
    """What became of a check."""

    outcome: str
    detail: str = ""
    seconds: float = 0.0


class Worker:
    """A process with the plugin loaded that takes the names of checks and reports in JSON lines."""

    def __init__(self, library: str, options: Sequence[str]) -> None:
        self.errors = tempfile.TemporaryFile()
        read, write = os.pipe()
        command = [sys.executable, str(WORKER), library, str(write), *options]
        # Its own session, so that a hanging plugin's helper processes can be ended with it.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self.errors,
            stderr=self.errors,
            pass_fds=[write],
            start_new_session=True,
            text=True,
        )
        os.close(write)
        self.reports = os.fdopen(read, "rb", buffering=0)
        self.buffered = b""

    def ask(self, check: str) -> bool:
        """Starts a check; false when the process is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(check + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def next_report(self, deadline: float) -> dict[str, Any] | None:
        """The next report; None when the process ended. Raises TimeoutError at the deadline."""
        selector = selectors.DefaultSelector()
        selector.register(self.reports, selectors.EVENT_READ)
        while b"\n" not in self.buffered:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimeoutError
            chunk = os.read(self.reports.fileno(), 65536)
            if not chunk:
                return None
            self.buffered += chunk
        line, _, self.buffered = self.buffered.partition(b"\n")
        return dict(json.loads(line))

    def end(self) -> str:
        """Ends the process; says how it had ended by itself, with the last lines that it printed."""
        code = self.process.poll()
        if code is None and self.process.stdin is not None:
            try:
                self.process.stdin.close()  # the worker leaves when there is nothing more to read
                code = self.process.wait(10)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.reports.close()
        self.errors.seek(0)
        printed = self.errors.read().decode(errors="replace").strip().splitlines()
        self.errors.close()
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        crash = [
            ln.strip() for ln in printed if any(w in ln for w in ("Check failed", "Assertion", "Error: ", ".errors."))
        ]
        return f"{how}" + (f": {crash[-1][:300]}" if crash else "")


def run(
    library: str,
    options: Sequence[str],
    checks: Sequence[str],
    limit: float,
    report: Callable[[str, Outcome], None] = lambda *_: None,
) -> tuple[dict[str, Outcome], dict[str, Any]]:
    """Runs the checks; gives their outcomes and what the plugin says of itself (empty when it cannot be loaded)."""
    found: dict[str, Outcome] = {}
    about: dict[str, Any] = {}
    worker: Worker | None = None
    fresh, unusable = True, ""
    for check in checks:
        if unusable:
            report(check, found.setdefault(check, Outcome(FAIL, unusable)))
            continue
        if worker is None:
            worker = Worker(library, options)
            fresh = True
        notes: list[str] = []
        started = time.monotonic()
        try:
            answer: dict[str, Any] | None = worker.next_report(started + START_LIMIT) if fresh else {}
            if answer is not None:
                fresh, started = False, time.monotonic()
                answer = {} if worker.ask(check) else None
            while answer is not None and "outcome" not in answer:
                answer = worker.next_report(started + limit)
                if answer and "about" in answer:
                    about = answer["about"]
                if answer and "note" in answer:
                    notes.append(answer["note"])
        except TimeoutError:
            where = f" (at {notes[-1]})" if notes else ""
            result = Outcome(FAIL, f"not finished after {limit:g} s{where}", time.monotonic() - started)
            worker.end()
            worker = None
        else:
            if answer is None:
                where = f" (at {notes[-1]})" if notes else ""
                worker.process.wait()
                result = Outcome(FAIL, f"the process died{where}: {worker.end()}", time.monotonic() - started)
                worker = None
                if fresh:  # it did not even start
                    result.detail = unusable = f"the plugin cannot be loaded; {result.detail}"
            else:
                result = Outcome(answer["outcome"], answer["detail"], time.monotonic() - started)
        found[check] = result
        report(check, result)
    if worker is not None:
        ended = worker.end()
        if ended != "exit status 0":
            found["lifetimes.the_process_ends_well"] = Outcome(FAIL, f"after all checks the process ended with {ended}")
    return found, about


def as_json(outcome: Outcome) -> dict[str, Any]:
    """For the report."""
    values = asdict(outcome)
    values["seconds"] = round(outcome.seconds, 3)
    return values
