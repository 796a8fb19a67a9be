"""One program through everything: made, run by the library, judged. Says what happened in one record."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from case import Case
from reference_run import supported
from subjects import UNSUPPORTED, interpreter, library, preparer, xla
from verdict import judge
from workers import Answer


@dataclass
class Record:
    """`state`: ok, wrong, crash, timeout, error, unsupported; or invalid, unjudged, doubt, which are about the tools.

    `truth` is who was asked; `cause` groups findings.
    """

    seed: int
    kind: str = ""
    state: str = "ok"
    truth: str = ""
    cause: str = ""
    detail: str = ""
    open: float = 0.0
    ops: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return asdict(self)


# States that count against the library.
FINDINGS = ("wrong", "crash", "timeout", "error")


class Bench:
    """The processes of one job."""

    def __init__(self, path: str | Path, limit: float = 60.0, target: str = "") -> None:
        self.prepare = preparer()
        self.subject = library(path, limit, target)
        self.truth = interpreter()
        self.second = xla()

    def stop(self) -> None:
        for worker in (self.prepare, self.subject, self.truth, self.second):
            worker.stop()

    def run(self, request: tuple[int, str] | Case) -> tuple[Record, Case | None]:
        """Makes (from a seed and a profile) or takes a program and tries it."""
        seed = request.seed if isinstance(request, Case) else request[0]
        made = self.prepare(request)
        if made.state != "ok":
            return Record(seed, state="invalid", cause="generator", detail=f"{made.state}: {made.value}"), None
        case, code, wide = made.value
        record = Record(seed, case.kind, ops=sorted(set(case.ops())))
        record.seconds["make"] = made.seconds
        self.subject.ask((code, case.inputs))
        truth = self._truth(record, case, code)
        found = self.subject.answer()
        if found.state == "crash" and self.subject.served:
            record.detail = f"after {self.subject.served} other programs in its process; "
        record.seconds["run"] = found.seconds
        if found.state != "ok":
            self._failed(record, found)
            return record, case
        if truth is None:
            # one opinion is left
            truth, record.truth = wide, "meaning"
        self._judge(record, case, code, found.value, truth, wide)
        return record, case

    def _truth(self, record: Record, case: Case, code: bytes) -> list[np.ndarray] | None:
        if supported(case):
            answer = self.truth(case)
            record.seconds["interpreter"] = answer.seconds
            if answer.state == "ok":
                record.truth = "interpreter"
                return answer.value
        answer = self.second((code, case.inputs))
        record.seconds["xla"] = answer.seconds
        if answer.state == "ok":
            record.truth = "xla"
            return answer.value
        return None

    def _failed(self, record: Record, found: Answer) -> None:
        text = str(found.value)
        record.state, record.detail = found.state, record.detail + text
        record.cause = f"{found.state}: {_short(text)}"
        if found.state == "error" and UNSUPPORTED in text:
            record.state = "unsupported"

    def _judge(
        self, record: Record, case: Case, code: bytes, found: list[np.ndarray], truth: list[np.ndarray], wide: Any
    ) -> None:
        verdict = judge(case, found, truth, wide)
        record.open = verdict.open
        if verdict.good:
            return
        record.detail = verdict.wrong
        votes = []
        if record.truth == "interpreter":
            other = self.second((code, case.inputs))
            if other.state == "ok" and judge(case, found, other.value, wide).good:
                votes.append("xla")
        if record.truth != "meaning" and judge(case, found, wide, wide).good:
            votes.append("meaning")
        record.state = "wrong"
        record.detail += f"\nagreeing with the library: {', '.join(votes) or 'nobody'}"
        names = ", ".join(n for n in record.ops if n != "constant")
        record.cause = f"wrong ({'with ' + ', '.join(votes) if votes else 'alone'}): {names}"[:160]


def _short(text: str) -> str:
    """The first line of a message without what differs from program to program."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", first)[:160]
