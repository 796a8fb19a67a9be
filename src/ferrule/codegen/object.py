"""From LLVM text to a relocatable ELF object.

The text is vector code already, so no vectoriser runs; the pass list is what measurements left of `-O2`: it cleans up
what the text writer repeats, and the code generator does the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache

import llvmlite.binding as llvm

from ferrule.codegen.kernel import Kernel
from ferrule.codegen.kernel_cache import KernelCache
from ferrule.errors import Internal
from ferrule.targets.machine import Machine

_lock = threading.Lock()


@cache
def _target(machine: Machine) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, reloc="pic", codemodel="small", jit=False
    )


def module_text(
    functions: Sequence[str], declares: Mapping[str, str], constants: Mapping[str, str], triple: str
) -> str:
    """The text of a module that holds these functions."""
    parts = [f'target triple = "{triple}"', *constants.values(), *declares.values(), *functions]
    return "\n".join(parts) + "\n"


def parse(text: str) -> llvm.ModuleRef:
    """Parses and verifies; an error is a bug in Ferrule, and shows the text around the place."""
    try:
        module = llvm.parse_assembly(text)
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
    with _lock:
        target = _target(machine)
        module = parse(text)
        optimize(module, target)
        return target.emit_object(module)


def compile_kernels(kernels: Sequence[Kernel], machine: Machine, known: KernelCache | None, batch: int) -> None:
    """Gives each kernel its object; `known` has those that were compiled before. `batch`: so many share a module."""
    for kernel in kernels:
        if known and not kernel.code and (found := known.get(kernel.key)):
            kernel.code = found.code
    missing = [kernel for kernel in kernels if not kernel.code]
    for at in range(0, len(missing), batch):
        together = missing[at : at + batch]
        declares: dict[str, str] = {}
        constants: dict[str, str] = {}
        for kernel in together:
            declares.update(kernel.declares)
            constants.update(kernel.globals)
        code = compile_module([k.text for k in together], declares, constants, machine)
        for kernel in together:
            kernel.code = code
        if known:
            known.put(together)
