"""How MLIR's builtin dialect encodes attributes, types and locations in bytecode."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import UNKNOWN, DType, Loc, Tensor, Tuple
from ferrule.ir.types import DTYPES, bf16, c64, c128, f16, f32, f64, i64
from ferrule.stablehlo.bytecode import Cursor, malformed
from ferrule.stablehlo.tables import Foreign, FunctionType, Tables, elements, floating, integer


def _array(t: Tables, c: Cursor) -> Any:
    return t.read_attrs(c)


def _dictionary(t: Tables, c: Cursor) -> dict[str, Any]:
    return {_string_attr(t, c): t.read_attr(c) for _ in range(c.count("attributes", 2))}


def _string_attr(t: Tables, c: Cursor) -> str:
    at, name = c.at, t.read_attr(c)
    if not isinstance(name, str):
        malformed(at, "a name is not a string")
    return name


def _string_typed(t: Tables, c: Cursor) -> str:
    text = t.read_string(c)
    t.read_type(c)
    return text


def _symbol(t: Tables, c: Cursor) -> str:
    return _string_attr(t, c)


def _nested_symbol(t: Tables, c: Cursor) -> str:
    return "::".join([_string_attr(t, c), *map(str, t.read_attrs(c))])


def _integer(t: Tables, c: Cursor) -> int | bool:
    dtype = t.read_dtype(c)
    value = integer(c, dtype)
    return bool(value) if dtype.kind == "bool" else value


def _call_site(t: Tables, c: Cursor) -> Loc:
    callee, caller = t.read_loc(c), t.read_loc(c)
    return callee if callee.file else Loc(callee.name or caller.name, caller.file, caller.line, caller.col)


def _file_line_col(t: Tables, c: Cursor) -> Loc:
    return Loc("", _string_attr(t, c), c.varint(), c.varint())


def _file_range(t: Tables, c: Cursor) -> Loc:
    file = _string_attr(t, c)
    numbers = [c.varint() for _ in range(c.count("positions"))]
    line, col = (*numbers, 0, 0)[:2]
    return Loc("", file, line, col)


def _fused(t: Tables, c: Cursor) -> Loc:
    parts = [t.read_loc(c) for _ in range(c.count("locations"))]
    place = next((p for p in parts if p.file), UNKNOWN)
    return Loc(next((p.name for p in parts if p.name), ""), place.file, place.line, place.col)


def _fused_meta(t: Tables, c: Cursor) -> Loc:
    loc = _fused(t, c)
    t.read_attr(c)
    return loc


def _named(t: Tables, c: Cursor) -> Loc:
    # JAX wraps the name stack once more as "primitive:"; the inner one is the stack that people know.
    name, inner = _string_attr(t, c), t.read_loc(c)
    if name.endswith(":") and inner.name:
        name = inner.name
    return Loc(name, inner.file, inner.line, inner.col)


def _dense_array(t: Tables, c: Cursor) -> tuple[Any, ...]:
    dtype, count = t.read_dtype(c), c.varint()
    size = c.varint()
    start = c.take(size, "an array")
    if size != count * dtype.itemsize:
        malformed(start, f"an array of {count} {dtype} has {size} bytes")
    return tuple(np.frombuffer(c.data, dtype.numpy, count, start).tolist())


def _resource(t: Tables, c: Cursor) -> Any:
    raise Unsupported(
        "the program keeps a constant in a dense_resource",
        why="portable StableHLO has no such constants",
        fix="write the constant as dense<…>",
    )


_ATTRIBUTES: tuple[Any, ...] = (
    *(_array, _dictionary, Tables.read_string, _string_typed, _symbol, _nested_symbol, Tables.read_type),
    *(lambda t, c: True, _integer, lambda t, c: floating(c, t.read_dtype(c)), _call_site, _file_line_col, _fused),
    *(_fused_meta, _named, lambda t, c: UNKNOWN, _resource, _dense_array, lambda t, c: elements(c, t.read_type(c))),
    *(None, None, Tables.read_attr, _file_range),
)


def attribute(t: Tables, c: Cursor) -> Any:
    """Decodes one attribute; locations become `ir.Loc`, a unit attribute True."""
    at, code = c.at, c.varint()
    decoder = _ATTRIBUTES[code] if code < len(_ATTRIBUTES) else None
    if decoder is None:
        malformed(at, f"builtin attribute code {code} is not known")
    return decoder(t, c)


def _integer_type(t: Tables, c: Cursor) -> DType:
    value = c.varint()
    width, unsigned = value >> 2, value & 3 == 2
    name = f"ui{width}" if unsigned else f"i{width}"
    if name not in DTYPES:
        raise Unsupported(f"element type {name} is not supported", why="StableHLO has no such integer type")
    return DTYPES[name]


def _complex(t: Tables, c: Cursor) -> DType:
    return complex_of(t.read_dtype(c), c.at)


def complex_of(part: DType, at: int) -> DType:
    """The complex type with this component type."""
    if part is f32:
        return c64
    if part is f64:
        return c128
    malformed(at, f"complex<{part}> is not a StableHLO type")


def _ranked(t: Tables, c: Cursor) -> Tensor:
    at = c.at
    return t.tensor(c.signed_list("dimensions"), t.read_dtype(c), at)


def _ranked_encoded(t: Tables, c: Cursor) -> Tensor:
    encoding = t.read_attr(c)
    raise Foreign("dynamic", f"a tensor type with the encoding {encoding}")


def _function(t: Tables, c: Cursor) -> FunctionType:
    return FunctionType(t.read_types(c), t.read_types(c))


def type_(t: Tables, c: Cursor) -> Any:
    """Decodes one type."""
    at, code = c.at, c.varint()
    if code == 0:
        return _integer_type(t, c)
    if code == 1:
        return i64  # the index type: sizes and positions, as in layouts
    if code == 2:
        return _function(t, c)
    if code in _FLOATS:
        return _FLOATS[code]
    if code == 9:
        return _complex(t, c)
    if code == 12:
        return "none"
    if code == 13:
        return _ranked(t, c)
    if code == 14:
        return _ranked_encoded(t, c)
    if code == 15:
        return Tuple(t.read_types(c))
    if code in _OTHERS:
        raise Foreign("type", f"a {_OTHERS[code]} type")
    malformed(at, f"builtin type code {code} is not known")


_FLOATS = {3: bf16, 4: f16, 5: f32, 6: f64}
_TINY = (
    *("f8E5M2", "f8E4M3", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E3M4", "f4E2M1FN"),
    *("f6E2M3FN", "f6E3M2FN", "f8E8M0FNU"),
)
_FLOATS |= {22 + i: DTYPES[name] for i, name in enumerate(_TINY)}
_OTHERS = {7: "f80", 8: "f128", 18: "unranked tensor", 19: "vector", 20: "vector", 21: "tf32"}
_OTHERS |= dict.fromkeys((10, 11, 16, 17), "memref")
