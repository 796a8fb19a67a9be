"""The part of docs/conformance.md about xpu beside cpu: one sample of JAX's tests, and those of several devices."""

from collections import Counter, defaultdict
from pathlib import Path

import manifest
from jax_suite import files, runner

NAMES = {"ferrule": "cpu", "xpu": "xpu"}  # JAX's platform → our target
SAMPLE = "--one-in 10"
DEVICES = "--devices 8 --files pmap_test shard_map_test"
COMMANDS = [f"jax --platform {name} {what}" for what in (SAMPLE, DEVICES) for name in NAMES]


def text(folder: Path, entries: list[manifest.Entry]) -> str:
    return "\n\n".join(
        [
            "## Intel GPUs: `xpu` beside `cpu`",
            """No GPU was at hand: `xpu` ran on the *SYCL CPU device*, Intel's OpenCL runtime for processors (see
[intel-gpu.md](intel-gpu.md)). Both targets ran the same tests, with the options said above.""",
            _commands(COMMANDS[:2]),
            _sample(folder, entries),
            "### On eight devices",
            """JAX's tests of `shard_map` and `pmap` with eight devices of each target: on `cpu` eight groups of one
process's memory and threads, on `xpu` eight queues of one device.""",
            _commands(COMMANDS[2:]),
            _devices(folder, entries),
        ]
    )


def _commands(arguments: list[str]) -> str:
    return "\n".join(["```", *(f"python tests/conformance/run.py {command}" for command in arguments), "```"])


def _read(folder: Path, kind: str) -> dict[str, runner.Results] | None:
    paths = {target: folder / f"jax-{platform}-{kind}.jsonl" for platform, target in NAMES.items()}
    if not all(path.exists() for path in paths.values()):
        return None
    return {target: runner.read(path) for target, path in paths.items()}


def _sample(folder: Path, entries: list[manifest.Entry]) -> str:
    found = _read(folder, "one-in-10")
    if found is None:
        return "Not run."
    cpu, xpu = found["cpu"], found["xpu"]
    both = [key for key in cpu.outcomes if key in xpu.outcomes]
    counts: dict[str, dict[str, Counter]] = defaultdict(lambda: {"cpu": Counter(), "xpu": Counter()})
    for file, test in both:
        for target, results in found.items():
            counts[file][target][_outcome(results, file, test)] += 1
    total = {target: sum((row[target] for row in counts.values()), Counter()) for target in found}
    ran = {target: c["pass"] + c["fails"] for target, c in total.items()}
    rates = {target: 100 * c["pass"] / max(ran[target], 1) for target, c in total.items()}
    order = [name for name in files.MAIN if name in counts] + sorted(set(counts) - set(files.MAIN))
    rows = []
    for file in order:
        partly = "" if file in cpu.finished and file in xpu.finished else " †"
        rows.append(f"| {file}{partly} | {_cells(counts[file])} |")
    head = cpu.header
    lines = [
        f"""Of the tests that were not skipped, **{rates["cpu"]:.2f} %** of {ran["cpu"]} pass on `cpu` and
**{rates["xpu"]:.2f} %** of {ran["xpu"]} on `xpu` (JAX {head["jax"]}, {xpu.header["date"]}).""",
        "| file | cpu: passes | fails | skipped | xpu: passes | fails | skipped |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        f"| **all** | {_cells(total)} |",
    ]
    if any("†" in row for row in rows):
        lines.append("\n† not run to the end on both targets; compared is what ran on both.")
    absent = [name for name in files.MAIN if name not in counts and not (name in cpu.finished and name in xpu.finished)]
    if absent:
        lines.append(f"\nNot run on both: {', '.join(absent)}.")
    differ = [key for key in both if _outcome(cpu, *key) != _outcome(xpu, *key)]
    lines.append("\n" + _reasons("Differences", differ, found, entries, "default"))
    same = [key for key in both if key not in differ and _outcome(xpu, *key) == "fails"]
    lines.append("\n" + _reasons("What fails on both", same, found, entries, "default"))
    return "\n".join([lines[0] + "\n", *lines[1:]])


def _devices(folder: Path, entries: list[manifest.Entry]) -> str:
    found = _read(folder, "8-devices")
    if found is None:
        return "Not run."
    lines = ["| file | target | passes | fails | crashes | times out | skipped |", "| --- | --- |" + " ---: |" * 5]
    chosen = ("pmap_test", "shard_map_test")
    failed: list[tuple[str, str]] = []
    for file in chosen:
        for target, results in found.items():
            row = Counter(line["outcome"] for (of, _), line in results.outcomes.items() if of == file)
            partly = "" if file in results.finished else " †"
            cells = " | ".join(str(row[key]) for key in ("pass", "fail", "crash", "timeout", "skip"))
            lines.append(f"| {file}{partly} | {target} | {cells} |")
            failed += [key for key in results.outcomes if key[0] == file and _outcome(results, *key) == "fails"]
    if any("†" in line for line in lines):
        lines.append("\n† not run to the end.")
    return "\n".join(lines) + "\n\n" + _reasons("Failures", list(dict.fromkeys(failed)), found, entries, "devices")


def _outcome(results: runner.Results, file: str, test: str) -> str:
    line = results.outcomes.get((file, test))
    if line is None:
        return "not run"
    return "fails" if line["outcome"] in manifest.FAILED else line["outcome"]


def _cells(row: dict[str, Counter]) -> str:
    return " | ".join(str(row[target][key]) for target in ("cpu", "xpu") for key in ("pass", "fails", "skip"))


def _reasons(
    title: str, tests: list[tuple[str, str]], found: dict[str, runner.Results], entries: list[manifest.Entry], mode: str
) -> str:
    """A line for each cause, with its tests."""
    by_why: dict[str, list[str]] = defaultdict(list)
    for file, test in tests:
        said = {target: _outcome(results, file, test) for target, results in found.items()}
        failing = [platform for platform, target in NAMES.items() if said[target] == "fails"]
        entry = next((e for p in failing if (e := manifest.find(entries, f"{file}.{test}", mode, p))), None)
        why = f"{entry.reason}: {entry.why}" if entry else "not explained"
        skipped = next((r.outcomes[file, test]["why"] for t, r in found.items() if said[t] == "skip"), None)
        if not failing and skipped is not None:
            why = f"skipped by JAX on one of the targets: {skipped.splitlines()[0]}"
        outcomes = ", ".join(f"{target} {outcome}" for target, outcome in said.items())
        by_why[why].append(f"`{file}.{test}` ({outcomes})")
    if not by_why:
        return f"{title}: none."
    return "\n".join([f"{title}:\n", *(f"- {why} ({len(t)}): {', '.join(t)}" for why, t in by_why.items())])
