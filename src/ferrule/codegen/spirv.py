"""SPIR-V for OpenCL and Level Zero: how it spells what LLVM leaves to the target, and the way from text to a module."""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from ferrule.codegen.dialect import GroupDialect
from ferrule.codegen.lanes import Num, bits_of, split
from ferrule.codegen.llvm import Builder, V, vector
from ferrule.codegen.math_parts import all_parts
from ferrule.stablehlo.worker import python_executable
from ferrule.targets.machine import Machine


class SpirV(GroupDialect):
    """OpenCL's flavour of SPIR-V."""

    pointer, constant_pointer, local_pointer = "ptr addrspace(1)", "ptr addrspace(2)", "ptr addrspace(3)"
    # fmuladd is never fused by the drivers that were measured
    fma = "fma"
    fuses = True
    wide_integers = False
    narrow_division = True
    bottom_tested = True
    saturates = False  # conversions to unsigned integers give the largest for negative values

    device_scope = 'syncscope("device") '

    def __init__(self, has_f64: bool = True) -> None:
        self.has_f64 = has_f64

    def before_cast(self, b: Builder, opcode: str, a: V, type: str) -> V:
        """LLVM 22 takes the wrong type where a truncation to less than half is extended again: halve step by step."""
        if opcode != "trunc" or bits_of(type) < 8:
            return a
        base, lanes = split(a.type)
        while (half := bits_of(base) // 2) > bits_of(type):
            base = f"i{half}"
            a = b.emit(vector(base, lanes), f"trunc {a} to {vector(base, lanes)}")
        return a

    def extreme(self, x: Num, y: Num, larger: bool) -> Num:
        """llvm.maximum and llvm.minimum lose NaN here, silently."""
        bits, other = x.raw(), y.raw()
        # Of two zeros the bits decide: a + of equals is the and, a - the or.
        equal = ((bits & other) if larger else (bits | other)).as_float()
        best = x.eq(y).where(equal, (x > y if larger else x < y).where(x, y))
        # the comparison is false where y is NaN, so `best` is y there
        return x.is_nan().where(x, best)

    def function(self, name: str, *xs: Num) -> Num:
        return Num(xs[0].b, _builtin(xs[0].b, xs[0].v.type, name, *(x.v for x in xs)))

    def binary_parts(self, x: Num) -> tuple[Num, Num]:
        return all_parts(x)  # work-items of a group would go both ways

    def entry(self, symbol: str, pointers: int, group: int) -> tuple[str, str]:
        return f"define spir_kernel void @{symbol}", f"nounwind !reqd_work_group_size !{{i32 {group}, i32 1, i32 1}}"

    def group_id(self, b: Builder) -> V:
        return _builtin(b, "i64", "get_group_id", V("i32", "0"))

    def local_id(self, b: Builder) -> V:
        return _builtin(b, "i64", "get_local_id", V("i32", "0"))

    def global_id(self, b: Builder) -> V:
        return _builtin(b, "i64", "get_global_id", V("i32", "0"))

    def barrier(self, b: Builder) -> None:
        _builtin(b, "void", "barrier", V("i32", "1"))  # CLK_LOCAL_MEM_FENCE

    def shared(self, b: Builder, type: str, count: int) -> V:
        name = f"@{b.name}.shared{len(b.globals)}"
        b.globals[name] = f"{name} = internal addrspace(3) global [{count} x {type}] undef, align 16"
        b.local_bytes += count * _bytes(type)
        return V(self.local_pointer, name)


def _bytes(type: str) -> int:
    return {"float": 4, "double": 8}.get(type) or int(type[1:]) // 8


# The letters of the Itanium ABI's mangled names, which OpenCL's builtins have (work-item functions take unsigned).
_LETTERS = {"float": "f", "double": "d", "half": "Dh", "i32": "j", "i64": "m"}


def _mangled(type: str) -> str:
    if type[0] != "<":
        return _LETTERS[type]
    lanes, base = type[1:-1].split(" x ")
    return f"Dv{lanes}_{_LETTERS[base]}"


def _builtin(b: Builder, result: str, name: str, *args: V) -> V:
    letters = [_mangled(a.type) for a in args]
    for i in range(1, len(letters)):
        if len(letters[0]) > 2 and letters[i] == letters[0]:
            letters[i] = "S_"  # a repeated vector type is abbreviated
    symbol = f"_Z{len(name)}{name}{''.join(letters)}"
    b.declares[symbol] = f"declare spir_func {result} @{symbol}({', '.join(a.type for a in args)})"
    text = f"call spir_func {result} @{symbol}({', '.join(map(str, args))})"
    if result == "void":
        b.do(text)
        return V("void", "")
    return b.emit(result, text)


class _Worker:
    """A handle on the process of spirv_worker.py."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        """Starts the process unless it runs; it gets ready while the compiler is at its first stages."""
        with self._lock:
            self._ensure()

    def translate(self, text: bytes) -> tuple[bool, bytes]:
        """Whether it worked, and the module, or what LLVM said."""
        with self._lock:
            process = self._ensure()
            assert process.stdin and process.stdout
            try:
                process.stdin.write(struct.pack("<Q", len(text)) + text)
                process.stdin.flush()
                head = process.stdout.read(9)
                (size,) = struct.unpack("<Q", head[1:])
                answer = process.stdout.read(size)
            except (OSError, struct.error):
                code = process.wait()
                self._process = None
                return False, f"the process that makes SPIR-V ended (exit code {code})".encode()
            return head[:1] == b"K", answer

    def _ensure(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            environment = dict(os.environ)
            package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
            paths = [package, *(p for p in sys.path if p), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
            self._process = subprocess.Popen(
                [python_executable(), "-m", "ferrule.codegen.spirv_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the user's program
            )
            self._owner = os.getpid()
        return self._process

    def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process and self._owner == os.getpid():
            process.kill()
            process.wait()


WORKER = _Worker()
atexit.register(WORKER.stop)


def compile_spirv(
    functions: Sequence[str], declares: Mapping[str, str], constants: Mapping[str, str], machine: Machine
) -> bytes:
    """Compiles kernels into one SPIR-V module. No passes run: the device's own compiler optimises, and LLVM's make
    integers of odd widths and intrinsics that SPIR-V does not have."""
    from ferrule.codegen.object import module_text, rejected

    text = module_text(functions, declares, constants, machine.triple)
    worked, answer = WORKER.translate(text.encode())
    if not worked:
        raise rejected(text, answer.decode("utf-8", "replace").strip())
    return answer
