"""The cpu target: what the host processor is, for the compiler."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ferrule.targets.machine import Machine

APX = ("ccmp", "cf", "egpr", "ndd", "nf", "ppx", "push2pop2", "zu")
# What vector code may use, widest first: LLVM's feature names and the register width in bytes.
_X86_LEVELS = ((64, ("avx512f", "avx512bw", "avx512dq", "avx512vl")), (32, ("avx2", "fma")), (16, ("sse2",)))

# Two processors of a server that are a virtual machine see all of its last cache, which others use as well (480 MB);
# what of it served two of them was measured (docs/measurements.md, "Stores past the cache").
_CACHE_FOR_EACH = 48 << 20
_SYSTEM = Path("/sys/devices/system/cpu")


@cache
def host() -> Machine:
    """The machine that this process runs on."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    found = dict(llvm.get_host_cpu_features())
    # LLVM 22 puts bytes together with `insertq`, which takes some 200 cycles where vectors of 256 bits were used before
    # (Zen 3: 256 K rows of 8 bytes times 8 x 2 took 80 ms, and 0.5 without).
    found["sse4a"] = False
    # LLVM takes APX's registers for usable without asking whether the system saves them.
    found |= dict.fromkeys(APX, False)
    wide = next((size for size, need in _X86_LEVELS if all(found.get(f) for f in need)), 16)
    features = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(found.items()))
    triple, name = llvm.get_process_triple(), llvm.get_host_cpu_name()
    return Machine("cpu", triple, name, features, wide, threads(), cache_bytes(), second_cache_bytes())


def threads() -> int:
    """How many threads Ferrule may use."""
    return int(os.environ.get("FERRULE_NUM_THREADS", "0")) or len(os.sched_getaffinity(0))


@cache
def cache_bytes() -> int:
    """The size of the last caches of the processors that Ferrule may use, or a guess where the system does not say."""
    processors = os.sched_getaffinity(0)
    found = last_caches(_SYSTEM, processors)
    return min(found, _CACHE_FOR_EACH * len(processors)) or Machine.cache_bytes


@cache
def second_cache_bytes() -> int:
    """The size of a processor's second-level cache, or a guess where the system does not say."""
    return second_cache(_SYSTEM, min(os.sched_getaffinity(0))) or Machine.second_cache_bytes


def second_cache(system: Path, processor: int) -> int:
    """The bytes of the second-level cache of `processor`; 0 if `system` does not describe it."""
    return max((size for level, size, _ in _caches(system, processor) if level == 2), default=0)


def last_caches(system: Path, processors: Iterable[int]) -> int:
    """The bytes of the last caches of `processors`, each cache counted once; 0 if `system` does not describe them all.

    C's sysconf is not asked: on a virtual machine it may add up what the host has. A description that ends before the
    third level leaves out what the processor has.
    """
    total = 0
    seen: set[int] = set()
    for processor in sorted(processors):
        if processor in seen:
            continue
        level, size, shared = max(_caches(system, processor), default=(0, 0, []))
        if level < 3 or size <= 0:
            return 0
        total += size
        seen |= {processor, *shared}
    return total


def _caches(system: Path, processor: int) -> list[tuple[int, int, list[int]]]:
    """A processor's caches; none where `system` does not describe them all."""
    try:
        return [_cache(index) for index in system.glob(f"cpu{processor}/cache/index*")]
    except (OSError, ValueError):
        return []


def _cache(index: Path) -> tuple[int, int, list[int]]:
    """A cache's level, bytes and processors."""
    level, size, shared = ((index / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
    unit = {"K": 10, "M": 20, "G": 30}.get(size[-1:], 0)
    ends = [[int(end) for end in part.split("-")] for part in shared.split(",")]
    return int(level), int(size.rstrip("KMG")) << unit, [one for part in ends for one in range(part[0], part[-1] + 1)]
