"""Turn-taking: all engines prepare a case, then run it in turn, one at a time, round after round."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.case import Case
from harness.engines import ENVIRONMENT

ROOT = Path(__file__).parent.parent
PAUSE = 0.005  # seconds between turns: OpenMP's threads spin for a while after their last work


@dataclass
class Figure:
    """What was measured of one case on one engine. `said` is a sentence in place of figures."""

    seconds: float = 0.0  # median over rounds
    rounds: list[float] = field(default_factory=list)
    first: float = 0.0  # seconds of the first call: trace, compile, run
    compile: float = 0.0  # of them, the compiler's
    temporaries: int = 0  # bytes that the compiler plans for what lives within a call
    warm: float = 0.0  # first call of a new process with Ferrule's cache on disk
    warm_compile: float = 0.0
    alone: float = 0.0  # PJRT_Client_Compile without a framework around it, with nothing on disk
    warm_alone: float = 0.0  # the same in a new process with Ferrule's cache on disk
    error: float | None = None
    wrong: bool = False
    said: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Failed(Exception):
    pass


class NotThere(Exception):
    pass


class Engine:
    """The harness's side of a worker. It is started when it is first asked, and again after it died."""

    def __init__(self, name: str, log: Path, environment: dict[str, str] | None = None) -> None:
        self.name, self.log = name, log
        self.environment = environment or {}
        self.version = self.missing = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """False when the engine is not on this machine; `missing` then says why."""
        if self.process is not None:
            return True
        if self.missing:
            return False
        mine, theirs = socket.socketpair()
        values = {**ENVIRONMENT[self.name], **self.environment}
        environment = {**os.environ, "FERRULE_BENCHMARK_ENGINE": self.name, **values}
        environment = {k: v for k, v in environment.items() if v}
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), environment.get("PYTHONPATH")) if p)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness.worker", self.name, str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self.connection = Connection(mine.detach())
        try:
            self.version = self._answer(120, "starting")
        except Failed as error:
            self.missing = str(error)
            self.stop()
            return False
        return True

    def ask(self, limit: float, request: str, *arguments: Any) -> Any:
        if not self.start():
            raise Failed(self.missing)
        self.connection.send((request, *arguments))
        return self._answer(limit, request)

    def _answer(self, limit: float, doing: str) -> Any:
        try:
            if not self.connection.poll(limit):
                self.stop()
                raise Failed(f"cut: more than {limit:.0f} s ({doing})")
            word, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            assert self.process is not None
            code = self.process.wait()
            self.stop()
            raise Failed(f"the worker ended with code {code} ({doing}): {self._last_words()}") from None
        if word == "not there":
            raise NotThere(value)
        if word == "failed":
            raise Failed(value)
        return value

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1][:200].replace("|", "/") if lines else "it said nothing"

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.connection.close()
            self.process = None


@dataclass(frozen=True)
class Plan:
    rounds: int
    seconds: float  # of a round on one engine
    limit: float  # seconds that a first call, a round or a reference may take

    def enough(self, done: int, spent: float) -> bool:
        """Whether an engine has had its rounds of a case. A slow case has fewer, but three where that takes seconds
        only: the first one often still gets pages from the system."""
        longest = 3 * self.rounds * self.seconds
        return spent > (longest if done >= LEAST else 10 * longest)


LEAST = 3  # rounds
QUICK = Plan(5, 0.04, 25)
FULL = Plan(7, 0.1, 60)


def measure(
    case: Case,
    engines: Sequence[Engine],
    references: Engine | None,
    folder: Path,
    plan: Plan,
    memory: Engine | None = None,
) -> tuple[dict[str, Figure], str, float | None]:
    """Every engine's figure of one case, by engine; the reference's sentence when there is none; and the bytes that
    memory moved in a second between the rounds, if its worker is given."""
    figures: dict[str, Figure] = {}
    said = ""
    place = folder / str(abs(hash(case.key)))
    if references is not None:
        try:
            references.ask(2 * plan.limit, "reference", case.key, str(place))
        except (Failed, NotThere) as error:
            said = f"no reference: {error}"
    for engine in engines:
        try:
            figures[engine.name] = Figure(**engine.ask(plan.limit, "prepare", case.key))
            if references is not None and not said:
                _judge(case, engine, figures[engine.name], place, plan)
        except NotThere:
            continue
        except Failed as error:
            figures[engine.name] = Figure(said=str(error))
        time.sleep(PAUSE)
    rates: list[float] = []

    def between() -> None:
        if memory is not None:
            rates.append(memory.ask(60, "rate", int(case.bytes), case.read_only, plan.seconds))

    _rounds([e for e in engines if e.name in figures], figures, plan, between)
    for engine in engines:
        if engine.process is not None:
            try:
                engine.ask(plan.limit, "drop")
            except Failed as error:  # its worker is gone; the next case gets a new one
                print(f"{case.key}: {engine.name}: {error}")
    for file in place.glob("*.npy"):
        file.unlink()
    return figures, said, statistics.median(rates) if rates else None


def _judge(case: Case, engine: Engine, figure: Figure, place: Path, plan: Plan) -> None:
    """Of a second call, too: an engine may write into arguments that nobody donated."""
    for again in (False, True) if not case.donate else (False,):
        error = engine.ask(plan.limit, "check", case.key, str(place), again)
        figure.error = max(error, figure.error or 0.0)
        if not error <= case.tolerance:
            figure.wrong = True
            when = " when called again with the same arguments" if again else ""
            figure.said = f"wrong result{when}: error {error:.2g} of the largest magnitude"
            return


def _turned(engines: Sequence[Engine], number: int) -> list[Engine]:
    """Everybody begins once: who comes first finds a processor that has rested."""
    at = number % max(len(engines), 1)
    return [*engines[at:], *engines[:at]]


def _rounds(engines: Sequence[Engine], figures: dict[str, Figure], plan: Plan, between: Callable[[], None]) -> None:
    spent = {e.name: 0.0 for e in engines}
    for number in range(plan.rounds):
        between()
        for engine in _turned(engines, number):
            figure = figures[engine.name]
            if figure.said or (number and plan.enough(number, spent[engine.name])):
                continue
            begin = time.perf_counter()
            try:
                figure.rounds.append(engine.ask(plan.limit, "round", plan.seconds))
            except Failed as error:
                figure.said, figure.rounds = str(error), []
            spent[engine.name] += time.perf_counter() - begin
            time.sleep(PAUSE)
    for figure in figures.values():
        if figure.rounds:
            figure.seconds = statistics.median(figure.rounds)


def warm_calls(
    cases: Sequence[Case],
    figures: dict[str, dict[str, Figure]],
    cache: Path,
    log: Path,
    plan: Plan,
    say: Callable[..., None],
) -> None:
    """The first call of a new process that finds its programs on disk, and the plugin's part of it."""
    for name in ("ferrule warm", "ferrule alone"):
        folder = cache / name.replace(" ", "_")
        environment = {"FERRULE_CACHE_DIR": str(folder), "FERRULE_CACHE": "1"}
        for fill in (True, False):
            engine = Engine(name, log, environment)
            for case in cases:
                figure = figures.get(case.key, {}).get("ferrule")
                if figure is None or figure.said:
                    continue
                try:
                    found = engine.ask(plan.limit, "prepare", case.key)
                    engine.ask(plan.limit, "drop")
                except (Failed, NotThere) as error:
                    say(f"{case.key}: {name}: {error}")
                    continue
                if name == "ferrule warm":
                    if not fill:
                        figure.warm, figure.warm_compile = found["first"], found["compile"]
                elif fill:
                    figure.alone = found["compile"]
                else:
                    figure.warm_alone = found["compile"]
            engine.stop()
            if fill and not any(folder.rglob("*")):
                say("Ferrule has no cache on disk: no warm figures")
                return
