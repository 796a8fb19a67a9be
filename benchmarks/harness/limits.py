"""What the machine can do at best: bytes moved and operations done in a second on all cores, by small LLVM kernels.

Streams are copies and triads, with plain and with streaming stores, at several sizes, since caches are faster than
memory; arithmetic is fused multiply-adds on registers: f32, and bf16 and int8 with the widest instructions that the CPU
has. The best of several tries counts: a limit is not an average.
"""

from __future__ import annotations

import bisect
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.case import Case

SIZES = tuple(1 << k for k in range(13, 30, 2))  # bytes that all arrays of a stream have together
TRIES, SECONDS = 5, 0.03


@dataclass(frozen=True)
class Limits:
    stream: dict[int, float]  # bytes in a second, by size
    read: dict[int, float]
    peaks: dict[str, float]  # operations in a second, by type

    def bandwidth(self, size: float, read_only: bool = False) -> float:
        """Between measured sizes, by the logarithm of the size."""
        table = self.read if read_only else self.stream
        sizes = sorted(table)
        place = bisect.bisect(sizes, size)
        if place in (0, len(sizes)):
            return table[sizes[min(place, len(sizes) - 1)]]
        low, high = sizes[place - 1], sizes[place]
        part = math.log(size / low) / math.log(high / low)
        return table[low] ** (1 - part) * table[high] ** part

    def seconds(self, case: Case, rate: float | None = None) -> float | None:
        """The least time that a case can take; None when nothing is known of what it moves and computes.

        `rate`: bytes in a second, measured between the case's rounds.
        """
        moving = case.bytes / (rate or self.bandwidth(case.bytes, case.read_only)) if case.bytes else 0.0
        return max(moving, case.flops / self.peaks[case.peak]) or None

    def moves(self, case: Case) -> bool:
        """Is it memory that bounds the case?"""
        return case.bytes > 0 and case.bytes / self.bandwidth(case.bytes, case.read_only) > (
            case.flops / self.peaks[case.peak]
        )

    def better(self, other: Limits) -> Limits:
        """Of two measurements, what reached more: others may have used the machine during one of them."""
        return Limits(*({k: max(v, b[k]) for k, v in a.items()} for a, b in zip(self._tables(), other._tables())))

    def _tables(self) -> tuple[dict[Any, float], dict[Any, float], dict[Any, float]]:
        return self.stream, self.read, self.peaks

    def sentence(self) -> str:
        large = max(self.stream)
        peaks = ", ".join(f"{name} {value / 1e9:.0f} GFLOP/s" for name, value in self.peaks.items())
        return (
            f"Limits measured in this run: {self.stream[large] / 1e9:.1f} GB/s copied or read and written, "
            f"{self.read[large] / 1e9:.1f} GB/s read (arrays of {large >> 20} MB), {peaks}."
        )


class LimitsEngine:
    """What the worker `limits` runs."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.flags = set(
            next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")).split()
        )
        self.cores = len(os.sched_getaffinity(0))
        self.kept: list[Any] = []
        self.streams: dict[str, Any] = {}
        self.memory: np.ndarray | None = None

    def version(self) -> str:
        return f"llvmlite, {self.cores} threads"

    def measure(self) -> Limits:
        return Limits(
            {size: rate for size in SIZES if (rate := self.rate(size, False))},
            {size: rate for size in SIZES if (rate := self.rate(size, True))},
            self._peaks(),
        )

    def rate(self, size: int, read_only: bool, seconds: float = SECONDS, tries: int = TRIES) -> float:
        """Bytes in a second, by the best kind of stream; zero for sizes that threads cannot share."""
        kinds = READS if read_only else STREAMS
        return max(self._rate(kind, min(size, max(SIZES)), seconds, tries) for kind in kinds)

    def function(self, text: str, name: str, arguments: int) -> Any:
        llvm = self.llvm
        features = llvm.get_host_cpu_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(llvm.get_host_cpu_name(), features, 3)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        engine.finalize_object()
        self.kept.append(engine)
        kinds = [ctypes.c_int64] * arguments
        return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))

    def _rate(self, kind: str, size: int, seconds: float, tries: int) -> float:
        arrays = len(ARRAYS[kind])
        if kind not in self.streams:
            self.streams[kind] = self.function(stream_text(kind), "stream", arrays + 2)
        kernel, part = self.streams[kind], max(SIZES) // arrays // 64 * 64
        count = size // arrays // 4 // self.cores // 64 * 64
        if not count:
            return 0.0
        if self.memory is None:
            self.memory = np.ones(max(SIZES) // 4 + 256, np.float32)
        start = _aligned(self.memory)
        places = [[start + part * a + 4 * count * t for a in range(arrays)] for t in range(self.cores)]

        def run(thread: int, repeats: int) -> None:
            kernel(*places[thread], count, repeats)

        return 4 * count * arrays * self.cores / self._fastest(run, seconds, tries)

    def _peaks(self) -> dict[str, float]:
        """Operations in a second. A type without instructions of its own is computed as f32."""
        found = {
            "f32": self._peak(fma_text(512 if "avx512f" in self.flags else 256), 32 if "avx512f" in self.flags else 16)
        }
        found["bf16"] = found["int8"] = found["f32"]
        if "avx512_bf16" in self.flags:
            found["bf16"] = max(found["bf16"], self._peak(dot_text("bf16"), 64))
        if "avx512_vnni" in self.flags:
            found["int8"] = max(found["int8"], self._peak(dot_text("int8"), 128))
        if {"amx_tile", "amx_bf16", "amx_int8"} <= self.flags and _may_use_tiles():
            found["bf16"] = max(found["bf16"], self._peak(tile_text("bf16"), 2 * 16 * 16 * 32, TILES))
            found["int8"] = max(found["int8"], self._peak(tile_text("int8"), 2 * 16 * 16 * 64, TILES))
        return found

    def _peak(self, text: str, operations: int, count: int = 0) -> float:
        kernel = self.function(text, "peak", 2)
        sink = np.zeros(64 * self.cores, np.float32)
        address = sink.ctypes.data

        def run(thread: int, repeats: int) -> None:
            kernel(address + 256 * thread, 100 * repeats)

        return 100 * operations * (count or ACCUMULATORS) * self.cores / self._fastest(run)

    def _fastest(self, run: Callable[[int, int], None], seconds: float = SECONDS, tries: int = TRIES) -> float:
        """Seconds of one repetition on all threads at once, at best."""
        repeats = 1
        while (once := min(self._together(run, repeats) for _ in range(3))) < seconds / 4:
            repeats *= 4
        repeats = max(1, int(repeats * seconds / once))
        return min(self._together(run, repeats) for _ in range(tries)) / repeats

    def _together(self, run: Callable[[int, int], None], repeats: int) -> float:
        barrier = threading.Barrier(self.cores)
        begins, ends = [0.0] * self.cores, [0.0] * self.cores

        def work(thread: int) -> None:
            barrier.wait()
            begins[thread] = time.perf_counter()
            run(thread, repeats)  # ctypes lets other threads run meanwhile
            ends[thread] = time.perf_counter()

        threads = [threading.Thread(target=work, args=(t,)) for t in range(self.cores)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(ends) - min(begins)


def _aligned(array: np.ndarray) -> int:
    return (array.ctypes.data + 63) // 64 * 64


# The kernels, as LLVM text. Vectors of 512 bits; LLVM halves them where the CPU has none.

LANES = "<16 x float>"
ARRAYS = {  # what a stream writes (a) and reads
    "copy": "ab",
    "copy past caches": "ab",
    "triad": "abc",
    "read": "b",
    "read two": "bc",
    "read four": "bcde",
}
STREAMS, READS = ("copy", "copy past caches", "triad"), ("read", "read two", "read four")
ACCUMULATORS = 12
TILES = 4


def stream_text(kind: str) -> str:
    """a[i] = b[i], a[i] = b[i] + 3 c[i], or a sum, over `count` floats, `repeats` times; four vectors in a round."""
    streaming = ", !nontemporal !0" if kind == "copy past caches" else ""
    arrays, read = ARRAYS[kind], kind.startswith("read")
    lines = []
    for u in range(4):
        lines.append(f"  %i{u} = add i64 %i, {16 * u}")
        for name in arrays:
            lines.append(f"  %p{name}{u} = getelementptr float, ptr %{name}, i64 %i{u}")
        lines.append(f"  %vb{u} = load {LANES}, ptr %pb{u}, align 64")
        value = f"%vb{u}"
        if kind == "triad":
            lines.append(f"  %vc{u} = load {LANES}, ptr %pc{u}, align 64")
            lines.append(
                f"  %s{u} = call {LANES} @llvm.fma.v16f32({LANES} %vc{u}, {LANES} splat (float 3.0), {LANES} %vb{u})"
            )
            value = f"%s{u}"
        if read:
            lines.append(f"  %n{u}b = fadd {LANES} %t{u}b, %vb{u}")
            for name in arrays[1:]:
                lines.append(f"  %v{name}{u} = load {LANES}, ptr %p{name}{u}, align 64")
                lines.append(f"  %n{u}{name} = fadd {LANES} %t{u}{name}, %v{name}{u}")
        else:
            lines.append(f"  store {LANES} {value}, ptr %pa{u}, align 64{streaming}")
    sums = [f"{u}{name}" for u in range(4) for name in arrays] if read else []
    totals = [f"  %t{s} = phi {LANES} [ zeroinitializer, %outer ], [ %n{s}, %inner ]" for s in sums]
    # The sums are used where nobody gets, but LLVM cannot know; otherwise it would drop the loop.
    use = [line for s in sums for line in _used(s)]
    pointers = [f"  %{name} = inttoptr i64 %{name}.address to ptr" for name in arrays]
    return "\n".join(
        [
            f"define void @stream({', '.join(f'i64 %{n}.address' for n in arrays)}, i64 %count, i64 %repeats) {{",
            *pointers,
            "  br label %outer",
            "outer:",
            "  %r = phi i64 [ 0, %0 ], [ %r1, %next ]",
            '  call void asm sideeffect "", "~{memory}"()',
            "  br label %inner",
            "inner:",
            "  %i = phi i64 [ 0, %outer ], [ %j, %inner ]",
            *totals,
            *lines,
            "  %j = add i64 %i, 64",
            "  %more = icmp ult i64 %j, %count",
            "  br i1 %more, label %inner, label %next",
            "next:",
            *use,
            "  %r1 = add i64 %r, 1",
            "  %again = icmp ult i64 %r1, %repeats",
            "  br i1 %again, label %outer, label %done",
            "done:",
            "  ret void",
            "}",
            "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)",
            "!0 = !{i32 1}",
        ]
    )


def _used(total: str) -> list[str]:
    """In quarters: every processor has registers for these."""
    lines = []
    for quarter in range(4):
        picks = ", ".join(f"i32 {4 * quarter + i}" for i in range(4))
        lines += [
            f"  %q{quarter}{total} = shufflevector {LANES} %n{total}, {LANES} poison, <4 x i32> <{picks}>",
            f'  call void asm sideeffect "", "x"(<4 x float> %q{quarter}{total})',
        ]
    return lines


def _loop(kind: str, step: Callable[[int], str], declare: str, before: str = "") -> str:
    """Independent accumulators, so that each instruction's latency is hidden behind the others."""
    numbers = range(ACCUMULATORS)
    return "\n".join(
        [
            "define void @peak(i64 %address, i64 %repeats) {",
            "  %out = inttoptr i64 %address to ptr",
            before,
            "  br label %loop",
            "loop:",
            "  %r = phi i64 [ 0, %0 ], [ %r1, %loop ]",
            *(f"  %a{u} = phi {kind} [ zeroinitializer, %0 ], [ %b{u}, %loop ]" for u in numbers),
            *(f"  %b{u} = {step(u)}" for u in numbers),
            "  %r1 = add i64 %r, 1",
            "  %again = icmp ult i64 %r1, %repeats",
            "  br i1 %again, label %loop, label %done",
            "done:",
            *(f"  store volatile {kind} %b{u}, ptr %out, align 4" for u in numbers),
            "  ret void",
            "}",
            declare,
        ]
    )


def fma_text(bits: int) -> str:
    n = bits // 32
    v = f"<{n} x float>"
    call = f"call {v} @llvm.fma.v{n}f32({v} %x, {v} %x, {v}"
    return _loop(
        v,
        lambda u: f"{call} %a{u})",
        f"declare {v} @llvm.fma.v{n}f32({v}, {v}, {v})",
        f"  %x = load volatile {v}, ptr %out, align 4",
    )


def dot_text(kind: str) -> str:
    """AVX-512's dot products of pairs of bf16, or of four 8-bit integers."""
    total, factor, name = {
        "bf16": ("<16 x float>", "<32 x bfloat>", "llvm.x86.avx512bf16.dpbf16ps.512"),
        "int8": ("<16 x i32>", "<64 x i8>", "llvm.x86.avx512.vpdpbusd.512"),
    }[kind]
    return _loop(
        total,
        lambda u: f"call {total} @{name}({total} %a{u}, {factor} %x, {factor} %x)",
        f"declare {total} @{name}({total}, {factor}, {factor})",
        f"  %x = load volatile {factor}, ptr %out, align 4",
    )


def tile_text(kind: str) -> str:
    """AMX: four tiles of sums, two of factors, 16 rows of 64 bytes each."""
    name = {"bf16": "llvm.x86.tdpbf16ps", "int8": "llvm.x86.tdpbssd"}[kind]
    palette = [1, 0, *[0] * 14, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
    config = ", ".join(f"i8 {x}" for x in palette)
    return "\n".join(
        [
            f"@config = private constant [64 x i8] [{config}], align 64",
            "define void @peak(i64 %address, i64 %repeats) {",
            "  call void @llvm.x86.ldtilecfg(ptr @config)",
            *(f"  call void @llvm.x86.tilezero(i8 {t})" for t in range(8)),
            "  br label %loop",
            "loop:",
            "  %r = phi i64 [ 0, %0 ], [ %r1, %loop ]",
            *(f"  call void @{name}(i8 {t}, i8 {4 + t // 2}, i8 {6 + t % 2})" for t in range(TILES)),
            "  %r1 = add i64 %r, 1",
            "  %again = icmp ult i64 %r1, %repeats",
            "  br i1 %again, label %loop, label %done",
            "done:",
            "  call void @llvm.x86.tilerelease()",
            "  ret void",
            "}",
            "declare void @llvm.x86.ldtilecfg(ptr)",
            "declare void @llvm.x86.tilezero(i8)",
            "declare void @llvm.x86.tilerelease()",
            f"declare void @{name}(i8, i8, i8)",
        ]
    )


def _may_use_tiles() -> bool:
    """Linux lets a process use AMX after it has asked."""
    ask, tile_data = 0x1023, 18
    return ctypes.CDLL(None).syscall(158, ask, tile_data) == 0
