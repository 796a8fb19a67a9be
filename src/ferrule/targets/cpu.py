"""The cpu target: what the host processor is, for the compiler."""

from __future__ import annotations

import os
from functools import cache

from ferrule.targets.machine import Machine

# What vector code may use, widest first: LLVM's feature names and the register width in bytes.
_X86_LEVELS = ((64, ("avx512f", "avx512bw", "avx512dq", "avx512vl")), (32, ("avx2", "fma")), (16, ("sse2",)))


@cache
def host() -> Machine:
    """The machine that this process runs on."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    found = dict(llvm.get_host_cpu_features())
    wide = next((size for size, need in _X86_LEVELS if all(found.get(f) for f in need)), 16)
    features = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(found.items()))
    return Machine(
        "cpu", llvm.get_process_triple(), llvm.get_host_cpu_name(), features, wide, threads(), _cache_bytes()
    )


def threads() -> int:
    """How many threads Ferrule may use."""
    return int(os.environ.get("FERRULE_NUM_THREADS", "0")) or len(os.sched_getaffinity(0))


def _cache_bytes() -> int:
    """The size of the last cache, or a guess where the system does not say."""
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return found if found > 0 else Machine.cache_bytes
