"""Conformance of a JAX platform or a PJRT library: one command per suite, and one that writes the published page.

    python tests/conformance/run.py jax [--platform ferrule|xpu] [--files lax_test nn_test] [--all] [--x64]
    python tests/conformance/run.py primitives [--platform ferrule]
    python tests/conformance/run.py programs [--count 10000] [--seed 0]
    python tests/conformance/run.py surface [--library path/to/plugin.so]
    python tests/conformance/run.py check     the results beside the known failures (known.toml)
    python tests/conformance/run.py table     docs/conformance.md from the results
    python tests/conformance/run.py all       everything, with jaxlib's CPU for comparison (some hours on two cores)
    python tests/conformance/run.py fetch     JAX's tests at the tag of the installed jax

Results go to build/conformance; a run of `jax`, `primitives` or `programs` that was cut off goes on where it stopped.
Another platform needs no Ferrule: --platform NAME with its plugin installed, or --library.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import manifest
import table
import two_targets
from jax_suite import files, runner, source

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = REPOSITORY / "build" / "conformance"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="get JAX's tests").set_defaults(run=lambda options: print(source.find()))
    for name, run in (("jax", run_jax), ("primitives", run_primitives)):
        command = commands.add_parser(name)
        command.add_argument("--platform", default="ferrule", help="a JAX platform; `cpu` is jaxlib's own")
        command.add_argument("--library", default=os.environ.get("FERRULE_LIBRARY"), help="a plugin, not installed")
        command.add_argument("--x64", action="store_true", help="with JAX_ENABLE_X64")
        command.add_argument("--seconds", type=float, default=120, help="time limit of one test")
        command.add_argument("--again", nargs="*", default=[], help="outcomes to repeat: fail crash timeout skip pass")
        command.add_argument("--one-in", type=int, default=1, help="a sample: one test in so many, always the same")
        command.add_argument("--jobs", type=int, default=2)
        command.add_argument("--devices", type=int, default=1, help="with more than one, tests of several devices run")
        command.add_argument("--results", type=Path)
        command.set_defaults(run=run, tests=None, files=None, all=False, cases=10, treat_as="cpu")
    jax = commands.choices["jax"]
    jax.add_argument("--tests", help="the folder `tests` of a checkout of JAX")
    jax.add_argument("--files", nargs="*", help="lax_test …; default: those that make up the published figure")
    jax.add_argument("--all", action="store_true", help="every file that needs no other hardware")
    jax.add_argument("--cases", type=int, default=10, help="generated cases per parametrised test (JAX's default: 10)")
    jax.add_argument("--treat-as", default="cpu", help="what the tests take the device for (skips and tolerances)")
    for name in ("programs", "surface"):
        command = commands.add_parser(name, help=f"{name}/run.py, whose options follow", add_help=False)
        command.set_defaults(run=run_other)
    everything = commands.add_parser("all", help="every suite, then check and table")
    everything.add_argument("--tests", help="the folder `tests` of a checkout of JAX")
    everything.set_defaults(run=run_all)
    check = commands.add_parser("check", help="results and known failures must agree")
    check.add_argument("results", type=Path, nargs="*", help="default: all of build/conformance")
    check.set_defaults(run=run_check)
    page = commands.add_parser("table", help="write docs/conformance.md")
    page.add_argument("--results", type=Path, default=RESULTS, help="the folder of the results")
    page.set_defaults(run=lambda options: table.write(options.results, REPOSITORY / "docs" / "conformance.md"))
    options, rest = parser.parse_known_args()
    if rest and options.command not in ("programs", "surface"):
        parser.error(f"unknown: {' '.join(rest)}")
    options.rest = rest
    try:
        return options.run(options) or 0
    except (source.NoTests, FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_jax(options: argparse.Namespace) -> int:
    paths = files.paths(options.tests, [Path(file).stem for file in options.files or ()], options.all)
    return _suite("jax", paths, options)


def run_primitives(options: argparse.Namespace) -> int:
    return _suite("primitives", [files.PRIMITIVES], options)


def _suite(name: str, paths: list[Path], options: argparse.Namespace) -> int:
    setup = runner.Setup(
        platform=options.platform,
        library=options.library if options.platform != "cpu" else None,
        treat_as=options.treat_as,
        cases=options.cases,
        x64=options.x64,
        seconds=options.seconds,
        one_in=options.one_in,
        devices=options.devices,
    )
    kind = "-x64" if options.x64 else ""
    if options.devices > 1:
        kind += f"-{options.devices}-devices"
    if options.one_in > 1 and name == "jax":
        kind += f"-one-in-{options.one_in}"
    path = options.results or RESULTS / f"{name}-{options.platform}{kind}.jsonl"
    results = runner.Results.open(path, setup.header())
    runner.run(paths, setup, results, options.jobs, tuple(options.again))
    names = {file.stem for file in paths}
    chosen = [line for (file, _), line in results.outcomes.items() if file in names]
    for line in chosen:
        if line["outcome"] in manifest.FAILED:
            said = (line["why"].splitlines() or [""])[0]
            print(f"{line['outcome'].upper()} {line['file']}.{line['test']}: {said[:200]}")
    counts = Counter(line["outcome"] for line in chosen)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), f"→ {path}")
    return int(any(counts[outcome] for outcome in manifest.FAILED))


def run_other(options: argparse.Namespace) -> int:
    """A suite with a command of its own; here it gets the places where the page looks for its results."""
    arguments = list(options.rest)
    RESULTS.mkdir(parents=True, exist_ok=True)
    if options.command == "programs":
        defaults = ["--json", str(RESULTS / "programs.json"), "--resume", str(RESULTS / "programs.jsonl")]
    else:
        defaults = ["--json", str(RESULTS / "surface.json"), "--pypjrt"]
        if not any(argument.split("=")[0] == "--library" for argument in arguments):
            from ferrule.native import library_path

            # An option of Ferrule's client; some checks are about two devices.
            defaults += ["--library", str(library_path()), "--option", "num_devices=2"]
    command = [sys.executable, str(HERE / options.command / "run.py"), *defaults, *arguments]
    return subprocess.run(command, check=False).returncode


def run_all(options: argparse.Namespace) -> int:
    tests = ["--tests", options.tests] if options.tests else []
    for arguments in (
        ["jax", "--platform", "cpu", *tests],
        ["jax", *tests],
        ["jax", "--platform", "cpu", "--x64", "--cases", "3", *tests],
        ["jax", "--x64", "--cases", "3", *tests],
        *(command.split() + tests for command in two_targets.COMMANDS),
        ["primitives"],
        ["programs", "--count", "10000"],
        ["surface"],
        ["table"],
    ):
        print(f"== {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, __file__, *arguments], check=False)
    return subprocess.run([sys.executable, __file__, "check"], check=False).returncode


def run_check(options: argparse.Namespace) -> int:
    entries = manifest.load()
    found = []
    paths = options.results or sorted(p for name in ("ferrule", "xpu") for p in RESULTS.glob(f"*-{name}*.jsonl"))
    if not paths:
        raise ValueError(f"no results in {RESULTS}: run `jax` or `primitives` first")
    for path in paths:
        results = runner.read(path)
        outcomes = {f"{file}.{test}": line["outcome"] for (file, test), line in results.outcomes.items()}
        mode = "devices" if results.header.get("devices") else "x64" if results.header["x64"] else "default"
        found += manifest.faults(entries, outcomes, mode, results.header["platform"])
    print("\n".join(found) or "The results and the known failures agree.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
