"""The process in which checks run: reads their names from stdin, writes JSON lines to the descriptor it was given."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import checks  # noqa: F401  (fills the registry)
from context import Context, parse_options
from registry import CHECKS, FAIL, PASS, UNSUPPORTED, Unsupported

from ferrule.client import PjrtError, Plugin


def describe(error: BaseException) -> str:
    """The error, and the line of the check in which it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent.name == "checks"]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    text = f"{error.code}: {error.message}" if isinstance(error, PjrtError) else f"{type(error).__name__}: {error}"
    if isinstance(error, AssertionError):
        text = str(error) or "not so"
    return f"{text.splitlines()[0][:400]} [{place}]"


def run(context: Context, name: str) -> dict[str, Any]:
    """Runs one check; its outcome and detail."""
    check = CHECKS[name]
    try:
        return {"outcome": PASS, "detail": check.run(context) or ""}
    except Unsupported as error:
        return {"outcome": UNSUPPORTED, "detail": str(error)}
    except PjrtError as error:
        if error.code == "UNIMPLEMENTED" and not check.required:
            return {"outcome": UNSUPPORTED, "detail": error.message.splitlines()[0][:300] if error.message else ""}
        return {"outcome": FAIL, "detail": describe(error)}
    except Exception as error:
        return {"outcome": FAIL, "detail": describe(error)}


def main() -> None:
    library, descriptor, *options = sys.argv[1:]
    reports = os.fdopen(int(descriptor), "w", buffering=1)

    def report(**values: Any) -> None:
        reports.write(json.dumps(values) + "\n")

    context = Context(Plugin(library), parse_options(options), lambda text: report(note=text))
    report(started=True)
    for number, name in enumerate(map(str.strip, sys.stdin)):
        if number == 0:
            report(about=context.about())
        report(**run(context, name))
        gc.collect()  # what the check left behind is destroyed now, not inside another one
    context.close()


if __name__ == "__main__":
    main()
