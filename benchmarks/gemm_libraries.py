"""Which matrix product is the fastest where: Ferrule's own loops, those on AMX's tiles, SciPy's OpenBLAS, oneDNN.

Runs the runtime's library call "gemm" with FERRULE_GEMM=own, tiles, blas and onednn on the same operands, alternating,
and prints the median rate of each. With --one-thread the time is the process's CPU time on one thread, which other load
on the machine disturbs little. What `auto` is allowed to be is read off this table (native/gemm_library.cc).

    PYTHONPATH=src python benchmarks/gemm_libraries.py [--seconds 0.4] [--only f32] [--one-thread]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "native"))

from one_call import OneCall, aligned, tensor

bf16 = np.dtype(ml_dtypes.bfloat16)
SQUARE = [(1, n, n, n) for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)]
SHAPES = [
    *SQUARE,
    *[(1, 1, 4096, 1024), (1, 1024, 1, 4096), (1, 4, 4096, 1024), (1, 16, 4096, 1024), (1, 32, 4096, 1024)],
    *[(1, 64, 4096, 4096), (1, 128, 4096, 4096), (1, 512, 4096, 4096)],
    *[(96, 128, 64, 128), (96, 128, 128, 64), (512, 16, 16, 16), (1, 4096, 32, 256), (1, 64, 64, 8192)],
]
TYPES = {"f32": ("f", "f"), "f64": ("d", "d"), "bf16": (bf16, bf16), "i8": ("b", "i"), "c64": ("F", "F")}


def make(
    shape: tuple[int, int, int, int], inputs: object, out: object, choice: str, transposed: bool = False
) -> OneCall:
    batch, m, n, k = shape
    os.environ["FERRULE_GEMM"] = choice
    b_strides = (n * k, 1, k) if transposed else (n * k, n, 1)
    attrs = {"batch": batch, "m": m, "n": n, "k": k, "a_strides": (m * k, k, 1), "b_strides": b_strides}
    return OneCall(
        "gemm", [tensor((batch, m, k), inputs), tensor((batch, k, n), inputs)], [tensor((batch, m, n), out)], attrs
    )


def measure(
    candidates: dict[str, OneCall], inputs: list, outputs: list, seconds: float, clock: Callable[[], float]
) -> dict[str, tuple[float, float]]:
    """Median and least seconds of one run of each; the candidates take turns, so that load hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    repeats = {}
    for name, program in candidates.items():
        program.run(inputs, outputs)
        start = time.perf_counter()
        program.run(inputs, outputs)
        repeats[name] = max(1, int(0.002 / max(1e-6, time.perf_counter() - start)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, program in candidates.items():
            start = clock()
            for _ in range(repeats[name]):
                program.run(inputs, outputs)
            times[name].append((clock() - start) / repeats[name])
    return {name: (statistics.median(t), min(t)) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each line of the table")
    parser.add_argument("--only", default="", help="one type")
    parser.add_argument("--transposed", action="store_true", help="the second operand is stored as [n, k]")
    parser.add_argument("--choices", default="own,tiles,blas,onednn", help="what to compare; `auto` is what users get")
    parser.add_argument("--one-thread", action="store_true", help="CPU time of one thread instead of wall time of all")
    args = parser.parse_args()
    if args.one_thread:
        os.environ["FERRULE_NUM_THREADS"] = "1"
    clock = time.process_time if args.one_thread else time.perf_counter
    choices = args.choices.split(",")
    print("| type | batch m n k | " + " | ".join(choices) + " | (median GFLOP/s, best in brackets) |")
    rng = np.random.default_rng(0)
    for name, (inputs, out) in TYPES.items():
        if args.only and name != args.only:
            continue
        for shape in SHAPES:
            batch, m, n, k = shape
            a, b, d = aligned((batch, m, k), inputs), aligned((batch, k, n), inputs), aligned((batch, m, n), out)
            for x in (a, b):
                x[...] = (rng.standard_normal(x.shape) * 10).astype(inputs)
            candidates = {c: make(shape, inputs, out, c, args.transposed) for c in choices}
            if name not in ("bf16", "i8"):
                candidates.pop("tiles", None)
            if name == "bf16":
                candidates.pop("blas", None)
            if name in ("i8", "f64", "c64"):
                candidates.pop("blas" if name == "i8" else "onednn", None)
            times = measure(candidates, [a, b], [d], args.seconds, clock)
            work = 2 * batch * m * n * k * (4 if name == "c64" else 1) / 1e9
            cells = [f"{work / times[c][0]:.1f} ({work / times[c][1]:.0f})" if c in times else "-" for c in choices]
            print(f"| {name} | {batch} {m} {n} {k} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
