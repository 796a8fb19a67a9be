"""Ferrule's cpu target beside XLA:CPU on several hundred programs that nobody chose for their speed (`sweeps/`).

    python benchmarks/sweep.py [SET|WORD …] [--below 0.95] [--x64] [--all] [--json FILE]
    python benchmarks/sweep.py --drawn 300 --seed 1000

Both run in one process and take turns; a time is the least of several rounds, so that a disturbance counts less. What
comes out below `--below` is measured a second time, and printed where it is below again. Results are compared with
XLA:CPU's. `--x64` takes the functions in f64, i64 and complex128 as well. `--drawn` takes so many programs drawn at
random (`sweeps/drawn.py`) in place of the sets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from sweeps import SETS, Program, drawn, load

import jax

ROUNDS, SECONDS = 6, 0.01  # a round on one platform takes at least three calls


@dataclass
class Row:
    """Microseconds of a call, and milliseconds of the first call (trace, compile, run). `said`: why there are none."""

    name: str
    ferrule: float = 0.0
    xla: float = 0.0
    first: float = 0.0
    first_xla: float = 0.0
    said: str = ""

    @property
    def ratio(self) -> float:
        return self.xla / self.ferrule

    @property
    def compiling(self) -> float:
        return self.first_xla / self.first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help=f"sets ({', '.join(SETS)}) or parts of names; default: everything")
    parser.add_argument("--below", type=float, default=0.95, help="the ratio to XLA:CPU's speed to look at")
    parser.add_argument("--x64", action="store_true", help="types of 64 bits as well")
    parser.add_argument("--drawn", type=int, default=0, metavar="COUNT", help="programs drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="the first one's number")
    parser.add_argument("--all", action="store_true", help="print every program")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    options = parser.parse_args()
    if options.drawn < 0 or options.drawn and set(options.only) & set(SETS):
        parser.error("--drawn takes a number of programs, in place of the sets")
    os.environ.setdefault("FERRULE_CACHE", "0")  # first calls count what a compiler takes
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "ferrule,cpu")
    jax.config.update("jax_enable_x64", options.x64)
    sets = tuple(s for s in SETS if s in options.only) or SETS
    words = [w for w in options.only if w not in SETS]
    rows: list[Row] = []
    look("", Program("", jax.numpy.negative, lambda: (np.ones(3),)), 0)  # what a first program loads
    chosen = (("drawn", p) for p in drawn.programs(options.drawn, options.seed)) if options.drawn else load(sets)
    for area, program in chosen:
        name = f"{area}/{program.name}"
        if words and not any(w.lower() in name.lower() for w in words):
            continue
        row = look(name, program, options.below)
        rows.append(row)
        if options.all or row.said or row.ratio < options.below:
            print(line(row), flush=True)
    if not rows:
        raise SystemExit(f"no program has {' or '.join(words)} in its name")
    summary(rows, options.below)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return int(any(r.said for r in rows))


def look(name: str, program: Program, below: float) -> Row:
    row = Row(name)
    try:
        calls, firsts, results = zip(*(first_call(program, platform) for platform in ("ferrule", "cpu")))
        row.first, row.first_xla = (1e3 * s for s in firsts)
        row.said = different(*results, program.tolerance)
        row.ferrule, row.xla = take_turns(calls)
        if row.ratio < below:
            again = take_turns(calls)
            if again[1] / again[0] > row.ratio:
                row.ferrule, row.xla = again
    except Exception as error:  # a sweep goes on
        row.said = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"
    return row


def first_call(program: Program, platform: str) -> tuple[Callable[[], Any], float, list[np.ndarray]]:
    placed = jax.device_put(program.arguments(), jax.devices(platform)[0])
    compiled = jax.jit(lambda *args: program.function(*args))  # not one that the other platform has traced
    begin = time.perf_counter()
    result = jax.block_until_ready(compiled(*placed))
    seconds = time.perf_counter() - begin
    leaves = [x for x in jax.tree.leaves(result) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return lambda: compiled(*placed), seconds, [np.asarray(x) for x in leaves]


def take_turns(calls: tuple[Callable[[], Any], ...]) -> list[float]:
    """The least microseconds of a call of each."""
    least = [math.inf] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            end, count = time.perf_counter() + SECONDS, 0
            while count < 3 or time.perf_counter() < end:
                begin = time.perf_counter()
                jax.block_until_ready(call())
                least[i] = min(least[i], time.perf_counter() - begin)
                count += 1
    return [1e6 * s for s in least]


def different(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float) -> str:
    """A sentence when results are not the same, up to the tolerance."""
    if not tolerance:
        return ""
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {a.dtype}{list(a.shape)}, XLA's {b.dtype}{list(b.shape)}"
        wide = np.complex128 if np.iscomplexobj(a) else np.float64
        a, b = a.astype(wide), b.astype(wide)
        finite = np.isfinite(b)
        if (np.isfinite(a) != finite).any():
            return f"result {i} is not finite in other places than XLA's"
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return f"result {i} differs from XLA's in what is not finite"
        largest = np.abs(b[finite]).max(initial=0.0)
        error = np.abs(a[finite] - b[finite]).max(initial=0.0)
        if error > tolerance * max(largest, 1e-30):
            return f"result {i} differs from XLA's by {error:.3g}, where the largest is {largest:.3g}"
    return ""


def line(row: Row) -> str:
    if row.said:
        return f"{row.name:52s} {row.said}"
    times = f"{row.ferrule:9.1f} us {row.xla:9.1f}  {row.ratio:5.2f}"
    return f"{row.name:52s} {times}   first {row.first:6.0f} ms {row.first_xla:6.0f}  {row.compiling:5.2f}"


def summary(rows: list[Row], below: float) -> None:
    good = [r for r in rows if not r.said]
    if not good:
        return
    mean = math.exp(sum(math.log(r.ratio) for r in good) / len(good))
    first, first_xla = sum(r.first for r in good) / 1e3, sum(r.first_xla for r in good) / 1e3
    slow = sorted((r.compiling, r.name) for r in good)[:5]
    under = sum(r.ratio < below for r in good)
    print(f"\n{len(rows)} programs, {len(rows) - len(good)} that failed or differ; {mean:.2f}x XLA:CPU's speed as a")
    print(f"geometric mean, {under} below {below}. First calls {first:.1f} s, {first_xla:.1f} of XLA:CPU;")
    print("slowest beside XLA:CPU's: " + ", ".join(f"{name} {1 / ratio:.1f}x" for ratio, name in slow))


if __name__ == "__main__":
    sys.exit(main())
