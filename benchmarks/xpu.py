"""The xpu target beside the cpu target: kernels, library calls, and what launching costs.

    python benchmarks/xpu.py [--only WORD] [--write docs/performance.md]

On a machine without an Intel GPU, xpu is the SYCL CPU device: the same cores as the cpu target, through SPIR-V, Intel's
OpenCL runtime and SYCL queues. Then a ratio says what that way costs; it says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "xpu,ferrule,cpu")

import jax.numpy as jnp
import numpy as np
from timing import Figure, compare

import ferrule
import jax
from ferrule.program import MAGIC, Launch, Program

XPU, CPU = "xpu", "ferrule"
ferrule.register_jax(XPU, target="xpu")
ferrule.register_jax(CPU, target="cpu")
Case = tuple[Callable[..., Any], tuple[Any, ...], float]  # function, arguments, bytes or operations of one call


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.RandomState(0).standard_normal(shape).astype(dtype)


def streams() -> dict[str, Case]:
    """What is bounded by memory: bytes that must move."""
    large, square = normal(1 << 24), normal(4096, 4096)
    rows = normal(4096, 1024)
    gather = np.random.RandomState(1).randint(0, 1 << 20, 1 << 20).astype(np.int32)
    mega = 1 << 20
    return {
        "2·x + 1 of 16 M floats": (lambda x: 2 * x + 1, (large,), 128 * mega),
        "x + y of 16 M floats": (lambda x, y: x + y, (large, large[::-1].copy()), 192 * mega),
        "exp(-x²) of 4 M floats": (lambda x: jnp.exp(-x * x), (large[: 4 * mega],), 32 * mega),
        "x·2 of 16 M bf16": (lambda x: x * 2, (large.astype(jnp.bfloat16),), 64 * mega),
        "sum of 16 M floats": (jnp.sum, (large,), 64 * mega),
        "sum of each row, 4096 × 4096": (lambda x: x.sum(1), (square,), 64 * mega),
        "sum of each column, 4096 × 4096": (lambda x: x.sum(0), (square,), 64 * mega),
        "argmax of each row, 4096 × 4096": (lambda x: x.argmax(1), (square,), 64 * mega),
        "softmax of 4096 × 1024": (lambda x: jax.nn.softmax(x, axis=-1), (rows,), 32 * mega),
        "layer norm of 4096 × 1024": (
            lambda x: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
            (rows,),
            32 * mega,
        ),
        "transpose 4096 × 4096": (lambda x: x.T + 0, (square,), 128 * mega),
        "cumsum of 1 M floats": (jnp.cumsum, (large[:mega],), 8 * mega),
        "gather of 1 M floats": (lambda x, i: x[i], (large[:mega], gather), 12 * mega),
        "sort of 1 M floats": (jnp.sort, (large[:mega],), 8 * mega),
        "random normal 1 M": (lambda k: jax.random.normal(k, (mega,)), (np.array([0, 1], np.uint32),), 4 * mega),
    }


def products() -> dict[str, Case]:
    """What is bounded by arithmetic: operations."""

    def square(n: int, dtype: Any) -> Case:
        return lambda x, y: x @ y, (normal(n, n, dtype=dtype), normal(n, n, dtype=dtype)), 2.0 * n**3

    def conv(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    batch = (normal(96, 128, 64), normal(96, 64, 128))
    image, weights = normal(8, 56, 56, 64), normal(3, 3, 64, 64)
    return {
        "matmul 512³ f32": square(512, np.float32),
        "matmul 1024³ f32": square(1024, np.float32),
        "matmul 1024³ bf16": square(1024, jnp.bfloat16),
        "96 matmuls of 128 × 64 × 128": (lambda x, y: x @ y, batch, 2.0 * 96 * 128 * 64 * 128),
        "relu(x @ w + b), 1024³": (
            lambda x, w, b: jax.nn.relu(x @ w + b),
            (normal(1024, 1024), normal(1024, 1024), normal(1024)),
            2.0 * 1024**3,
        ),
        "conv 3×3, 8 × 56 × 56 × 64 f32": (conv, (image, weights), 2.0 * 8 * 56 * 56 * 9 * 64 * 64),
    }


def factors() -> dict[str, Case]:
    """Transforms and factorizations: operations of the usual counts (a complex FFT 5·n·log₂ n)."""
    square, plane = normal(512, 512), normal(512, 512, 2).view(np.complex64)[..., 0]
    lines = normal(64, 4096, 2).view(np.complex64)[..., 0]
    positive, symmetric = (
        square @ square.T / 512 + np.eye(512, dtype=np.float32),
        square[:256, :256] + square[:256, :256].T,
    )
    return {
        "FFT of 64 × 4096": (jnp.fft.fft, (lines,), 5 * 64 * 4096 * 12.0),
        "FFT of 512²": (jnp.fft.fft2, (plane,), 5 * 512 * 512 * 18.0),
        "Cholesky 512": (jnp.linalg.cholesky, (positive,), 512**3 / 3),
        "triangular solve 512³": (
            lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
            (positive, square),
            512.0**3,
        ),
        "solve 512, 16 columns": (jnp.linalg.solve, (square, normal(512, 16)), 512**3 * 2 / 3 + 32 * 512.0**2),
        "eigh 256": (jnp.linalg.eigh, (symmetric,), 9 * 256.0**3),
    }


def chain(length: int) -> Callable[..., Any]:
    """Kernels that need each other's results, kept apart by barriers."""

    def run(x: Any) -> Any:
        for _ in range(length):
            x = jax.lax.optimization_barrier(jnp.flip(x) * 0.5)
        return x

    return run


def launches(function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """How many kernels the compiled program starts on the device."""
    device = jax.devices(XPU)[0]
    compiled = jax.jit(function).lower(*jax.device_put(args, device)).compile()
    saved = device.client.serialize_executable(compiled.runtime_executable())
    program = Program.deserialize(saved[saved.index(MAGIC) :])
    return sum(isinstance(step, Launch) for block in program.blocks for step in block)


def launch_costs() -> list[str]:
    """µs per call of an almost empty program, and per kernel of a chain (by the difference of two lengths)."""
    small = normal(1024)
    one = compare(lambda x: x + 1, (small[:4],), (XPU, CPU), seconds=1.0)
    short, long = chain(20), chain(220)
    kernels = launches(long, (small,)) - launches(short, (small,))
    figures = [compare(f, (small,), (XPU, CPU), seconds=1.0) for f in (short, long)]

    def each(name: str) -> float:
        return (figures[1][name].median - figures[0][name].median) / kernels

    wide = tuple(small + i for i in range(64))
    apart = compare(lambda *xs: [x - x.sum() for x in xs], wide, (XPU, CPU), seconds=1.0)
    count = launches(lambda *xs: [x - x.sum() for x in xs], wide)
    lines = [
        ("a program of one kernel", one[XPU].median, one[CPU].median),
        (f"each kernel in a chain of {kernels}", each(XPU), each(CPU)),
        (f"each kernel of {count} that depend on few others", apart[XPU].median / count, apart[CPU].median / count),
    ]
    return ["| launch | xpu, µs | cpu, µs |", "|---|---|---|"] + [
        f"| {name} | {a * 1e6:.1f} | {b * 1e6:.1f} |" for name, a, b in lines
    ]


def row(name: str, figures: dict[str, Figure], work: float, unit: str) -> str:
    xpu, cpu = figures[XPU], figures[CPU]
    rates = [f"{work / f.median / 1e9:.4g}" for f in (xpu, cpu)]
    first = f"{xpu.first:.2f} | {cpu.first:.2f}"
    return f"| {name} | {rates[0]} | {rates[1]} | {unit} | {cpu.median / xpu.median:.2f}× | {first} |"


HEADER = [
    "| kernel | xpu | cpu | | xpu / cpu | xpu first call, s | cpu first call, s |",
    "|---|---|---|---|---|---|---|",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring for each case and target")
    parser.add_argument("--write", type=Path, help="a page with the marks `<!-- xpu -->` and `<!-- end xpu -->`")
    options = parser.parse_args()
    device = jax.devices(XPU)[0]
    assert device.target == "xpu" and jax.devices(CPU)[0].target == "cpu"
    lines = [f"Device: {device.device_kind}.", "", *HEADER]
    print("\n".join(lines), flush=True)
    for cases, unit in ((streams(), "GB/s"), (products(), "GFLOP/s"), (factors(), "GFLOP/s")):
        for name, (function, args, work) in cases.items():
            if options.only not in name:
                continue
            try:
                line = row(name, compare(function, args, (XPU, CPU), options.seconds), work, unit)
            except jax.errors.JaxRuntimeError as error:
                line = f"| {name} | {str(error).splitlines()[0][:80]} |"
            lines.append(line)
            print(line, flush=True)
    if not options.only or options.only in "launch":
        costs = ["", *launch_costs()]
        lines += costs
        print("\n".join(costs))
    if options.write:
        page = options.write.read_text()
        head, _, rest = page.partition("<!-- xpu -->\n")
        _, _, tail = rest.partition("<!-- end xpu -->")
        options.write.write_text(head + "<!-- xpu -->\n" + "\n".join(lines) + "\n<!-- end xpu -->" + tail)
    return 0


if __name__ == "__main__":
    sys.exit(main())
