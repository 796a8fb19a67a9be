"""Runs files of JAX's suite on one platform: a process per file, a time limit per test, resumable.

The first line of a results file is a header (versions, platform, options); each other line is one test:
`{"file": "lax_test", "test": "LaxTest.testConv0", "outcome": "pass", "seconds": 0.21, "why": ""}`.
Outcomes: pass, fail, skip, crash (the process died), timeout.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Setup:
    """How the suite is run. `treat_as` is what the tests take the device for: it decides skips and tolerances."""

    platform: str
    library: str | None = None
    treat_as: str = "cpu"
    cases: int = 10
    x64: bool = False
    devices: int = 1
    seconds: float = 120.0
    one_in: int = 1

    def environment(self) -> dict[str, str]:
        env = dict(os.environ)
        for variable in ("PJRT_NAMES_AND_LIBRARY_PATHS", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
            env.pop(variable, None)
        env["JAX_PLATFORMS"] = "cpu" if self.platform == "cpu" else f"{self.platform},cpu"
        if self.library:
            env["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"{self.platform}:{self.library}"
        if self.devices > 1:
            env["FERRULE_NUM_DEVICES"] = str(self.devices)  # jaxlib's CPU does what the tests ask for
        env["JAX_NUM_GENERATED_CASES"] = str(self.cases)
        env["JAX_ENABLE_X64"] = "1" if self.x64 else "0"
        return env

    def header(self) -> dict:
        import importlib.metadata

        return {
            "suite": "jax",
            "date": time.strftime("%Y-%m-%d"),
            "jax": importlib.metadata.version("jax"),
            "jaxlib": importlib.metadata.version("jaxlib"),
            "platform": self.platform,
            "treat_as": self.treat_as,
            "cases": self.cases,
            "x64": self.x64,
            "one_in": self.one_in,
            **({"devices": self.devices} if self.devices > 1 else {}),
        }


@dataclass
class Results:
    """Outcomes by (file, test), kept in a file that grows by a line per test."""

    path: Path
    header: dict
    outcomes: dict[tuple[str, str], dict] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, path: Path, header: dict) -> "Results":
        results = cls(path, header)
        if path.exists() and path.stat().st_size:
            results = read(path)
            differs = [key for key in header if key != "date" and results.header.get(key, 1) != header[key]]
            if differs:
                raise ValueError(f"{path} was made with another setup ({', '.join(differs)}): name another file")
            if not path.read_bytes().endswith(b"\n"):  # a run was killed in the middle of a line
                with path.open("a") as out:
                    out.write("\n")
            return results
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"header": header}) + "\n")
        return results

    def add(self, line: dict) -> None:
        with self.lock:
            if "finished" in line:
                self.finished.add(line["finished"])
            else:
                self.outcomes[line["file"], line["test"]] = line
            with self.path.open("a") as out:
                out.write(json.dumps(line) + "\n")


def read(path: Path) -> Results:
    """The results in a file. A later line for a test replaces an earlier one."""
    lines = path.read_text().splitlines()
    results = Results(path, json.loads(lines[0])["header"])
    for text in lines[1:]:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the last line of a run that was killed
        if "finished" in line:
            results.finished.add(line["finished"])
        elif "header" not in line:
            results.outcomes[line["file"], line["test"]] = line
    return results


def run(files: list[Path], setup: Setup, results: Results, jobs: int = 1, again: tuple[str, ...] = ()) -> None:
    """Runs what is not in `results` yet, and what is there with an outcome in `again`."""
    todo: queue.Queue[Path] = queue.Queue()
    for file in files:
        repeat = any(line["outcome"] in again for (stem, _), line in results.outcomes.items() if stem == file.stem)
        if repeat or file.stem not in results.finished:
            todo.put(file)

    def work() -> None:
        while True:
            try:
                file = todo.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            _run_file(file, setup, results, again)
            counts = Counter(line["outcome"] for (stem, _), line in results.outcomes.items() if stem == file.stem)
            said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
            print(f"{file.stem}: {said} ({time.monotonic() - began:.0f} s)", flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run_file(file: Path, setup: Setup, results: Results, again: tuple[str, ...]) -> None:
    stem = file.stem
    done = {
        test
        for (of, test), line in list(results.outcomes.items())
        if of == stem and line["outcome"] not in again and test != "(module)"
    }
    while True:
        before = len(done)
        tests = _one_worker(file, setup, results, done)
        if tests is not None and set(tests) <= done | {"(module)"}:
            results.add({"finished": stem})
            return
        if len(done) == before:
            return  # no progress: the module itself does not load, which is written down as a result


def _one_worker(file: Path, setup: Setup, results: Results, done: set[str]) -> list[str] | None:
    """One process; adds to `done` and returns the names of all tests of the file, if the process got that far."""
    receive, send = os.pipe()
    command = [sys.executable, str(WORKER), str(file), f"--report={send}", f"--treat-as={setup.treat_as}"]
    command.append(f"--one-in={setup.one_in}")
    if setup.devices == 1:
        command.append("--one-device")
    log = results.path.with_suffix(".log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            pass_fds=(send,),
            env=setup.environment(),
            start_new_session=True,
        )
    os.close(send)
    process.stdin.write(json.dumps(sorted(done)).encode())
    process.stdin.close()
    tests: list[str] | None = None
    running = "(module)"
    deadline = time.monotonic() + 300  # to import JAX and list the tests
    pending = b""
    outcome = "crash"

    def note(test: str, what: str, why: str, seconds: float) -> None:
        done.add(test)
        results.add(dict(file=file.stem, test=test, outcome=what, seconds=seconds, why=why))

    while True:
        ready, _, _ = select.select([receive], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            outcome = "timeout"
            process.send_signal(signal.SIGABRT)  # faulthandler writes where it hangs into the log
            time.sleep(1)
            _kill(process)
            break
        part = os.read(receive, 1 << 16)
        if not part:
            break
        *lines, pending = (pending + part).split(b"\n")
        for line in map(json.loads, lines):
            if "tests" in line:
                tests, running, deadline = line["tests"], "", time.monotonic() + 300
            elif "start" in line:
                running, deadline = line["start"], time.monotonic() + setup.seconds
            else:
                note(line["test"], line["outcome"], line["why"], line["seconds"])
                running, deadline = "", time.monotonic() + 300
    os.close(receive)
    code = process.wait()
    _kill(process)  # what the test left running in its process group
    if running and (outcome == "timeout" or code != 0):
        said = f"no end after {setup.seconds:.0f} s" if outcome == "timeout" else _died(code)
        note(running, outcome, said, setup.seconds if outcome == "timeout" else 0)
    return tests


def _died(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"the process ended with status {code}"


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
