"""Random bits: rng_bit_generator (Threefry and Philox, bit for bit as XLA), and the stateful rng."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ferrule.ir import Op, Tensor, Type
from ferrule.ir.types import ui64
from ferrule.ops import numerics as n
from ferrule.ops.checks import attr, declared, expect, kinds, operands
from ferrule.ops.definition import Run, define, element
from ferrule.ops.samples import UINTS, Sample, samples

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes

Words = list[np.ndarray]
_LOW = np.uint64(0xFFFFFFFF)
_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PHILOX_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_PHILOX_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))


def _split(x: np.ndarray) -> Words:
    """The low and the high word of 64-bit values."""
    return [(x & _LOW).astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)]


def _join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def threefry(counter: np.ndarray, key: np.uint64) -> Words:
    """Threefry-2x32 with 20 rounds of 64-bit counters; two words each."""
    with n.silent():
        k = _split(np.asarray(key))
        schedule = [*k, k[0] ^ k[1] ^ np.uint32(0x1BD11BDA)]
        x0, x1 = _split(counter)
        x0, x1 = x0 + schedule[0], x1 + schedule[1]
        for group in range(5):
            for distance in _THREEFRY_ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance)))
            x0 = x0 + schedule[(group + 1) % 3]
            x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return [x0, x1]


def philox(low: np.ndarray, high: np.ndarray, key: np.uint64) -> Words:
    """Philox-4x32 with 10 rounds of 128-bit counters; four words each."""
    with n.silent():
        words = [*_split(low), *_split(high)]
        k = _split(np.asarray(key))
        for _ in range(10):
            a = words[0].astype(np.uint64) * _PHILOX_FACTORS[0]
            b = words[2].astype(np.uint64) * _PHILOX_FACTORS[1]
            (a_low, a_high), (b_low, b_high) = _split(a), _split(b)
            words = [b_high ^ words[1] ^ k[0], b_low, a_high ^ words[3] ^ k[1], a_low]
            k = [w + step for w, step in zip(k, _PHILOX_WEYL, strict=True)]
    return words


def _threefry_bits(state: np.ndarray, shape: tuple[int, ...], bits: int) -> tuple[np.ndarray, np.ndarray]:
    with n.silent():
        start = state[1]
        if bits == 64:
            count = prod(shape)
            out = _join(*threefry(start + np.arange(count, dtype=np.uint64), state[0])).reshape(shape)
        else:
            # two words of one counter become neighbours along the first even dimension, else the longest one
            full = shape or (1,)
            even = [i for i, s in enumerate(full) if s % 2 == 0]
            axis = even[0] if even else full.index(max(full))
            half = tuple(-(-s // 2) if i == axis else s for i, s in enumerate(full))
            count = prod(half)
            pair = threefry((start + np.arange(count, dtype=np.uint64)).reshape(half), state[0])
            both = np.stack(pair, axis=axis + 1).reshape([2 * s if i == axis else s for i, s in enumerate(half)])
            out = both[tuple(slice(s) for s in full)].reshape(shape)
        return np.array([state[0], start + np.uint64(count)], np.uint64), out


def _philox_bits(state: np.ndarray, shape: tuple[int, ...], bits: int) -> tuple[np.ndarray, np.ndarray]:
    with n.silent():
        size = prod(shape)
        words = size * (2 if bits == 64 else 1)
        count = -(-words // 4)
        # a state of two holds the key and the counter's low half; its high half is then the key
        low, high = state[1], state[2] if state.size == 3 else state[0]
        counters = low + np.arange(count, dtype=np.uint64)
        carried = high + (counters < low).astype(np.uint64)
        line = np.stack(philox(counters, carried, state[0]), axis=-1).reshape(-1)
        if bits == 64:
            line = _join(line[0::2], line[1::2])
        end = low + np.uint64(count)
        after = [state[0], end, high + np.uint64(end < low)]
        return np.array(after[: state.size], np.uint64), line[:size].reshape(shape)


def _infer_bits(op: Op) -> Sequence[Type]:
    (state,) = operands(op, 1)
    out = declared(op, 1)
    algorithm = attr(op, "rng_algorithm", "DEFAULT")
    sizes = {"THREE_FRY": (2,), "PHILOX": (2, 3), "DEFAULT": (2, 3)}
    expect(op, algorithm in sizes, f"rng_algorithm {algorithm!r} is unknown", "it is THREE_FRY, PHILOX or DEFAULT")
    fits = state.rank == 1 and state.dtype == ui64 and state.shape[0] in sizes[algorithm]
    expect(op, fits, f"the state of {algorithm} is {state}", f"it must hold {sizes[algorithm]} values of ui64")
    kinds(op, "iuf", out)
    return [state, out]


def _bits(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    (state,) = xs
    out = declared(op, 1)
    generate = _threefry_bits if attr(op, "rng_algorithm", "DEFAULT") == "THREE_FRY" else _philox_bits
    after, raw = generate(state, out.shape, out.dtype.bits)
    if out.dtype.bits < 8:
        return [after, n.narrow(raw.astype(np.uint8), out.dtype)]
    return [after, raw.astype(f"u{out.dtype.itemsize}").view(out.dtype.numpy)]


def _infer_rng(op: Op) -> Sequence[Type]:
    low, high, shape = operands(op, 3)
    expect(op, low == high and low.rank == 0, f"the parameters are {low} and {high}, not two scalars of one type")
    expect(op, shape.rank == 1 and shape.dtype.is_int, f"the shape is {shape}, not a vector of integers")
    out = declared(op)
    expect(op, out.rank == shape.shape[0], f"the shape operand has {shape.shape[0]} entries for {out}")
    kind = attr(op, "rng_distribution")
    expect(op, kind in ("UNIFORM", "NORMAL"), f"rng_distribution {kind!r} is unknown")
    kinds(op, "biuf" if kind == "UNIFORM" else "f", low)
    return [Tensor(out.shape, low.dtype)]


def _rng(op: Op, xs: Sequence[np.ndarray], run: Run) -> Sequence[np.ndarray]:
    """One fresh stream per call: the op promises a distribution, not a sequence."""
    source, out = np.random.default_rng(), declared(op)
    low, high = (n.widen(x) for x in xs[:2])
    if attr(op, "rng_distribution") == "NORMAL":
        return [n.narrow(source.normal(float(low), float(high), out.shape), out.dtype)]
    if out.dtype.is_float:
        return [n.narrow(source.uniform(float(low), float(high), out.shape), out.dtype)]
    if out.dtype.kind == "bool":
        return [source.integers(0, 2, out.shape).astype(np.bool_)]
    return [n.narrow(source.integers(int(low), int(high), out.shape, dtype=low.dtype), out.dtype)]


define("rng_bit_generator", infer=_infer_bits, evaluate=_bits, flops=20)
define("rng", infer=_infer_rng, evaluate=_rng, flops=20)


# ---- elements ----------------------------------------------------------------------------------------------------


@element("rng_bit_generator")
def _bits_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.random import bits_element, state_element

    return bits_element(em, op, index) if k == 1 else state_element(em, op, index)


# ---- samples -----------------------------------------------------------------------------------------------------


@samples("rng_bit_generator")
def _bits_samples(name: str) -> Iterable[Sample]:
    top = (1 << 64) - 1
    for algorithm, states in (
        ("THREE_FRY", ((1, 2), (top, top - 2))),
        ("PHILOX", ((1, 2, 3), (5, top - 2, top), (7, top - 1))),
        ("DEFAULT", ((1, 2, 3),)),
    ):
        for state in states:
            for d in UINTS:
                for shape in ((), (1,), (7,), (3, 5), (3, 4, 2), (0, 3), (5, 3, 7)):
                    words = np.array(state, np.uint64)
                    results = (Tensor((len(state),), ui64), Tensor(shape, d))
                    label = f"{algorithm}-{len(state)}-{state[-1]}-{d}{list(shape)}"
                    yield Sample(name, label, (words,), {"rng_algorithm": algorithm}, results)
