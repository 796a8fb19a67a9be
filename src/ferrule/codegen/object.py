"""From LLVM text to a relocatable ELF object.

The text is vector code already, so no vectoriser runs; the pass list is what measurements left of `-O2`: it cleans up
what the text writer repeats, and the code generator does the rest.

Many kernels are compiled as several modules at a time. LLVM lets each thread work in a context of its own; llvmlite's
lock around every call keeps the threads apart, so the one long call, which generates the code, is made without it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import llvmlite.binding as llvm

from ferrule.codegen.kernel import Kernel
from ferrule.codegen.kernel_cache import KernelCache
from ferrule.errors import Internal
from ferrule.targets.cpu import threads
from ferrule.targets.machine import Machine

# What LLVM takes for a kernel, in ms, of 1018 kernels of the benchmark: so much for each, and for each character. Work
# of WORTH is worth a thread, whose module costs 1.5 more.
EACH, CHARACTER, WORTH = 1.2, 1 / 2300, 5.0
# More threads than this would wait for each other, in Python and for llvmlite's lock.
THREADS = 8
# LLVM walks expressions recursively. Address space only until it is touched.
STACK = 64 << 20


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


# LLVM's code generators that nobody uses now. One is for one thread at a time; a new one takes half a millisecond to
# find out what its processor has, which is a sixth of what a small kernel takes.
_idle: dict[Machine, list[llvm.TargetMachine]] = {}


@contextmanager
def _generator(machine: Machine) -> Iterator[llvm.TargetMachine]:
    """A code generator for the machine."""
    _initialize()
    idle = _idle.setdefault(machine, [])
    try:
        found = idle.pop()
    except IndexError:
        found = llvm.Target.from_triple(machine.triple).create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=2, reloc="pic", codemodel="small", jit=False
        )
    yield found
    idle.append(found)  # not after an error: who knows what it left


def module_text(
    functions: Sequence[str], declares: Mapping[str, str], constants: Mapping[str, str], triple: str
) -> str:
    """The text of a module that holds these functions."""
    parts = [f'target triple = "{triple}"', *constants.values(), *declares.values(), *functions]
    return "\n".join(parts) + "\n"


def parse(text: str, context: llvm.ContextRef | None = None) -> llvm.ModuleRef:
    """Parses and verifies; an error is a bug in Ferrule, and shows the text around the place."""
    try:
        module = llvm.parse_assembly(text, context)
        module.verify()
    except RuntimeError as error:
        raise rejected(text, str(error).strip()) from None
    return module


def rejected(text: str, why: str) -> Internal:
    """The error for code that LLVM does not take."""
    return Internal(
        "LLVM rejects the code that Ferrule generated",
        where=_dump(text),
        why=why,
        fix="please report this with the file named above",
    )


def _dump(text: str) -> str:
    folder = os.environ.get("FERRULE_DUMP") or os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(folder, f"ferrule-rejected-{os.getpid()}.ll")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"(the text could not be written: {error})"
    return path


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """The few passes that pay for themselves on code that is vectorised already."""
    tuning = llvm.PipelineTuningOptions()
    builder = llvm.create_pass_builder(machine, tuning)
    if any(b"alwaysinline" in group for function in module.functions for group in function.attributes):
        inliner = llvm.create_new_module_pass_manager()
        inliner.add_always_inliner_pass()
        inliner.add_sroa_pass()
        inliner.run(module, builder)
    passes = llvm.create_new_function_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass() if hasattr(passes, "add_new_gvn_pass") else None
    for function in module.functions:
        # Short straight code is marked by codegen/kernel.py and left as it is.
        if not function.is_declaration and not any(b"noinline" in group for group in function.attributes):
            passes.run(function, builder)


def compile_module(
    functions: Sequence[str], declares: Mapping[str, str], constants: Mapping[str, str], machine: Machine
) -> bytes:
    """Compiles functions into one relocatable ELF object, or module of a device's code, for the machine."""
    if machine.grouped:
        from ferrule.codegen.spirv import compile_spirv

        return compile_spirv(functions, declares, constants, machine)
    text = module_text(functions, declares, constants, machine.triple)
    with _generator(machine) as target, parse(text, llvm.create_context()) as module:
        optimize(module, target)
        return _emit_object(target, module)


def _emit_object(target: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """What `target.emit_object(module)` does, without llvmlite's lock; nobody else may hold the two."""
    lib = llvm.ffi.lib
    unlocked = lib.LLVMPY_TargetMachineEmitToMemory._cfn
    with llvm.ffi.OutputString() as error:
        buffer = unlocked(target, module, 1, error)
        if not buffer:
            raise Internal("LLVM generates no code", why=str(error), fix="please report this")
    try:
        return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
    finally:
        lib.LLVMPY_DisposeMemoryBuffer(buffer)


def compile_kernels(kernels: Sequence[Kernel], machine: Machine, known: KernelCache | None, most: int) -> None:
    """Gives each kernel its object; `known` has those that were compiled before. `most`: so many share a module."""
    for kernel in kernels:
        if known and not kernel.code and (found := known.get(kernel.key)):
            kernel.code = found.code
    missing = [kernel for kernel in kernels if not kernel.code]
    worth = int(sum(map(_milliseconds, missing)) / WORTH)
    at_once = 1 if machine.grouped else max(1, min(threads(), THREADS, worth, len(missing)))
    modules = _shared_out(missing, -(-len(missing) // (most * at_once)) * at_once)

    def compile_one(together: list[Kernel]) -> None:
        declares: dict[str, str] = {}
        constants: dict[str, str] = {}
        for kernel in together:
            declares.update(kernel.declares)
            constants.update(kernel.globals)
        code = compile_module([k.text for k in together], declares, constants, machine)
        for kernel in together:
            kernel.code = code

    _for_each(compile_one, modules, at_once)
    if known:
        for together in modules:
            known.put(together)


def _for_each(work: Callable[[list[Kernel]], None], parts: list[list[Kernel]], at_once: int) -> None:
    """Does the work for each part, for so many at the same time; the first error is raised when all have ended."""
    if at_once == 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(at_once, "ferrule: code generation") as pool:
        usual = threading.stack_size(STACK)  # of threads that begin from here on
        try:
            jobs = [pool.submit(work, part) for part in parts]
        finally:
            threading.stack_size(usual)
    for job in jobs:
        job.result()


def _milliseconds(kernel: Kernel) -> float:
    """About how long LLVM takes for a kernel."""
    return EACH + len(kernel.text) * CHARACTER


def _shared_out(kernels: Sequence[Kernel], parts: int) -> list[list[Kernel]]:
    """The kernels in so many parts, of about as much work each."""
    found: list[list[Kernel]] = [[] for _ in range(parts)]
    work = [0.0] * parts
    for kernel in sorted(kernels, key=_milliseconds, reverse=True):
        least = work.index(min(work))
        found[least].append(kernel)
        work[least] += _milliseconds(kernel)
    return found
