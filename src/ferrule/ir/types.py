"""Element types and value types of the graph, named as StableHLO names them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type.

    `name` is StableHLO's spelling ("f32", "ui8", "i1", "complex<f32>"), `kind` one of bool, int, uint, float,
    complex; `bits` the width of a value (of one component for complex); `itemsize` the bytes that one element
    takes in memory (sub-byte types take one byte each); `pjrt` the PJRT_Buffer_Type number.
    """

    name: str
    kind: str
    bits: int
    itemsize: int
    pjrt: int
    numpy: np.dtype

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:  # types are looked up all the time
        return hash(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers, false for i1."""
        return self.kind in ("int", "uint")

    @property
    def part(self) -> DType:
        """The real component type of a complex type, else the type itself."""
        return {"complex<f32>": f32, "complex<f64>": f64}.get(self.name, self)


def _d(name: str, kind: str, bits: int, pjrt: int, numpy: object, itemsize: int = 0) -> DType:
    return DType(name, kind, bits, itemsize or max(1, bits // 8), pjrt, np.dtype(numpy))  # type: ignore[call-overload]


i1 = _d("i1", "bool", 1, 1, np.bool_)
i2, i4 = _d("i2", "int", 2, 24, ml_dtypes.int2), _d("i4", "int", 4, 21, ml_dtypes.int4)
i8, i16 = _d("i8", "int", 8, 2, np.int8), _d("i16", "int", 16, 3, np.int16)
i32, i64 = _d("i32", "int", 32, 4, np.int32), _d("i64", "int", 64, 5, np.int64)
ui2, ui4 = _d("ui2", "uint", 2, 25, ml_dtypes.uint2), _d("ui4", "uint", 4, 22, ml_dtypes.uint4)
ui8, ui16 = _d("ui8", "uint", 8, 6, np.uint8), _d("ui16", "uint", 16, 7, np.uint16)
ui32, ui64 = _d("ui32", "uint", 32, 8, np.uint32), _d("ui64", "uint", 64, 9, np.uint64)
f16, bf16 = _d("f16", "float", 16, 10, np.float16), _d("bf16", "float", 16, 13, ml_dtypes.bfloat16)
f32, f64 = _d("f32", "float", 32, 11, np.float32), _d("f64", "float", 64, 12, np.float64)
c64 = _d("complex<f32>", "complex", 32, 14, np.complex64, 8)
c128 = _d("complex<f64>", "complex", 64, 15, np.complex128, 16)
f8E5M2 = _d("f8E5M2", "float", 8, 16, ml_dtypes.float8_e5m2)
f8E4M3FN = _d("f8E4M3FN", "float", 8, 17, ml_dtypes.float8_e4m3fn)
f8E4M3B11FNUZ = _d("f8E4M3B11FNUZ", "float", 8, 18, ml_dtypes.float8_e4m3b11fnuz)
f8E5M2FNUZ = _d("f8E5M2FNUZ", "float", 8, 19, ml_dtypes.float8_e5m2fnuz)
f8E4M3FNUZ = _d("f8E4M3FNUZ", "float", 8, 20, ml_dtypes.float8_e4m3fnuz)
f8E4M3 = _d("f8E4M3", "float", 8, 26, ml_dtypes.float8_e4m3)
f8E3M4 = _d("f8E3M4", "float", 8, 27, ml_dtypes.float8_e3m4)
f8E8M0FNU = _d("f8E8M0FNU", "float", 8, 28, ml_dtypes.float8_e8m0fnu)
f4E2M1FN = _d("f4E2M1FN", "float", 4, 29, ml_dtypes.float4_e2m1fn)
f6E2M3FN = _d("f6E2M3FN", "float", 6, 32, ml_dtypes.float6_e2m3fn)
f6E3M2FN = _d("f6E3M2FN", "float", 6, 33, ml_dtypes.float6_e3m2fn)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        *(i1, i2, i4, i8, i16, i32, i64, ui2, ui4, ui8, ui16, ui32, ui64, f16, bf16, f32, f64, c64, c128),
        *(f8E5M2, f8E4M3FN, f8E4M3B11FNUZ, f8E5M2FNUZ, f8E4M3FNUZ, f8E4M3, f8E3M4, f8E8M0FNU, f4E2M1FN),
        *(f6E2M3FN, f6E3M2FN),
    )
}
BY_NUMPY: dict[np.dtype, DType] = {d.numpy: d for d in DTYPES.values()}
BY_PJRT: dict[int, DType] = {d.pjrt: d for d in DTYPES.values()}


@cache
def holds(wide: DType, narrow: DType) -> bool:
    """Does `wide`, an integer type or a float of at least 16 bits, have every value of `narrow`?"""
    if wide.is_int:
        if narrow.kind == "bool":
            return True
        signs = wide.kind == narrow.kind or (wide.kind == "int" and wide.bits > narrow.bits)
        return narrow.is_int and signs and wide.bits >= narrow.bits
    if not wide.is_float or wide.bits < 16:
        return False
    about = ml_dtypes.finfo(wide.numpy)
    if narrow.is_float:
        inner = ml_dtypes.finfo(narrow.numpy)
        least, most = float(inner.smallest_subnormal), float(inner.max)
        return inner.nmant <= about.nmant and float(about.smallest_subnormal) <= least and most <= float(about.max)
    return narrow.kind == "bool" or (narrow.is_int and narrow.bits - (narrow.kind == "int") <= about.nmant + 1)


@dataclass(frozen=True)
class Tensor:
    """A ranked tensor type with a static shape; row-major dense in memory unless a layout attribute says else."""

    shape: tuple[int, ...]
    dtype: DType

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.dtype))

    @cached_property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return f"tensor<{''.join(f'{d}x' for d in self.shape)}{self.dtype}>"


@dataclass(frozen=True)
class Token:
    """The type of a token: orders side effects, carries no data."""

    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "!stablehlo.token"


@dataclass(frozen=True)
class Tuple:
    """A tuple type; the importer flattens tuples away."""

    elements: tuple[Type, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """A tuple is no array; only code that has checked its types may ask."""
        raise TypeError("a tuple type has no shape")

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


Type = Tensor | Token | Tuple
