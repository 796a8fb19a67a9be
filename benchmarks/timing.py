"""How the benchmarks measure: interleaved rounds on several platforms, medians, ratios.

All platforms run in one process and take turns, so that a disturbance of the machine hits them alike. A figure is the
median over rounds of the time per call; compile time is the first call's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax


@dataclass
class Figure:
    """Seconds: of the first call (compile and run), and of each round's mean call."""

    first: float = 0.0
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def platforms() -> list[str]:
    """The platforms to compare: Ferrule when it is there, and XLA's CPU backend."""
    found = []
    for name in ("ferrule", "cpu"):
        try:
            jax.devices(name)
            found.append(name)
        except RuntimeError as error:
            print(f"skipping {name}: {error}")
    return found


def compare(
    function: Callable[..., Any],
    args: Sequence[Any],
    names: Sequence[str],
    seconds: float = 0.2,
    rounds: int = 7,
    **jit: Any,
) -> dict[str, Figure]:
    """Times the jitted function on each platform; donated arguments must be handed on by the function itself."""
    figures: dict[str, Figure] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for name in names:
        device = jax.devices(name)[0]
        placed = jax.device_put(args, device)
        compiled = jax.jit(function, **jit)
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*placed))
        figures[name] = Figure(time.perf_counter() - begin)
        calls[name] = lambda compiled=compiled, placed=placed: compiled(*placed)
    for _ in range(rounds):
        for name in names:
            call, figure = calls[name], figures[name]
            jax.block_until_ready(call())
            begin = time.perf_counter()
            jax.block_until_ready(call())
            once = max(time.perf_counter() - begin, 1e-7)
            count = max(1, min(10000, int(seconds / rounds / once)))
            begin = time.perf_counter()
            for _ in range(count):
                result = call()
            jax.block_until_ready(result)
            figure.rounds.append((time.perf_counter() - begin) / count)
    return figures
