"""The plot: how many times faster Ferrule is than XLA:CPU, case by case, sorted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.engines import TITLES
from harness.report import geometric_mean, ratio


def plot(rows: Sequence[dict[str, Any]], path: Path, other: str = "xla") -> None:
    import matplotlib

    matplotlib.use("svg")
    # Text as text: small, and the file of an unchanged run is unchanged.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ferrule", "font.size": 7})
    from matplotlib import pyplot

    found = [(r, f"{row['area']}: {row['name']}") for row in rows if (r := ratio(row["figures"], other)) is not None]
    if not found:
        raise ValueError(f"no case has figures of Ferrule and {TITLES[other]}: there is nothing to draw")
    found.sort()
    values = [value for value, _ in found]
    mean = geometric_mean(values)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.13 * len(found)), layout="constrained")
    # Bars begin at 1: to the right Ferrule is faster, to the left slower.
    colors = ["#b5523b" if v < 0.9 else "#9a9a9a" if v < 1.1 else "#3b7a57" for v in values]
    axes.barh(range(len(found)), [v - 1 for v in values], left=1, color=colors, height=0.7)
    axes.set_xscale("log")
    axes.set_yticks(range(len(found)), [name for _, name in found])
    axes.set_ylim(-0.8, len(found) - 0.2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.axvline(mean, color="#3b5f9a", linewidth=0.8, linestyle="--")
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if min(values) / 2 <= t <= 2 * max(values)]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="x", labeltop=True, top=True)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_title(f"{TITLES[other]}'s time over Ferrule's; geometric mean of {len(found)} cases {mean:.2f}× (dashed)")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
