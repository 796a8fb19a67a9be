"""The dialect of x86 processors with AVX2 and FMA: what they do in one instruction and LLVM does not find by itself."""

from __future__ import annotations

from ferrule.codegen.avx512 import instruction
from ferrule.codegen.dialect import FusedDialect, rsqrt_error
from ferrule.codegen.lanes import Num
from ferrule.codegen.math_wide import any_lane


class Avx2(FusedDialect):
    def rsqrt(self, x: Num) -> Num:
        """From 12 bits by one step of the third order. The estimate takes denormal numbers for zeros: then, and for
        what has no ordinary answer, the residual is NaN, and the slow way is taken for all lanes."""
        y = instruction("llvm.x86.avx.rsqrt", x, masked=False, registers=(256,))
        error = rsqrt_error(x, y)
        odd = any_lane(error.is_nan())
        fast = (y * error).fma(error.fma(0.375, 0.5), y)
        slow = super().rsqrt
        return Num(x.b, x.b.branch(odd, lambda: [error.is_nan().where(slow(x), fast).v], lambda: [fast.v])[0])


AVX2 = Avx2()
