"""A line on standard error about a compile that takes long: which program, since when, in which stage.

FERRULE_PROGRESS=0 switches it off.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.debug import Trace, say

# Seconds before the first line, and between lines.
FIRST, EVERY = 2.0, 10.0


@contextmanager
def reported(trace: Trace) -> Iterator[None]:
    """Watches the compile that `trace` follows, in a thread of its own."""
    if os.environ.get("FERRULE_PROGRESS") == "0":
        yield
        return
    begin, done = time.perf_counter(), threading.Event()

    def watch() -> None:
        pause = FIRST
        while not done.wait(pause):
            pause = EVERY
            say(f"compiling {trace.name or 'a program'}: {time.perf_counter() - begin:.0f} s so far, now {trace.now}")

    threading.Thread(target=watch, name="ferrule: compile progress", daemon=True).start()
    try:
        yield
    finally:
        done.set()
