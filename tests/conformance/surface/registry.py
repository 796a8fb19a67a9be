"""What a check is: a function with one sentence that says what PJRT demands, in a group named after a PJRT object.

    check = group("events")

    @check
    def is_ready_after_a_failure(c):
        "IsReady also reports true after the event failed."
        ...

A check that returns has passed; the text it returns is shown as its detail. AssertionError or any other exception is a
failure. A capability that the plugin does not offer is neither: `Unsupported`, or the plugin's own UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PASS, FAIL, UNSUPPORTED = "pass", "fail", "unsupported"
OUTCOMES = (PASS, FAIL, UNSUPPORTED)


class Unsupported(Exception):
    """The plugin lacks what the check needs: a difference between plugins, no defect."""


@dataclass(frozen=True)
class Check:
    """One check. `required`: every plugin must offer what it calls, so UNIMPLEMENTED is a failure."""

    group: str
    name: str
    demand: str
    run: Callable[[Any], str | None]
    required: bool

    @property
    def id(self) -> str:
        return f"{self.group}.{self.name}"


CHECKS: dict[str, Check] = {}


def add(check: Check) -> None:
    """Puts a check into the suite."""
    if check.id in CHECKS or not check.demand:
        raise ValueError(f"the check {check.id} stands twice or has no demand")
    CHECKS[check.id] = check


def group(name: str) -> Callable[..., Any]:
    """The decorator that adds functions as checks of a group; `@check(required=True)` as in `Check`."""

    def decorate(function: Callable[[Any], str | None] | None = None, *, required: bool = False) -> Any:
        if function is None:
            return lambda f: decorate(f, required=required)
        demand = " ".join((function.__doc__ or "").split())
        add(Check(name, function.__name__, demand, function, required))
        return function

    return decorate
