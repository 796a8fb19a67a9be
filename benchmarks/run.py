"""Ferrule's cpu target beside XLA:CPU, IREE, PyTorch and torch.compile, on everything under `cases/`.

    python benchmarks/run.py [--only WORD,…] [--against xla,iree,torch,torch.compile] [--quick]
                             [--json FILE] [--write docs/performance.md] [--from-json FILE]

Every engine is a process of its own; they take turns, one runs at a time. A figure is the median over rounds. Results
are compared with a reference in float64, those of a second call, too; a wrong one is shown as such, not as a time.
`pip install '.[bench]'` brings the other engines; one that is missing gives a sentence.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import importlib.util
import json
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from harness import report
from harness.case import load, select
from harness.engines import TITLES
from harness.limits import Limits
from harness.plot import plot
from harness.turns import FULL, QUICK, Engine, Figure, measure, warm_calls


def words(text: str) -> list[str]:
    """Separated by commas; one with a blank after it is part of a name, as in "log, 1 M"."""
    return [w.strip() for w in re.split(r",(?! )", text) if w.strip()]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=words, default=[], help="areas or parts of names, by commas without blanks")
    parser.add_argument("--against", type=words, default=[e for e in TITLES if e != "ferrule"], help="engines")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--no-check", action="store_true", help="do not compare results with a reference")
    parser.add_argument("--no-warm", action="store_true", help="do not measure first calls with a cache on disk")
    parser.add_argument("--list", action="store_true", help="print the cases, run nothing")
    parser.add_argument("--json", type=Path, help="a file for everything that was measured")
    parser.add_argument("--from-json", type=Path, help="measure nothing: make the tables and the plot of this file")
    parser.add_argument("--sorted", type=Path, help="a file for the ratios to XLA:CPU, slowest first")
    parser.add_argument("--plot", type=Path, help="an SVG file; default: beside the file of --write")
    parser.add_argument("--write", type=Path, help="a Markdown file whose tables are replaced")
    return parser.parse_args(arguments)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.from_json:
        return again(options)
    unknown = [e for e in options.against if e not in TITLES]
    if unknown:
        raise SystemExit(f"no engine is called {', '.join(unknown)}; there are {', '.join(TITLES)}")
    cases = select(load(), options.only)
    if options.list:
        print("\n".join(c.key for c in cases))
        return 0
    if not cases:
        raise SystemExit(f"no case has {' or '.join(options.only)} in its name")
    plan, begin, load_before = QUICK if options.quick else FULL, time.perf_counter(), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    source = importlib.util.find_spec("ferrule")
    if source is not None and source.origin:  # what pip does when it installs: the modules' bytecode
        compileall.compile_dir(Path(source.origin).parent, quiet=1)
    with tempfile.TemporaryDirectory(prefix="ferrule-benchmark-") as name:
        folder = Path(name)
        log = folder / "workers.log"
        engines = [Engine(e, log) for e in ["ferrule", *(e for e in options.against if e != "ferrule")]]
        references = None if options.no_check else Engine("reference", log)
        for engine in engines:
            if not engine.start():
                print(f"{TITLES[engine.name]} is left out: {engine.missing}")
        engines = [e for e in engines if not e.missing]
        machine = Engine("limits", log)
        limits: Limits = machine.ask(120, "limits")
        try:
            for case in cases:
                memory = machine if limits.moves(case) else None
                figures, said, rate = measure(case, engines, references, folder, plan, memory)
                rows.append({"area": case.area, "name": case.name, "figures": figures, "said": said, "rate": rate})
                print(line(rows[-1], [e.name for e in engines]), flush=True)
        except KeyboardInterrupt:
            print(f"interrupted: the report has {len(rows)} of {len(cases)} cases")
        for engine in [*engines, *([references] if references else [])]:
            engine.stop()
        limits = limits.better(machine.ask(120, "limits"))  # before and after the cases; what reached more counts
        machine.stop()
        for case, row in zip(cases, rows):
            row["limit"] = limits.seconds(case, row["rate"])
        if not options.no_warm and any(e.name == "ferrule" for e in engines):
            found = {c.key: r["figures"] for c, r in zip(cases, rows)}
            warm_calls(cases, found, folder / "cache", log, plan, print)
    names = [e.name for e in engines]
    facts = [
        f"{processor()}, {os.cpu_count()} cores; {'; '.join(e.version for e in engines)}.",
        limits.sentence(),
        f"{plan.rounds} rounds of {plan.seconds} s for each engine and case; {time.strftime('%Y-%m-%d')}, "
        f"{(time.perf_counter() - begin) / 60:.0f} minutes; load average before: {load_before:.1f}.",
    ]
    print("\n".join(["", *facts, *report.summary(rows, names)]))
    publish(options, rows, names, facts, dataclasses.asdict(limits))
    return 0


def line(row: dict[str, Any], engines: list[str]) -> str:
    cells = [f"{report.cell(row['figures'].get(e)):>14}" for e in engines]
    value = report.ratio(row["figures"], "xla")
    return f"{row['area']:>13} {row['name']:<52} {' '.join(cells)}  {'' if value is None else f'{value:.2f}×'}"


def again(options: argparse.Namespace) -> int:
    """Reports what an earlier run measured."""
    found = json.loads(options.from_json.read_text())
    rows = [{**row, "figures": {e: Figure(**f) for e, f in row["figures"].items()}} for row in found["cases"]]
    kept = [
        row
        for row in rows
        if not options.only or any(w.lower() in f"{row['area']}/{row['name']}".lower() for w in options.only)
    ]
    publish(options, kept, found["engines"], found["facts"], found["limits"])
    return 0


def publish(
    options: argparse.Namespace, rows: list[dict[str, Any]], engines: list[str], facts: list[str], limits: Any
) -> None:
    picture = options.plot or (options.write and options.write.with_suffix(".svg"))
    if options.json:
        cases = [{**r, "figures": {e: f.as_dict() for e, f in r["figures"].items()}} for r in rows]
        options.json.write_text(
            json.dumps({"facts": facts, "limits": limits, "engines": engines, "cases": cases}, indent=1)
        )
    if options.sorted:
        said = report.remarks(rows)
        lines = [*facts, *report.summary(rows, engines), "", report.sorted_ratios(rows), "", *said]
        options.sorted.write_text("\n".join(lines) + "\n")
    drawn = ""
    if picture:
        try:
            plot(rows, picture)
            drawn = picture.name
        except (ImportError, ValueError) as error:
            print(f"no plot: {error}")
    if options.write:
        report.write(options.write, report.markdown(rows, engines, facts, drawn))


if __name__ == "__main__":
    sys.exit(main())
