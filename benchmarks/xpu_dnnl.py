"""Ferrule on xpu against oneDNN itself, on a queue of the same device: products and convolutions, which it gives to
oneDNN, and pooling, softmax and layer normalization, for which it generates kernels.

    python benchmarks/xpu_dnnl.py [--seconds 1]

Needs the extra `xpu` and dpctl. Both take turns in one process; figures are medians of rounds of several calls, each
round waited for: ms by the clock, and in brackets ms of processor time of all threads. oneDNN's calls have their memory
ready, in the layout of the operands (a convolution's kernel is reordered to oneDNN's own at each call, as Ferrule has
to); ours go through JAX.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "xpu,cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "codegen"))

import dpctl.memory
import jax.numpy as jnp
import numpy as np
from on_device import queue

import ferrule
import jax
from ferrule.targets.xpu import onednn_path

ferrule.register_jax("xpu", target="xpu")

F32, INFERENCE, USM = 3, 96, 0
MAX, AVERAGE_WITH_PADDING, ACCURATE = 0x1FF, 0x2FF, 0x30000
SOURCE, DESTINATION, WEIGHTS, WEIGHTS_MD = 1, 17, 33, 131
ANY, DIRECT = 1, 1


class Argument(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("memory", ctypes.c_void_p))


class OneDnn:
    """oneDNN's C API on a SYCL queue (dpctl's references are SYCL's objects)."""

    def __init__(self) -> None:
        self.queue = queue()
        self.lib = ctypes.CDLL(onednn_path())
        self.engine, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        device, context = self.queue.sycl_device.addressof_ref(), self.queue.sycl_context.addressof_ref()
        self("sycl_interop_engine_create", ctypes.byref(self.engine), device, context)
        self("sycl_interop_stream_create", ctypes.byref(self.stream), self.engine, self.queue.addressof_ref())

    def __call__(self, name: str, *args: Any) -> None:
        given = [ctypes.c_void_p(a) if isinstance(a, int) and a > 1 << 31 else a for a in args]
        code = getattr(self.lib, f"dnnl_{name}")(*given)
        if code:
            raise RuntimeError(f"dnnl_{name} failed with {code}")

    def desc(self, shape: Sequence[int], strides: Sequence[int]) -> ctypes.c_void_p:
        md = ctypes.c_void_p()
        dims = (ctypes.c_int64 * 12)(*shape)
        self(
            "memory_desc_create_with_strides", ctypes.byref(md), len(shape), dims, F32, (ctypes.c_int64 * 12)(*strides)
        )
        return md

    def described(self, name: str, *about: Any) -> ctypes.c_void_p:
        desc = ctypes.c_void_p()
        self(f"{name}_primitive_desc_create", ctypes.byref(desc), self.engine, *about, None)
        return desc

    def prepare(self, name: str, source: Any, result: Any, x: np.ndarray, out: np.ndarray, *about: Any) -> Any:
        desc = self.described(name, INFERENCE, *about)
        return self.ready([(desc, {SOURCE: (source, x), DESTINATION: (result, out)})], out)

    def ready(
        self, calls: Sequence[tuple[Any, dict[int, tuple[Any, np.ndarray]]]], out: np.ndarray
    ) -> tuple[Callable[[], None], Callable[[], np.ndarray]]:
        """Functions that start primitives one after the other, and that wait for them and give the result. Arrays that
        are the same object are the same memory."""
        places: dict[int, Any] = {}
        started = []
        for desc, operands in calls:
            primitive = ctypes.c_void_p()
            self("primitive_create", ctypes.byref(primitive), desc)
            arguments = (Argument * len(operands))()
            for argument, (number, (md, array)) in zip(arguments, operands.items(), strict=True):
                if id(array) not in places:
                    places[id(array)] = dpctl.memory.MemoryUSMDevice(array.nbytes, queue=self.queue)
                    places[id(array)].copy_from_host(array.reshape(-1).view(np.uint8))
                memory, data = ctypes.c_void_p(), places[id(array)]._pointer
                self("sycl_interop_memory_create", ctypes.byref(memory), md, self.engine, USM, data)
                argument.id, argument.memory = number, memory.value
            started.append((primitive, arguments))

        def start() -> None:
            for primitive, arguments in started:
                self("sycl_interop_primitive_execute", primitive, self.stream, len(arguments), arguments, None, None)

        def finish() -> np.ndarray:
            self("stream_wait", self.stream)
            places[id(out)].copy_to_host(out.reshape(-1).view(np.uint8))
            return out

        return start, finish

    def pool(self, x: np.ndarray, kind: int, window: int, stride: int, low: int, high: int) -> Any:
        n, h, w, c = x.shape
        side = (h + low + high - window) // stride + 1
        out = np.empty((n, side, side, c), np.float32)

        def nhwc(h: int, w: int) -> ctypes.c_void_p:
            return self.desc((n, c, h, w), (h * w * c, 1, w * c, c))

        source, result = nhwc(h, w), nhwc(side, side)
        pair = [(ctypes.c_int64 * 12)(v, v) for v in (stride, window, 0, low, high)]
        return self.prepare("pooling_forward", source, result, x, out, kind, source, result, *pair)

    def product(self, x: np.ndarray, y: np.ndarray) -> Any:
        n = len(x)
        md, out = self.desc((n, n), (n, 1)), np.empty_like(x)
        desc = self.described("matmul", md, md, None, md)
        return self.ready([(desc, {SOURCE: (md, x), WEIGHTS: (md, y), DESTINATION: (md, out)})], out)

    def convolution(self, x: np.ndarray, w: np.ndarray) -> Any:
        """3 x 3, same size; images NHWC, kernels HWIO."""
        (n, h, _, c), o = x.shape, w.shape[3]
        out, own = np.empty((n, h, h, o), np.float32), ctypes.c_void_p()
        source, result = (self.desc((n, k, h, h), (h * h * k, 1, h * k, k)) for k in (c, o))
        plain = self.desc((o, c, 3, 3), (1, o, 3 * c * o, c * o))
        dims = (ctypes.c_int64 * 12)(o, c, 3, 3)
        self("memory_desc_create_with_tag", ctypes.byref(own), 4, dims, F32, ANY)
        pair = [(ctypes.c_int64 * 12)(v, v) for v in (1, 0, 1, 1)]
        desc = self.described("convolution_forward", INFERENCE, DIRECT, source, own, None, result, *pair)
        self.lib.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        chosen = ctypes.c_void_p(self.lib.dnnl_primitive_desc_query_md(desc, WEIGHTS_MD, 0))
        self.lib.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        space = np.zeros(self.lib.dnnl_memory_desc_get_size(chosen) // 4, np.float32)
        order = ctypes.c_void_p()
        self("reorder_primitive_desc_create", ctypes.byref(order), plain, self.engine, chosen, self.engine, None)
        reorder = (order, {SOURCE: (plain, w), DESTINATION: (chosen, space)})
        call = (desc, {SOURCE: (source, x), WEIGHTS: (chosen, space), DESTINATION: (result, out)})
        return self.ready([reorder, call], out)

    def softmax(self, x: np.ndarray) -> Any:
        md = self.desc(x.shape, (x.shape[1], 1))
        return self.prepare("softmax_forward", md, md, x, np.empty_like(x), ACCURATE, md, md, 1)

    def layer_norm(self, x: np.ndarray) -> Any:
        md = self.desc(x.shape, (x.shape[1], 1))
        about = (md, md, None, ctypes.c_float(1e-5), 0)
        return self.prepare("layer_normalization_forward", md, md, x, np.empty_like(x), *about)


def pool(kind: int, window: int, stride: int, low: int, high: int) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        sizes, padding = (1, window, window, 1), ((0, 0), (low, high), (low, high), (0, 0))
        steps = (1, stride, stride, 1)
        if kind == MAX:
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, sizes, steps, padding)
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, sizes, steps, padding) / (window * window)

    return run


def convolution(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def layer_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring for each line")
    seconds = parser.parse_args().seconds
    dnnl = OneDnn()
    random = np.random.RandomState(0)
    device = jax.devices("xpu")[0]
    print("| ms | Ferrule | oneDNN | oneDNN / Ferrule |\n|---|---|---|---|")
    cases: list[tuple[str, list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = []
    for n in (64, 128, 256, 512, 1024):
        cases.append((f"product {n}³", [(n, n)] * 2, jnp.matmul, dnnl.product))
    for n, h, c in ((8, 56, 64), (8, 14, 256), (32, 28, 32)):
        shapes = [(n, h, h, c), (3, 3, c, c)]
        cases.append((f"convolution 3×3 of {n} × {h} × {h} × {c}", shapes, convolution, dnnl.convolution))
    for name, shape, about in (
        ("max 3×3, stride 2, of 8 × 112 × 112 × 64", (8, 112, 112, 64), (MAX, 3, 2, 0, 1)),
        ("max 2×2, stride 2, of 32 × 28 × 28 × 32", (32, 28, 28, 32), (MAX, 2, 2, 0, 0)),
        ("mean 3×3, of 8 × 28 × 28 × 128", (8, 28, 28, 128), (AVERAGE_WITH_PADDING, 3, 1, 1, 1)),
        ("mean 7×7, all of 8 × 7 × 7 × 2048", (8, 7, 7, 2048), (AVERAGE_WITH_PADDING, 7, 1, 0, 0)),
    ):
        cases.append((name, [shape], pool(*about), lambda x, about=about: dnnl.pool(x, *about)))  # type: ignore[misc]
    for shape in ((4096, 1024), (512, 128), (64, 32768)):
        text = f"{shape[0]} × {shape[1]}"
        cases.append((f"softmax of {text}", [shape], lambda x: jax.nn.softmax(x, -1), dnnl.softmax))
        cases.append((f"layer norm of {text}", [shape], layer_norm, dnnl.layer_norm))
    for name, shapes, function, prepare in cases:
        arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        if len(arrays) == 1:
            arrays[0][0, ..., 3] = np.nan
        compiled, placed = jax.jit(function), jax.device_put(arrays, device)
        start, finish = prepare(*arrays)
        start()
        ours, theirs = np.asarray(compiled(*placed)), finish()
        known = ~np.isnan(ours)
        np.testing.assert_allclose(theirs[known], ours[known], rtol=2e-4, atol=2e-3)
        nan = "" if np.isnan(theirs[~known]).all() else " (oneDNN loses NaN)"
        calls = (partial(compiled, *placed), start)
        waits = (jax.block_until_ready, lambda _: dnnl("stream_wait", dnnl.stream))
        times: list[list[tuple[float, float]]] = [[], []]
        begin, count = time.perf_counter(), 8
        while time.perf_counter() - begin < seconds or len(times[0]) < 5:
            for call, wait, found in zip(calls, waits, times, strict=True):
                before = time.perf_counter(), time.process_time()
                for _ in range(count):
                    result = call()
                wait(result)
                found.append(((time.perf_counter() - before[0]) / count, (time.process_time() - before[1]) / count))
        wall, busy = ([statistics.median(t[i] for t in found) * 1e3 for found in times] for i in range(2))
        cells = [f"{w:.3g} ({c:.3g})" for w, c in zip(wall, busy, strict=True)]
        print(
            f"| {name}{nan} | {cells[0]} | {cells[1]} | {wall[1] / wall[0]:.2f} ({busy[1] / busy[0]:.2f}) |", flush=True
        )


if __name__ == "__main__":
    main()
