"""StableHLO portable artifact → `ir.Module`, in pure Python.

The IR section is one byte stream; an op is its name, a mask of what follows, its location, properties, result types,
operands and regions. What repeats (types, attributes, whole property sets) is decoded once. The loop in `_block` runs
once per op of the program and decides how long reading takes, so it is written out flat.
"""

from __future__ import annotations

from typing import Any

from ferrule.errors import FerruleError, InvalidArgument, Unsupported
from ferrule.ir import UNKNOWN, Block, Function, Loc, Module, Op, Value
from ferrule.ir.types import Tensor, Token, Tuple
from ferrule.stablehlo.bytecode import (
    IR,
    Container,
    Cursor,
    bytecode_version,
    is_bytecode,
    long_varint,
    malformed,
    parse,
)
from ferrule.stablehlo.op_table import OTHER_PROPERTIES, PROPERTIES, finisher, fits
from ferrule.stablehlo.sdy import Mesh
from ferrule.stablehlo.tables import DYNAMIC, Foreign, Tables
from ferrule.stablehlo.text import FORMATS, to_portable

_HAS_ATTRS, _HAS_RESULTS, _HAS_OPERANDS, _HAS_SUCCESSORS, _HAS_REGIONS, _HAS_USES, _HAS_PROPERTIES = (
    *(0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40),
)
_MAX_DEPTH = 200

# What to do with an op, decided once per name.
_PLAIN, _RETURN, _FUNC, _CAST, _MODULE = range(5)
_TERMINATORS = {"vhlo.return_v1", "sdy.return", "func.return", "stablehlo.return"}


class _OpName:
    """An op name of the file: the graph's name for it, the names of its properties, and what kind it is."""

    __slots__ = ("cache", "finish", "kind", "name", "properties")

    def __init__(self, dialect: str, text: str) -> None:
        full = f"{dialect}.{text}"
        self.cache: dict[int, dict[str, Any]] = {}
        self.kind = _PLAIN
        if dialect == "vhlo":
            if text not in PROPERTIES:
                raise Foreign("newer", f"the op {full}")
            self.name, self.properties = text.rsplit("_v", 1)[0], PROPERTIES[text]
            self.kind = {"return": _RETURN, "func": _FUNC}.get(self.name, _PLAIN)
        elif full in OTHER_PROPERTIES:
            self.name, self.properties = full, OTHER_PROPERTIES[full]
            kinds = {"builtin.module": _MODULE, "builtin.unrealized_conversion_cast": _CAST, "sdy.return": _RETURN}
            self.kind = kinds.get(full, _PLAIN)
        else:
            raise Foreign("dialect", f"the op {full}")
        self.finish = finisher(self.name)


def read_bytecode(data: bytes) -> Module:
    """Reads a portable artifact. Raises InvalidArgument for damaged bytes and Foreign for what needs MLIR first."""
    reader: _Reader | None = None
    try:
        reader = _Reader(parse(data))
        return reader.module()
    except (FerruleError, Foreign):
        raise
    except RecursionError:
        raise InvalidArgument("the program is not valid StableHLO bytecode", why="it is nested too deeply") from None
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        # The checks above are cheap ones; what they let through shows itself as one of these.
        at = reader.at if reader else 0
        why = f"an entry near there does not have the form that it should have ({error})"
        raise InvalidArgument("the program is not valid StableHLO bytecode", where=f"byte {at}", why=why) from error


class _Reader:
    def __init__(self, box: Container) -> None:
        self.box, self.data = box, box.data
        self.tables = Tables(box)
        self.op_names: list[_OpName | None] = [None] * len(box.ops)
        self.locs: list[Loc | None] = [None] * len(box.attrs)
        self.functions: dict[str, Function] = {}
        self.meshes: dict[str, Any] = {}
        self.at, self.end = box.ir
        self.values: list[Value | None] = []
        self.depth = 0

    def module(self) -> Module:
        top = Block()
        self._block(top)
        modules = [op for op in top.ops if op.name == "builtin.module"]
        if len(modules) != 1:
            malformed(self.at, f"there are {len(modules)} modules where one should be")
        attrs = dict(modules[0].attrs)
        name = attrs.pop("sym_name", None) or "main"
        for op in modules[0].regions[0].ops if modules[0].regions else ():
            if op.name == "sdy.mesh":
                mesh = op.attrs.get("mesh")
                if not isinstance(mesh, Mesh):
                    malformed(self.at, "sdy.mesh has no mesh")
                self.meshes[str(op.attrs["sym_name"])] = mesh
            else:
                malformed(self.at, f"the op {op.name} stands outside of a function")
        if not self.functions:
            raise InvalidArgument("the program has no function", fix="send a module with a function @main")
        module = Module(self.functions, attrs, str(name), self.box.producer, self.meshes)
        if self.tables.dynamic or not _NEED_PASSES.isdisjoint(n.name for n in self.op_names if n):
            _refuse_foreign(module)
        return module

    # Small pieces, for what is not in the hot loop.

    def _varint(self) -> int:
        value, self.at = long_varint(self.data, self.at)
        if self.at > self.end:
            malformed(self.at, "the IR ends in the middle of an op")
        return value

    def _op_name(self, index: int) -> _OpName:
        if index >= len(self.op_names):
            malformed(self.at, f"op name {index} is used, but there are {len(self.op_names)}")
        found = self.op_names[index] = _OpName(*self.box.ops[index])
        return found

    def _loc(self, index: int) -> Loc:
        found = self.tables.attr(index, self.at)
        loc = self.locs[index] = found if isinstance(found, Loc) else UNKNOWN
        return loc

    def _type(self, index: int, loc: Loc | None = None) -> Any:
        try:
            found = self.tables.type(index, self.at)
        except Foreign as foreign:
            foreign.where = foreign.where or loc
            raise
        if not isinstance(found, (Tensor, Token, Tuple)):
            malformed(self.at, f"a value has the type {found}")
        return found

    def _properties(self, name: _OpName, index: int) -> dict[str, Any]:
        """The attributes of an op with property set `index`, decoded once per op name and set."""
        if index >= len(self.box.properties):
            malformed(self.at, f"property set {index} is used, but there are {len(self.box.properties)}")
        cursor = Cursor(self.data, *self.box.properties[index])
        tables, attrs = self.tables, {}
        for key in name.properties:
            if key[-1] == "?":
                value = tables.read_optional_attr(cursor)
                if value is not None:
                    attrs[key[:-1]] = value
            else:
                at = cursor.at
                value = attrs[key] = tables.read_attr(cursor)
                if not fits(key, value):
                    malformed(at, f"{name.name} has the {key} {value!r}")
        if cursor.at != cursor.end:
            malformed(cursor.at, f"{name.name} has more properties than it should have")
        attrs = name.cache[index] = name.finish(attrs)
        return attrs

    def _use_lists(self, count: int) -> None:
        """Skips the orders of use lists; the graph keeps none."""
        for _ in range(self._varint() if count > 1 else 1):
            if count > 1:
                self._varint()
            for _ in range(self._varint() >> 1):
                self._varint()

    def _region(self, count: int, isolated: bool, of_module: bool) -> list[Block]:
        """Reads the regions of an op. An isolated one is a section of its own and sees no outer values."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unsupported(
                f"regions are nested more than {_MAX_DEPTH} deep",
                where=f"byte {self.at}",
                why="each loop or branch within another takes stack in the compiler",
                fix="nest fewer loops and branches in each other",
            )
        outer_values, outer_end, after = self.values, self.end, 0
        if isolated:
            header = Cursor(self.data, self.at, self.end)
            kind, self.at, self.end = header.section()
            if kind != IR:
                malformed(self.at, f"a region is in a section of kind {kind}")
            after, self.values = self.end, []
        regions = []
        for _ in range(count):
            block = Block()
            blocks = self._varint()
            if blocks > 1:
                malformed(self.at, f"a region has {blocks} blocks; StableHLO has structured control flow only")
            if blocks:
                size = self._varint()
                if size > self.end - self.at:
                    malformed(self.at, f"a region of {self.end - self.at} bytes cannot define {size} values")
                base = len(self.values)
                self.values.extend([None] * size)
                if not self._block(block, base) and not of_module:
                    malformed(self.at, "a block does not end with a return")
                del self.values[base:]
            regions.append(block)
        if isolated:
            if self.at != after:
                malformed(self.at, f"a region ends at byte {self.at} but its section at byte {after}")
            self.values, self.end = outer_values, outer_end
        self.depth -= 1
        return regions

    def _arguments(self, block: Block, next_value: int) -> int:
        count = self._varint()
        values = self.values
        if count > len(values) - next_value:
            malformed(self.at, f"a block has {count} arguments but room for {len(values) - next_value}")
        for index in range(count):
            tag = self._varint()
            if tag & 1:
                self._varint()
            value = Value(self._type(tag >> 1), None, index)
            block.args.append(value)
            values[next_value] = value
            next_value += 1
        uses = self.data[self.at]
        self.at += 1
        if uses:
            self._use_lists(count)
        return next_value

    def _block(self, block: Block, next_value: int = 0) -> bool:
        """Reads a block's arguments and ops from `self.at`; results take the value numbers from `next_value` on.

        Returns whether the block ends with a return.
        """
        data, values, end = self.data, self.values, self.end
        op_names, locs, types = self.op_names, self.locs, self.tables._types
        ops = block.ops
        header = self._varint()
        if header & 1:
            next_value = self._arguments(block, next_value)
        at = self.at
        for left in range(header >> 1, 0, -1):
            if at >= end:
                malformed(at, "the IR ends where an op should be")
            byte = data[at]
            if byte & 1:
                index, at = byte >> 1, at + 1
            else:
                index, at = long_varint(data, at)
            self.at = at
            name = op_names[index] if index < len(op_names) else None
            if name is None:
                name = self._op_name(index)
            mask = data[at]
            at += 1

            byte = data[at]
            if byte & 1:
                index, at = byte >> 1, at + 1
            else:
                index, at = long_varint(data, at)
            self.at = at
            loc = locs[index] if index < len(locs) else None
            if loc is None:
                loc = self._loc(index)

            extra = None
            if mask & _HAS_ATTRS:
                index, at = long_varint(data, at)
                extra = self.tables.attr(index, at)
            if mask & _HAS_PROPERTIES:
                byte = data[at]
                if byte & 1:
                    index, at = byte >> 1, at + 1
                else:
                    index, at = long_varint(data, at)
                self.at = at
                attrs = name.cache.get(index)
                if attrs is None:
                    attrs = self._properties(name, index)
            elif name.properties:
                malformed(at, f"{name.name} has no properties")
            else:
                attrs = {}
            if extra is not None:
                attrs = {**attrs, **extra}

            op = Op.__new__(Op)
            op.name, op.attrs, op.loc = name.name, attrs, loc
            results: list[Value] = []
            if mask & _HAS_RESULTS:
                byte = data[at]
                if byte & 1:
                    count, at = byte >> 1, at + 1
                else:
                    count, at = long_varint(data, at)
                if count > end - at:
                    malformed(at, f"an op with {count} results does not fit")
                for number in range(count):
                    byte = data[at]
                    if byte & 1:
                        index, at = byte >> 1, at + 1
                    else:
                        index, at = long_varint(data, at)
                    type_ = types[index] if index < len(types) else None
                    if type_.__class__ is not Tensor:
                        self.at = at
                        type_ = self._type(index, loc)
                    results.append(Value(type_, op, number))
            op.results = results

            operands: list[Value] = []
            if mask & _HAS_OPERANDS:
                byte = data[at]
                if byte & 1:
                    count, at = byte >> 1, at + 1
                else:
                    count, at = long_varint(data, at)
                if count > end - at:
                    malformed(at, f"an op with {count} operands does not fit")
                for _ in range(count):
                    byte = data[at]
                    if byte & 1:
                        index, at = byte >> 1, at + 1
                    elif byte & 2:  # most values of a large program
                        index, at = (byte | data[at + 1] << 8) >> 2, at + 2
                    else:
                        index, at = long_varint(data, at)
                    value = values[index] if index < len(values) else None
                    if value is None:
                        malformed(at, f"value {index} is used before it is defined")
                    operands.append(value)
            op.operands = operands

            if mask & _HAS_SUCCESSORS:
                malformed(at, f"{name.name} has successor blocks; StableHLO has structured control flow only")
            self.at = at
            if mask & _HAS_USES:
                self._use_lists(len(results))
                at = self.at
            if mask & _HAS_REGIONS:
                tag = self._varint()
                if tag >> 1 > end - self.at:
                    malformed(at, f"an op with {tag >> 1} regions does not fit")
                op.regions = self._region(tag >> 1, bool(tag & 1), name.kind == _MODULE)
                at = self.at
            else:
                op.regions = []
            if at > end:
                malformed(at, "the IR ends in the middle of an op")

            kind = name.kind
            if kind == _CAST:
                # A border between VHLO and another dialect's types; both are the same type here.
                if len(operands) != len(results):
                    malformed(at, "a conversion cast changes the number of values")
                results = operands
            if results:
                after = next_value + len(results)
                if after > len(values):
                    malformed(at, "an op defines more values than its region announced")
                values[next_value:after] = results
                next_value = after
            if kind in (_PLAIN, _MODULE):
                ops.append(op)
            elif kind == _RETURN:
                if left != 1 or results:
                    malformed(at, "a return stands in the middle of its block")
                block.results = operands
                self.at = at
                return True
            elif kind == _FUNC:
                self._function(op)
        self.at = at
        return False

    def _function(self, op: Op) -> None:
        a, at = op.attrs, self.at
        name, body = str(a["sym_name"]), op.regions[0] if op.regions else Block()
        if name in self.functions:
            malformed(at, f"there are two functions @{name}")
        arg_attrs = [dict(d) for d in a["arg_attrs"]] or [{} for _ in body.args]
        result_attrs = [dict(d) for d in a["res_attrs"]] or [{} for _ in body.results]
        if len(arg_attrs) != len(body.args) or len(result_attrs) != len(body.results):
            malformed(at, f"the attributes of @{name} do not fit its arguments and results")
        visibility = str(a["sym_visibility"]) or "public"
        self.functions[name] = Function(name, body, arg_attrs, result_attrs, visibility)


# Ops that MLIR's passes replace, by the kind of pass.
_DYNAMIC_OPS = frozenset(f"dynamic_{n}" for n in ("broadcast_in_dim", "conv", "gather", "iota", "pad", "reshape"))
_DYNAMIC_OPS |= {"real_dynamic_slice", "set_dimension_size"}
_QUANTIZED_OPS = frozenset(("uniform_quantize", "uniform_dequantize"))
_NEED_PASSES = _DYNAMIC_OPS | _QUANTIZED_OPS


def _refuse_foreign(module: Module) -> None:
    """Raises Foreign for the first op that needs one of MLIR's passes."""
    for function in module.functions.values():
        for op in function.body.walk():
            if op.name in _QUANTIZED_OPS:
                raise Foreign("quantized", f"the op {op.name}", op.loc)
            if op.name in _DYNAMIC_OPS or any(_is_dynamic(r) for r in op.results):
                raise Foreign("dynamic", f"the op {op.name}", op.loc)
        if any(_is_dynamic(value) for value in function.body.args):
            raise Foreign("dynamic", f"an argument of @{function.name}")


def _is_dynamic(value: Value) -> bool:
    return isinstance(value.type, Tensor) and DYNAMIC in value.type.shape


# Which MLIR passes help with a form that the reader cannot take as it is.
_STEPS: dict[str, list[str]] = {kind: [kind] for kind in ("dynamic", "quantized")}
_STEPS |= {kind: [] for kind in ("newer", "dialect", "type")}


def read(code: bytes, format: str = "mlir") -> Module:
    """Reads a program. `format` is PJRT's name: "mlir" (portable bytecode, other MLIR bytecode, or text), "hlo"…"""
    code = bytes(code)
    converted = False
    if not code and format in FORMATS:
        raise InvalidArgument("the program is empty", why="it has no bytes", fix="send a module with a function @main")
    if format != "mlir" or not is_bytecode(code) or bytecode_version(code) != 6:
        code, converted = to_portable(code, format), True
    tried: set[str] = set()
    while True:
        try:
            return read_bytecode(code)
        except Foreign as found:
            steps = _STEPS[found.kind]
            if found.kind in tried or (converted and not steps):
                raise Unsupported(
                    f"{found.what} is not supported",
                    where=found.where,
                    why=_WHY[found.kind],
                    fix=_FIX.get(found.kind, ""),
                ) from None
            tried.add(found.kind)
            try:
                code, converted = to_portable(code, "mlir", steps), True
            except Unsupported as error:
                # The op and the user's line are known here; why the passes cannot help is known there.
                why, where = f"{error.what}: {error.why}", found.where
                raise Unsupported(f"{found.what} is not supported", where=where, why=why, fix=error.fix) from None


_WHY = {
    "dynamic": "its shape is not known when the program is compiled",
    "quantized": "MLIR's passes could not turn the quantized values into ordinary arithmetic",
    "newer": "this version of Ferrule does not know it, and neither does the installed jaxlib",
    "dialect": "it is not StableHLO, and MLIR's passes did not turn it into StableHLO",
    "type": "Ferrule has no such type",
}
_FIX = {
    "dialect": "use ops of StableHLO and CHLO",
    "type": "compute in another type: bool, int2 to int64, f4E2M1FN, the f6 and f8 types, f16, bf16, f32, f64, complex",
    "dynamic": "compile for fixed shapes",
    "newer": "update ferrule, or tell the framework to write an older StableHLO version",
}
