"""How far rounding may move a program's results: its NumPy meaning, run again with each inexact op shaken.

A shaken run multiplies what an inexact op reads or gives by 1 + a few random ulps. What the results then do is their
condition: an ill-conditioned value moves far, a comparison that hangs on the last bit changes sides. Ops that IEEE 754
defines to the bit (add, multiply, divide, compare, …) are not shaken: there, an implementation has no choice but one: a
sum may take a product before it is rounded, so there a product is shaken, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from artifact import portable
from case import Case

from ferrule.errors import FerruleError
from ferrule.ir import Block, Op, Value
from ferrule.ir.types import BY_NUMPY
from ferrule.ops import OPS
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.reader import read
from ferrule.targets.reference import Interpreter

# Ulps by which a result of these may be off.
ROUNDED = {
    **dict.fromkeys(("sqrt", "rsqrt", "cbrt", "exponential", "exponential_minus_one", "log", "log_plus_one"), 2.0),
    **dict.fromkeys(("logistic", "sine", "cosine", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan"), 2.0),
    **dict.fromkeys(("asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "power", "atan2"), 3.0),
    **dict.fromkeys(("lgamma", "digamma"), 8.0),
}
# Sums, in which the order of additions is free: their operands are shaken.
SUMS = {"dot_general", "dot", "convolution", "fft", "cholesky", "triangular_solve"}
FOLDS = {"reduce", "reduce_window", "scatter", "select_and_scatter"}
# Ops that hand bits on as they are.
MOVES = {
    "constant",
    "iota",
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "broadcast",
    "slice",
    "dynamic_slice",
    "gather",
}
MOVES |= {"dynamic_update_slice", "concatenate", "pad", "reverse", "sort", "bitcast_convert", "select", "while", "if"}
MOVES |= {"case", "func.call", "optimization_barrier", "negate", "abs", "real", "imag", "complex", "rng_bit_generator"}
MOVES |= {"tuple", "get_tuple_element"}
# Folds that two halves may be put together from, with what changes nothing; a half may see all where that is harmless.
NEUTRAL = {"add": -0.0, "multiply": 1.0, "maximum": None, "minimum": None, "and": None, "or": None}
FOLD = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
FOLD |= {"and": np.bitwise_and, "or": np.bitwise_or}
# What may be rounded together with a sum that reads it (`power` with the exponent 2 is a product).
PRODUCTS = {"multiply", "square", "power"}
_COMPLEX = {"multiply", "divide", "abs", "square", "sign"}


# A drawn program takes a few thousand at most; one that a reducer has changed may never end.
MAX_STEPS = 100_000


class Endless(FerruleError):
    """A program runs for too long to be judged."""


def _product(value: Value, depth: int = 0) -> bool:
    """Is it, or is part of it, a product that has only been moved since?"""
    op = value.op
    if op is None or depth > 20:
        return False
    if op.name in PRODUCTS:
        return BY_NUMPY[value.dtype.numpy].bits >= 32
    inside = [v for region in op.regions for v in region.results] if op.name in ("if", "case", "while") else []
    return op.name in MOVES and any(_product(v, depth + 1) for v in (*op.operands, *inside) if hasattr(v.type, "dtype"))


def _inexact_body(block: Block) -> bool:
    return any(op.name in ROUNDED or op.name in ("add", "subtract", "multiply", "divide") for op in block.walk())


class Shaken(Interpreter):
    """Evaluates with noise. With a seed of None there is none: the meaning itself."""

    def __init__(self, case: Case, seed: int | None) -> None:
        super().__init__(case.called())
        self.steps = 0
        self.rng = None if seed is None else np.random.default_rng(seed)
        # The first two runs give all NaN one sign, so that few NaN among many numbers are not the same by chance.
        self.nan_sign = {1: 0, 2: 1}.get(seed or 0)

    def _results(self, op: Op) -> Sequence[np.ndarray]:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Endless(f"the program has not ended after {MAX_STEPS} ops")
        if self.rng is None:
            return super()._results(op)
        sums = op.name in SUMS or (op.name in FOLDS and any(_inexact_body(r) for r in op.regions))
        if not sums:
            found = self._fused(op) if op.name in ("add", "subtract") else super()._results(op)
            complex_math = op.operands and op.name in _COMPLEX and self.values[op.operands[0]].dtype.kind == "c"
            ulps = ROUNDED.get(op.name, 2.0 if complex_math else 0.0)
            least = 4.0 if op.name in ("lgamma", "digamma") else 0.0
            found = [self.shake(x, ulps, least) for x in found] if ulps else found
            if op.name == "digamma" and self.rng.random() < 0.5:
                # In a portable artifact it is spelled out, and so spelled it is NaN at zeros, not an infinity.
                found = [np.where(self.values[op.operands[0]] == 0, np.nan, x).astype(x.dtype) for x in found]
            if op.name in FOLDS and self.rng.random() < 0.5:
                found = [self._other_zero(x) for x in found]
            return found if op.name in MOVES else [self.other_nan(x) for x in found]
        before = {v: self.values[v] for v in op.operands}
        try:
            endless = op.name == "convolution" and self.rng.random() < 0.5
            shaken = {v: self.shake(self._below_top(x, endless), 2.0) for v, x in before.items()}
            self.values.update(shaken)
            if op.name == "reduce":
                self._reorder(op)
            found = self._in_parts(op) if self.rng.random() < 0.5 else super()._results(op)
            return [self.other_nan(self.shake(x, 2.0)) for x in found]
        finally:
            self.values.update(before)

    def _fused(self, op: Op) -> Sequence[np.ndarray]:
        """A sum with products that were not rounded, and so do not overflow."""
        before = {v: self.values[v] for v in op.operands}
        self.values.update({v: self.shake(self._from_infinity(x), 1.5) for v, x in before.items() if _product(v)})
        try:
            return super()._results(op)
        finally:
            self.values.update(before)

    def _from_infinity(self, x: np.ndarray) -> np.ndarray:
        """Now and then the largest number for an infinity."""
        assert self.rng is not None
        if x.dtype.kind != "f" or self.rng.random() < 0.5:
            return x
        top = np.finfo(x.dtype).max
        return np.asarray(np.where(np.isinf(x), np.copysign(top, x), x)).astype(x.dtype)

    def _other_zero(self, x: np.ndarray) -> np.ndarray:
        """Zeros of the other sign: of two zeros a reduction by maximum or minimum may give either."""
        dtype = BY_NUMPY.get(x.dtype)
        if dtype is None or not dtype.is_float or dtype.name.endswith("FNUZ"):
            return x
        return np.asarray(np.where(x == 0, -x, x)).astype(x.dtype)

    def _below_top(self, x: np.ndarray, endless: bool = False) -> np.ndarray:
        """Now and then smaller numbers for the largest: a fused multiplication and addition overflows later.

        With `endless`, also for infinities and NaN: libraries pass over the padding of a convolution, which times an
        infinity would be NaN.
        """
        dtype = BY_NUMPY.get(x.dtype)
        if self.rng is None or dtype is None or not (dtype.is_float or dtype.is_complex) or self.rng.random() < 0.5:
            return x
        parts = np.stack([x.real, x.imag]) if dtype.is_complex else x[None]
        wide = parts.astype(np.float64)
        top = float(ml_dtypes.finfo(dtype.part.numpy).max)
        wide = np.where(np.isfinite(wide) & (np.abs(wide) > top / 16), wide / 64, wide)
        if endless:
            wide = np.where(np.isfinite(wide), wide, 1.0)
        if dtype.is_complex:
            out = np.empty(x.shape, x.dtype)
            out.real, out.imag = wide
            return out
        return np.asarray(wide[0] if dtype.bits == 64 else wide[0].astype(np.float32)).astype(x.dtype)

    def _reorder(self, op: Op) -> None:
        """Puts what is reduced in another order, which is free: a sum may overflow on the way in one of them."""
        assert self.rng is not None
        inputs = op.operands[: len(op.operands) // 2]
        for d in op.attrs["dimensions"]:
            order = self.rng.permutation(inputs[0].shape[d])
            self.values.update({v: np.take(self.values[v], order, axis=d) for v in set(inputs)})

    def _in_parts(self, op: Op) -> Sequence[np.ndarray]:
        """A product or a fold of two random halves, put together: each half may overflow where the whole does not."""
        assert self.rng is not None
        if op.name == "dot_general":
            numbers = op.attrs["dot_dimension_numbers"]
            dims = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
            names, over, zeros = ["add"], [dims[0][:1], dims[1][:1]], [0.0, 0.0]
        elif op.name == "reduce":
            inner = op.regions[0].ops
            names, over = [o.name for o in inner], [op.attrs["dimensions"][:1]] * len(inner)
            zeros = [NEUTRAL[name] for name in names if name in NEUTRAL]
            inits = op.operands[len(over) :]
            if [o.results[0] for o in inner] != op.regions[0].results or len(zeros) != len(inits):
                return super()._results(op)
        else:
            return super()._results(op)
        if not over[0] or self.values[op.operands[0]].dtype.kind == "b":
            return super()._results(op)
        whole = {v: self.values[v] for v in op.operands}
        first = self.rng.random(whole[op.operands[0]].shape[over[0][0]]) < 0.5
        parts = []
        for part in (first, ~first):
            for v, along, zero in zip(op.operands, over, zeros, strict=False):
                if zero is not None:
                    shape = [1] * whole[v].ndim
                    shape[along[0]] = -1
                    neutral = np.asarray(zero).astype(whole[v].dtype)
                    self.values[v] = np.where(part.reshape(shape), whole[v], neutral).astype(whole[v].dtype)
            parts.append(super()._results(op))
            if op.name == "reduce":  # what it starts with counts once
                for v, zero in zip(inits, zeros, strict=True):
                    if zero is not None:
                        self.values[v] = np.asarray(zero).astype(whole[v].dtype)
        self.values.update(whole)
        return [np.asarray(FOLD[name](a, b)).astype(a.dtype) for name, a, b in zip(names, *parts, strict=True)]

    def other_nan(self, x: np.ndarray) -> np.ndarray:
        """Which NaN an op gives, and of which sign, is open; it shows in bits and in total order."""
        dtype = BY_NUMPY.get(x.dtype)
        if self.rng is None or dtype is None or not dtype.is_float or dtype.name.endswith("FNUZ") or dtype.bits < 8:
            return x
        nan = np.isnan(x.astype(np.float32))
        if not nan.any():
            return x
        bits = np.array(x).reshape(-1).view(f"u{dtype.itemsize}")
        sign = np.array(1 << (dtype.bits - 1), bits.dtype)
        if self.nan_sign is None:
            bits[nan.reshape(-1) & (self.rng.random(x.size) < 0.5)] ^= sign
        else:
            bits[nan.reshape(-1)] &= ~sign
            bits[nan.reshape(-1)] |= sign * bits.dtype.type(self.nan_sign)
        if dtype.bits > 8:
            bits[nan.reshape(-1) & (self.rng.random(x.size) < 0.3)] |= np.array(1, bits.dtype)
        return bits.view(x.dtype).reshape(x.shape)

    def shake(self, x: np.ndarray, ulps: float, least: float = 0.0) -> np.ndarray:
        """x times 1 + up to `ulps` roundings, and a little for what rounds to zero.

        `least` is the size below which roundings stay as they are: for functions whose zeros come of cancellation.
        """
        dtype = BY_NUMPY.get(x.dtype)
        if self.rng is None or dtype is None or not (dtype.is_float or dtype.is_complex) or not x.size:
            return x
        info = ml_dtypes.finfo(dtype.part.numpy)
        eps, tiny = float(info.eps), float(info.smallest_subnormal)
        with np.errstate(all="ignore"):
            if dtype.is_complex:
                noise = self.rng.uniform(-ulps, ulps, (2, *x.shape))
                size = np.abs(x.astype(np.complex128)) * eps + tiny
                return np.asarray(x + (noise[0] + 1j * noise[1]) * size).astype(x.dtype)
            wide = x.astype(np.float64)
            out = wide + np.maximum(np.abs(wide), least) * self.rng.uniform(-ulps, ulps, x.shape) * eps
            step = np.round(self.rng.uniform(-1, 1, x.shape)) * tiny
            out = np.where(np.abs(wide) < 4 * float(info.smallest_normal), out + step, out)
            # never into infinity, nor out of it; nor across the sign
            top = float(info.max)
            out = np.where(np.isfinite(wide), np.clip(out, -top, top), wide)
            narrow = out if dtype.bits == 64 else out.astype(np.float32)
            return np.asarray(narrow).astype(x.dtype)


def _modern(case: Case) -> Case:
    """Ops that have no meaning of their own become what they stand for, as Ferrule's importer has it."""
    if all(name in OPS for name in case.ops()):
        return case
    main = import_module(legalize(read(portable(case.text()), "mlir"))).main
    return Case(main.body, case.inputs)


def meaning(case: Case, seed: int | None = None) -> list[np.ndarray]:
    """The results by Ferrule's NumPy meaning of the ops; with a seed, shaken."""
    case = _modern(case)
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in Shaken(case, seed)(case.body, case.inputs)]
