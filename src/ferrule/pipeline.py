"""The compiler: one function, one line per stage.

read → legalize → import (→ partition) → simplify → loop_products → channels_last → match → split → hoist → place →
expand → count → control → carries → contract → fuse → finish → sides → parts (with alternate) → allocate → assemble →
Program
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ferrule.codegen import spirv
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.kernel_cache import kernel_cache
from ferrule.debug import Trace
from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, Function, Module, Tensor, dismantle
from ferrule.passes.across import in_order
from ferrule.passes.allocate import allocate
from ferrule.passes.alternate import alternate
from ferrule.passes.assemble import Work, assemble
from ferrule.passes.carries import drop_carries, late_carries
from ferrule.passes.channels_last import channels_last
from ferrule.passes.contract import contract
from ferrule.passes.control import flatten_control
from ferrule.passes.count import count
from ferrule.passes.epilogue import attach_epilogues
from ferrule.passes.expand import expand
from ferrule.passes.finish import finish_products
from ferrule.passes.fuse import fuse
from ferrule.passes.hoist import hoist
from ferrule.passes.loop_products import loop_products
from ferrule.passes.made_sides import made_sides
from ferrule.passes.match import match
from ferrule.passes.match_attention import match_attention
from ferrule.passes.operand_parts import operand_parts
from ferrule.passes.pair_products import pair_products
from ferrule.passes.partition import partition
from ferrule.passes.placed import placed
from ferrule.passes.quotients import quotients
from ferrule.passes.scatter_sums import scatter_sums
from ferrule.passes.simplify import simplify
from ferrule.passes.split import split
from ferrule.passes.stacked import stacked
from ferrule.passes.transformed import longer_transforms
from ferrule.passes.turn import turn
from ferrule.passes.unread import drop_unread
from ferrule.passes.wide_convolutions import wide_convolutions
from ferrule.passes.windows import windows
from ferrule.program import DONATED, NOT_DONATED, PYTHON, SMALL, TIMED, UNKNOWN, Output, Param, Program
from ferrule.progress import reported
from ferrule.stablehlo.importer import device_count, import_module
from ferrule.stablehlo.layouts import asked_layout, unlaid
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.options import CompileOptions, parse_options
from ferrule.stablehlo.reader import read
from ferrule.stablehlo.xla_options import XLA_OPTIONS
from ferrule.targets import find
from ferrule.targets.gpu import Gpu
from ferrule.targets.machine import Machine
from ferrule.version import VERSION

# A program that moves and computes less than this, some 100 µs of work, runs on the caller's thread: for a hand-over
# three threads are woken one after the other, which costs a caller that waits 20 to 50 µs, and one that does not wait
# gains the few µs of its next dispatch.
SMALL_BYTES, SMALL_FLOPS = 10 << 20, 2e7

# The StableHLO that a program was made from is kept in it up to this size: `compiled.as_text()` shows it.
KEPT_SOURCE = 1 << 20

# The options that a user may pass (jax.jit(..., compiler_options={...})): name → (type, help).
USER_OPTIONS: dict[str, tuple[type, str]] = {
    "ferrule_debug": (int, "the level of FERRULE_DEBUG for the compile of this program"),
    "ferrule_dump": (str, "a folder for the stages of this program, as FERRULE_DUMP"),
    **XLA_OPTIONS,
}


def compile_program(code: bytes, format: str = "mlir", options: bytes = b"", target: str = "cpu") -> Program:
    """Compiles a StableHLO program (portable artifact, MLIR bytecode or text; or an HLO proto) for a target.

    `format` is PJRT's ("mlir", "hlo", "hlo_with_config"), `options` a serialized CompileOptionsProto. Raises
    FerruleError: InvalidArgument for malformed input, Unsupported with the op and the user's source line.
    """
    settings = parse_options(options, USER_OPTIONS)
    machine = find(target)
    if machine.grouped:
        spirv.WORKER.start()
    trace = Trace(settings.user)
    # Expressions are walked recursively in places; the compile thread has a large stack.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20000))
    with reported(trace):
        module = trace.stage("read", lambda: read(code, format))
        program = compile_module(module, settings, trace, machine)
    # What frameworks read back is HLO, which has no word for Shardy's ops.
    if format == "mlir" and len(code) <= KEPT_SOURCE and program.partitions == 1:
        program.text = code
    return program


def compile_module(module: Module, settings: CompileOptions, trace: Trace, machine: Machine) -> Program:
    """The stages after reading."""
    module = trace.stage("legalize", lambda: legalize(module, calls=not machine.grouped))
    imported = trace.stage("import", lambda: import_module(module, settings, ours=True))
    for function in module.functions.values():
        dismantle(function.body)
    module = imported
    replicas, partitions = device_count(module, settings)
    if replicas * partitions > 1:
        free = settings.propagate_to_outputs
        module = trace.stage("partition", lambda: partition(module, replicas, partitions, free))
    main = module.main
    program = describe(module, main, settings)
    graph = trace.stage("simplify", lambda: stacked(scatter_sums(simplify(main.body, ours=True))))
    graph = trace.stage("transforms", lambda: longer_transforms(graph))
    graph = trace.stage("loop_products", lambda: loop_products(graph))
    if not machine.grouped:
        graph = trace.stage("channels_last", lambda: channels_last(wide_convolutions(graph, machine), machine))
    graph = trace.stage("match", lambda: match_all(graph, machine))
    if machine.grouped:
        graph = trace.stage("epilogue", lambda: simplify(attach_epilogues(graph), ours=True))
    graph = trace.stage("split", lambda: split(graph))
    graph = trace.stage("hoist", lambda: turn(hoist(graph), panels=not machine.grouped))
    if not machine.grouped:
        kept = [arg for arg, param in zip(graph.args, program.params, strict=True) if param.alias == NOT_DONATED]
        graph = trace.stage("place", lambda: placed(graph, kept))
    graph = trace.stage("expand", lambda: expand(windows(graph, machine, ours=True), machine, ours=True))
    graph = trace.stage("count", lambda: count(graph))
    graph = trace.stage("control", lambda: flatten_control(graph, machine))
    graph = trace.stage("carries", lambda: drop_carries(graph))
    graph = trace.stage("contract", lambda: contract(quotients(graph, machine)))
    fused = trace.stage("fuse", lambda: late_carries(fuse(graph, machine, ours=True)))
    dismantle(graph)
    graph = fused
    if not machine.grouped:
        aliases = [p.alias for p in program.params]
        graph = trace.stage("finish", lambda: pair_products(finish_products(graph, aliases, machine)))
        graph = trace.stage("sides", lambda: made_sides(graph, machine))
        graph = trace.stage("parts", lambda: alternate(operand_parts(graph)))
    plan = trace.stage("allocate", lambda: allocate(graph, [p.alias for p in program.params], machine.grouped))
    known = kernel_cache(machine) if not trace.watched else None
    work = trace.stage("assemble", lambda: assemble(graph, plan, machine, program, known))
    finish(program, graph, work, machine)
    trace.finish(program, work.kernels)
    dismantle(graph)
    return program


def match_all(graph: Block, machine: Machine) -> Block:
    """What libraries do, of a simplified graph, and what that leaves to simplify."""
    settled = set(graph.walk())
    return drop_unread(in_order(simplify(match(match_attention(graph, machine), machine), ours=True, settled=settled)))


def describe(module: Module, main: Function, settings: CompileOptions) -> Program:
    """The program's face: parameters, outputs, donation, devices."""
    # MLIR names are any bytes; frameworks show them as text.
    program = Program(module.name.encode("utf-8", "replace").decode(), compiler=VERSION)
    program.replicas, program.partitions = device_count(module, settings)
    program.device_assignment = settings.device_assignment
    arg_attrs: list[dict[str, Any]] = main.arg_attrs or [{} for _ in main.body.args]
    result_attrs: list[dict[str, Any]] = main.result_attrs or [{} for _ in main.body.results]
    for number, (arg, attrs) in enumerate(zip(main.body.args, arg_attrs, strict=True)):
        if not isinstance(arg.type, Tensor):
            raise Unsupported(f"parameter {number} of the program has type {arg.type}", fix="pass tensors only")
        alias = attrs.get("tf.aliasing_output", DONATED if attrs.get("jax.buffer_donor") else NOT_DONATED)
        if alias >= len(main.body.results):
            raise InvalidArgument(f"parameter {number} is donated into output {alias}, which does not exist")
        if alias >= 0 and main.body.results[alias].type.nbytes != arg.type.nbytes:  # type: ignore[union-attr]
            alias = DONATED
        kind, layout = attrs.get("mhlo.memory_kind", "device"), asked_layout(attrs, f"parameter {number}", arg.type)
        sharding = attrs.get("ferrule.sharding", b"")
        program.params.append(Param(unlaid(arg.type, layout), int(alias), kind, sharding, layout))
    for number, (value, attrs) in enumerate(zip(main.body.results, result_attrs, strict=True)):
        if not isinstance(value.type, Tensor):
            raise Unsupported(f"a result of the program has type {value.type}", fix="return tensors only")
        kind, layout = attrs.get("mhlo.memory_kind", "device"), asked_layout(attrs, f"result {number}", value.type)
        sharding = attrs.get("ferrule.sharding", b"")
        program.outputs.append(Output(unlaid(value.type, layout), kind, sharding, layout))
    give_donors(program)
    return program


def give_donors(program: Program) -> None:
    """Parameters that are donated without a word into what: each serves an output of its size that has no donor yet.
    Those that find none stay the caller's, as with XLA."""
    served = {param.alias for param in program.params}
    for param in program.params:
        if param.alias != DONATED:
            continue
        for number, output in enumerate(program.outputs):
            fits = output.type.nbytes == param.type.nbytes and output.memory_kind == param.memory_kind
            if fits and number not in served:
                param.alias = number
                served.add(number)
                break
        else:
            param.alias = NOT_DONATED


def finish(program: Program, graph: Any, work: Work, machine: Machine) -> None:
    """Cost analysis, flags, fingerprint."""
    program.cost = {"flops": work.flops, "bytes accessed": work.nbytes}
    targets = [op.attrs["target"] for op in graph.walk() if op.name == "library"]
    if any("callback" in name for name in targets):
        program.flags |= PYTHON
    elif work.serial and work.nbytes < SMALL_BYTES and work.flops < SMALL_FLOPS:
        program.flags |= TIMED if work.endless else SMALL
    elif work.unknown:
        program.flags |= UNKNOWN
    program.target = machine.name
    program.features = needed_features(machine, work.kernels)
    program.pack()  # is written twice, here and as the answer
    # Which kernels lie together in an object depends on what was compiled before; their names say what they compute.
    told = replace(program, objects=[], functions=[entry._replace(object=0) for entry in program.functions])
    program.fingerprint = hashlib.sha256(told.serialize()).hexdigest()[:32]


# Features that LLVM uses for the code that we emit. What else the host has (virtualisation, random numbers, …) must not
# tie an artifact to it.
_CODE_FEATURES = ("avx", "sse", "ssse", "fma", "bmi", "f16c", "popcnt", "lzcnt", "movbe", "adx", "gfni", "amx", "cx")


def needed_features(machine: Machine, kernels: Sequence[Kernel]) -> str:
    """What generated code needs of the machine, for the check at load: of a processor, the features it may use."""
    if isinstance(machine, Gpu):
        needs = [kind for kind, used in (("f16", " half "), ("f64", "double")) if any(used in k.text for k in kernels)]
        if kernels:
            needs.append(f"group={max(k.grain for k in kernels)}")
        if local := max((k.local_bytes for k in kernels), default=0):
            needs.append(f"local={local}")
        return ",".join(needs)
    on = (f[1:] for f in machine.features.split(",") if f.startswith("+"))
    return ",".join(f for f in on if f.startswith(_CODE_FEATURES))
