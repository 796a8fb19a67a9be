"""Writes docs/conformance.md from the results of the suites in build/conformance."""

import json
import os
import platform
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import manifest
import two_targets
from jax_suite import files, runner

COMMAND = "make conformance"


def write(folder: Path, page: Path) -> None:
    """Reads what is there; a suite that was not run is said to be missing."""
    if not folder.is_dir() or not any(folder.glob("*.json*")):
        raise ValueError(f"no results in {folder}: the page would say nothing; run the suites first")
    entries = manifest.load()
    parts = [_head(), _jax(folder, entries, "")]
    if (folder / "jax-ferrule-x64.jsonl").exists():
        parts.append(_jax(folder, entries, "-x64"))
    parts += [two_targets.text(folder, entries), _primitives(folder), _programs(folder), _surface(folder)]
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n")


def _head() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return f"""# Conformance

What was run against Ferrule's `cpu` target, with every failure and its reason. Generated; made again by

```
{COMMAND}
```

Written at commit {commit or "unknown"}, Python {platform.python_version()}, {machine}.
The known failures are in
[`tests/conformance/known.toml`](../tests/conformance/known.toml); a failure that is not listed there, and a listed one
that passes, fail `python tests/conformance/run.py check`.

NVIDIA GPUs: no target yet, no figures."""


def _outcomes(results: runner.Results) -> dict[str, dict[str, str]]:
    by_file: dict[str, dict[str, str]] = defaultdict(dict)
    for (file, test), line in results.outcomes.items():
        by_file[file][test] = line["outcome"]
    return by_file


def _jax(folder: Path, entries: list[manifest.Entry], suffix: str) -> str:
    title = "## JAX's own tests" + (", JAX_ENABLE_X64=1" if suffix else "")
    mine, theirs = folder / f"jax-ferrule{suffix}.jsonl", folder / f"jax-cpu{suffix}.jsonl"
    if not mine.exists() or not theirs.exists():
        return f"{title}\n\nNot run."
    ours, xla = runner.read(mine), runner.read(theirs)
    a, b = _outcomes(ours), _outcomes(xla)
    mode = "x64" if suffix else "default"
    rows, total = [], Counter()
    order = [name for name in files.MAIN if name in a] + sorted(set(a) - set(files.MAIN) - {"primitives_test"})
    listed: dict[manifest.Entry | None, list[str]] = defaultdict(list)
    for file in order:
        reference = {test for test, outcome in b.get(file, {}).items() if outcome == "pass" and test in a[file]}
        both = sum(a[file].get(test) == "pass" for test in reference)
        counts = Counter(a[file].values())
        lost = [test for test in reference if a[file].get(test) != "pass"]
        for test in sorted(set(lost) | {t for t, o in a[file].items() if o in manifest.FAILED}):
            listed[manifest.find(entries, f"{file}.{test}", mode)].append(f"{file}.{test}")
        row = Counter(xla=len(reference), both=both, **{key: counts[key] for key in ("fail", "crash", "timeout")})
        row["passed"] = counts["pass"]
        total += row
        partly = "" if file in ours.finished and file in xla.finished else " †"
        rows.append(f"| {file}{partly} | {_cells(row)} |")
    rate = 100 * total["both"] / max(total["xla"], 1)
    head = ours.header
    text = f"""{title}

**{rate:.2f} %** of the {total["xla"]} tests that jaxlib's own CPU (XLA:CPU) passes pass on Ferrule.

JAX {head["jax"]}, jaxlib {head["jaxlib"]}, {head["date"]}; tests at the tag jax-v{head["jax"]},
JAX_NUM_GENERATED_CASES={head["cases"]}, one device, a process per file, nothing excluded: the tests are told that the
device is a `cpu`, so that none is skipped by the platform's name and a CPU's tolerances hold.

| file | XLA:CPU passes | of these Ferrule | % | Ferrule passes | fails | crashes | times out |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(rows)}
| **all** | {_cells(total)} |"""
    if any("†" in row for row in rows):
        text += "\n\n† not run to the end on both platforms; compared is what ran on both."
    return text + "\n\n" + _reasons(listed, b)


def _cells(row: Counter) -> str:
    share = f"{100 * row['both'] / row['xla']:.1f}" if row["xla"] else "–"
    return (
        f"{row['xla']} | {row['both']} | {share} | {row['passed']} | {row['fail']} | {row['crash']} | {row['timeout']}"
    )


def _reasons(listed: dict[manifest.Entry | None, list[str]], xla: dict[str, dict[str, str]]) -> str:
    if not listed:
        return "No failures."
    lines = ["### Every failure, by reason"]
    for reason in (*manifest.REASONS, None):
        chosen = [(entry, tests) for entry, tests in listed.items() if (entry.reason if entry else None) == reason]
        if not chosen:
            continue
        lines.append(f"\n**{(reason or 'not explained').capitalize()}** ({sum(len(t) for _, t in chosen)} tests)\n")
        for entry, tests in sorted(chosen, key=lambda item: -len(item[1])):
            names = ", ".join(f"`{test}`{_as_xla(test, xla)}" for test in tests)
            lines.append(f"- {entry.why if entry else 'no entry in the manifest'} ({len(tests)}): {names}")
    return "\n".join(lines)


def _as_xla(test: str, xla: dict[str, dict[str, str]]) -> str:
    file, name = test.split(".", 1)
    outcome = xla.get(file, {}).get(name)
    return " (XLA:CPU, too)" if outcome in manifest.FAILED else ""


def _primitives(folder: Path) -> str:
    title = "## JAX's primitives"
    path = folder / "primitives-ferrule.jsonl"
    if not path.exists():
        return f"{title}\n\nNot run."
    results = runner.read(path)
    counts = Counter(line["outcome"] for line in results.outcomes.values())
    text = f"""{title}

Every use of a primitive that JAX describes for its own tests
(`jax._src.internal_test_util.test_harnesses`), values beside XLA:CPU's{_share(results.header)}:
{counts["pass"]} of {sum(counts.values()) - counts["skip"]} agree
({results.header["date"]}, JAX {results.header["jax"]})."""
    entries = manifest.load()
    listed: dict[manifest.Entry | None, list[str]] = defaultdict(list)
    for (file, test), line in results.outcomes.items():
        if line["outcome"] in manifest.FAILED:
            listed[manifest.find(entries, f"{file}.{test}", "default")].append(f"{file}.{test}")
    return text + ("\n\n" + _reasons(listed, {}) if listed else "")


def _share(header: dict) -> str:
    return f", one in {header['one_in']}" if header.get("one_in", 1) != 1 else ""


def _programs(folder: Path) -> str:
    title = "## Random programs"
    path = folder / "programs.json"
    if not path.exists():
        return f"{title}\n\nNot run."
    report = json.loads(path.read_text())
    first, last = report["seeds"]
    states = report["states"]
    wrong = sum(finding["count"] for finding in report["findings"])
    text = f"""{title}

{report["programs"]} typed random StableHLO programs, seeds {first} to {last}
({", ".join(f"{count} {kind}" for kind, count in report["by_kind"].items())};
{len(report["programs_with_op"])} kinds of op): **{wrong} findings**
({", ".join(f"{count} {state}" for state, count in states.items())}). The truth came from
{", ".join(f"{truth} ({count})" for truth, count in report["by_truth"].items())}; {report["date"]}."""
    for finding in report["findings"]:
        text += f"\n- {finding['count']} × {finding['cause']}, seeds {finding['seeds']}"
    for cause, count in report["unsupported"].items():
        text += f"\n- unsupported, {count} ×: {cause}"
    return text


def _surface(folder: Path) -> str:
    title = "## The PJRT surface"
    path = folder / "surface.json"
    if not path.exists():
        return f"{title}\n\nNot run."
    report = json.loads(path.read_text())
    rows: dict[str, Counter] = defaultdict(Counter)
    for check in report["checks"]:
        rows[check["group"]][check["outcome"]] += 1
    table = [f"| {group} | {row['pass']} | {row['fail']} | {row['unsupported']} |" for group, row in rows.items()]
    missing = [f"- `{c['id']}`: {c['detail']}" for c in report["checks"] if c["outcome"] != "pass"]
    text = f"""{title}

A suite of ours that works on any plugin ({report["date"]}):
{", ".join(f"{count} {outcome}" for outcome, count in report["counts"].items())}.

| group | pass | fail | unsupported |
| --- | ---: | ---: | ---: |
{chr(10).join(table)}

{chr(10).join(missing)}"""
    other = report.get("pypjrt")
    if other:
        version = report["versions"].get("pypjrt")
        counts = ", ".join(f"{count} {outcome}" for outcome, count in other["counts"].items() if count)
        unsupported = [f"- `{c['id']}`: {c['detail']}" for c in other["checks"] if c["outcome"] != "pass"]
        text += f"\n\n`pypjrt.conform` {version}, the second opinion: {counts}.\n\n" + "\n".join(unsupported)
    return text
