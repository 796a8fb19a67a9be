"""What a call costs when there is nothing to compute: `jit(x + 1)` on 4 floats, and with 100 arguments.

    python benchmarks/dispatch.py

Needs the `ferrule` platform and XLA's CPU backend in one process: JAX_PLATFORMS=ferrule,cpu (set here).
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "ferrule,cpu")

import numpy as np
from timing import compare, platforms


def main() -> int:
    names = platforms()
    one = (np.zeros(4, np.float32),)
    many = tuple(np.zeros(4, np.float32) for _ in range(100))
    cases = {
        "jit(x + 1), 4 floats": (lambda x: x + 1, one),
        "100 arguments, 1 result": (lambda *xs: xs[0] + xs[99], many),
        "10 results": (lambda x: tuple(x + i for i in range(10)), one),
    }
    print("| call | Ferrule, µs | XLA:CPU, µs | Ferrule / XLA |\n|---|---|---|---|")
    for name, (function, args) in cases.items():
        figures = compare(function, args, names, seconds=1.0, rounds=15, keep_unused=True)
        times = {p: f.median * 1e6 for p, f in figures.items()}
        ratio = f"{times['ferrule'] / times['cpu']:.2f}" if len(times) == 2 else "-"
        print(f"| {name} | {times.get('ferrule', float('nan')):.2f} | {times.get('cpu', float('nan')):.2f} | {ratio} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
