"""How accurate the mathematical functions are: the largest error in ulp, on Ferrule and on XLA:CPU.

    python benchmarks/numerics.py [--quick] [--only NAME,…] [--types NAME,…] [--worse] [--write docs/numerics.md]

`--quick` takes fewer arguments and the main types (half a minute); `--worse` prints only the rows in which Ferrule is
behind, with the argument. What is tried stands in `numerics_arguments.py`, what the results should be in
`numerics_functions.py` (with mpmath, which `pip install '.[bench]'` brings), the values at special arguments in
`numerics_specials.py`, and sums in `numerics_sums.py`.
"""

from __future__ import annotations

import argparse
import os
import platform as machine
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "ferrule,cpu")
os.environ.setdefault("FERRULE_FLUSH_DENORMALS", "0")  # "normal" and "all" are told apart here

import ml_dtypes
import numerics_arguments as arguments
import numerics_specials as specials
import numerics_sums as sums
import numpy as np
import scipy
from numerics_functions import FUNCTIONS, Function
from timing import platforms

import jax

jax.config.update("jax_enable_x64", True)

DTYPES = [
    *("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4", "complex64", "complex128"),
]
QUICK = ["float32", "bfloat16"]
HEAD = """# Numerics

Errors of the mathematical functions in units in the last place (ulp) of the element type: 0.5 is the best that rounding
allows. "normal" leaves out arguments and results that are denormal; "all" has them too, as Ferrule computes with
`FERRULE_FLUSH_DENORMALS=0`: without, they count as zero on the CPU, as they do in XLA:CPU. `inf` is a NaN, an infinity
or a zero where there should be a number, or the other way round; `-` means that the platform refuses the program.

For complex numbers, "whole" is the distance from the true value in ulp of its magnitude, and "parts" the larger error
of the real and the imaginary part, each in its own ulp: one that is much smaller than the other is hard to get right.

Where a function crosses zero away from the origin (lgamma, digamma), its error is small against the terms that cancel
there, not against the result.

"""


@dataclass
class Measured:
    """The largest errors of one function on one platform, and the arguments of the first of them."""

    figures: tuple[float, float]
    at: str


def errors(got: np.ndarray, want: np.ndarray, dtype: np.dtype, size: np.ndarray | None = None) -> np.ndarray:
    """Each element's error in ulp of the type at `size` (or at the true value); equal NaNs and infinities have none."""
    info = ml_dtypes.finfo(dtype)
    top = float(info.max)
    with np.errstate(all="ignore"):
        got = got.astype(want.dtype)
        rounded = _rounded(want, dtype)
        finite = np.isfinite(want)
        size = want if size is None else size
        exponent = np.maximum(np.frexp(np.where(np.isfinite(size), size, 1))[1] - 1, info.minexp)
        error = np.abs(got - want) / np.ldexp(np.ones_like(want), exponent - info.nmant)
        # Where the true value rounds to infinity, the largest number is one step away, and the other way round.
        edge = (np.isinf(got) | np.isinf(rounded)) & (np.abs(np.where(np.isinf(got), want, got)) > top * 0.999)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(np.isfinite(error), error, np.where(edge, 1, np.inf))
    return np.where(same, np.where(finite, np.minimum(error, 0.5), 0), error)


def _rounded(want: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The true values as the type has them."""
    narrow = want.astype(np.float64).astype(dtype) if dtype.itemsize < 4 else want.astype(dtype)
    return narrow.astype(want.dtype)


def _usual(values: Sequence[np.ndarray], tiny: float) -> np.ndarray:
    """Which elements are zero or normal numbers in all of these (or infinite or NaN)."""
    ok = np.ones(values[0].shape, bool)
    with np.errstate(all="ignore"):
        for value in values:
            size = np.abs(value)
            ok &= ~(size < tiny) | (size == 0)
    return ok


def measure(function: Function, dtype: np.dtype, platform: str, xs: Sequence[np.ndarray], want: np.ndarray) -> Measured:
    """Normal and all for real numbers, whole and parts for complex ones."""
    try:
        with jax.default_device(jax.devices(platform)[0]):
            got = np.asarray(jax.jit(function.call)(*xs))
    except jax.errors.JaxRuntimeError as error:
        return Measured((np.nan, np.nan), str(error).splitlines()[0])
    info = arguments.info(dtype)
    tiny, top = float(info.tiny), float(info.max)
    if dtype.kind != "c":
        error = errors(got, want, dtype)
        # A zero where the true value is not is a denormal's matter.
        with np.errstate(all="ignore"):
            usual = _usual([x.astype(np.float64) for x in xs], tiny) & (~(np.abs(want) < tiny) | (want == 0))
        first, second = np.where(usual, error, 0), error
    else:
        one = arguments.part(dtype)
        size = np.abs(want)
        both = [(got.real, want.real), (got.imag, want.imag)] if np.iscomplexobj(want) else [(got, want)]
        parts = [errors(g, w, one) for g, w in both]
        with np.errstate(all="ignore"):
            total = np.sqrt(sum(errors(g, w, one, size) ** 2 for g, w in both))
        inside = (size < top / 4) & (size > tiny)
        ok = inside & _usual([p for x in xs for p in (x.real, x.imag)], tiny)
        first = np.where(ok, total, 0)
        small = np.any([(np.abs(w) < tiny) & (w != 0) for _, w in both], axis=0)
        second = np.where(ok & ~small, np.max(parts, axis=0), 0)
    k = int(np.argmax(first))
    k2 = int(np.argmax(second))
    text = "; ".join(f"{', '.join(str(x[i]) for x in xs)} → {got[i]}, not {want[i]}" for i in dict.fromkeys((k, k2)))
    return Measured((float(first[k]), float(second[k2])), text)


def truth(name: str, dtype: np.dtype, quick: bool) -> tuple[list[np.ndarray], np.ndarray] | None:
    """The arguments to try and the true values there; None if the function is not defined for the type."""
    function = FUNCTIONS[name]
    if dtype.kind == "c":
        if function.complex is None:
            return None
        slow = function.complex.__qualname__.startswith("_each")
        if function.operands == 1:
            xs = [arguments.unary(dtype, quick or slow)]
        else:
            xs = list(arguments.binary(dtype, quick or slow, name))
        with np.errstate(all="ignore"):
            return xs, function.complex(*(x.astype(np.clongdouble) for x in xs))
    reference: object = function.reference
    double = dtype == np.float64
    if double and not function.exact:
        if function.digits is None:
            return None
        reference = function.digits
    if reference is None and name != "next_after":
        return None
    if function.operands == 2:
        xs = list(arguments.binary(dtype, quick or (double and not function.exact), name))
        if double and not function.exact:
            xs = [x[:: max(1, len(x) // 800)] for x in xs]
    else:
        xs = [arguments.unary(dtype, quick)]
        if double and not function.exact:
            xs = [arguments.few(dtype, 800 if quick else 4000)]
    wide = np.longdouble if double else np.float64
    with np.errstate(all="ignore"):
        if name == "next_after":
            return (xs, np.nextafter(*xs).astype(wide)) if dtype.itemsize >= 4 else None
        want = np.asarray(reference(*(x.astype(np.float64 if not function.exact else wide) for x in xs)))  # type: ignore
    return xs, want.astype(wide)


def spelled(value: float) -> str:
    return "-" if np.isnan(value) else "inf" if np.isinf(value) else f"{value:.2f}" if value < 100 else f"{value:.1e}"


def tables(names: Sequence[str], types: Sequence[str], quick: bool, worse: bool) -> list[str]:
    places = platforms()
    text = []
    for type_name in types:
        dtype = np.dtype(getattr(ml_dtypes, type_name, type_name))
        kinds = ("whole", "parts") if dtype.kind == "c" else ("normal", "all")
        title = " | ".join(f"{'XLA:CPU' if p == 'cpu' else p.capitalize()}, {kind}" for p in places for kind in kinds)
        lines = [f"## {dtype.name}", "", f"| function | {title} |", f"| --- |{' ---: |' * (2 * len(places))}"]
        print("\n".join(lines))
        for name in names:
            found = truth(name, dtype, quick)
            if found is None:
                continue
            row = [measure(FUNCTIONS[name], dtype, p, *found) for p in places]
            figures = [spelled(v) for m in row for v in m.figures]
            lines.append(f"| {name} | {' | '.join(figures)} |")
            behind = len(row) == 2 and any(a > b * 1.01 + 0.005 for a, b in zip(*(m.figures for m in row), strict=True))
            if behind or not worse:
                print(lines[-1], flush=True)
            if worse and behind:
                print(f"    {row[0].at}", flush=True)
        text.append("\n".join(lines))
    return text


def versions(command: str) -> str:
    import jaxlib

    import ferrule

    cpu = next((line.split(": ")[1] for line in _cpuinfo() if line.startswith("model name")), machine.machine())
    return (
        f"Written on {time.strftime('%Y-%m-%d')} by `{command}`:\n"
        f"Ferrule {ferrule.__version__}, jax {jax.__version__}, "
        f"jaxlib {jaxlib.__version__}, NumPy {np.__version__}, SciPy {scipy.__version__}, {cpu.strip()}.\n\n"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of functions, separated by commas")
    parser.add_argument("--types", default="", help="names of types, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer arguments and types")
    parser.add_argument("--worse", action="store_true", help="show only rows in which Ferrule is behind XLA:CPU")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FUNCTIONS)
    types = options.types.split(",") if options.types else QUICK if options.quick else DTYPES
    text = tables(names, types, options.quick, options.worse)
    if not options.only and not options.worse and not options.types:
        for more in (specials.tables(platforms(), options.quick), sums.tables(platforms(), options.quick)):
            print(more)
            text.append(more)
    if options.write:
        head = HEAD + versions("python benchmarks/numerics.py --write docs/numerics.md")
        options.write.write_text(head + "\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
