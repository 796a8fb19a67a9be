"""Conformance of a JAX platform.

    python tests/conformance/run.py jax --platform ferrule [--files lax_test nn_test] [--jobs 2]
    python tests/conformance/run.py fetch

Results go to build/conformance/<platform>.jsonl; a run that was cut off goes on where it stopped.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from jax_suite import files, runner, source

REPOSITORY = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="get JAX's tests at the tag of the installed jax")
    fetch.set_defaults(run=lambda options: print(source.find()))
    jax = commands.add_parser("jax", help="JAX's own tests")
    jax.add_argument("--platform", default="ferrule", help="a JAX platform; `cpu` is jaxlib's own")
    jax.add_argument("--library", default=os.environ.get("FERRULE_LIBRARY"), help="a plugin that is not installed")
    jax.add_argument("--tests", help="the folder `tests` of a checkout of JAX")
    jax.add_argument("--files", nargs="*", help="lax_test …; default: those that make up the published figure")
    jax.add_argument("--all", action="store_true", help="every file that needs no other hardware")
    jax.add_argument("--cases", type=int, default=10, help="generated cases per parametrised test (JAX's default: 10)")
    jax.add_argument("--treat-as", default="cpu", help="what the tests take the device for (skips and tolerances)")
    jax.add_argument("--x64", action="store_true", help="with JAX_ENABLE_X64")
    jax.add_argument("--seconds", type=float, default=120, help="time limit of one test")
    jax.add_argument("--again", nargs="*", default=[], help="outcomes to run again: fail crash timeout skip pass")
    jax.add_argument("--one-in", type=int, default=1, help="a sample: one test in so many, always the same ones")
    jax.add_argument("--jobs", type=int, default=2)
    jax.add_argument("--results", type=Path)
    jax.set_defaults(run=run_jax)
    options = parser.parse_args()
    try:
        return options.run(options) or 0
    except (source.NoTests, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_jax(options: argparse.Namespace) -> int:
    paths = files.paths(options.tests, [Path(file).stem for file in options.files or ()], options.all)
    names = {path.stem for path in paths}
    setup = runner.Setup(
        platform=options.platform,
        library=options.library if options.platform != "cpu" else None,
        treat_as=options.treat_as,
        cases=options.cases,
        x64=options.x64,
        seconds=options.seconds,
        one_in=options.one_in,
    )
    default = f"jax-{options.platform}{'-x64' if options.x64 else ''}.jsonl"
    path = options.results or REPOSITORY / "build" / "conformance" / default
    results = runner.Results.open(path, setup.header())
    runner.run(paths, setup, results, options.jobs, tuple(options.again))
    chosen = [line for (file, _), line in results.outcomes.items() if file in names]
    counts = Counter(line["outcome"] for line in chosen)
    for line in chosen:
        if line["outcome"] not in ("pass", "skip"):
            print(f"{line['outcome'].upper()} {line['file']}.{line['test']}: {line['why'].splitlines()[0][:200]}")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), f"→ {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
