"""Assemble: kernels to object code, the planned block to steps; the last stage of a compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ferrule.codegen import step_loop, while_loop
from ferrule.codegen.block_kernel import emit_block_kernel
from ferrule.codegen.kernel import Kernel, Spelled, emit_comparator, emit_kernel, structure_key
from ferrule.codegen.kernel_cache import KernelCache
from ferrule.codegen.object import compile_kernels
from ferrule.ir import Block, Op, Tensor, Value
from ferrule.passes import made_sides
from ferrule.passes.allocate import Plan
from ferrule.passes.finish import columns
from ferrule.passes.operand_parts import seen
from ferrule.program import Call, Case, Copy, Entry, Fn, Launch, Program, Step, While
from ferrule.targets.cpu import host
from ferrule.targets.machine import Machine

# A loop of so many iterations may take long, whatever its steps cost.
SHORT_LOOP = 1000
# Kernels per LLVM module: enough to spread its fixed cost, few enough that code generation stays linear.
BATCH = 48


@dataclass
class Work:
    """What a program does, for the cost analysis and the choice of the thread that runs it."""

    flops: float = 0.0
    nbytes: float = 0.0
    serial: bool = True  # no long loop, no library call that may take long
    endless: bool = False  # loops of unknown length, which can be cut short
    unknown: bool = False  # loops of unknown length of any kind
    kernels: list[Kernel] = field(default_factory=list)


@dataclass
class _Assembler:
    plan: Plan
    machine: Machine
    program: Program
    known: KernelCache | None  # kernels that were compiled before
    work: Work = field(default_factory=Work)
    kernels: dict[str, tuple[int, Kernel]] = field(default_factory=dict)
    texts: list[Kernel] = field(default_factory=list)
    loops: dict[int, step_loop.Loop] = field(default_factory=dict)  # by the function that each has become
    inside: dict[int, list[Step]] = field(default_factory=dict)  # blocks that are parts of such functions
    comparators: dict[str, int] = field(default_factory=dict)  # functions that calls get, by what they compute
    hosted: list[Kernel] = field(default_factory=list)  # functions that run on the host of a device
    spelled: Spelled = field(default_factory=Spelled)
    runs: dict[str, tuple[bool, bool, bool]] = field(default_factory=dict)  # by kernel: endless, unknown, serial
    depth: int = 0  # of loops around the steps that are written now

    def block(self, block: Block) -> int:
        """Writes the steps of a block; returns its number."""
        number = len(self.program.blocks)
        steps: list[Step] = []
        self.program.blocks.append(steps)
        for op in block.ops:
            steps += [Copy(*move) for move in self.plan.before.get(op, ())]
            match op.name:
                case "fusion":
                    steps += self.launch(op)
                case "library":
                    steps.append(self.call(op))
                case "while":
                    steps.append(self.loop(op))
                case "case" | "if":
                    branches = tuple(self.block(r) for r in op.regions)
                    steps.append(Case(self.slot(op.operands[0]), op.name == "if", branches))
        steps += [Copy(*move) for move in self.plan.at_end.get(block, ())]
        self.work.nbytes += 2.0 * sum(s.nbytes for s in steps if isinstance(s, Copy))
        return number

    def loop(self, op: Op) -> Step:
        self.depth += 1
        step = self.loop_of(op)
        self.depth -= 1
        return step

    def loop_of(self, op: Op) -> Step:
        cond, body = op.regions
        trips = op.attrs.get("trips", -1)
        if trips < 0:
            self.work.endless = self.work.unknown = True
            return self.native(While(self.block(cond), self.slot(cond.results[0]), self.block(body)), op)
        self.program.blocks.append([])  # the condition
        number = len(self.program.blocks) - 1
        flops, nbytes = self.work.flops, self.work.nbytes
        step = self.native(While(number, self.slot(cond.results[0]), self.block(body), trips), op)
        self.work.flops += (trips - 1) * (self.work.flops - flops)
        self.work.nbytes += (trips - 1) * (self.work.nbytes - nbytes)
        self.work.serial &= trips < SHORT_LOOP
        return step

    def native(self, step: While, op: Op) -> Step:
        """The loop as one function, where its steps are small kernels."""
        cond, body = (self.program.blocks[number] for number in (step.cond, step.body))
        carries = frozenset(self.plan.slot_of[r] for r in op.results if r in self.plan.slot_of)
        loop = step_loop.Loop(step.trips, list(cond), step.predicate, list(body), carries)
        blocks = {**dict(enumerate(self.program.blocks)), **self.inside}
        code = step_loop.Code(self.texts, blocks, self.plan.slots, self.loops)
        if self.machine.grouped or not step_loop.qualifies(loop, code):
            return step
        kernel, launch = step_loop.emit(loop, code)
        self.texts.append(kernel)
        self.loops[len(self.texts) - 1] = loop
        self.take([*cond, *body])
        cond.clear()
        body.clear()
        return replace(launch, function=len(self.texts) - 1)

    def take(self, steps: Sequence[Step]) -> None:
        """Takes the branches of these steps out of the program: they are in a loop's function now."""
        for number in (n for step in steps if isinstance(step, Case) for n in step.branches):
            branch = self.program.blocks[number]
            self.inside[number] = list(branch)
            self.take(branch)
            branch.clear()

    def slot(self, value: Value) -> int:
        return self.plan.slot_of[value]

    def launch(self, op: Op) -> list[Step]:
        region = op.regions[0]
        key = structure_key(region, self.spelled)
        if key not in self.kernels:
            kernel = self.known.get(key) if self.known else None
            if kernel is None or self.depth:  # a loop may become a function that is made of its kernels' text
                kernel = emit_kernel(region, f"{label(region)}_{key[:8]}", self.machine)
                kernel.key = key
            self.kernels[key] = (len(self.texts), kernel)
            self.texts.append(kernel)
        index, kernel = self.kernels[key]
        if self.depth and not kernel.text:
            fresh = emit_kernel(region, kernel.symbol, self.machine)
            kernel.text, kernel.declares, kernel.globals = fresh.text, fresh.declares, fresh.globals
        if kernel.grid == 0:
            return []
        self.work.flops += kernel.flops
        self.work.nbytes += kernel.bytes
        if key not in self.runs:
            self.runs[key] = _runs([o for o in region.walk() if o.name == "loop"])
        endless, unknown, serial = self.runs[key]
        self.work.endless |= endless
        self.work.unknown |= unknown
        self.work.serial &= serial
        slots = tuple(self.slot(v) for v in (*op.operands, *op.results))
        return [Launch(index, kernel.grid, kernel.grain, slots, len(op.results))]

    def used(self) -> list[Kernel]:
        """The kernels that steps name, each once, numbered anew: what only a loop calls went into its function."""
        named = {s.function for steps in self.program.blocks for s in steps if isinstance(s, Launch)}
        if self.machine.grouped or (not self.loops and len(named) + len(self.comparators) == len(self.texts)):
            return self.texts
        kept: dict[str, int] = {}
        number: dict[int, int] = {}
        for old in sorted(named | set(self.comparators.values())):
            number[old] = kept.setdefault(self.texts[old].key, len(kept))
        for steps in self.program.blocks:
            for i, step in enumerate(steps):
                if isinstance(step, Launch):
                    steps[i] = replace(step, function=number[step.function])
                elif isinstance(step, Call):
                    found = {k: Fn(number[fn.index]) for k, fn in step.attrs.items() if isinstance(fn, Fn)}
                    steps[i] = replace(step, attrs=step.attrs | found) if found else step
        by_key = {kernel.key: kernel for kernel in self.texts}
        return [by_key[key] for key in kept]

    def comparator(self, key: str, region: Block) -> int:
        """The number of a comparator's function. Who calls it is on the host; it comes after the device's kernels."""
        if self.machine.grouped:
            if key not in self.comparators:
                self.comparators[key] = len(self.hosted)
                self.hosted.append(emit_comparator(region, f"f{len(self.hosted)}_compare", host()))
            return -1 - self.comparators[key]  # `assemble` knows how many kernels come first
        if key not in self.comparators:
            self.comparators[key] = len(self.texts)
            kernel = emit_comparator(region, f"comparator_{key[:8]}", self.machine)
            kernel.key = f"comparator {key}"
            self.texts.append(kernel)
        return self.comparators[key]

    def blocks_of(self, region: Block, columns: int, *, alone: bool = False, ahead: int = 0) -> int:
        """The number of the function that computes blocks of a matrix."""
        structure = structure_key(region, self.spelled)
        key = f"block {columns} {f'alone {ahead} ' if alone else ''}{structure}"
        if key not in self.comparators:
            kernel = self.known.get(key) if self.known else None
            if kernel is None:
                symbol = f"{label(region)}_{'for' if alone else 'of'}_{columns}_{structure[:8]}"
                kernel = emit_block_kernel(region, columns, symbol, self.machine, alone=alone, ahead=ahead)
                kernel.key = key
            self.comparators[key] = len(self.texts)
            self.texts.append(kernel)
        return self.comparators[key]

    def call(self, op: Op) -> Step:
        attrs: dict[str, Any] = dict(op.attrs["attrs"])
        parts: list[Kernel] = []  # of what the call computes
        regions = list(op.regions)
        if "made_of" in attrs:
            number = self.blocks_of(regions.pop(), made_sides.columns(op), alone=True, ahead=made_sides.ahead(op))
            parts.append(self.texts[number])
            attrs["made"] = Fn(number)
        if regions and op.attrs["target"] in ("gemm", "conv"):
            number = self.blocks_of(regions[0], columns(op))
            parts.append(self.texts[number])
            attrs |= {"epilogue": Fn(number), "grain": parts[-1].grain}
        elif regions:
            key = structure_key(regions[0])
            attrs["comparator"] = Fn(self.comparator(key, regions[0]))
        shared = {operand: op.results[output] for output, operand in op.attrs.get("aliases", ())}
        reads = [shared.get(i, v) for i, v in enumerate(op.operands)]
        sides = [
            tuple((self.slot(v), v.type) for v in side if isinstance(v.type, Tensor)) for side in (reads, op.results)
        ]
        target, read = op.attrs["target"], seen(op)
        flops = 0.0
        if target in ("gemm", "gemm.pair", "gemm.ragged", "dnnl.matmul"):
            for part in ("", "then_") if target == "gemm.pair" else ("",):
                flops += 2.0 * prod(attrs[part + size] for size in ("batch", "m", "n", "k"))
        elif target == "attention":
            pairs = prod(attrs["batch"]) * attrs["rows"] * attrs["keys"]
            flops = 2.0 * pairs * (attrs["depth"] + attrs["width"])
        elif target in ("conv", "dnnl.conv"):
            out = op.results[0].type.size  # type: ignore[union-attr]
            kernel = read[1]
            assert isinstance(kernel, Tensor)
            flops = 2.0 * out * kernel.size / max(1, kernel.shape[attrs["kernel_output_feature_dimension"]])
        elif target != "gemm.pack":
            self.work.serial = False
        flops += sum(kernel.flops for kernel in parts)
        self.work.flops += flops
        if "made_of" in attrs:
            read = [read[0], *read[2:]]  # the second one only stands for what is computed
        moved = [*read, *(v.type for v in op.results)]
        self.work.nbytes += sum(type.nbytes for type in moved if isinstance(type, Tensor))
        return Call(target, op.attrs["ffi"], sides[0], sides[1], attrs, flops, str(op.loc))


def _runs(loops: Sequence[Op]) -> tuple[bool, bool, bool]:
    """Are there endless loops among a kernel's, loops of unknown length, and are all short or cut short?"""
    serial = all(while_loop.asks(o) or o.attrs.get("trips", SHORT_LOOP) < SHORT_LOOP for o in loops)
    return any(map(while_loop.asks, loops)), any("trips" not in o.attrs for o in loops), serial


def label(block: Block) -> str:
    """A short name for a kernel: the ops that stand out in it, so that profiles and dumps can be read."""
    names: dict[str, None] = {}
    for op in reversed(block.ops):
        if op.name not in ("constant", "broadcast_in_dim", "reshape", "convert"):
            names[op.name] = None
    return "_".join(list(names)[:3]) or "copy"


def assemble(block: Block, plan: Plan, machine: Machine, program: Program, known: KernelCache | None = None) -> Work:
    """Fills in the program's code, slots and steps; returns an account of its work.

    `known` are kernels that earlier programs have left.
    """
    assembler = _Assembler(plan, machine, program, known)
    assembler.block(block)
    program.slots = plan.slots
    program.constants = plan.constants
    program.arena_bytes = plan.arena_bytes
    kernels = assembler.used()
    # a device's driver loads one module
    compile_kernels(kernels, machine, known, max(1, len(kernels)) if machine.grouped else BATCH)
    compile_kernels(assembler.hosted, host(), None, BATCH)
    program.objects = list(dict.fromkeys(kernel.code for kernel in [*kernels, *assembler.hosted]))
    number = {code: i for i, code in enumerate(program.objects)}
    program.functions = [Entry(number[k.code], k.symbol, k.flops, k.bytes) for k in [*kernels, *assembler.hosted]]
    if assembler.hosted:
        _number_comparators(program, len(kernels))
    assembler.work.kernels = kernels
    return assembler.work


def _number_comparators(program: Program, kernels: int) -> None:
    """Gives the functions on the host their final numbers, after the device's kernels."""
    for steps in program.blocks:
        for i, step in enumerate(steps):
            if isinstance(step, Call) and isinstance(fn := step.attrs.get("comparator"), Fn):
                steps[i] = replace(step, attrs=step.attrs | {"comparator": Fn(kernels - 1 - fn.index)})
