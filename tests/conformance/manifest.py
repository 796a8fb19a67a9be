"""The known failures of Ferrule in JAX's suite (known.toml): each with one of a few reasons and a sentence.

A failure that no entry names, and a pass that an entry says cannot be, are both faults of the manifest.
"""

import fnmatch
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("known.toml")
REASONS = ("not yet", "will not", "upstream bug")
FAILED = ("fail", "crash", "timeout")


@dataclass(frozen=True)
class Entry:
    """`tests` are patterns of `file.Class.test`; `modes` and `platforms` say where the failure shows.

    The mode of a run on several devices is "devices"; what fails by default may fail there, too.
    """

    tests: tuple[str, ...]
    reason: str
    why: str
    modes: tuple[str, ...] = ("default", "x64")
    platforms: tuple[str, ...] = ("ferrule", "xpu")

    def covers(self, test: str) -> bool:
        return any(fnmatch.fnmatchcase(test, pattern) for pattern in self.tests)


def load(path: Path = FILE) -> list[Entry]:
    """The entries, in the order of the file. Raises ValueError where one is not well formed."""
    entries = []
    for number, raw in enumerate(tomllib.loads(path.read_text()).get("failure", []), 1):
        unknown = set(raw) - {"tests", "reason", "why", "modes", "platforms"}
        if unknown or not raw.get("tests") or not raw.get("why") or raw.get("reason") not in REASONS:
            raise ValueError(f"{path.name}, failure {number}: needs tests, reason ({', '.join(REASONS)}) and why")
        modes = tuple(raw.get("modes", ("default", "x64")))
        platforms = tuple(raw.get("platforms", ("ferrule", "xpu")))
        entries.append(Entry(tuple(raw["tests"]), raw["reason"], " ".join(raw["why"].split()), modes, platforms))
    return entries


def find(entries: Iterable[Entry], test: str, mode: str, platform: str = "ferrule") -> Entry | None:
    modes = {mode, "default"} if mode == "devices" else {mode}
    here = (entry for entry in entries if modes & set(entry.modes) and platform in entry.platforms)
    return next((entry for entry in here if entry.covers(test)), None)


def faults(entries: list[Entry], outcomes: dict[str, str], mode: str, platform: str = "ferrule") -> list[str]:
    """What the manifest and a run (`file.Class.test` → outcome) say differently, a line each."""
    found = []
    for test, outcome in sorted(outcomes.items()):
        entry = find(entries, test, mode, platform)
        if outcome in FAILED and entry is None:
            found.append(f"{test}: {outcome}, and {FILE.name} does not know it")
        elif outcome == "pass" and entry is not None and mode in entry.modes:
            found.append(f"{test}: passes, and {FILE.name} says that it fails ({entry.reason}: {entry.why})")
    return found
