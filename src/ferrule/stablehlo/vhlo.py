"""How VHLO, the versioned twin of StableHLO that portable artifacts hold, encodes attributes and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ferrule.ir import Token, Tuple
from ferrule.ir import types as T
from ferrule.stablehlo.builtin import complex_of
from ferrule.stablehlo.bytecode import Cursor, malformed
from ferrule.stablehlo.sdy import Axis, Mesh, MeshGroups
from ferrule.stablehlo.tables import Foreign, FunctionType, Tables, elements, floating, integer

COMPARISON_DIRECTION = ("EQ", "NE", "GE", "GT", "LE", "LT")
COMPARISON_TYPE = ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")
API_VERSION = tuple(range(5))
FFT_TYPE = ("FFT", "IFFT", "RFFT", "IRFFT")
PRECISION = ("DEFAULT", "HIGH", "HIGHEST")
RNG_ALGORITHM = ("DEFAULT", "THREE_FRY", "PHILOX")
RNG_DISTRIBUTION = (None, "UNIFORM", "NORMAL")
TRANSPOSE = ("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
ACCURACY_MODE = ("DEFAULT", "HIGHEST", "TOLERANCE")

_ENUMS: dict[int, tuple[Any, ...]] = {
    3: COMPARISON_DIRECTION,
    4: COMPARISON_TYPE,
    5: API_VERSION,
    7: FFT_TYPE,
    11: PRECISION,
    12: RNG_ALGORITHM,
    13: RNG_DISTRIBUTION,
    16: TRANSPOSE,
    19: ACCURACY_MODE,
}


@dataclass(frozen=True)
class OutputAlias:
    """A result of a custom call that shares memory with an operand."""

    output_tuple_indices: tuple[int, ...]
    operand_index: int
    operand_tuple_indices: tuple[int, ...]


@dataclass(frozen=True)
class ResultAccuracy:
    """The accuracy that a transcendental op must have; `mode` says whether the tolerances count."""

    atol: float
    rtol: float
    ulps: int
    mode: str


def _dictionary(t: Tables, c: Cursor) -> dict[str, Any]:
    found = {}
    for _ in range(c.count("attributes", 2)):
        at, name = c.at, t.read_attr(c)
        if not isinstance(name, str):
            malformed(at, "a name is not a string")
        found[name] = t.read_attr(c)
    return found


def _accuracy(t: Tables, c: Cursor) -> ResultAccuracy:
    at = c.at
    found = ResultAccuracy(floating(c, T.f64), floating(c, T.f64), c.signed(), t.read_attr(c))
    if found.mode not in ACCURACY_MODE:
        malformed(at, f"the accuracy mode is {found.mode!r}")
    return found


def _integer(t: Tables, c: Cursor) -> int:
    at, dtype = c.at, t.read_dtype(c)
    if not dtype.is_int:
        malformed(at, f"an integer attribute has the type {dtype}")
    return integer(c, dtype)


def _boolean(t: Tables, c: Cursor) -> bool:
    at, value = c.at, c.varint()
    if value > 1:
        malformed(at, f"a boolean is {value}")
    return bool(value)


def _axis(t: Tables, c: Cursor) -> Axis:
    name = str(t.read_attr(c))
    return Axis(name, t.read_attr(c) if c.varint() else None)


def _mesh(t: Tables, c: Cursor) -> Mesh:
    axes, ids = t.read_attr(c), t.read_optional_attr(c)
    return Mesh(tuple(axes), tuple(ids.tolist()) if isinstance(ids, np.ndarray) else tuple(ids or ()))


_ATTRIBUTES: dict[int, Any] = {
    1: Tables.read_attrs,
    2: _boolean,
    6: _dictionary,
    8: lambda t, c: floating(c, t.read_dtype(c)),
    9: _integer,
    10: lambda t, c: OutputAlias(c.signed_list("indices"), c.signed(), c.signed_list("indices")),
    14: Tables.read_string,
    15: lambda t, c: elements(c, t.read_type(c)),
    17: Tables.read_type,
    18: lambda t, c: c.signed_list("bounds"),
    20: _accuracy,
    21: lambda t, c: (c.signed(), c.signed()),
    22: _axis,
    23: lambda t, c: MeshGroups(t.read_attr(c), t.read_attr(c)),
    24: lambda t, c: (str(t.read_attr(c)), c.signed()),
    25: _mesh,
}


def attribute(t: Tables, c: Cursor) -> Any:
    """Decodes one attribute."""
    at, code = c.at, c.varint()
    names = _ENUMS.get(code)
    if names is not None:
        value = c.varint()
        if value >= len(names) or names[value] is None:
            malformed(at, f"value {value} is not in the enumeration of attribute code {code}")
        return names[value]
    decoder = _ATTRIBUTES.get(code)
    if decoder is None:
        malformed(at, f"vhlo attribute code {code} is not known")
    return decoder(t, c)


_PLAIN: dict[int, Any] = {0: T.i1, 2: T.bf16, 3: T.f16, 4: T.f32, 5: T.f64, 6: T.f8E4M3FN, 7: T.f8E5M2, 9: T.i64}
_PLAIN |= dict(enumerate((T.i4, T.i8, T.i16, T.i32, T.i64, T.ui4, T.ui8, T.ui16, T.ui32, T.ui64), 10))
_PLAIN |= {22: Token(), 27: T.f8E4M3FNUZ, 28: T.f8E5M2FNUZ, 29: T.f8E4M3B11FNUZ, 31: T.i2, 32: T.ui2, 33: "none"}
_PLAIN |= {34: "tf32", 35: T.f8E4M3, 36: T.f8E3M4, 37: T.f4E2M1FN, 38: T.f6E2M3FN, 39: T.f6E3M2FN, 40: T.f8E8M0FNU}
_FOREIGN = {
    24: ("quantized", "a quantized type"),
    25: ("dynamic", "an unranked tensor type"),
    26: ("dynamic", "a shape witness type"),
    30: ("quantized", "a quantized type"),
    41: ("type", "a buffer type"),
}


def type_(t: Tables, c: Cursor) -> Any:
    """Decodes one type."""
    at, code = c.at, c.varint()
    if code in _PLAIN:
        return _PLAIN[code]
    if code == 20:
        shape = c.signed_list("dimensions")
        dtype = t.read_type(c)
        if dtype == "tf32":  # a precision of products elsewhere
            raise Foreign("type", "the type tf32")
        if not isinstance(dtype, T.DType):
            malformed(at, f"{dtype} is not an element type")
        return t.tensor(shape, dtype, at)
    if code == 1:
        return complex_of(t.read_dtype(c), at)
    if code == 8:
        return FunctionType(t.read_types(c), t.read_types(c))
    if code == 21:
        raise Foreign("dynamic", f"a tensor type with bounds {t.read_attr(c)}")
    if code in (23, 42):
        # A future holds the results of an async_start, which the importer puts where they are started.
        return Tuple(t.read_types(c))
    if code in _FOREIGN:
        raise Foreign(*_FOREIGN[code])
    malformed(at, f"vhlo type code {code} is not known")
