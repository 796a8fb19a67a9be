"""A conformance suite for PJRT plugins: loads any library that exports GetPjrtApi and checks what PJRT demands.

    python tests/conformance/surface/run.py --library path/to/plugin.so [--pypjrt] [--json report.json]

Each check says in one sentence what PJRT's header or its callers demand, and passes, fails, or is unsupported: the
plugin lacks an optional capability (it answers UNIMPLEMENTED, has a null entry, or no such extension). Checks run in
processes of their own, so one that crashes or hangs fails alone. The exit status is 1 when a check failed.

--pypjrt adds the verdict of pypjrt.conform, an independent suite of another author (`pip install pypjrt`).
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

import checks  # noqa: F401  (fills the registry)
import isolation
import second_opinion
from registry import CHECKS, FAIL, OUTCOMES, PASS, UNSUPPORTED


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {outcome: sum(r["outcome"] == outcome for r in rows) for outcome in OUTCOMES}


def table(rows: list[dict[str, Any]], by: str = "group") -> list[str]:
    """Counts per group, in the order of the suite."""
    groups = list(dict.fromkeys(r[by] for r in rows))
    lines = [f"{'':22} {'pass':>6} {'fail':>6} {'unsupported':>12}"]
    for group in [*groups, None]:
        n = counts([r for r in rows if group is None or r[by] == group])
        lines.append(f"{group or 'all':22} {n[PASS]:6} {n[FAIL]:6} {n[UNSUPPORTED]:12}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="the plugin")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--pypjrt", action="store_true", help="also run pypjrt.conform")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="option of the client")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="checks to run, e.g. 'events.*'")
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="checks to leave out")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds per check (default 60)")
    parser.add_argument("--list", action="store_true", help="print the checks and what they demand")
    parser.add_argument("--verbose", action="store_true", help="print every check")
    arguments = parser.parse_args()
    chosen = [
        check
        for check in CHECKS
        if (not arguments.only or any(fnmatch.fnmatch(check, p) for p in arguments.only))
        and not any(fnmatch.fnmatch(check, p) for p in arguments.skip)
    ]
    if arguments.list:
        print("\n".join(f"{check}: {CHECKS[check].demand}" for check in chosen))
        return 0
    if arguments.library is None:
        parser.error("--library is needed")
    library = arguments.library.resolve()
    if not library.is_file():
        parser.error(f"there is no file {arguments.library}")

    def progress(check: str, outcome: isolation.Outcome) -> None:
        if arguments.verbose or outcome.outcome == FAIL:
            print(f"{outcome.outcome:12} {check:55} {outcome.detail}", flush=True)

    found, about = isolation.run(str(library), arguments.option, chosen, arguments.time_limit, progress)
    rows = [
        {
            "id": check,
            "group": check.split(".")[0],
            "demand": CHECKS[check].demand if check in CHECKS else "",
            **isolation.as_json(outcome),
        }
        for check, outcome in found.items()
    ]
    report: dict[str, Any] = {
        "suite": "pjrt surface",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "library": library.name,
        "plugin": about,
        "options": arguments.option,
        "versions": {"python": platform.python_version()} | {p: version(p) for p in ("ferrule", "numpy", "pypjrt")},
        "counts": counts(rows),
        "checks": rows,
    }
    print("\n".join(table(rows)))
    if arguments.pypjrt:
        report["pypjrt"] = second_opinion.run(str(library), arguments.time_limit)
        print("\npypjrt.conform\n" + "\n".join(table(report["pypjrt"]["checks"])))
        for row in report["pypjrt"]["checks"]:
            if row["outcome"] != PASS:
                print(f"{row['outcome']:12} {row['id']:40} {row['detail']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    failed = report["counts"][FAIL] + report.get("pypjrt", {}).get("counts", {}).get(FAIL, 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
