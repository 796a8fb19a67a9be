"""SPIR-V for the driver's tests, by llvmlite from LLVM IR."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import llvmlite.binding as llvm

HEAD = """
target triple = "spirv64-unknown-unknown"
declare i64 @_Z13get_global_idj(i32)
declare float @_Z3expf(float)
"""


def add(name: str, number: float = 1.0) -> str:
    """out[i] = in[i] + number"""
    return f"""
define spir_kernel void @{name}(ptr addrspace(1) %in, ptr addrspace(1) %out) {{
  %i = call i64 @_Z13get_global_idj(i32 0)
  %p = getelementptr float, ptr addrspace(1) %in, i64 %i
  %q = getelementptr float, ptr addrspace(1) %out, i64 %i
  %x = load float, ptr addrspace(1) %p
  %y = fadd float %x, {number:e}
  store float %y, ptr addrspace(1) %q
  ret void
}}
"""


def add_both(name: str) -> str:
    """out[i] = a[i] + b[i]"""
    return f"""
define spir_kernel void @{name}(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %out) {{
  %i = call i64 @_Z13get_global_idj(i32 0)
  %p = getelementptr float, ptr addrspace(1) %a, i64 %i
  %q = getelementptr float, ptr addrspace(1) %b, i64 %i
  %r = getelementptr float, ptr addrspace(1) %out, i64 %i
  %x = load float, ptr addrspace(1) %p
  %y = load float, ptr addrspace(1) %q
  %z = fadd float %x, %y
  store float %z, ptr addrspace(1) %r
  ret void
}}
"""


def work(name: str, rounds: int) -> str:
    """in[i] = exp(in[i]) / 4, often: takes long, and comes to 0.357403."""
    return f"""
define spir_kernel void @{name}(ptr addrspace(1) %in) {{
entry:
  %i = call i64 @_Z13get_global_idj(i32 0)
  %p = getelementptr float, ptr addrspace(1) %in, i64 %i
  %x = load float, ptr addrspace(1) %p
  br label %loop
loop:
  %n = phi i64 [0, %entry], [%m, %loop]
  %v = phi float [%x, %entry], [%w, %loop]
  %e = call float @_Z3expf(float %v)
  %w = fmul float %e, 2.5e-01
  %m = add i64 %n, 1
  %more = icmp ult i64 %m, {rounds}
  br i1 %more, label %loop, label %end
end:
  store float %w, ptr addrspace(1) %p
  ret void
}}
"""


@cache
def spirv(*functions: str) -> bytes:
    """One module. It is made by a process of its own: LLVM 22 uses ids of earlier modules again in later ones."""
    done = subprocess.run(
        [sys.executable, __file__], input="".join(functions).encode(), capture_output=True, check=True
    )
    return done.stdout


def emit(functions: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("spirv64-unknown-unknown").create_target_machine(opt=2)
    return machine.emit_object(llvm.parse_assembly(HEAD + functions))


if __name__ == "__main__":
    sys.stdout.buffer.write(emit(sys.stdin.read()))
