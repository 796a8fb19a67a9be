"""Element expressions of rng_bit_generator: every element computes its own block of random words from its counter."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.emitter import Emitter, Key, Lanes
from ferrule.codegen.index import Component
from ferrule.codegen.lanes import Num
from ferrule.ir import Op, tensor

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_FACTORS = (0xD2511F53, 0xCD9E8D57)


def _state(em: Emitter, op: Op, i: int) -> Num:
    return em.s.num(em.operand(op, 0, [em.ix.number(i)]))


def _words(x: Num) -> list[Num]:
    """The low and the high 32 bits."""
    return [x.cast("trunc", "i32"), x.lshr(32).cast("trunc", "i32")]


def _join(low: Num, high: Num) -> Num:
    return low.cast("zext", "i64") | (high.cast("zext", "i64") << 32)


def _threefry(counter: Num, key: Num) -> list[Num]:
    k = _words(key)
    schedule = [*k, k[0] ^ k[1] ^ 0x1BD11BDA]
    x0, x1 = _words(counter)
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = x0 ^ x1.intrinsic("fshl", x1, distance)
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + (group + 1)
    return [x0, x1]


def _philox(low: Num, high: Num, key: Num) -> list[Num]:
    words, k = [*_words(low), *_words(high)], _words(key)
    for _ in range(10):
        a = words[0].cast("zext", "i64") * _FACTORS[0]
        b = words[2].cast("zext", "i64") * _FACTORS[1]
        (a_low, a_high), (b_low, b_high) = _words(a), _words(b)
        words = [b_high ^ words[1] ^ k[0], b_low, a_high ^ words[3] ^ k[1], a_low]
        k = [w + step for w, step in zip(k, _WEYL, strict=True)]
    return words


def _halves(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Threefry's counters for words of up to 32 bits: their shape, and the dimension in which one makes two words."""
    full = tuple(shape) or (1,)
    even = [i for i, s in enumerate(full) if s % 2 == 0]
    axis = even[0] if even else full.index(max(full))
    return tuple(-(-s // 2) if i == axis else s for i, s in enumerate(full)), axis


def _counts(op: Op) -> int:
    """How many counters the op consumes."""
    out = tensor(op.results[1])
    if op.attrs.get("rng_algorithm", "DEFAULT") != "THREE_FRY":
        return -(-(out.size * (2 if out.dtype.bits == 64 else 1)) // 4)
    return out.size if out.dtype.bits == 64 else prod(_halves(out.shape)[0])


def bits_element(em: Emitter, op: Op, index: Key) -> Lanes:
    """The bits at `index`."""
    dtype, shape = op.results[1].dtype, op.results[1].shape
    if op.attrs.get("rng_algorithm", "DEFAULT") == "THREE_FRY":
        raw = _threefry_bits(em, op, index, shape, dtype.bits)
    else:
        raw = _philox_bits(em, op, index, shape, dtype.bits)
    unsigned = raw if dtype.bits >= 32 else raw.cast("trunc", f"i{max(8, dtype.bits)}")
    if dtype.bits < 8:
        return em.s.from_memory(dtype, unsigned.v)
    return em.s.from_bits(dtype, unsigned.v)


def _counter(em: Emitter, at: Component) -> Num:
    return Num(em.b, em.ix.lanes(at))


def _pick(em: Emitter, words: Sequence[Num], which: Component) -> Num:
    """words[which]."""
    which = em.ix.force(which)
    if which.constant is not None:
        return words[which.constant]
    lanes = _counter(em, which)
    found = words[0]
    for i, word in enumerate(words[1:], 1):
        found = lanes.eq(i).where(word, found)
    return found


def _threefry_bits(em: Emitter, op: Op, index: Key, shape: Sequence[int], bits: int) -> Num:
    key, start = _state(em, op, 0), _state(em, op, 1)
    if bits == 64:
        return _join(*_threefry(start + _counter(em, em.ix.flatten(index, shape)), key))
    half, axis = _halves(shape)
    at: list[Component] = list(index) if shape else [em.ix.zero]
    at[axis], which = em.ix.divmod(at[axis], 2)
    return _pick(em, _threefry(start + _counter(em, em.ix.flatten(at, half)), key), which)


def _philox_bits(em: Emitter, op: Op, index: Key, shape: Sequence[int], bits: int) -> Num:
    key, low = _state(em, op, 0), _state(em, op, 1)
    # a state of two words holds the key and the counter's low half; its high half is then the key
    high = _state(em, op, 2) if op.operands[0].shape[0] == 3 else key
    per = 2 if bits == 64 else 4
    block, which = em.ix.divmod(em.ix.flatten(index, shape), per)
    counter = low + _counter(em, block)
    carry = counter.below(low).cast("zext", "i64")
    words = _philox(counter, high + carry, key)
    if bits == 64:
        words = [_join(words[0], words[1]), _join(words[2], words[3])]
    return _pick(em, words, which)


def state_element(em: Emitter, op: Op, index: Key) -> Lanes:
    """The state after the op: the counter has moved on."""
    count = _counts(op)
    old = em.s.num(em.operand(op, 0, index))
    position = Num(em.b, em.ix.lanes(index[0]))
    low = Num(em.b, em.value(op.operands[0], [em.ix.number(1)]))
    moved = low + count
    carry = moved.below(low).cast("zext", "i64")
    return position.eq(1).where(moved, position.eq(2).where(old + carry, old)).v
