"""The command of `run.py`: many programs over several processes, a summary, resumption."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jaxlib
from artifact import warm
from case import load
from generate import PROFILES
from trial import FINDINGS, Bench, Record

from ferrule.native import library_path
from ferrule.version import VERSION


def main(arguments: list[str] | None = None, description: str | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="how many programs (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--profile", choices=PROFILES, default="plain", help="what is drawn (default plain)")
    parser.add_argument("--library", help="a PJRT library (default: libferrule.so)")
    parser.add_argument("--target", default="", help="the client's target: cpu, xpu (default: the library chooses)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--resume", type=Path, help="a file of results: seeds that went well there are not run again")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one program (default 60)")
    parser.add_argument("--json", type=Path, help="where the summary goes")
    parser.add_argument("--file", type=Path, nargs="*", default=[], help="saved programs instead of random ones")
    parser.add_argument("--shrink", action="store_true", help="makes failing programs small and saves them")
    parser.add_argument("--save", type=Path, default=Path("."), help="the folder for shrunk programs")
    options = parser.parse_args(arguments)
    options.library = options.library or library_path()
    warm()
    if options.file:
        return _files(options)
    begun = time.monotonic()
    done = _known(options.resume)
    seeds = [s for s in range(options.seed, options.seed + options.count) if s not in done]
    fresh = 0
    for record in _spread(seeds, options):
        done[record["seed"]] = record
        fresh += 1
        if options.resume:
            with options.resume.open("a") as out:
                out.write(json.dumps(record) + "\n")
        if record["state"] not in ("ok", "unsupported"):
            print(f"seed {record['seed']} ({record['kind']}): {record['state']}: {record['detail']}", flush=True)
        if fresh % 500 == 0:
            print(f"… {fresh} programs, {fresh / (time.monotonic() - begun):.1f}/s", flush=True)
    wanted = [done[s] for s in range(options.seed, options.seed + options.count)]
    summary = summarize(wanted, options, time.monotonic() - begun, fresh)
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1))
    _print(summary)
    if options.shrink:
        _shrink([r for r in wanted if r["state"] in FINDINGS], options)
    return 1 if summary["findings"] or summary["tool_problems"] else 0


def _known(path: Path | None) -> dict[int, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    records = map(json.loads, path.read_text().splitlines())
    return {r["seed"]: r for r in records if r["state"] in ("ok", "unsupported")}


def _spread(seeds: list[int], options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Runs the seeds in `jobs` processes, each with its own bench; yields records as they come."""
    jobs = max(1, min(options.jobs, len(seeds)))
    pipes = []
    for job in range(jobs):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _job(seeds[job::jobs], options, write)
        os.close(write)
        pipes.append((os.fdopen(read), pid))
    import selectors

    selector = selectors.DefaultSelector()
    for pipe, _ in pipes:
        selector.register(pipe, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if line:
                yield json.loads(line)
            else:
                selector.unregister(key.fileobj)
    for _, pid in pipes:
        os.waitpid(pid, 0)


def _job(seeds: list[int], options: argparse.Namespace, write: int) -> None:
    bench = Bench(options.library, options.limit, options.target)
    status = 1
    try:
        with os.fdopen(write, "w") as out:
            for seed in seeds:
                try:
                    record, _ = bench.run((seed, options.profile))
                except Exception as error:
                    record = Record(seed, state="unjudged", cause="judge", detail=f"{type(error).__name__}: {error}")
                out.write(json.dumps(record.json()) + "\n")
                out.flush()
        status = 0
    finally:
        bench.stop()
        os._exit(status)


def summarize(records: list[dict[str, Any]], options: argparse.Namespace, seconds: float, fresh: int) -> dict[str, Any]:
    """The results as data for the published table."""
    states = Counter(r["state"] for r in records)
    causes: dict[str, list[int]] = {}
    for r in records:
        if r["state"] in FINDINGS:
            causes.setdefault(r["cause"], []).append(r["seed"])
    ops = Counter(name for r in records for name in r["ops"])
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"ferrule": VERSION, "jaxlib": jaxlib.__version__, "python": platform.python_version()},
        "command": f"run.py --count {options.count} --seed {options.seed} --profile {options.profile}",
        "profile": options.profile,
        "seeds": [options.seed, options.seed + options.count - 1],
        "programs": len(records),
        "by_kind": dict(Counter(r["kind"].split()[0] if r["kind"] else "none" for r in records)),
        "by_truth": dict(Counter(r["truth"] or "none" for r in records)),
        "states": dict(states),
        "programs_with_op": dict(sorted(ops.items())),
        "programs_with_open_elements": sum(r["open"] > 0 for r in records),
        "share_of_open_elements": round(sum(r["open"] for r in records) / max(1, len(records)), 5),
        "seconds": round(seconds, 1),
        "rate": round(fresh / max(seconds, 1e-9), 2),
        "findings": [{"cause": c, "count": len(s), "seeds": s[:10]} for c, s in sorted(causes.items())],
        "unsupported": dict(Counter(r["cause"] for r in records if r["state"] == "unsupported")),
        "tool_problems": sum(r["state"] in ("invalid", "unjudged") for r in records),
    }


def _print(summary: dict[str, Any]) -> None:
    first, last = summary["seeds"]
    print(f"{summary['programs']} programs, seeds {first} to {last}: {summary['states']}")
    print(f"{summary['by_kind']}, truth from {summary['by_truth']}, {summary['rate']}/s")
    print(f"{len(summary['programs_with_op'])} kinds of op; open elements: {summary['share_of_open_elements']:.3%}")
    for finding in summary["findings"]:
        print(f"  {finding['count']} × {finding['cause']}  seeds {finding['seeds']}")
    for cause, count in summary["unsupported"].items():
        print(f"  unsupported: {count} × {cause}")


def _files(options: argparse.Namespace) -> int:
    bench = Bench(options.library, options.limit, options.target)
    worst = 0
    for path in options.file:
        record, _ = bench.run(load(path))
        print(f"{path}: {record.state} (truth: {record.truth})\n{record.detail}")
        worst |= record.state in FINDINGS
    bench.stop()
    return int(worst)


def _shrink(records: list[dict[str, Any]], options: argparse.Namespace) -> None:
    from shrink import shrink

    bench = Bench(options.library, options.limit, options.target)
    for entry in records:
        record, case = bench.run((entry["seed"], options.profile))
        if case is None or record.state not in FINDINGS:
            print(f"seed {entry['seed']} does not fail again")
            continue
        small, last = shrink(case, record, bench)
        path = options.save / f"seed{entry['seed']}.mlir"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.save(path, f"{last.state}: {last.detail}")
        print(f"{path.read_text()}\nrerun: python run.py --file {path}")
    bench.stop()
