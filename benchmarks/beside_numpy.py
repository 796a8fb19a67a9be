"""Ferrule's cpu target beside NumPy and SciPy on some 230 operations (`sweeps/numpy_pairs.py`).

    python benchmarks/beside_numpy.py [WORD …] [--below 0.95] [--all]

Both run in one process, one after the other: the threads of NumPy's BLAS wait for work in loops for a while, which
takes the time of ours. A time is the median of several calls. What comes out below `--below` is measured a second
time, and printed where it is below again. Results are compared. Both use a thread for each core where they use threads.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from sweep import different
from sweeps.numpy_pairs import Pair, pairs

import jax

SECONDS, REST = 0.05, 0.1  # of calls of each, and of waiting before them
TOLERANCE = 1e-2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of names; default: everything")
    parser.add_argument("--below", type=float, default=0.95, help="the ratio to NumPy's speed to look at")
    parser.add_argument("--all", action="store_true", help="print every pair")
    options = parser.parse_args()
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "ferrule,cpu")
    ratios = []
    for pair in pairs():
        if options.words and not any(w.lower() in pair.name.lower() for w in options.words):
            continue
        ours, theirs, said = look(pair, options.below)
        if not said:
            ratios.append(theirs / ours)
        if options.all or said or ratios[-1] < options.below:
            print(f"{pair.name:40s} " + (said or f"{ours:9.1f} us {theirs:9.1f}  {ratios[-1]:5.2f}"), flush=True)
    if not ratios:
        raise SystemExit("nothing was measured")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    under = sum(r < options.below for r in ratios)
    print(f"\n{len(ratios)} operations; {mean:.2f}x NumPy's speed as a geometric mean, {under} below {options.below}.")
    return 0


def look(pair: Pair, below: float) -> tuple[float, float, str]:
    """Microseconds of a call of each, and what is wrong."""
    try:
        arguments = pair.arguments()
        placed = jax.device_put(arguments, jax.devices()[0])
        compiled, function = jax.jit(pair.function()), pair.numpy_function()
        found, wanted = np.asarray(compiled(*placed)), np.asarray(function(*arguments))
        said = different([found.astype(wanted.dtype)], [wanted], TOLERANCE)
        times = [median(lambda: compiled(*placed)), median(lambda: function(*arguments))]
        if times[1] / times[0] < below:
            again = [median(lambda: compiled(*placed)), median(lambda: function(*arguments))]
            times = min(times, again, key=lambda t: t[0] / t[1])
        return times[0], times[1], said.replace("XLA's", "NumPy's")
    except Exception as error:  # the others go on
        return 0.0, 0.0, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"


def median(call: Callable[[], Any]) -> float:
    time.sleep(REST)
    jax.block_until_ready(call())
    times: list[float] = []
    while len(times) < 5 or sum(times) < SECONDS:
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
