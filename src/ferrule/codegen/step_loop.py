"""A loop whose body is a few small kernels, as one function: it calls them in turn, and LLVM inlines them.

What an iteration costs the runtime (looking up pointers, jumping to each kernel) is several times what such kernels do.
A loop qualifies when all its steps are launches that one thread does, short copies, branches between such steps, and
loops that have become one function themselves: they are written into this one again.

The next value of a carry that was not computed in its place stays where it is: the two places change roles from one
iteration to the next, and only after the last one the value is brought where it belongs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ferrule.codegen.kernel import Kernel
from ferrule.codegen.while_loop import FIRST, MORE
from ferrule.program import ARENA, Case, Copy, Launch, Slot, Step

# Lines of LLVM text of all kernels of a loop, and bytes of a copy: beyond, an iteration takes long enough by itself.
LINES, COPY_BYTES = 1500, 1024
INLINED = " nounwind alwaysinline {"
_HEAD = re.compile(r"^define void @(\S+?)\((.*?)\) nounwind(?: noinline)? \{", re.MULTILINE)


@dataclass
class Loop:
    """A loop's steps. `trips` is the number of iterations; negative: until the byte in slot `test` is zero after the
    steps of `cond`. `carries` are the slots of its states, which are read after it."""

    trips: int
    cond: list[Step]
    test: int
    body: list[Step]
    carries: frozenset[int]


@dataclass
class Code:
    """What steps refer to: functions by their numbers (of some it is known which loop they are), blocks likewise."""

    kernels: Sequence[Kernel]
    blocks: Mapping[int, Sequence[Step]]
    slots: Sequence[Slot]
    loops: dict[int, Loop] = field(default_factory=dict)


def qualifies(loop: Loop, code: Code) -> bool:
    """May this loop become one function?"""
    lines = _lines_of(loop, code)
    return bool(loop.cond or loop.body) and lines is not None and lines <= LINES


def _lines_of(loop: Loop, code: Code) -> int | None:
    exchanged = _exchanged(loop, code)
    return _lines([*loop.cond, *loop.body[: len(loop.body) - len(exchanged)]], code)


def _lines(steps: Sequence[Step], code: Code) -> int | None:
    """Lines of LLVM text of the steps; None when there is one that cannot be part of a function."""
    total = 0
    for step in steps:
        lines: int | None = None
        if isinstance(step, Copy):
            lines = 1 if step.nbytes <= COPY_BYTES else None
        elif isinstance(step, Case):
            inside = [_lines(code.blocks[number], code) for number in step.branches]
            lines = None if None in inside else sum(n for n in inside if n is not None)
        elif isinstance(step, Launch) and step.function in code.loops:
            lines = _lines_of(code.loops[step.function], code)
        elif isinstance(step, Launch) and step.grid <= step.grain:
            text = code.kernels[step.function].text
            lines = text.count("\n") if len(_HEAD.findall(text)) == 1 and INLINED not in text else None
        if lines is None:
            return None
        total += lines
        if total > LINES:
            return total
    return total


def _exchanged(loop: Loop, code: Code) -> list[Copy]:
    """The copies at the end of a loop's body whose two places may change roles."""
    found: list[Copy] = []
    for step in reversed(loop.body):
        if not isinstance(step, Copy):
            break
        found.insert(0, step)
    used = {*_used(loop.cond, code), *_used(loop.body, code)}
    while found:
        ends = [slot for step in found for slot in (step.dst, step.src)]
        right = [
            _may_change(step, used, code.slots)
            and step.src not in loop.carries  # two carries with one value: after the loop, both places have it
            and ends.count(step.dst) == ends.count(step.src) == 1
            and _written_first(step.src, [*loop.cond, *loop.body[: len(loop.body) - len(found)]], code) is True
            for step in found
        ]
        if all(right):
            break
        found = found[right.index(False) + 1 :]
    return found


def _may_change(step: Copy, used: set[int], slots: Sequence[Slot]) -> bool:
    """Is the whole of one place copied to another, and is neither part of what else the loop uses?"""
    source, target = slots[step.src], slots[step.dst]
    if source.kind != ARENA or not source.size == target.size == step.nbytes:
        return False
    ends = (step.src, step.dst)
    return not any(_overlap(slots[other], slots[end]) for other in used for end in ends if other not in ends)


def _written_first(slot: int, steps: Sequence[Step], code: Code) -> bool | None:
    """Do steps write to a place before they read it? None when they do neither. What was computed before the loop is
    read in every iteration, so its place must stay."""
    for step in steps:
        if isinstance(step, Case):
            if slot == step.index:
                return False
            found = [_written_first(slot, code.blocks[number], code) for number in step.branches]
            if found and found[0] is not None and found == found[:1] * len(found):
                return found[0]
            if any(first is not None for first in found):
                return False
        elif isinstance(step, Copy):
            if slot in (step.src, step.dst):
                return step.src != slot
        elif isinstance(step, Launch) and slot in step.slots:
            return slot not in step.slots[: len(step.slots) - step.writes]
    return None


def _overlap(a: Slot, b: Slot) -> bool:
    if a.kind != b.kind:
        return False
    return a.where < b.where + b.size and b.where < a.where + a.size if a.kind == ARENA else a.where == b.where


def _used(steps: Sequence[Step], code: Code) -> set[int]:
    """The slots that steps read or write."""
    found: set[int] = set()
    for step in steps:
        if isinstance(step, Copy):
            found |= {step.dst, step.src}
        elif isinstance(step, Case):
            found.add(step.index)
            found.update(*(_used(code.blocks[number], code) for number in step.branches))
        elif isinstance(step, Launch):
            found.update(step.slots)
    return found


def emit(loop: Loop, code: Code) -> tuple[Kernel, Launch]:
    """The function, and the step that launches it (as function -1: the caller knows its number)."""
    writer = _Writer("LOOP", code)
    writer.loop(loop)
    lines = [
        "define void @LOOP(ptr %p, i64 %begin, i64 %end) nounwind {",
        "entry:",
        *writer.entry,
        "  br label %start",
        "start:",
        *writer.lines,
        "  ret void",
        "}",
    ]
    text = "\n".join([*writer.texts.values(), *lines]) + "\n"
    key = hashlib.sha256("\n".join([text, *writer.constants.values()]).encode()).hexdigest()
    symbol = f"loop_{key[:8]}"
    kernel = Kernel(
        symbol,
        re.sub(r"@LOOP(?=[.(])", f"@{symbol}", text),
        writer.declares,
        writer.constants,
        flops=writer.flops,
        bytes=writer.bytes,
        key=f"loop {key}",
    )
    return kernel, Launch(-1, 1, 1, (*writer.order, *writer.written), len(writer.written))


class _Writer:
    """Writes steps into one function."""

    def __init__(self, symbol: str, code: Code) -> None:
        self.symbol, self.code = symbol, code
        self.order: list[int] = []  # the slots whose pointers the function gets
        self.slots: dict[int, str] = {}  # where each is now
        self.written: dict[int, None] = {}
        self.texts: dict[int, str] = {}
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.block = "start"  # the label of what is written now
        self.declares: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.count = 0
        self.asks = False
        self.flops = self.bytes = 0.0
        self.times = 1  # how often the code that is written now runs, as far as that is known

    def name(self) -> int:
        self.count += 1
        return self.count

    def pointer(self, slot: int) -> str:
        if slot not in self.slots:
            number = len(self.order)
            self.order.append(slot)
            self.slots[slot] = f"%s{number}"
            self.entry.append(f"  %q{number} = getelementptr ptr, ptr %p, i64 {number}")
            self.entry.append(f"  %s{number} = load ptr, ptr %q{number}, align 8")
        return self.slots[slot]

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Copy):
                self.copy(step)
            elif isinstance(step, Case):
                self.case(step)
            else:
                assert isinstance(step, Launch)
                if step.function in self.code.loops:
                    self.loop(self.code.loops[step.function])
                else:
                    self.launch(step)

    def copy(self, step: Copy) -> None:
        self.written[step.dst] = None
        self.move(self.pointer(step.dst), self.pointer(step.src), step.nbytes)

    def move(self, to: str, source: str, nbytes: int) -> None:
        self.declares["llvm.memmove"] = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"
        self.lines.append(f"  call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {source}, i64 {nbytes}, i1 false)")

    def launch(self, step: Launch) -> None:
        kernel = self.code.kernels[step.function]
        if step.function not in self.texts:
            inner = f"{self.symbol}.{kernel.symbol}"
            self.texts[step.function] = _HEAD.sub(rf"define internal void @{inner}(\2){INLINED}", kernel.text)
            self.declares.update(kernel.declares)
            self.constants.update(kernel.globals)
        self.flops += self.times * kernel.flops
        self.bytes += self.times * kernel.bytes
        self.written.update(dict.fromkeys(step.slots[len(step.slots) - step.writes :]))
        pointers, name = [self.pointer(slot) for slot in step.slots], f"c{self.name()}"
        self.entry.append(f"  %{name} = alloca [{max(1, len(pointers))} x ptr], align 8")
        for i, found in enumerate(pointers):
            to = self.entry if found.startswith("%s") else self.lines
            to.append(f"  %{name}.{i} = getelementptr ptr, ptr %{name}, i64 {i}")
            to.append(f"  store ptr {found}, ptr %{name}.{i}, align 8")
        self.lines.append(f"  call void @{self.symbol}.{kernel.symbol}(ptr %{name}, i64 0, i64 {step.grid})")

    def case(self, step: Case) -> None:
        number, pointer = self.name(), self.pointer(step.index)
        kind = "i8" if step.is_bool else "i32"
        # A number outside of the range chooses the last branch; of a truth value, branch 0 is that of true.
        *others, last = [f"case{number}.{i}" for i in range(len(step.branches))]
        default, chosen = (others[0], {0: last}) if step.is_bool else (last, dict(enumerate(others)))
        cases = " ".join(f"{kind} {value}, label %{label}" for value, label in chosen.items())
        self.lines.append(f"  %which{number} = load {kind}, ptr {pointer}, align 1")
        self.lines.append(f"  switch {kind} %which{number}, label %{default} [{cases}]")
        for label, block in zip([*others, last], step.branches, strict=True):
            self.start(label)
            self.steps(self.code.blocks[block])
            self.lines.append(f"  br label %join{number}")
        self.start(f"join{number}")

    def ask(self, number: int, body: str, out: str) -> None:
        """A loop of unknown length asks the runtime now and then how many iterations may pass, and ends on none."""
        if not self.asks:
            self.asks = True
            self.declares |= {"ferrule_more": MORE, "llvm.umax.i64": "declare i64 @llvm.umax.i64(i64, i64)"}
            self.entry += ["  %left = alloca i64, align 8", f"  store i64 {FIRST}, ptr %left, align 8"]
        self.lines += [
            f"asked{number}:",
            f"  %left{number} = load i64, ptr %left, align 8",
            f"  %less{number} = add i64 %left{number}, -1",
            f"  store i64 %less{number}, ptr %left, align 8",
            f"  %none{number} = icmp eq i64 %less{number}, 0",
            f"  br i1 %none{number}, label %ask{number}, label %{body}",
            f"ask{number}:",
            f"  %may{number} = call i64 @ferrule_more()",
            f"  %again{number} = call i64 @llvm.umax.i64(i64 %may{number}, i64 1)",
            f"  store i64 %again{number}, ptr %left, align 8",
            f"  %stop{number} = icmp eq i64 %may{number}, 0",
            f"  br i1 %stop{number}, label %{out}, label %{body}",
        ]

    def loop(self, loop: Loop) -> None:
        number, before, times = self.name(), self.block, self.times
        head, body, out = f"head{number}", f"body{number}", f"exit{number}"
        exchanged = _exchanged(loop, self.code)
        places = {slot: self.pointer(slot) for step in exchanged for slot in (step.dst, step.src)}
        self.lines.append(f"  br label %{head}")
        self.start(head)
        at = len(self.lines)
        self.lines.append("")
        self.slots.update((slot, f"%x{number}.{slot}") for slot in places)
        self.times *= max(loop.trips, 1)
        if loop.trips < 0:
            self.steps(loop.cond)
            self.lines.append(f"  %go{number} = load i8, ptr {self.pointer(loop.test)}, align 1")
            self.lines.append(f"  %more{number} = icmp ne i8 %go{number}, 0")
        else:
            self.lines.append(f"  %more{number} = icmp slt i64 %i{number}, {loop.trips}")
        go = f"asked{number}" if loop.trips < 0 else body
        self.lines.append(f"  br i1 %more{number}, label %{go}, label %{out}")
        if loop.trips < 0:
            self.ask(number, body, out)
        self.start(body)
        self.steps(loop.body[: len(loop.body) - len(exchanged)])
        self.lines.append(f"  %next{number} = add nuw nsw i64 %i{number}, 1")
        self.lines.append(f"  br label %{head}")
        phis = [f"  %i{number} = phi i64 [0, %{before}], [%next{number}, %{self.block}]"]
        for step in exchanged:
            for slot, other in ((step.dst, step.src), (step.src, step.dst)):
                edges = f"[{places[slot]}, %{before}], [{self.slots[other]}, %{self.block}]"
                phis.append(f"  {self.slots[slot]} = phi ptr {edges}")
        self.lines[at] = "\n".join(phis)
        self.start(out)
        for step in exchanged:
            here = self.slots[step.dst]
            self.written.update({step.dst: None, step.src: None})
            self.slots.update((slot, places[slot]) for slot in (step.dst, step.src))
            if loop.trips < 0 or loop.trips % 2:
                self.move(self.slots[step.dst], here, step.nbytes)
        self.times = times
