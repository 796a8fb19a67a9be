"""A worker: one engine in one process, which does what the harness asks for over a socket and sleeps between turns."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness import check
from harness.case import Case, load
from harness.engines import NotThere, make

LONG = 1e-3  # seconds of a call from which on each is waited for: results of calls under way are all in memory


class Worker:
    def __init__(self, engine: str) -> None:
        self.engine = make(engine)
        self.name = engine
        self.cases: dict[str, Case] = {}

    def case(self, key: str) -> Case:
        if key not in self.cases:
            self.cases.update({c.key: c for c in load([key.split("/")[0]])})
        return self.cases[key]

    def version(self) -> str:
        return str(self.engine.version())

    def prepare(self, key: str) -> dict[str, float]:
        """Makes the arguments, and the first call."""
        return dict(self.engine.prepare(self.case(key)))

    def reference(self, key: str, folder: str) -> float:
        """Computes and saves the reference; the largest magnitude is not needed by anybody, its time is."""
        seconds = self.engine.prepare(self.case(key))["first"]
        check.save(self.engine.results(), Path(folder))
        self.drop()
        return float(seconds)

    def check(self, key: str, folder: str, again: bool = False) -> float:
        """The error of the first call's results, or of one more call's."""
        case = self.case(key)
        if again:
            self.engine.first = self.engine.step()
            self.engine.wait(self.engine.first)
        moments = self.name.startswith("torch") and case.torch_check == "moments"
        found = check.error(self.engine.results(), Path(folder), moments, case.outliers)
        self.engine.first = None
        return found

    def round(self, seconds: float) -> float:
        """Seconds of a call: the mean over as many as fit in the time given."""
        engine = self.engine
        begin = time.perf_counter()
        engine.wait(engine.step())  # other engines had the caches
        once = time.perf_counter() - begin
        if once < seconds:
            begin = time.perf_counter()
            engine.wait(engine.step())
            once = time.perf_counter() - begin
        elif once > 4 * seconds:
            return once
        count = max(1, min(20000, int(seconds / max(once, 1e-7))))
        begin = time.perf_counter()
        if once > LONG:
            for _ in range(count):
                engine.wait(engine.step())
        else:
            for _ in range(count):
                result = engine.step()
            engine.wait(result)
        return (time.perf_counter() - begin) / count

    def limits(self) -> Any:
        """What the machine can do (the worker `limits`)."""
        return self.engine.measure()

    def rate(self, size: int, read_only: bool, seconds: float) -> float:
        """Bytes that the machine moves in a second now (the worker `limits`)."""
        return float(self.engine.rate(size, read_only, seconds / 4, 1))

    def drop(self) -> None:
        self.engine.drop()
        gc.collect()


def main() -> int:
    connection = Connection(int(sys.argv[2]))
    try:
        worker = Worker(sys.argv[1])
        connection.send(("ready", worker.version()))
    except Exception as error:
        connection.send(("failed", sentence(error)))
        return 1
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return 0
        try:
            answer: tuple[str, Any] = ("done", getattr(worker, name)(*arguments))
        except NotThere as error:
            answer = ("not there", str(error))
        except Exception as error:
            traceback.print_exc()
            answer = ("failed", sentence(error))
        connection.send(answer)


def sentence(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next((line.split("error:")[1].strip() for line in lines if "error:" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {telling}"[:240].replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
