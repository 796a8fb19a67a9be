"""A loop whose body is a few small kernels, as one function: it calls them in turn, and LLVM inlines them.

What an iteration costs the runtime (looking up pointers, jumping to each kernel) is several times what such kernels do.
A loop qualifies when all its steps are launches that one thread does, and short copies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ferrule.codegen.kernel import Kernel
from ferrule.program import Copy, Launch, Step

# Lines of LLVM text of all kernels of a loop, and bytes of a copy: beyond, an iteration takes long enough by itself.
LINES, COPY_BYTES = 1500, 1024
INLINED = " nounwind alwaysinline {"
_HEAD = re.compile(r"^define void @(\S+?)\((.*?)\) nounwind(?: noinline)? \{", re.MULTILINE)


def qualifies(steps: Sequence[Step], kernels: Sequence[Kernel]) -> bool:
    """May these steps, of the condition and the body, become one function?"""
    lines = 0
    for step in steps:
        if isinstance(step, Copy) and step.nbytes <= COPY_BYTES:
            continue
        if not isinstance(step, Launch) or step.grid > step.grain:
            return False
        kernel = kernels[step.function]
        lines += kernel.text.count("\n")
        if lines > LINES or INLINED in kernel.text or len(_HEAD.findall(kernel.text)) != 1:
            return False
    return bool(steps)


def emit(
    symbol: str, trips: int, cond: Sequence[Step], test: int, body: Sequence[Step], kernels: Sequence[Kernel]
) -> tuple[Kernel, Launch]:
    """The function, and the step that launches it (as function -1: the caller knows its number).

    `trips` is the number of iterations; negative: until the byte in slot `test` is zero after the steps of `cond`.
    """
    slots: dict[int, str] = {}
    texts: dict[int, str] = {}
    entry: list[str] = []
    declares: dict[str, str] = {}
    constants: dict[str, str] = {}
    written: dict[int, None] = {}

    def pointer(slot: int) -> str:
        if slot not in slots:
            number = len(slots)
            slots[slot] = f"%s{number}"
            entry.append(f"  %q{number} = getelementptr ptr, ptr %p, i64 {number}")
            entry.append(f"  %s{number} = load ptr, ptr %q{number}, align 8")
        return slots[slot]

    def call(step: Step, name: str) -> str:
        if isinstance(step, Copy):
            written[step.dst] = None
            declares["llvm.memmove"] = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"
            to, source = pointer(step.dst), pointer(step.src)
            return f"  call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {source}, i64 {step.nbytes}, i1 false)"
        assert isinstance(step, Launch)
        kernel = kernels[step.function]
        if step.function not in texts:
            inner = f"{symbol}.{kernel.symbol}"
            texts[step.function] = _HEAD.sub(rf"define internal void @{inner}(\2){INLINED}", kernel.text)
            declares.update(kernel.declares)
            constants.update(kernel.globals)
        written.update(dict.fromkeys(step.slots[len(step.slots) - step.writes :]))
        pointers = [pointer(slot) for slot in step.slots]
        entry.append(f"  %{name} = alloca [{max(1, len(pointers))} x ptr], align 8")
        for i, found in enumerate(pointers):
            entry.append(f"  %{name}.{i} = getelementptr ptr, ptr %{name}, i64 {i}")
            entry.append(f"  store ptr {found}, ptr %{name}.{i}, align 8")
        return f"  call void @{symbol}.{kernel.symbol}(ptr %{name}, i64 0, i64 {step.grid})"

    head = [call(step, f"c{i}") for i, step in enumerate(cond)] if trips < 0 else []
    if trips < 0:
        head += [f"  %go = load i8, ptr {pointer(test)}, align 1", "  %more = icmp ne i8 %go, 0"]
    else:
        head.append(f"  %more = icmp slt i64 %i, {trips}")
    inside = [call(step, f"b{i}") for i, step in enumerate(body)]
    lines = [
        f"define void @{symbol}(ptr %p, i64 %begin, i64 %end) nounwind {{",
        "entry:",
        *entry,
        "  br label %head",
        "head:",
        "  %i = phi i64 [0, %entry], [%next, %body]",
        *head,
        "  br i1 %more, label %body, label %exit",
        "body:",
        *inside,
        "  %next = add nuw nsw i64 %i, 1",
        "  br label %head",
        "exit:",
        "  ret void",
        "}",
    ]
    used = [kernels[i] for i in texts]
    kernel = Kernel(
        symbol,
        "\n".join([*texts.values(), *lines]) + "\n",
        declares,
        constants,
        flops=max(trips, 1) * sum(k.flops for k in used),
        bytes=max(trips, 1) * sum(k.bytes for k in used),
    )
    return kernel, Launch(-1, 1, 1, (*slots, *written), len(written))
