"""A small writer of LLVM IR text, and the way from text to object code.

Text is several times cheaper to build than llvmlite's object tree, and it is what a person reads in a dump. A `V` is a
typed operand; `Builder` appends instructions to the body of one function. Control flow is structured: `loop` and
`branch` take Python functions for their bodies and carry values through phi nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ferrule.codegen.dialect import HOST, Dialect


class V(NamedTuple):
    """An LLVM operand: its type ("float", "<16 x i32>", "ptr") and its text ("%3", "7", "zeroinitializer")."""

    type: str
    ref: str

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


def vector(type: str, width: int) -> str:
    """The vector type of `width` lanes, or the scalar type when the width is one."""
    return type if width == 1 else f"<{width} x {type}>"


def float_literal(value: float, bits: int) -> str:
    """LLVM's exact spelling of a constant: for float and double the bits of the double, 64-bit hexadecimal."""
    if bits == 32:
        value = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) <= 3.4028235677973366e38 else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def i64(value: int) -> V:
    return V("i64", str(value))


@dataclass
class Ahead:
    """A loop that is being written: its counter, and the lines that go before it."""

    counter: str
    lines: list[str]
    moved: dict[tuple[str, ...], V] = field(default_factory=dict)


class Builder:
    """Writes one function. `declares` and `globals` collect what the module must hold besides it."""

    def __init__(
        self,
        name: str,
        result: str,
        params: Sequence[str],
        attributes: str = "nounwind",
        dialect: Dialect = HOST,
    ) -> None:
        self.name, self.dialect = name, dialect
        self.args = [V(type, f"%a{i}") for i, type in enumerate(params)]
        spelled = ", ".join(f"{'ptr noalias' if t == 'ptr!' else t} %a{i}" for i, t in enumerate(params))
        self.head = f"define {result} @{name}({spelled}) {attributes} {{"
        self.lines: list[str] = ["entry:"]
        self.current = "entry"
        self.declares: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.local_bytes = 0  # of the memory that a group shares
        self.picked = 0  # gathers that were written as loads (codegen/memory.py)
        self._count = 0
        # For addresses in loops: how integers were computed, and the loops around.
        self.made: dict[str, tuple[str, V, V]] = {}
        self.quotients: dict[tuple[str, bool, str, str], V] = {}  # by block, signedness and operands
        self.loops: list[Ahead] = []

    # --- instructions -------------------------------------------------------------------------------------------
    def emit(self, type: str, text: str) -> V:
        """Appends `%n = text`; returns the new value of the given type."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return V(type, name)

    def do(self, text: str) -> None:
        """Appends an instruction without a result."""
        self.lines.append(f"  {text}")

    def binary(self, opcode: str, a: V, b: V) -> V:
        return self.emit(a.type, f"{opcode} {a.type} {a.ref}, {b.ref}")

    def compare(self, opcode: str, a: V, b: V) -> V:
        """`icmp slt`, `fcmp olt`, …; the result has as many lanes as the operands."""
        lanes = a.type[1:].split(" x ")[0] if a.type[0] == "<" else ""
        return self.emit(f"<{lanes} x i1>" if lanes else "i1", f"{opcode} {a.type} {a.ref}, {b.ref}")

    def cast(self, opcode: str, a: V, type: str) -> V:
        if a.type == type:
            return a
        a = self.dialect.before_cast(self, opcode, a, type)
        return self.emit(type, f"{opcode} {a.type} {a.ref} to {type}")

    def select(self, cond: V, a: V, b: V) -> V:
        return self.emit(a.type, f"select {cond}, {a}, {b}")

    def call(self, type: str, function: str, *args: V) -> V:
        """Calls a function or intrinsic; declares it on first use."""
        kinds = ", ".join(a.type for a in args)
        self.declares[function] = f"declare {type} @{function}({kinds})"
        text = f"call {type} @{function}({', '.join(map(str, args))})"
        if type == "void":
            self.do(text)
            return V("void", "")
        return self.emit(type, text)

    def load(self, type: str, pointer: V, align: int) -> V:
        return self.emit(type, f"load {type}, {pointer}, align {align}")

    def store(self, value: V, pointer: V, align: int, stream: bool = False) -> None:
        """`stream`: past the cache."""
        if stream:
            self.globals["!0"] = "!0 = !{i32 1}"
        self.do(f"store {value}, {pointer}, align {align}{', !nontemporal !0' if stream else ''}")

    def offset(self, pointer: V, type: str, index: V) -> V:
        """The address `index` elements of `type` past `pointer`."""
        return (
            pointer
            if index.ref == "0"
            else self.emit(pointer.type, f"getelementptr inbounds {type}, {pointer}, {index}")
        )

    def splat(self, value: V, width: int) -> V:
        """The scalar in every lane."""
        if width == 1 or value.type[0] == "<":
            return value
        type = vector(value.type, width)
        if value.ref[0] != "%":
            return V(type, f"<{', '.join([str(value)] * width)}>")
        first = self.emit(type, f"insertelement {type} poison, {value}, i64 0")
        return self.emit(type, f"shufflevector {first}, {type} poison, <{width} x i32> zeroinitializer")

    # --- control flow -------------------------------------------------------------------------------------------
    def label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.current = label

    def loop(
        self,
        begin: V,
        end: V,
        step: int,
        init: Sequence[V],
        body: Callable[[V, list[V]], Sequence[V]],
        stem: str = "loop",
    ) -> list[V]:
        """`for i in range(begin, end, step)` with values carried from one iteration to the next; the last ones return.

        The test stands before the body, so an empty range returns `init`.
        """
        if begin.ref[0] != "%" and end.ref[0] != "%":
            if self.dialect.bottom_tested or int(begin.ref) + step >= int(end.ref):
                return self._repeat(int(begin.ref), int(end.ref), step, init, body, stem)
        head, inside, out = (self.label(f"{stem}.{part}") for part in ("head", "body", "exit"))
        entry = self.current
        self.do(f"br label %{head}")
        self.start(head)
        at = len(self.lines)
        index = self.emit("i64", "")
        carried = [self.emit(v.type, "") for v in init]
        more = self.compare("icmp slt", index, end)
        self.do(f"br i1 {more.ref}, label %{inside}, label %{out}")
        self.start(inside)
        new = body(index, list(carried))
        following = self.emit("i64", f"add nsw i64 {index.ref}, {step}")
        back = self.current
        self.do(f"br label %{head}")
        self.lines[at] = f"  {index.ref} = phi i64 [{begin.ref}, %{entry}], [{following.ref}, %{back}]"
        for n, (value, old, now) in enumerate(zip(carried, init, new, strict=True), 1):
            self.lines[at + n] = f"  {value.ref} = phi {value.type} [{old.ref}, %{entry}], [{now.ref}, %{back}]"
        self.start(out)
        return carried

    def _repeat(
        self,
        begin: int,
        end: int,
        step: int,
        init: Sequence[V],
        body: Callable[[V, list[V]], Sequence[V]],
        stem: str,
    ) -> list[V]:
        """A loop of known length with its test at the bottom."""
        if begin >= end:
            return list(init)
        if begin + step >= end:
            return list(body(i64(begin), list(init)))
        inside, out = self.label(f"{stem}.body"), self.label(f"{stem}.exit")
        entry, place, ahead = self.current, len(self.lines), list[str]()
        self.lines.append("")
        self.do(f"br label %{inside}")
        self.start(inside)
        at = len(self.lines)
        index = self.emit("i64", "")
        carried = [self.emit(v.type, "") for v in init]
        self.loops.append(Ahead(index.ref, ahead))
        new = list(body(index, list(carried)))
        self.loops.pop()
        self.lines[place] = "\n".join(ahead)
        if not ahead:
            self.lines[place] = "  ; no address is prepared for the loop"
        following = self.emit("i64", f"add nuw nsw i64 {index.ref}, {step}")
        more = self.compare("icmp slt", following, i64(end))
        back = self.current
        self.do(f"br i1 {more.ref}, label %{inside}, label %{out}")
        self.lines[at] = f"  {index.ref} = phi i64 [{begin}, %{entry}], [{following.ref}, %{back}]"
        for n, (value, old, now) in enumerate(zip(carried, init, new, strict=True), 1):
            self.lines[at + n] = f"  {value.ref} = phi {value.type} [{old.ref}, %{entry}], [{now.ref}, %{back}]"
        self.start(out)
        return new

    def repeat_while(
        self, init: Sequence[V], test: Callable[[list[V]], V], step: Callable[[list[V]], Sequence[V]]
    ) -> list[V]:
        """`while test(values): values = step(values)`; gives the last values."""
        head, inside, out = (self.label(f"while.{part}") for part in ("head", "body", "exit"))
        entry = self.current
        self.do(f"br label %{head}")
        self.start(head)
        at = len(self.lines)
        carried = [self.emit(v.type, "") for v in init]
        more = test(list(carried))
        self.do(f"br i1 {more.ref}, label %{inside}, label %{out}")
        self.start(inside)
        new = step(list(carried))
        back = self.current
        self.do(f"br label %{head}")
        for n, (value, old, now) in enumerate(zip(carried, init, new, strict=True)):
            self.lines[at + n] = f"  {value.ref} = phi {value.type} [{old.ref}, %{entry}], [{now.ref}, %{back}]"
        self.start(out)
        return carried

    def ahead(self, emit: Callable[[], V], *key: str) -> V:
        """Emits before the innermost loop, once for a key; the operands must be known there."""
        loop = self.loops[-1]
        if key not in loop.moved:
            lines, self.lines = self.lines, loop.lines
            loop.moved[key] = emit()
            self.lines = lines
        return loop.moved[key]

    def branch(
        self, cond: V, then: Callable[[], Sequence[V]], otherwise: Callable[[], Sequence[V]] | None = None
    ) -> list[V]:
        """Runs one of two bodies and joins their values; without `otherwise` there are no values."""
        yes, no, join = self.label("then"), self.label("else"), self.label("join")
        self.do(f"br i1 {cond.ref}, label %{yes}, label %{no}")
        self.start(yes)
        left, left_end = list(then()), ""
        left_end = self.current
        self.do(f"br label %{join}")
        self.start(no)
        right = list(otherwise()) if otherwise else []
        right_end = self.current
        self.do(f"br label %{join}")
        self.start(join)
        return [
            self.emit(a.type, f"phi {a.type} [{a.ref}, %{left_end}], [{b.ref}, %{right_end}]")
            for a, b in zip(left, right, strict=True)
        ]

    def finish(self, result: V | None = None) -> str:
        """Ends the function with a return; gives its text."""
        self.do(f"ret {result}" if result else "ret void")
        return "\n".join([self.head, *self.lines, "}"])
