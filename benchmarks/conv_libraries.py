"""Convolutions of ResNet-50 and their gradients: Ferrule's own paths against oneDNN.

Like gemm_libraries.py: the runtime's call "conv" with FERRULE_CONV=own (patches), windows and onednn takes turns on the
same operands; where there is no such path, own takes its place.

    PYTHONPATH=src python benchmarks/conv_libraries.py [--layout NCHW] [--type bf16] [--one-thread]
"""

from __future__ import annotations

import argparse
import os
import time

import ml_dtypes
import numpy as np
from gemm_libraries import measure
from one_call import OneCall, aligned, tensor

# batch, features in, size, features out, kernel, stride, padding, groups
FORWARD = [
    *[(8, 3, 224, 64, 7, 2, 3, 1), (8, 64, 56, 64, 1, 1, 0, 1), (8, 64, 56, 64, 3, 1, 1, 1)],
    *[(8, 256, 56, 128, 1, 1, 0, 1), (8, 128, 56, 128, 3, 2, 1, 1), (8, 128, 28, 128, 3, 1, 1, 1)],
    *[(8, 256, 14, 256, 3, 1, 1, 1), (8, 1024, 14, 256, 1, 1, 0, 1), (8, 512, 7, 512, 3, 1, 1, 1)],
    *[(8, 96, 56, 96, 3, 1, 1, 96), (1, 1, 28, 32, 3, 1, 0, 1)],
    *[(1, 64, 56, 64, 3, 1, 1, 1), (1, 128, 28, 128, 3, 1, 1, 1), (1, 256, 14, 256, 3, 1, 1, 1)],
    *[(1, 512, 7, 512, 3, 1, 1, 1), (8, 512, 14, 512, 3, 1, 1, 32), (32, 64, 8, 64, 3, 1, 1, 1)],
]


def attributes(layout: str, stride: int, padding: tuple[int, int], dilation: tuple[int, int], groups: int) -> dict:
    last = layout == "NHWC"
    spatial = (1, 2) if last else (2, 3)
    return {
        **{"window_strides": (stride, stride), "padding": padding * 2, "lhs_dilation": (dilation[0],) * 2},
        **{"rhs_dilation": (dilation[1],) * 2, "window_reversal": (0, 0)},
        **{"feature_group_count": groups, "batch_group_count": 1, "input_batch_dimension": 0},
        **{"input_feature_dimension": 3 if last else 1, "input_spatial_dimensions": spatial},
        **{"output_batch_dimension": 0, "output_feature_dimension": 3 if last else 1},
        **{"output_spatial_dimensions": spatial, "kernel_spatial_dimensions": (0, 1) if last else (2, 3)},
        **{"kernel_input_feature_dimension": 2 if last else 1, "kernel_output_feature_dimension": 3 if last else 0},
    }


def cases(layout: str) -> list[tuple[str, tuple, tuple, tuple, dict, float]]:
    """(name, input, kernel, output, attributes, operations) of each convolution and of its two gradients."""
    found = []

    def image(n: int, c: int, h: int) -> tuple:
        return (n, h, h, c) if layout == "NHWC" else (n, c, h, h)

    for n, c, h, o, k, s, p, g in FORWARD:
        out = (h + 2 * p - k) // s + 1
        work = 2.0 * n * out * out * o * (c // g) * k * k / 1e9
        kernel = (k, k, c // g, o) if layout == "NHWC" else (o, c // g, k, k)
        name = f"{n}x{c}x{h} -> {o}, {k}x{k}/{s}" + (f", {g} groups" if g > 1 else "")
        at = attributes(layout, s, (p, p), (1, 1), g)
        found.append((name, image(n, c, h), kernel, image(n, o, out), at, work))
        if g > 1:
            continue
        if s > 1:  # the gradient of the input, as JAX writes it
            low, high = k - 1 - p, h + p - 1 - (out - 1) * s
            at = attributes(layout, 1, (low, high), (s, 1), 1)
            back = (k, k, o, c) if layout == "NHWC" else (c, o, k, k)
            found.append((name + " d/d input", image(n, o, out), back, image(n, c, h), at, work))
        # The gradient of the kernel: batch and features change places.
        high = (out - 1) * s + k - h - p
        at = attributes(layout, 1, (p, high), (1, s), 1)
        at |= {"input_batch_dimension": at["input_feature_dimension"], "input_feature_dimension": 0}
        at |= {"kernel_input_feature_dimension": 0, "kernel_output_feature_dimension": 3 if layout == "NHWC" else 1}
        at |= {"kernel_spatial_dimensions": at["input_spatial_dimensions"]}
        at |= {"output_batch_dimension": 2 if layout == "NHWC" else 1}
        at |= {"output_feature_dimension": 3 if layout == "NHWC" else 0}
        at |= {"output_spatial_dimensions": (0, 1) if layout == "NHWC" else (2, 3)}
        found.append((name + " d/d kernel", image(n, c, h), image(n, o, out), kernel, at, work))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each line of the table")
    parser.add_argument("--layout", default="NHWC", choices=["NHWC", "NCHW"])
    parser.add_argument("--type", default="f32", choices=["f32", "f64", "bf16"])
    parser.add_argument("--choices", default="own,windows,onednn", help="values of FERRULE_CONV, by commas")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--one-thread", action="store_true", help="CPU time of one thread instead of wall time of all")
    args = parser.parse_args()
    if args.one_thread:
        os.environ["FERRULE_NUM_THREADS"] = "1"
    clock = time.process_time if args.one_thread else time.perf_counter
    dtype = np.dtype({"f32": "f", "f64": "d"}.get(args.type) or ml_dtypes.bfloat16)
    rng = np.random.default_rng(0)
    choices = args.choices.split(",")
    print(f"| {args.type} {args.layout} | {' | '.join(choices)} | (median GFLOP/s, best in brackets) |")
    for name, lhs, rhs, out, at, work in cases(args.layout):
        if args.forward and " d/d " in name:
            continue
        a, b, d = (aligned(shape, dtype) for shape in (lhs, rhs, out))
        for x in (a, b):
            x[...] = rng.standard_normal(x.shape).astype(dtype)
        candidates = {}
        for choice in choices:
            os.environ["FERRULE_CONV"] = choice
            candidates[choice] = OneCall("conv", [tensor(lhs, dtype), tensor(rhs, dtype)], [tensor(out, dtype)], at)
        times = measure(candidates, [a, b], [d], args.seconds, clock)
        cells = " | ".join(f"{work / times[c][0]:.1f} ({work / times[c][1]:.0f})" for c in candidates)
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
