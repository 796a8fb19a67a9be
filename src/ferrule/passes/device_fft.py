"""Fourier transforms on devices: chains of small products and twiddle factors, one kernel each.

The algorithm of Cooley and Tukey (1965) with radices up to 16: a line of n = r·m elements is r interleaved lines of m;
these are transformed, multiplied by the twiddle factors, and combined by a transform of r elements, which is a product
with an r × r matrix. Tables are made in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.ir import Block, DotDims, Op, Tensor, Value
from ferrule.ir import types as t

RADIX = 16  # the largest factor taken at once; a prime up to LARGEST is a factor, too
LARGEST = 64
# Tables are part of the program; longer lines are left to the host.
LONGEST = 1 << 18


def fft(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    """The result of an `fft`; None leaves it to the host (a prime factor that is too large, or too long a line)."""
    (x,) = operands
    lengths, kind = [int(n) for n in op.attrs["fft_length"]], op.attrs["fft_type"]
    if 0 in x.shape or any(n == 0 or n > LONGEST or _largest_prime(n) > LARGEST for n in lengths):
        return None
    return [_Transform(out, op).run(x, lengths, kind)]


def _largest_prime(n: int) -> int:
    largest, p = 1, 2
    while n > 1:
        if n % p == 0:
            largest, n = p, n // p
        else:
            p += 1 if p * p <= n else n - p
    return largest


def _radix(n: int) -> int:
    """The largest divisor up to RADIX, else the smallest there is."""
    return next((r for r in range(RADIX, 1, -1) if n % r == 0), 0) or next(r for r in range(RADIX, n + 1) if n % r == 0)


class _Transform:
    def __init__(self, out: Block, op: Op) -> None:
        self.out, self.op = out, op

    def add(self, name: str, operands: Sequence[Value], shape: Sequence[int], dtype: t.DType, **attrs: object) -> Value:
        return self.out.add(name, operands, Tensor(tuple(shape), dtype), attrs, (), self.op.loc).result

    def constant(self, values: np.ndarray, dtype: t.DType) -> Value:
        return self.add("constant", [], values.shape, dtype, value=values.astype(dtype.numpy))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if x.shape == tuple(shape) else self.add("reshape", [x], shape, x.dtype)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        shape = [x.shape[d] for d in order]
        return self.add("transpose", [x], shape, x.dtype, permutation=tuple(order))

    def run(self, x: Value, lengths: list[int], kind: str) -> Value:
        first = len(x.shape) - len(lengths)
        last = len(x.shape) - 1
        if kind == "RFFT":
            dtype = t.c64 if x.dtype == t.f32 else t.c128
            zero = self.add("broadcast_in_dim", [self.constant(np.zeros(()), x.dtype)], x.shape, x.dtype,
                            broadcast_dimensions=())  # fmt: skip
            x = self.along(self.add("complex", [x, zero], x.shape, dtype), last)
            x = self.part(x, last, 0, lengths[-1] // 2 + 1)
            for axis in range(first, last):
                x = self.along(x, axis)
            return x
        if kind == "FFT":
            for axis in range(first, last + 1):
                x = self.along(x, axis)
            return x
        # The inverse is the transform of the conjugate, conjugated and divided by the number of elements.
        x = self.conjugate(x)
        for axis in range(first, last + (kind == "IFFT")):
            x = self.along(x, axis)
        if kind == "IRFFT":
            x = self.along(self.whole_spectrum(x, lengths[-1]), last)
            x = self.add("real", [x], x.shape, x.dtype.part)
        else:
            x = self.conjugate(x)
        scale = self.constant(np.asarray(1 / prod(lengths)), x.dtype)
        spread = self.add("broadcast_in_dim", [scale], x.shape, x.dtype, broadcast_dimensions=())
        return self.add("multiply", [x, spread], x.shape, x.dtype)

    def conjugate(self, x: Value) -> Value:
        part = x.dtype.part
        real, imag = self.add("real", [x], x.shape, part), self.add("imag", [x], x.shape, part)
        return self.add("complex", [real, self.add("negate", [imag], x.shape, part)], x.shape, x.dtype)

    def part(self, x: Value, axis: int, start: int, stop: int) -> Value:
        low = tuple(start if d == axis else 0 for d in range(len(x.shape)))
        high = tuple(stop if d == axis else s for d, s in enumerate(x.shape))
        shape = [b - a for a, b in zip(low, high, strict=True)]
        ones = (1,) * len(shape)
        return self.add("slice", [x], shape, x.dtype, start_indices=low, limit_indices=high, strides=ones)

    def whole_spectrum(self, x: Value, n: int) -> Value:
        """The n values of a real line's spectrum (here of its conjugate) from the first n // 2 + 1. The imaginary parts
        of the first and, for even n, of the middle one count as zero."""
        last = len(x.shape) - 1
        ends = [0, n // 2] if n % 2 == 0 else [0]
        mask = np.ones(x.shape[last])
        mask[ends] = 0
        part, dims = x.dtype.part, {"broadcast_dimensions": (last,)}
        kept = self.add("broadcast_in_dim", [self.constant(mask, t.i1)], x.shape, t.i1, **dims)
        imag = self.add("imag", [x], x.shape, part)
        zero = self.add("broadcast_in_dim", [self.constant(np.zeros(()), part)], x.shape, part, broadcast_dimensions=())
        imag = self.add("select", [kept, imag, zero], x.shape, part)
        x = self.add("complex", [self.add("real", [x], x.shape, part), imag], x.shape, x.dtype)
        rest = n - x.shape[last]
        if rest == 0:
            return x
        mirrored = self.conjugate(self.part(x, last, 1, 1 + rest))
        mirrored = self.add("reverse", [mirrored], mirrored.shape, x.dtype, dimensions=(last,))
        return self.add("concatenate", [x, mirrored], (*x.shape[:last], n), x.dtype, dimension=last)

    def along(self, x: Value, axis: int) -> Value:
        """The transform along one dimension."""
        shape, n = x.shape, x.shape[axis]
        others = [d for d in range(len(shape)) if d != axis]
        order = [*others, axis]
        moved = x if axis == len(shape) - 1 else self.transpose(x, order)
        lines = self.lines(self.reshape(moved, (prod(shape[d] for d in others), n)))
        lines = self.reshape(lines, moved.shape)
        if axis == len(shape) - 1:
            return lines
        return self.transpose(lines, [order.index(d) for d in range(len(shape))])

    def lines(self, x: Value) -> Value:
        """The transform of each row of a matrix."""
        rows, n = x.shape
        if n == 1:
            return x
        r = _radix(n)
        m = n // r
        if m == 1:
            return self.combine(self.reshape(x, (rows, r, 1)), r)
        apart = self.transpose(self.reshape(x, (rows, m, r)), (0, 2, 1))
        inner = self.reshape(self.lines(self.reshape(apart, (rows * r, m))), (rows, r, m))
        angle = np.outer(np.arange(r), np.arange(m)) * (-2 * np.pi / n)
        twiddle = self.constant(np.cos(angle) + 1j * np.sin(angle), x.dtype)
        spread = self.add("broadcast_in_dim", [twiddle], inner.shape, x.dtype, broadcast_dimensions=(1, 2))
        return self.combine(self.add("multiply", [inner, spread], inner.shape, x.dtype), r)

    def combine(self, x: Value, r: int) -> Value:
        """(rows, r, m) → (rows, r·m): the transform of r elements for each row and each of the m."""
        rows, _, m = x.shape
        angle = (np.outer(np.arange(r), np.arange(r)) % r) * (-2 * np.pi / r)
        matrix = self.constant(np.cos(angle) + 1j * np.sin(angle), x.dtype)
        dims = DotDims((), (), (1,), (1,))
        product = self.add("dot_general", [matrix, x], (r, rows, m), x.dtype, dot_dimension_numbers=dims)
        return self.reshape(self.transpose(product, (1, 0, 2)), (rows, r * m))
