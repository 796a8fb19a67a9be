"""Ferrule's cpu target beside PyTorch on some 300 operations (`sweeps/pytorch.py`), as one calls them: eagerly there.

    python benchmarks/beside_pytorch.py [WORD …] [--below 0.95] [--all]

Both run in one process and take turns; a time is the least of several rounds. What comes out below `--below` is
measured a second time, and printed where it is below again. Results are compared. Both use a thread for each core.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from sweep import different, take_turns
from sweeps.pytorch import Pair, pairs

import jax


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of names; default: everything")
    parser.add_argument("--below", type=float, default=0.95, help="the ratio to PyTorch's speed to look at")
    parser.add_argument("--all", action="store_true", help="print every pair")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        raise SystemExit("this needs PyTorch: pip install torch") from None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "ferrule,cpu")
    ratios = []
    for pair in pairs():
        if options.words and not any(w.lower() in pair.name.lower() for w in options.words):
            continue
        ours, theirs, said = look(pair, torch, options.below)
        if not said:
            ratios.append(theirs / ours)
        if options.all or said or ratios[-1] < options.below:
            print(f"{pair.name:60s} " + (said or f"{ours:9.1f} us {theirs:9.1f}  {ratios[-1]:5.2f}"), flush=True)
    if not ratios:
        raise SystemExit("nothing was measured")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    under = sum(r < options.below for r in ratios)
    print(
        f"\n{len(ratios)} operations; {mean:.2f}x PyTorch's speed as a geometric mean, {under} below {options.below}."
    )
    return 0


def look(pair: Pair, torch: Any, below: float) -> tuple[float, float, str]:
    """Microseconds of a call of each, and what is wrong."""
    try:
        arguments = pair.arguments()
        placed = jax.device_put(arguments, jax.devices()[0])
        tensors = [torch.from_numpy(a.copy()) for a in arguments]
        compiled, theirs = jax.jit(pair.function), pair.torch_function(torch)
        with torch.no_grad():
            found, wanted = np.asarray(compiled(*placed)), theirs(*tensors)
            wanted = wanted.numpy() if wanted.is_complex() else wanted.double().numpy()  # NumPy has no bf16
            said = different([found.astype(wanted.dtype)], [wanted], pair.tolerance)
            calls = (lambda: compiled(*placed), lambda: theirs(*tensors))
            times = take_turns(calls)
            if times[1] / times[0] < below:
                times = min(times, take_turns(calls), key=lambda t: t[0] / t[1])
        return times[0], times[1], said.replace("XLA's", "PyTorch's")
    except Exception as error:  # the others go on
        return 0.0, 0.0, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"


if __name__ == "__main__":
    sys.exit(main())
