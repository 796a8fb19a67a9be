"""What code generation and the cost model need to know of a device, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One device.

    `triple`, `cpu` and `features` are LLVM's names; `vector_bytes` is the width that vector code is written for;
    `threads` the number of threads that kernels may spread over, `cache_bytes` the last cache that they share,
    `second_cache_bytes` the second-level cache of one of them.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    threads: int
    cache_bytes: int = 32 << 20
    second_cache_bytes: int = 1 << 20

    @property
    def grouped(self) -> bool:
        """Do kernels run as groups of work-items (GPUs), not as loops of threads?"""
        return False

    @property
    def converts_f16(self) -> bool:
        """Does the device convert between f16 and f32 by itself?"""
        return any(f in self.features for f in ("+f16c", "+fullfp16", "+neon"))

    @property
    def multiplies_bf16(self) -> bool:
        """Has the processor instructions for products of bf16, which a library uses?"""
        return any(f in self.features for f in ("+avx512bf16", "+amx-bf16"))

    @property
    def widens_bf16(self) -> bool:
        """Are convolutions of bf16 faster as ones of f32? An AMD processor's AVX-512 multiplies bf16 twice as fast."""
        pairs = "+avx512bf16" in self.features and self.cpu.startswith("znver")
        return self.triple.startswith("x86_64") and not (self.grouped or self.has_tiles or pairs)

    @property
    def has_tiles(self) -> bool:
        """Has the processor tile registers (AMX) for products of bf16, which our own loops use?"""
        return self.vector_bytes >= 64 and all(f in self.features for f in ("+amx-bf16", "+avx512bf16"))

    @property
    def has_f64(self) -> bool:
        return True
