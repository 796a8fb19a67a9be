"""The attribute and type tables of a bytecode file, decoded one entry at a time when it is first used.

An entry belongs to a dialect; `builtin.py`, `vhlo.py` and `sdy.py` know how each dialect encodes its own. What they
return is what the graph holds: Python numbers, strings, tuples, dicts, NumPy arrays, `ir` types and `ir.Loc`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ferrule.ir import UNKNOWN, DType, Loc, Tensor, Token
from ferrule.ir.types import DTYPES
from ferrule.stablehlo.bytecode import Container, Cursor, malformed

DYNAMIC = -1
"""The size of a dimension that the program leaves open; `legalize` must make it a number."""


class Foreign(Exception):
    """The file is sound but holds a form that jaxlib's MLIR passes must rewrite first; `kind` says which."""

    def __init__(self, kind: str, what: str, where: Loc | None = None) -> None:
        super().__init__(what)
        self.kind, self.what, self.where = kind, what, where


class FunctionType:
    """A function's type; the bodies' values carry the same types, so nothing reads it."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs


_BUSY = object()
Decoder = Callable[["Tables", Cursor], Any]


class Tables:
    """Decodes and remembers attributes and types by index."""

    def __init__(self, box: Container) -> None:
        from ferrule.stablehlo import builtin, sdy, vhlo

        self.box = box
        self.dynamic = False  # True once a type was met that only dynamic programs may give to a value
        self._attrs: list[Any] = [None] * len(box.attrs)
        self._types: list[Any] = [None] * len(box.types)
        self._attr_decoders: dict[str, Decoder] = {
            "builtin": builtin.attribute,
            "vhlo": vhlo.attribute,
            "sdy": sdy.attribute,
        }
        self._type_decoders: dict[str, Decoder] = {"builtin": builtin.type_, "vhlo": vhlo.type_, "stablehlo": _token}

    def attr(self, index: int, at: int) -> Any:
        """The attribute with this index; `at` is where the index was read."""
        if index >= len(self._attrs):
            malformed(at, f"attribute {index} is used, but there are {len(self._attrs)}")
        value = self._attrs[index]
        if value is None:
            self._attrs[index] = _BUSY
            value = self._attrs[index] = self._decode(self.box.attrs[index], self._attr_decoders, None)
        elif value is _BUSY:
            malformed(at, f"attribute {index} contains itself")
        return value

    def type(self, index: int, at: int) -> Any:
        """The type with this index; `at` is where the index was read."""
        if index >= len(self._types):
            malformed(at, f"type {index} is used, but there are {len(self._types)}")
        value = self._types[index]
        if value is None:
            self._types[index] = _BUSY
            value = self._types[index] = self._decode(self.box.types[index], self._type_decoders, type_from_text)
        elif value is _BUSY:
            malformed(at, f"type {index} contains itself")
        return value

    def _decode(self, entry: Any, decoders: dict[str, Decoder], parse: Callable[[str], Any] | None) -> Any:
        data = self.box.data
        if entry.text:
            text = data[entry.start : entry.end].rstrip(b"\0").decode("utf-8", "replace")
            return parse(text) if parse else text
        decoder = decoders.get(entry.dialect)
        if decoder is None:
            raise Foreign("dialect", f"attributes or types of dialect {entry.dialect!r}")
        return decoder(self, Cursor(data, entry.start, entry.end))

    # What the dialects' decoders use to follow references.

    def read_attr(self, cursor: Cursor) -> Any:
        return self.attr(cursor.varint(), cursor.at)

    def read_optional_attr(self, cursor: Cursor) -> Any:
        value = cursor.varint()
        return self.attr(value >> 1, cursor.at) if value & 1 else None

    def read_type(self, cursor: Cursor) -> Any:
        return self.type(cursor.varint(), cursor.at)

    def read_attrs(self, cursor: Cursor) -> tuple[Any, ...]:
        return tuple(self.read_attr(cursor) for _ in range(cursor.count("attributes")))

    def read_types(self, cursor: Cursor) -> tuple[Any, ...]:
        return tuple(self.read_type(cursor) for _ in range(cursor.count("types")))

    def read_string(self, cursor: Cursor) -> str:
        index = cursor.varint()
        if index >= len(self.box.strings):
            malformed(cursor.at, f"string {index} is used, but there are {len(self.box.strings)}")
        return self.box.strings[index]

    def read_dtype(self, cursor: Cursor) -> DType:
        at, found = cursor.at, self.read_type(cursor)
        if not isinstance(found, DType):
            malformed(at, f"{found} is not an element type")
        return found

    def read_loc(self, cursor: Cursor) -> Loc:
        found = self.read_attr(cursor)
        return found if isinstance(found, Loc) else UNKNOWN

    def tensor(self, shape: tuple[int, ...], dtype: DType, at: int) -> Tensor:
        """A tensor type; open dimensions (the smallest 64-bit number in the file) become DYNAMIC."""
        if any(d < 0 for d in shape):
            if any(d < 0 and d != -(1 << 63) for d in shape):
                malformed(at, f"a tensor type has the shape {shape}")
            self.dynamic = True
            shape = tuple(DYNAMIC if d < 0 else d for d in shape)
        return Tensor(shape, dtype)


def _token(tables: Tables, cursor: Cursor) -> Token:
    """The one type of StableHLO that is not written as VHLO: inside of Shardy's computations."""
    if cursor.varint() != 0:
        raise Foreign("type", "a type of dialect 'stablehlo'")
    return Token()


def type_from_text(text: str) -> Any:
    """A type that was written as MLIR text because its dialect has no binary form for it."""
    if text in DTYPES:
        return DTYPES[text]
    if text == "!stablehlo.token":
        return Token()
    raise Foreign("type", f"the type {text}")


class TypedInt(int):
    """An integer attribute that remembers its type: a custom call's configuration is typed (u8 is not i64)."""

    dtype: DType


class TypedFloat(float):
    """A floating-point attribute that remembers its type."""

    dtype: DType


def integer(cursor: Cursor, dtype: DType) -> int:
    """An integer of a known width: one byte up to 8 bits, else a signed varint of the unsigned value."""
    bits = dtype.bits
    if bits <= 8:
        value = cursor.byte()
    else:
        value = cursor.signed()
    value &= (1 << bits) - 1
    if dtype.kind == "int" and value >> (bits - 1):
        value -= 1 << bits
    typed = TypedInt(value)
    typed.dtype = dtype
    return typed


def floating(cursor: Cursor, dtype: DType) -> float:
    """A float of a known format, stored as the integer with the same bits."""
    if dtype.kind != "float":
        malformed(cursor.at, f"a floating-point attribute has the type {dtype}")
    value = cursor.byte() if dtype.bits <= 8 else cursor.signed() & ((1 << dtype.bits) - 1)
    raw = np.array([value], dtype=f"u{dtype.itemsize}")
    typed = TypedFloat(raw.view(dtype.numpy)[0])
    typed.dtype = dtype
    return typed


def elements(cursor: Cursor, type: Any, raw: tuple[int, int] | None = None) -> np.ndarray:
    """A tensor's elements from a length-prefixed blob: a splat is a broadcast view, the rest a read-only array."""
    if not isinstance(type, Tensor) or DYNAMIC in type.shape:
        malformed(cursor.at, f"a constant has the type {type}")
    size = cursor.varint()
    start = cursor.take(size, "a constant")
    data, dtype, count = cursor.data, type.dtype, type.size
    if dtype.kind == "bool":
        return _bools(data, start, size, type)
    item = dtype.itemsize
    if size != item * count and size != item:
        malformed(start, f"a constant of type {type} has {size} bytes")
    if count == 0:
        return _frozen(np.zeros(type.shape, dtype.numpy))
    values = np.frombuffer(data, _raw_dtype(dtype), size // item, start)
    if dtype.bits < 8:
        values = _narrow(values, dtype)
    elif not values.flags.aligned:
        values = values.copy()
    if size != item * count:
        return np.broadcast_to(values.reshape(()), type.shape)
    return _frozen(values.reshape(type.shape))


def _raw_dtype(dtype: DType) -> np.dtype:
    return np.dtype(np.uint8) if dtype.bits < 8 else dtype.numpy


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _narrow(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Sub-byte elements: one per byte, only the low bits count."""
    shift = 8 - dtype.bits
    if dtype.kind == "int":
        return ((raw << shift).view(np.int8) >> shift).astype(dtype.numpy)
    low = raw & ((1 << dtype.bits) - 1)
    if dtype.kind == "uint":
        return low.astype(dtype.numpy)
    return low.view(dtype.numpy)


def _bools(data: bytes, start: int, size: int, type: Tensor) -> np.ndarray:
    """Booleans come packed, as one byte each (older writers), or as one byte 0xFF or 0 for a splat."""
    count = type.size
    raw = np.frombuffer(data, np.uint8, size, start)
    if size == 1 and (raw[0] == 0xFF or (count > 8 and raw[0] == 0)):
        if count == 1:
            return _frozen(np.full(type.shape, bool(raw[0])))
        return np.broadcast_to(np.bool_(raw[0] != 0), type.shape)
    if size == (count + 7) // 8 and size != count:
        return _frozen(np.unpackbits(raw, count=count, bitorder="little").astype(np.bool_).reshape(type.shape))
    if size != count:
        malformed(start, f"a constant of type {type} has {size} bytes")
    return _frozen((raw != 0).reshape(type.shape))
