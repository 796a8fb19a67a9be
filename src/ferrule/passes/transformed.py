"""Convolutions by Fourier transforms: what is long enough not to wrap around may be longer.

`jax.scipy.signal.fftconvolve` pads both arrays to the length of the result, multiplies their transforms and transforms
back. That length is whatever it is, often one with a large prime factor, whose transform takes ten times as long as
that of a neighbour. The products of two transforms are a convolution that wraps around; where the arrays were padded
with so many zeros that nothing does, more zeros change nothing but the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.ir import Block, Op, Tensor, Value, rewrite, splat

FORWARD = {"IFFT": "FFT", "IRFFT": "RFFT"}
QUICK = (2, 3, 5)  # the factors of lengths that are taken
SLOW = 11  # a prime factor from which on a transform is slow


def longer_transforms(block: Block) -> Block:
    """Returns the block with such transforms of quick lengths."""
    if not block.holds("fft"):
        return block
    return rewrite(block, _rule)


@dataclass(frozen=True)
class _Padded:
    """A factor of the product: the transform of `source`, which was padded by so much, repeated along dimensions."""

    source: Value
    zero: Value
    low: tuple[int, ...]
    high: tuple[int, ...]
    spread: Op | None  # broadcast_in_dim


def _rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    if op.name != "fft" or op.attrs["fft_type"] not in FORWARD:
        return None
    product, lengths = operands[0].op, tuple(op.attrs["fft_length"])
    if product is None or product.name != "multiply" or all(_largest_factor(n) < SLOW for n in lengths):
        return None
    factors = [_padded(x, FORWARD[op.attrs["fft_type"]], lengths) for x in product.operands]
    if None in factors:
        return None
    chosen = []
    for at, n in enumerate(lengths, -len(lengths)):
        filled = sum(f.source.shape[at] for f in factors if f is not None) - 1
        chosen.append(_quick_length(n) if filled <= n and _largest_factor(n) >= SLOW else n)
    if tuple(chosen) == lengths:
        return None
    parts = [_transformed(out, f, op, lengths, tuple(chosen)) for f in factors if f is not None]
    both = out.add("multiply", parts, [parts[0].type], {}, (), op.loc).result
    attrs = {**op.attrs, "fft_length": tuple(chosen)}
    back = out.add("fft", [both], [_with(op.result, tuple(chosen))], attrs, (), op.loc).result
    shape = op.result.shape
    bounds = {"start_indices": (0,) * len(shape), "limit_indices": shape, "strides": (1,) * len(shape)}
    return out.add("slice", [back], [op.result.type], bounds, (), op.loc).results


def _padded(value: Value, kind: str, lengths: tuple[int, ...]) -> _Padded | None:
    spread, op = None, value.op
    if op is not None and op.name == "broadcast_in_dim":
        spread, op = op, op.operands[0].op
    if op is None or op.name != "fft" or op.attrs["fft_type"] != kind or tuple(op.attrs["fft_length"]) != lengths:
        return None
    rank, tail = len(op.result.shape), len(lengths)
    if spread is not None:
        to = len(spread.result.shape)
        ends = tuple(spread.attrs["broadcast_dimensions"])[rank - tail :]
        if ends != tuple(range(to - tail, to)) or spread.result.shape[to - tail :] != op.result.shape[rank - tail :]:
            return None
    pad = op.operands[0].op
    if pad is None or pad.name != "pad" or splat(pad.operands[1]) != 0:
        return None
    low, high = tuple(pad.attrs["edge_padding_low"]), tuple(pad.attrs["edge_padding_high"])
    inner = tuple(pad.attrs.get("interior_padding") or (0,) * rank)
    if any(low[rank - tail :]) or any(inner) or min(high) < 0 or min(low) < 0:
        return None
    return _Padded(pad.operands[0], pad.operands[1], low, high, spread)


def _transformed(out: Block, factor: _Padded, op: Op, lengths: tuple[int, ...], chosen: tuple[int, ...]) -> Value:
    more = [new - old for old, new in zip(lengths, chosen, strict=True)]
    high = list(factor.high)
    for at, extra in enumerate(more, len(high) - len(more)):
        high[at] += extra
    shape = [a + n + b for a, n, b in zip(factor.low, factor.source.shape, high, strict=True)]
    attrs = {"edge_padding_low": factor.low, "edge_padding_high": tuple(high), "interior_padding": (0,) * len(high)}
    type = Tensor(tuple(shape), factor.source.dtype)
    padded = out.add("pad", [factor.source, factor.zero], [type], attrs, (), op.loc).result
    kind = FORWARD[op.attrs["fft_type"]]
    if kind == "RFFT":
        shape[-1] = shape[-1] // 2 + 1
    dtype, about = op.operands[0].dtype, {"fft_type": kind, "fft_length": chosen}
    value = out.add("fft", [padded], [Tensor(tuple(shape), dtype)], about, (), op.loc).result
    if factor.spread is None:
        return value
    whole = (*factor.spread.result.shape[: -len(chosen)], *shape[-len(chosen) :])
    return out.add("broadcast_in_dim", [value], [Tensor(whole, dtype)], factor.spread.attrs, (), op.loc).result


def _with(value: Value, chosen: tuple[int, ...]) -> Tensor:
    return Tensor((*value.shape[: -len(chosen)], *chosen), value.dtype)


def _quick_length(least: int) -> int:
    """The first length from `least` on, a multiple of eight, that has quick factors only."""
    n = -(-least // 8) * 8
    while _largest_factor(n) > QUICK[-1]:
        n += 8
    return n


def _largest_factor(n: int) -> int:
    largest, factor = 1, 2
    while factor * factor <= n:
        while n % factor == 0:
            largest, n = factor, n // factor
        factor += 1
    return max(largest, n)
