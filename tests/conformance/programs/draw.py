"""Draws random typed graphs: the state that the makers of ops share.

A maker is a function that appends one op (or a small pattern) to the graph. It asks for operands by kind and shape;
they come from values that are there already, or become new inputs and constants. Result types are computed by the
makers themselves and checked by MLIR's verifier, not by Ferrule's type rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from case import Case
from numbers_drawn import array as draw_array

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir.types import DTYPES, DType, i1

I1 = i1
# How often an element type is drawn.
WEIGHTS = {
    **{"f32": 30, "i32": 12, "f64": 6, "bf16": 7, "f16": 6, "i1": 5, "i64": 4, "ui32": 4, "i8": 4, "ui8": 4},
    **{"i16": 2, "ui16": 2, "ui64": 2, "complex<f32>": 5, "complex<f64>": 2, "i4": 1.5, "ui4": 1.5, "i2": 0.7},
    **{"ui2": 0.7, "f8E5M2": 1, "f8E4M3FN": 1, "f8E4M3B11FNUZ": 0.5, "f8E5M2FNUZ": 0.5, "f8E4M3FNUZ": 0.5},
    **{"f8E4M3": 0.5, "f8E3M4": 0.5},
}
LETTERS = {"bool": "b", "int": "i", "uint": "u", "float": "f", "complex": "c"}
_DIMS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 11, 13, 16, 17, 19, 31, 32, 33)
_LONG = (64, 67, 100, 129, 255, 300, 513, 1000)
# Few types, so that many values have the same one: what the profile `places` draws.
FEW_WEIGHTS = dict.fromkeys(WEIGHTS, 0.1) | {"f32": 30, "i32": 10, "i1": 3, "f64": 3}
# What only the profile `odd` draws.
ODD_WEIGHTS = {"f4E2M1FN": 3, "f6E2M3FN": 1, "f6E3M2FN": 1, "f8E8M0FNU": 1}
# The most elements of a value and the most multiplications of an op: plain programs are for the reference interpreter,
# which does a third of a million steps per second; large ones reach threads, tiles and library calls.
LIMITS = ((2048, 20_000), (60_000, 4_000_000))

# The profiles of large programs.
LARGE = ("large", "matrices")

Maker = Callable[["Draw"], object]


@dataclass(frozen=True)
class Entry:
    """A maker with the group that it counts for and how often graphs take it."""

    name: str
    make: Maker
    group: str
    weight: float


ENTRIES: list[Entry] = []


def maker(
    *names: str, group: str = "", weight: float = 1.0
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Registers a maker for each name; with several names it is called with the name."""

    def register(make: Callable[..., object]) -> Callable[..., object]:
        for name in names:
            if len(names) > 1:
                ENTRIES.append(Entry(name, lambda g, n=name: make(g, n), group, weight))  # type: ignore[misc]
            else:
                ENTRIES.append(Entry(name, make, group, weight))
        return make

    return register


class Impossible(Exception):
    """A maker finds no operands of the kind that it needs."""


class Draw:
    """One program under construction. All randomness comes from the seed."""

    def __init__(self, seed: int, profile: str = "plain") -> None:
        self.seed, self.profile = seed, profile
        self.most, self.work = LIMITS[profile in LARGE]
        self.weights = {"odd": {**WEIGHTS, **ODD_WEIGHTS}, "places": FEW_WEIGHTS}.get(profile, WEIGHTS)
        self.rng = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.body = Block()
        self.block = self.body
        self.inputs: list[np.ndarray] = []
        self.pool: list[Value] = []
        self.functions: dict[str, Block] = {}
        self.depth = 0
        self.special = self.chance(0.25)
        """Whether inputs hold infinities, NaN and the like."""

    # ---- choices ----

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def int(self, low: int, high: int) -> int:
        """An integer of low … high, both included."""
        return self.rng.randint(low, max(low, high))

    def pick(self, items: Sequence[Any]) -> Any:
        return self.rng.choice(items)

    def sample(self, items: Sequence[Any], count: int) -> list[Any]:
        return self.rng.sample(list(items), count)

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        return self.sample(items, len(items))

    def dtype(self, letters: str = "biufc", narrowest: int = 0) -> DType:
        found = [
            d for d in DTYPES.values() if d.name in self.weights and LETTERS[d.kind] in letters and d.bits >= narrowest
        ]
        return self.rng.choices(found, [self.weights[d.name] for d in found])[0]

    def dim(self, limit: int, zero: float = 0.015) -> int:
        if self.chance(zero):
            return 0
        fits = [
            d for d in (_LONG if self.chance(0.5 if self.profile == "large" else 0.08) else _DIMS) if d <= limit
        ] or [1]
        return self.pick(fits)

    def shape(self, low: int = 0, high: int = 4, size: int = 0, zero: float = 0.015) -> tuple[int, ...]:
        size = size or self.most
        if self.profile == "matrices" and high >= 3 and size >= self.most and self.chance(0.8):
            return self.int(50, 1500), *(self.int(1, 6) for _ in range(self.int(1, 3)))
        rank = min(high, max(low, self.rng.choices((0, 1, 2, 3, 4, 5), (10, 25, 35, 18, 9, 3))[0]))
        dims: list[int] = []
        for _ in range(rank):
            dims.append(self.dim(size // max(1, prod(d for d in dims if d)), zero))
        return tuple(self.shuffled(dims))

    # ---- values ----

    def fits(self, value: Value, letters: str, low: int, high: int) -> bool:
        kind = value.type
        return isinstance(kind, Tensor) and LETTERS[kind.dtype.kind] in letters and low <= kind.rank <= high

    def operand(self, letters: str = "biufc", low: int = 0, high: int = 5, zero: float = 0.015) -> Value:
        """Any value of these kinds and ranks: an old one if there is one, mostly."""
        found = [v for v in self.pool if self.fits(v, letters, low, high) and (zero or v.type.size)]
        if found and self.chance(0.85):
            # later values more often: chains
            return found[max(self.int(0, len(found) - 1), self.int(0, len(found) - 1))]
        return self.new(Tensor(self.shape(low, min(high, 5), zero=zero), self.dtype(letters)))

    def like(self, kind: Tensor, old: float = 0.6, **values: Any) -> Value:
        """A value of exactly this type."""
        found = [v for v in self.pool if v.type == kind]
        if found and not values and self.chance(old):
            return self.pick(found)
        return self.new(kind, **values)

    def new(self, kind: Tensor, **values: Any) -> Value:
        """A new input or constant; in a region, a constant or something made of the region's values."""
        roll = self.rng.random()
        if self.depth == 0 and roll < 0.72:
            return self.input(kind, **values)
        if roll < 0.86 and kind.rank and kind.size:
            scalar = self.constant(self.array(Tensor((), kind.dtype), **values))
            if self.chance(0.5):
                return self.add("broadcast_in_dim", [scalar], kind, {"broadcast_dimensions": ()}, keep=False)
            return self.constant(np.broadcast_to(scalar.op.attrs["value"], kind.shape))  # type: ignore[union-attr]
        return self.constant(self.array(kind, **values))

    def array(self, kind: Tensor, **values: Any) -> np.ndarray:
        values.setdefault("special", self.special)
        return draw_array(self.numpy, kind.dtype, kind.shape, **values)

    def input(self, kind: Tensor, **values: Any) -> Value:
        """A new argument of main. Inside a region it is used from outside."""
        value = Value(kind, None, len(self.body.args))
        self.body.args.append(value)
        self.inputs.append(self.array(kind, **values))
        self.pool.append(value)
        return value

    def constant(self, array: np.ndarray) -> Value:
        kind = Tensor(array.shape, next(d for d in DTYPES.values() if d.numpy == array.dtype))
        return self.block.add("constant", [], kind, {"value": array}).result

    def scalar(self, dtype: DType, number: float) -> Value:
        return self.constant(np.asarray(number).astype(np.float64 if dtype.is_float else None).astype(dtype.numpy))

    def scalar_like(self, x: Value, number: int) -> Value:
        """A constant of x's shape and integer type."""
        return self.constant(np.full(x.shape, number, np.uint64).astype(x.dtype.numpy))

    def add(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Tensor] | Tensor,
        attrs: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
        keep: bool = True,
    ) -> Any:
        """Appends an op; its results join the pool. Returns the result, or the list if there are several."""
        op: Op = self.block.add(name, operands, results, attrs, regions)
        if keep:
            self.pool += op.results
        return op.result if isinstance(results, Tensor) else op.results

    @contextmanager
    def region(self, args: Sequence[Tensor], captures: bool = True) -> Iterator[Block]:
        """Draws into a nested region; with `captures` it may use the values around it."""
        outer, pool = self.block, self.pool
        self.block, self.depth = Block(args), self.depth + 1
        self.pool = [*(pool if captures else ()), *self.block.args]
        try:
            yield self.block
        finally:
            self.block, self.pool, self.depth = outer, pool, self.depth - 1

    # ---- small steps that many makers need ----

    def broadcast(self, x: Value, shape: tuple[int, ...], dims: Sequence[int]) -> Value:
        return self.add(
            "broadcast_in_dim", [x], Tensor(shape, x.dtype), {"broadcast_dimensions": tuple(dims)}, keep=False
        )

    def broadcast_kept(self, x: Value, shape: tuple[int, ...], dims: Sequence[int]) -> Value:
        """As `broadcast`, and others may use the result."""
        return self.keep(self.broadcast(x, shape, dims))

    def keep(self, x: Value) -> Value:
        self.pool.append(x)
        return x

    def convert(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self.add("convert", [x], Tensor(x.shape, dtype), keep=False)

    def body_of(self, name: str, dtype: DType, count: int = 1) -> Block:
        """(a…, b…) → (op(a, b)…)."""
        block = Block([Tensor((), dtype)] * (2 * count))
        block.results = [
            block.add(name, [block.args[i], block.args[count + i]], Tensor((), dtype)).result for i in range(count)
        ]
        return block

    def comparator(self, dtypes: Sequence[DType], key: int, direction: str, kind: str = "NOTYPE") -> Block:
        """(a0, b0, a1, b1, …) → whether a comes before b by operand `key`."""
        block = Block([Tensor((), d) for d in dtypes for _ in range(2)])
        attrs = {"comparison_direction": direction, "compare_type": kind}
        block.results = [block.add("compare", block.args[2 * key : 2 * key + 2], Tensor((), I1), attrs).result]
        return block

    def case(self, kind: str) -> Case:
        """The finished program."""
        return Case(self.body, self.inputs, dict(self.functions), seed=self.seed, kind=kind)
