"""A compiled program as data: what `compile` makes, the runtime interprets, the cache keeps and AOT ships.

Binary form (little endian; `native/program.cc` reads it; bump FORMAT with any change). Primitive encodings:

    u8, u32, i64, f64      fixed width
    str, bytes             u32 length, then the bytes
    list<T>                u32 count, then the items

    magic                  8 bytes "FERRULE\\0"
    format                 u32 = FORMAT
    checksum               u32 = crc32 of everything after this field
    compiler               str   version of Ferrule that made it
    target                 str   "cpu", "xpu"
    features               str   what the code needs of the machine, comma separated: for cpu LLVM's names of processor
                           features ("avx2,fma"), for devices "f16", "f64", "atomic64", "group=256", "local=65536",
                           "sub_group=16" (work-items per group, bytes of local memory per group)
    name                   str
    fingerprint            str   hex
    replicas, partitions   i64, i64
    device_assignment      list<i64>   replica-major; empty = portable
    params                 list of: pjrt dtype u32, dims list<i64>, memory_kind str, sharding bytes, alias i64,
                           layout list<i64>
                           alias: -1 not donated, -2 donated without a target, k >= 0 donated into output k
                           layout: dimensions from the fastest to the slowest in memory; empty = row-major
    outputs                list of: pjrt dtype u32, dims list<i64>, memory_kind str, sharding bytes, layout list<i64>
    flags                  u32: 1 = small (may run on the caller's thread), 2 = calls back into Python,
                           4 = timed (may be tried there: its loops ask when to end)
    cost                   list of: str, f64         (flops, "bytes accessed", …)
    arena_bytes            i64   temporaries: one allocation per execution
    constants              bytes                      loaded at 64-byte alignment
    objects                list<bytes>                relocatable ELF objects; on a device one module of kernels
                                                      (SPIR-V), and an ELF object with the functions (comparators) that
                                                      host calls get as attributes
    functions              list of: object u32, symbol str, flops f64, bytes f64 (of one whole launch)
    slots                  list of: kind u8, index-or-offset i64, size i64
                           kind 0 param k, 1 output k, 2 constant at offset, 3 arena at offset
    blocks                 list of list of steps; block 0 is the entry
    text                   bytes  the optimized program, for people

    step = u8 opcode, then
    1 LAUNCH   function u32, grid i64, grain i64, slots list<u32>, writes u32
               cpu: calls fn(void** pointers, i64 begin, i64 end) on disjoint ranges that cover [0, grid); a thread is
               woken for `grain` iterations, one that is awake may have fewer, and a small grid is the caller's alone
               device: starts the kernel on `grid` work-groups of `grain` work-items; its arguments are the pointers
               the last `writes` slots are written, the others only read (an update in place has its slot on both sides)
    2 COPY     dst slot u32, src slot u32, bytes i64         (nothing happens when both are the same address)
    3 WHILE    cond block u32, predicate slot u32 (i1), body block u32, trips i64
               trips >= 0: the body runs so often, and nobody looks at the condition; -1: unknown
    4 CASE     index slot u32, kind u8 (0 = i32 index, the last branch when out of range; 1 = i1: branch 0 if true
               else 1), branches list<u32>
    5 CALL     target str, api u8 (0 = Ferrule's own registry, 1 = XLA FFI), operands list, results list, attrs dict,
               flops f64, where str (the user's source line, for errors)
               operand/result = slot u32, pjrt dtype u32, dims list<i64>
               dict = list of: key str, value
               value = tag u8, then: 0 i64 · 1 f64 · 2 str · 3 list<i64> · 4 list<f64> · 5 dict · 6 bool u8
                     · 7 typed scalar (pjrt dtype u32, 8 bytes raw) · 8 typed array (pjrt dtype u32, bytes raw)
                     · 9 function u32 (index into functions; e.g. a sort's comparator) · 10 list of values

Slots that share an address: an output slot whose parameter was donated gets the parameter's address; the compiler
has made sure that this is safe. Sub-byte types take one byte per element everywhere.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ferrule.errors import FailedPrecondition, InvalidArgument
from ferrule.ir.types import BY_NUMPY, BY_PJRT, DType, Tensor

MAGIC = b"FERRULE\0"
FORMAT = 6
PARAM, OUTPUT, CONSTANT, ARENA = 0, 1, 2, 3
NOT_DONATED, DONATED = -1, -2
SMALL, PYTHON, TIMED, UNKNOWN = 1, 2, 4, 8


@dataclass(frozen=True)
class Slot:
    kind: int
    where: int
    size: int


@dataclass(frozen=True)
class Launch:
    function: int
    grid: int
    grain: int
    slots: tuple[int, ...]
    writes: int = 1


@dataclass(frozen=True)
class Copy:
    dst: int
    src: int
    nbytes: int


@dataclass(frozen=True)
class While:
    cond: int
    predicate: int
    body: int
    trips: int = -1


@dataclass(frozen=True)
class Case:
    index: int
    is_bool: bool
    branches: tuple[int, ...]


@dataclass(frozen=True)
class Fn:
    """An attribute value that names a compiled function."""

    index: int


@dataclass(frozen=True)
class Call:
    target: str
    ffi: bool
    operands: tuple[tuple[int, Tensor], ...]
    results: tuple[tuple[int, Tensor], ...]
    attrs: dict[str, Any]
    flops: float = 0.0
    where: str = ""


class Entry(NamedTuple):
    """A compiled function: the number of its object, its symbol, and the work of one whole launch."""

    object: int
    symbol: str
    flops: float = 0.0
    nbytes: float = 0.0


Step = Launch | Copy | While | Case | Call


@dataclass
class Param:
    type: Tensor
    alias: int = NOT_DONATED
    memory_kind: str = "device"
    sharding: bytes = b""
    layout: tuple[int, ...] = ()


@dataclass
class Output:
    type: Tensor
    memory_kind: str = "device"
    sharding: bytes = b""
    layout: tuple[int, ...] = ()


@dataclass
class Program:
    """See the module docstring for the meaning of each field."""

    name: str
    target: str = "cpu"
    features: str = ""
    compiler: str = ""
    fingerprint: str = ""
    replicas: int = 1
    partitions: int = 1
    device_assignment: tuple[int, ...] = ()
    params: list[Param] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    flags: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    arena_bytes: int = 0
    constants: bytes = b""
    objects: list[bytes] = field(default_factory=list)
    functions: list[Entry] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    blocks: list[list[Step]] = field(default_factory=list)
    text: bytes = b""
    packed: bytes = field(default=b"", repr=False, compare=False)  # slots and blocks in binary form, once they are done

    def pack(self) -> None:
        self.packed = _Writer().code(self)

    def serialize(self) -> bytes:
        """The binary form."""
        body = _Writer().program(self)
        return MAGIC + struct.pack("<II", FORMAT, zlib.crc32(body)) + body

    @staticmethod
    def deserialize(data: bytes) -> Program:
        """Reads the binary form; raises InvalidArgument or FailedPrecondition with the reason."""
        if data[:8] != MAGIC:
            raise InvalidArgument("this is not a Ferrule program", why="it does not begin with Ferrule's magic bytes")
        if len(data) < 16:
            raise InvalidArgument("the Ferrule program is cut off", why=f"it has only {len(data)} bytes")
        version, checksum = struct.unpack_from("<II", data, 8)
        if version != FORMAT:
            raise FailedPrecondition(
                f"the program has format {version}, this Ferrule reads format {FORMAT}", fix="compile it again"
            )
        if zlib.crc32(data[16:]) != checksum:
            raise InvalidArgument("the Ferrule program is damaged", why="its checksum does not match")
        return _Reader(data, 16).program()

    def __str__(self) -> str:
        lines = [f"program {self.name} target={self.target} arena={self.arena_bytes} constants={len(self.constants)}"]
        for i, p in enumerate(self.params):
            donated = "" if p.alias == NOT_DONATED else f" donated({p.alias})"
            lines.append(f"  param {i}: {p.type}{_layout(p.layout)}{donated}")
        for i, o in enumerate(self.outputs):
            lines.append(f"  output {i}: {o.type}{_layout(o.layout)}")
        for number, steps in enumerate(self.blocks):
            lines.append(f"  block {number}:")
            lines += [f"    {self._step(step)}" for step in steps]
        return "\n".join(lines)

    def _slot(self, index: int) -> str:
        slot = self.slots[index]
        return f"{('param', 'out', 'const', 'tmp')[slot.kind]}{slot.where if slot.kind < 2 else f'+{slot.where}'}"

    def _step(self, step: Step) -> str:
        match step:
            case Launch(function, grid, grain, slots, _):
                args = ", ".join(map(self._slot, slots))
                return f"launch {self.functions[function][1]}({args}) grid={grid} grain={grain}"
            case Copy(dst, src, nbytes):
                return f"copy {self._slot(dst)} <- {self._slot(src)} bytes={nbytes}"
            case While(_, _, body, trips) if trips >= 0:
                return f"do block {body} {trips} times"
            case While(cond, predicate, body, _):
                return f"while block {cond} [{self._slot(predicate)}] do block {body}"
            case Case(index, _, branches):
                return f"case {self._slot(index)} of blocks {list(branches)}"
            case Call(target, ffi, operands, results, attrs, _, _):
                ins = ", ".join(f"{self._slot(s)}:{t}" for s, t in operands)
                outs = ", ".join(f"{self._slot(s)}:{t}" for s, t in results)
                return f"call {'ffi ' if ffi else ''}{target}({ins}) -> ({outs}) {attrs}"


def _layout(layout: tuple[int, ...]) -> str:
    return f" layout {{{','.join(map(str, layout))}}}" if layout else ""


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.known: dict[str | Tensor, bytes] = {}  # strings and types repeat from step to step

    def put(self, layout: str, *values: Any) -> None:
        self.parts.append(struct.pack("<" + layout, *values))

    def put_bytes(self, data: bytes) -> None:
        self.put("I", len(data))
        self.parts.append(data)

    def put_str(self, text: str) -> None:
        if text not in self.known:
            data = text.encode("utf-8", "surrogateescape")  # MLIR strings are any bytes
            self.known[text] = struct.pack("<I", len(data)) + data
        self.parts.append(self.known[text])

    def ints(self, values: Any, layout: str = "q") -> None:
        self.put(f"I{len(values)}{layout}", len(values), *values)

    def put_type(self, type: Tensor) -> None:
        if type not in self.known:
            self.known[type] = struct.pack(f"<II{type.rank}q", type.dtype.pjrt, type.rank, *type.shape)
        self.parts.append(self.known[type])

    def value(self, value: Any) -> None:
        match value:
            case bool():
                self.put("BB", 6, value)
            case int():
                self.put("Bq", 0, value)
            case float():
                self.put("Bd", 1, value)
            case str():
                self.put("B", 2)
                self.put_str(value)
            case dict():
                self.put("B", 5)
                self.put_dict(value)
            case Fn(index):
                self.put("BI", 9, index)
            case np.ndarray() if value.ndim == 0:
                self.put("BI", 7, BY_NUMPY[value.dtype].pjrt)
                self.parts.append(value.tobytes().ljust(8, b"\0")[:8])
            case np.ndarray():
                self.put("BI", 8, BY_NUMPY[value.dtype].pjrt)
                self.put_bytes(np.ascontiguousarray(value).tobytes())
            case tuple() | list() if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
                self.put("B", 3)
                self.ints(value)
            case tuple() | list() if all(isinstance(v, float) for v in value):
                self.put("B", 4)
                self.ints(value, "d")
            case tuple() | list():
                self.put("BI", 10, len(value))
                for item in value:
                    self.value(item)
            case _:
                raise InvalidArgument(f"attribute value {value!r} cannot be stored in a program")

    def put_dict(self, table: dict[str, Any]) -> None:
        self.put("I", len(table))
        for key, value in table.items():
            self.put_str(key)
            self.value(value)

    def step(self, step: Step) -> None:
        match step:
            case Launch():
                count = len(step.slots)
                self.put(f"BIqqI{count}II", 1, step.function, step.grid, step.grain, count, *step.slots, step.writes)
            case Copy():
                self.put("BIIq", 2, step.dst, step.src, step.nbytes)
            case While():
                self.put("BIIIq", 3, step.cond, step.predicate, step.body, step.trips)
            case Case():
                self.put("BIB", 4, step.index, step.is_bool)
                self.ints(step.branches, "I")
            case Call():
                self.put("B", 5)
                self.put_str(step.target)
                self.put("B", step.ffi)
                for side in (step.operands, step.results):
                    self.put("I", len(side))
                    for slot, type in side:
                        self.put("I", slot)
                        self.put_type(type)
                self.put_dict(step.attrs)
                self.put("d", step.flops)
                self.put_str(step.where)

    def program(self, p: Program) -> bytes:
        for text in (p.compiler, p.target, p.features, p.name, p.fingerprint):
            self.put_str(text)
        self.put("qq", p.replicas, p.partitions)
        self.ints(p.device_assignment)
        self.put("I", len(p.params))
        for param in p.params:
            self.put_type(param.type)
            self.put_str(param.memory_kind)
            self.put_bytes(param.sharding)
            self.put("q", param.alias)
            self.ints(param.layout)
        self.put("I", len(p.outputs))
        for output in p.outputs:
            self.put_type(output.type)
            self.put_str(output.memory_kind)
            self.put_bytes(output.sharding)
            self.ints(output.layout)
        self.put("II", p.flags, len(p.cost))
        for key, number in p.cost.items():
            self.put_str(key)
            self.put("d", number)
        self.put("q", p.arena_bytes)
        self.put_bytes(p.constants)
        self.put("I", len(p.objects))
        for code in p.objects:
            self.put_bytes(code)
        self.put("I", len(p.functions))
        for entry in p.functions:
            index, symbol, flops, nbytes = Entry(*entry)
            self.put("I", index)
            self.put_str(symbol)
            self.put("dd", flops, nbytes)
        self.parts.append(p.packed or _Writer().code(p))
        self.put_bytes(p.text)
        return b"".join(self.parts)

    def code(self, p: Program) -> bytes:
        self.put("I", len(p.slots))
        for slot in p.slots:
            self.put("Bqq", slot.kind, slot.where, slot.size)
        self.put("I", len(p.blocks))
        for steps in p.blocks:
            self.put("I", len(steps))
            for step in steps:
                self.step(step)
        return b"".join(self.parts)


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def get(self, layout: str) -> Any:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values[0] if len(values) == 1 else values

    def get_bytes(self) -> bytes:
        size = self.get("I")
        self.at += size
        return self.data[self.at - size : self.at]

    def get_str(self) -> str:
        return self.get_bytes().decode("utf-8", "surrogateescape")

    def ints(self, layout: str = "q") -> tuple[Any, ...]:
        count = self.get("I")
        values = struct.unpack_from(f"<{count}{layout}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{layout}")
        return values

    def dtype(self) -> DType:
        return BY_PJRT[self.get("I")]

    def get_type(self) -> Tensor:
        dtype = self.dtype()
        return Tensor(self.ints(), dtype)

    def value(self) -> Any:
        tag = self.get("B")
        match tag:
            case 0:
                return self.get("q")
            case 1:
                return self.get("d")
            case 2:
                return self.get_str()
            case 3:
                return self.ints()
            case 4:
                return self.ints("d")
            case 5:
                return self.get_dict()
            case 6:
                return bool(self.get("B"))
            case 7:
                dtype, raw = self.dtype(), self.get("8s")
                return np.frombuffer(raw[: dtype.itemsize], dtype.numpy).reshape(())
            case 8:
                return np.frombuffer(self.array_bytes(), self.last.numpy)
            case 9:
                return Fn(self.get("I"))
            case 10:
                return tuple(self.value() for _ in range(self.get("I")))
        raise InvalidArgument(f"unknown attribute tag {tag} in a Ferrule program")

    def array_bytes(self) -> bytes:
        self.last = self.dtype()
        return self.get_bytes()

    def get_dict(self) -> dict[str, Any]:
        return {self.get_str(): self.value() for _ in range(self.get("I"))}

    def step(self) -> Step:
        opcode = self.get("B")
        match opcode:
            case 1:
                function, grid, grain = self.get("Iqq")
                return Launch(function, grid, grain, self.ints("I"), self.get("I"))
            case 2:
                return Copy(*self.get("IIq"))
            case 3:
                return While(*self.get("IIIq"))
            case 4:
                index, is_bool = self.get("IB")
                return Case(index, bool(is_bool), self.ints("I"))
            case 5:
                target, ffi = self.get_str(), bool(self.get("B"))
                sides = [tuple((self.get("I"), self.get_type()) for _ in range(self.get("I"))) for _ in range(2)]
                return Call(target, ffi, sides[0], sides[1], self.get_dict(), self.get("d"), self.get_str())
        raise InvalidArgument(f"unknown step {opcode} in a Ferrule program")

    def program(self) -> Program:
        texts = [self.get_str() for _ in range(5)]
        p = Program(compiler=texts[0], target=texts[1], features=texts[2], name=texts[3], fingerprint=texts[4])
        p.replicas, p.partitions = self.get("qq")
        p.device_assignment = self.ints()
        for _ in range(self.get("I")):
            type, kind, sharding = self.get_type(), self.get_str(), self.get_bytes()
            p.params.append(Param(type, self.get("q"), kind, sharding, self.ints()))
        for _ in range(self.get("I")):
            p.outputs.append(Output(self.get_type(), self.get_str(), self.get_bytes(), self.ints()))
        p.flags, count = self.get("II")
        p.cost = {self.get_str(): self.get("d") for _ in range(count)}
        p.arena_bytes = self.get("q")
        p.constants = self.get_bytes()
        p.objects = [self.get_bytes() for _ in range(self.get("I"))]
        p.functions = [Entry(self.get("I"), self.get_str(), *self.get("dd")) for _ in range(self.get("I"))]
        p.slots = [Slot(*self.get("Bqq")) for _ in range(self.get("I"))]
        p.blocks = [[self.step() for _ in range(self.get("I"))] for _ in range(self.get("I"))]
        p.text = self.get_bytes()
        return p
