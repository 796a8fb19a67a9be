"""What was measured, as JSON, as Markdown tables, and in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.engines import TITLES
from harness.turns import Figure

SMALL = 64 << 10  # bytes of temporaries that do not matter
BEGIN, END = "<!-- cases -->", "<!-- end cases -->"


def duration(seconds: float) -> str:
    """Three digits with a unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            return f"{seconds / scale:.3g} {unit}"
    raise AssertionError


def ratio(figures: dict[str, Figure], other: str, ours: str = "ferrule") -> float | None:
    """How many times faster Ferrule is; None without both figures."""
    a, b = figures.get(ours), figures.get(other)
    return b.seconds / a.seconds if a and b and a.seconds and b.seconds else None


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if figure.wrong:
        return f"**wrong** ({figure.error:.1g})"
    if figure.said:
        return "cut" if figure.said.startswith("cut") else "failed"
    return duration(figure.seconds)


def table(rows: Sequence[dict[str, Any]], engines: Sequence[str]) -> str:
    """One area: times, ratios to Ferrule's, fraction of the limit, first calls, errors."""
    others = [e for e in engines if e != "ferrule"]
    head = ["case", *(TITLES[e] for e in engines), *(f"{TITLES[e]} / Ferrule" for e in others)]
    head += ["of limit", "first call: Ferrule", "warm", "XLA:CPU", "error: Ferrule", "XLA:CPU"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        figures: dict[str, Figure] = row["figures"]
        ours, xla = figures.get("ferrule"), figures.get("xla")
        cells = [row["name"], *(cell(figures.get(e)) for e in engines)]
        for other in others:
            value = ratio(figures, other)
            cells.append("" if value is None else f"{value:.2f}×")
        cells.append(f"{row['limit'] / ours.seconds:.0%}" if ours and ours.seconds and row.get("limit") else "")
        cells.append(duration(ours.first) if ours and ours.first else "")
        cells.append(duration(ours.warm) if ours and ours.warm else "")
        cells.append(duration(xla.first) if xla and xla.first else "")
        cells += [f"{f.error:.1g}" if f and f.error is not None else "" for f in (ours, xla)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[dict[str, Any]], engines: Sequence[str]) -> list[str]:
    """Geometric means and totals."""
    lines = []
    for other in engines:
        ratios = [r for row in rows if other != "ferrule" and (r := ratio(row["figures"], other)) is not None]
        if ratios:
            below = sum(r < 0.9 for r in ratios)
            mean = geometric_mean(ratios)
            lines.append(
                f"{TITLES[other]}'s time over Ferrule's, geometric mean of {len(ratios)} cases: {mean:.2f}×; "
                f"{below} below 0.9."
            )
    both = [row["figures"] for row in rows if ratio(row["figures"], "xla") is not None]
    if both:
        ours, xla = (sum(f[e].compile for f in both) for e in ("ferrule", "xla"))
        lines.append(
            f"Cold compiles of these cases in total: Ferrule {ours:.1f} s, XLA:CPU {xla:.1f} s ({ours / xla:.2f})."
        )
        warm = [f["ferrule"] for f in both if f["ferrule"].warm]
        if warm:
            cold, hot = sum(f.compile for f in warm), sum(f.warm_compile for f in warm)
            lines.append(f"With Ferrule's cache on disk: {hot:.1f} s in place of {cold:.1f} s ({hot / cold:.0%}).")
        alone = [f["ferrule"] for f in both if f["ferrule"].warm_alone]
        if alone:
            cold, hot = sum(f.alone for f in alone), sum(f.warm_alone for f in alone)
            lines.append(
                f"Of these, what the plugin itself takes (PJRT_Client_Compile, without JAX's conversion before it): "
                f"{hot:.2f} s in place of {cold:.1f} s ({hot / cold:.0%})."
            )
        pairs = [(f["ferrule"].temporaries, f["xla"].temporaries) for f in both]
        ours, xla = map(sum, zip(*pairs, strict=True))
        more = sum(a > 1.5 * b + SMALL for a, b in pairs)
        lines.append(
            f"Memory planned for temporaries, in total: Ferrule {ours / 1e6:.0f} MB, XLA:CPU {xla / 1e6:.0f} MB; "
            f"more than half as much again as XLA:CPU's in {more} of {len(both)}."
        )
        errors = [(a, b) for f in both if (a := f["ferrule"].error) is not None and (b := f["xla"].error) is not None]
        if errors:
            better = sum(a <= 1.5 * b + 1e-9 for a, b in errors)
            lines.append(f"Errors against the reference: at most 1.5 times XLA:CPU's in {better} of {len(errors)}.")
    return lines


def remarks(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The sentences that stand in place of figures."""
    found = []
    for row in rows:
        for engine, figure in row["figures"].items():
            if figure.said:
                found.append(f"{row['area']}, {row['name']}: {TITLES[engine]}: {figure.said}")
        if row["said"]:
            found.append(f"{row['area']}, {row['name']}: {row['said']}")
    return found


def sorted_ratios(rows: Sequence[dict[str, Any]], other: str = "xla") -> str:
    """Slowest first, for whoever wants to know what to do next."""
    lines = []
    for row in rows:
        value = ratio(row["figures"], other)
        if value is not None:
            f = row["figures"]
            share = f"{row['limit'] / f['ferrule'].seconds:.0%}" if row.get("limit") else "-"
            pair = f"{duration(f['ferrule'].seconds):>9} {duration(f[other].seconds):>9}"
            compiles = f"{f['ferrule'].compile:6.2f} {f[other].compile:6.2f}"
            lines.append((value, f"{value:8.2f}× {pair}  {share:>6}  {compiles} s  {row['area']}: {row['name']}"))
    head = f"{'ratio':>9} {'Ferrule':>9} {TITLES[other]:>9}  {'limit':>6}  compile: Ferrule, {TITLES[other]}"
    return "\n".join([head, *(line for _, line in sorted(lines))])


def markdown(rows: Sequence[dict[str, Any]], engines: Sequence[str], facts: Sequence[str], picture: str) -> str:
    parts = [f"![XLA:CPU's time over Ferrule's, case by case]({picture})"] if picture else []
    parts.append("\n".join(f"* {line}" for line in [*facts, *summary(rows, engines)]))
    for area in dict.fromkeys(row["area"] for row in rows):
        parts.append(f"### {area}\n\n" + table([r for r in rows if r["area"] == area], engines))
    said = remarks(rows)
    if said:
        parts.append("### What has no figure\n\n" + "\n".join(f"* {line}" for line in said))
    return "\n\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replaces what stands between the markers."""
    old = path.read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{path} lacks the markers {BEGIN} and {END}")
    before, after = old.split(BEGIN)[0], old.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
