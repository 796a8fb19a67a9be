"""Shards: what the devices hold of each value, and how they come by another part of it.

A value is at hand as a whole on every device, in parts under one tiling or several, or as terms of a sum. What is
asked for and not at hand is made where the value was made, once: cut from a whole, gathered, exchanged, summed,
computed anew from other parts. Nothing is made before somebody asks, and what nobody reads in the end is dropped later.

Inside a manual computation values differ from device to device along its axes; there `classes` numbers the devices so
that those with one number hold the same data, and nothing passes between classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ferrule.errors import Unsupported
from ferrule.ir import Block, DType, Loc, Op, Tensor, Value, tensor
from ferrule.ir.graph import UNKNOWN
from ferrule.ir.types import i1, i32
from ferrule.stablehlo.groups import Groups, padded
from ferrule.stablehlo.tiling import Split, Tiling, of_splits, whole

# How many ops deep parts of what was computed whole are computed anew; beyond that they are cut from it.
_DEPTH = 200


@dataclass(frozen=True)
class Window:
    """A value as part of an array of `shape`, at `starts`, in that array's parts; outside of it lies anything."""

    tiling: Tiling
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    part: Value

    def like(self, other: Window) -> bool:
        """Do both have their parts on the same devices?"""
        return self.shape == other.shape and self.tiling.key == other.tiling.key


@dataclass(eq=False)
class Held:
    """What is at hand of a value: `whole`, and parts by their tiling's key.

    `main` is the tiling under which it was computed, if that was in parts, and `weight` says how much it counts beside
    other operands' tilings: the bytes of the largest array from which it came. `source` is the op that made it, if its
    parts may as well be computed from parts of its operands; nothing of a `deferred` value is at hand before that, and
    nothing of one that has a `window` but that.
    """

    home: Block
    classes: np.ndarray
    whole: Value | None = None
    parts: dict[Any, tuple[Tiling, Value]] = field(default_factory=dict)
    main: Tiling | None = None
    weight: int = 0
    source: Op | None = None
    deferred: bool = False
    window: Window | None = None
    loc: Loc = UNKNOWN

    def keep(self, tiling: Tiling, part: Value) -> Value:
        """Notes a part; returns it."""
        if tiling.is_whole:
            self.whole = part
        else:
            self.parts[tiling.key] = (tiling, part)
        return part


class Shards(ABC):
    """The table of what is held, by values of the global program. `here` is the number of the device that runs."""

    def __init__(self, replicas: int, partitions: int) -> None:
        self.replicas, self.partitions = replicas, partitions
        self.held: dict[Value, Held] = {}
        self.here: Value

    @abstractmethod
    def remade(self, held: Held, tiling: Tiling, depth: int) -> Value | None:
        """A value under a tiling, by its op on parts of the operands; None where that would not do. `depth` counts the
        ops between it and what was asked for."""

    def comes(self, value: Value, part: Value, tiling: Tiling | None, home: Block, classes: np.ndarray) -> Held:
        """Notes the part (None: all) of a value with which something begins."""
        held = self.held[value] = Held(home, classes, weight=size_of(value))
        if tiling is None or tiling.is_whole:
            held.whole = part
        else:
            held.main = tiling
            held.keep(tiling, part)
        return held

    def settled(self, value: Value) -> Tiling | None:
        """The tiling under which a value was computed, its terms summed; None for a whole."""
        main = self.held[value].main
        if main is None or main.tiles == 1:
            return None
        return main.summed

    def whole(self, value: Value) -> Value:
        """The value as every device has it."""
        held = self.held[value]
        if held.whole is None and held.window is not None:
            held.whole = self.uncovered(held, held.window, tensor(value))
        if held.whole is None:
            everything = whole(len(value.shape), self.partitions)
            made = self.remade(held, everything, 0) if held.source is not None else None
            if made is None:
                assert held.main is not None, value
                made = self.moved(held, tensor(value), held.main, everything)
            held.whole = made
        return held.whole

    def part(self, value: Value, tiling: Tiling, what: str, depth: int = 0) -> Value:
        """Each device's part of a value. Raises Unsupported where a dimension does not divide."""
        held = self.held[value]
        if tiling.is_whole:
            return self.whole(value)
        if tiling.key in held.parts:
            return held.parts[tiling.key][1]
        tiling.local(value.shape, what)
        made = None
        if held.source is not None and tiling.terms == 1 and depth < _DEPTH:
            made = self.remade(held, tiling, depth)
        main = held.main
        if made is None and main is not None and main.key in held.parts and (held.whole is None or _near(main, tiling)):
            made = self.moved(held, tensor(value), main, tiling)
        if made is None:
            made = self.cut(held.home, self.whole(value), tiling, what, held.loc)
        return held.keep(tiling, made)

    def uncovered(self, held: Held, window: Window, kind: Tensor) -> Value:
        """A window's value, from all of the array that it is part of."""
        large = Tensor(window.shape, kind.dtype)
        value = self.joined(held.home, window.part, window.tiling, large, held.classes, held.loc)
        cut = {
            "start_indices": window.starts,
            "limit_indices": tuple(start + n for start, n in zip(window.starts, kind.shape, strict=True)),
            "strides": (1,) * kind.rank,
        }
        return held.home.add("slice", [value], kind, cut, loc=held.loc).result

    # --- from tiling to tiling ------------------------------------------------------------------------------------
    def moved(self, held: Held, kind: Tensor, have: Tiling, want: Tiling) -> Value:
        """The parts under `want` from those under `have`."""
        out, loc, classes = held.home, held.loc, held.classes
        value = held.parts[have.key][1]
        if have.terms > 1:
            dim = _scattered(have, want)
            if dim is not None:
                return self.scattered(out, value, have, want, dim, classes, loc)
            value = self.combined(out, value, have, "add", classes, loc)
            have = have.summed
            held.keep(have, value)
            if have.key == want.key:
                return value
        if want.terms > 1 and _is_term(have, want):
            return self.among_zeros(out, value, have, want, Tensor(want.local(kind.shape, "a value"), kind.dtype), loc)
        if want.terms > 1:
            return self.cut(out, self.joined(out, value, have, kind, classes, loc), want, "a value", loc)
        pair = _exchanged(have, want)
        if pair is not None:
            return self.exchanged(out, value, have, want, *pair, classes, loc)
        # Each dimension as coarse as the coarser of both tilings, if one of them refines the other, or else whole.
        splits = list(whole(len(have.counts), self.partitions).splits)
        for d in range(len(splits)):
            if refines_along(have, want, d):
                splits[d] = want.splits[d]
            elif refines_along(want, have, d):
                splits[d] = have.splits[d]
        between = of_splits(tuple(splits), self.partitions)
        local = Tensor(between.local(kind.shape, "a value"), kind.dtype)
        fixed = classes * between.tiles + between.tile
        value = self.joined(out, value, have.inside(between), local, fixed, loc)
        return self.cut(out, value, want.inside(between), "a value", loc)

    def combined(self, out: Block, value: Value, have: Tiling, by: str, classes: np.ndarray, loc: Loc) -> Value:
        """The terms of each part, combined by an op on all devices that have one of them."""
        groups = _teams(classes * have.tiles + have.tile, have.term, have.terms)
        attrs = {"replica_groups": self.all_replicas(groups)}
        return out.add("all_reduce", [value], value.type, attrs, [reducer(by, value.dtype)], loc).result

    def scattered(
        self, out: Block, value: Value, have: Tiling, want: Tiling, dim: int, classes: np.ndarray, loc: Loc
    ) -> Value:
        """Sums terms, and leaves each device the part of the sum that it wants."""
        rows = want.index[:, dim] % have.terms
        attrs = {
            "scatter_dimension": dim,
            "replica_groups": self.all_replicas(_teams(classes * have.tiles + have.tile, rows, have.terms)),
        }
        shape = tuple(n // have.terms if d == dim else n for d, n in enumerate(tensor(value).shape))
        kind = Tensor(shape, value.dtype)
        return out.add("reduce_scatter", [value], kind, attrs, [reducer("add", kind.dtype)], loc).result

    def among_zeros(self, out: Block, value: Value, have: Tiling, want: Tiling, kind: Tensor, loc: Loc) -> Value:
        """Each device's part as a term: where the others have theirs are zeros."""
        nothing = {"value": np.broadcast_to(np.zeros((), kind.dtype.numpy), kind.shape)}
        zeros = out.add("constant", [], kind, nothing, loc=loc).result
        places = have.inside(want).index
        starts = [self.number(out, places[:, d] * size, loc) for d, size in enumerate(value.shape)]
        return out.add("dynamic_update_slice", [zeros, value, *starts], kind, loc=loc).result

    def exchanged(
        self,
        out: Block,
        value: Value,
        have: Tiling,
        want: Tiling,
        join: int,
        split: int,
        classes: np.ndarray,
        loc: Loc,
    ) -> Value:
        """Parts along dimension `split` for parts along `join`."""
        count = have.counts[join]
        fixed = classes
        for d, n in enumerate(have.counts):
            if d != join:
                fixed = fixed * n + have.index[:, d]
        attrs = {
            "split_dimension": split,
            "concat_dimension": join,
            "split_count": count,
            "replica_groups": self.all_replicas(_teams(fixed, have.index[:, join], count)),
        }
        shape = list(tensor(value).shape)
        shape[split] //= count
        shape[join] *= count
        return out.add("all_to_all", [value], Tensor(tuple(shape), value.dtype), attrs, loc=loc).result

    def from_tile(
        self, out: Block, value: Value, tiling: Tiling, dim: int, away: int | None, classes: np.ndarray, loc: Loc
    ) -> Value:
        """What the device holds that has the tile so many places further along a dimension, in a circle; None: the one
        as far from the end."""
        if away == 0:
            return value
        fixed = classes
        for d, n in enumerate(tiling.counts):
            if d != dim:
                fixed = fixed * n + tiling.index[:, d]
        pairs = []
        for team in _teams(fixed, tiling.index[:, dim], tiling.counts[dim]):
            for i, device in enumerate(team):
                pairs.append((team[-1 - i if away is None else (i + away) % len(team)], device))
        every = [(r * self.partitions + a, r * self.partitions + b) for r in range(self.replicas) for a, b in pairs]
        attrs = {"source_target_pairs": np.array(every, np.int64)}
        return out.add("collective_permute", [value], value.type, attrs, loc=loc).result

    def joined(self, out: Block, value: Value, tiling: Tiling, kind: Tensor, classes: np.ndarray, loc: Loc) -> Value:
        """One all_gather puts the tiles behind each other; a transpose brings them to their places."""
        local, tiles = tensor(value).shape, tiling.tiles
        if tiles == 1:
            return value
        attrs = {
            "all_gather_dim": 0,
            "replica_groups": self.all_replicas(_teams(classes, tiling.tile, tiles)),
        }
        value = out.add("reshape", [value], Tensor((1, *local), kind.dtype), loc=loc).result
        value = out.add("all_gather", [value], Tensor((tiles, *local), kind.dtype), attrs, loc=loc).result
        split = [d for d, count in enumerate(tiling.counts) if count > 1]
        if split == [0]:
            return out.add("reshape", [value], kind, loc=loc).result
        shape = (*(tiling.counts[d] for d in split), *local)
        value = out.add("reshape", [value], Tensor(shape, kind.dtype), loc=loc).result
        order = []
        for d in range(len(local)):
            if d in split:
                order.append(split.index(d))
            order.append(len(split) + d)
        moved = Tensor(tuple(shape[d] for d in order), kind.dtype)
        value = out.add("transpose", [value], moved, {"permutation": tuple(order)}, loc=loc).result
        return out.add("reshape", [value], kind, loc=loc).result

    def cut(self, out: Block, value: Value, tiling: Tiling, what: str, loc: Loc) -> Value:
        """Each device's part of an array that it has."""
        shape = tiling.local(value.shape, what)
        if tiling.tiles > 1:
            starts = [self.number(out, tiling.index[:, d] * size, loc) for d, size in enumerate(shape)]
            kind = Tensor(shape, value.dtype)
            value = out.add("dynamic_slice", [value, *starts], kind, {"slice_sizes": shape}, loc=loc).result
        if tiling.terms > 1:
            # A sum of parts: the first holds all of it, the others nothing.
            first = self.number(out, tiling.term, loc)
            zero = out.add("constant", [], Tensor((), i32), {"value": np.array(0, np.int32)}, loc=loc).result
            about = {"comparison_direction": "EQ", "compare_type": "SIGNED"}
            chosen = out.add("compare", [first, zero], Tensor((), i1), about, loc=loc).result
            none = np.broadcast_to(np.zeros((), value.dtype.numpy), shape)
            nothing = out.add("constant", [], value.type, {"value": none}, loc=loc).result
            value = out.add("select", [chosen, value, nothing], value.type, loc=loc).result
        return value

    def from_first(
        self, out: Block, values: Sequence[Value], classes: np.ndarray, device: int, loc: Loc
    ) -> Sequence[Value]:
        """The values of one device of each class (of `device` in its own), on all of it."""
        groups = []
        for number in np.unique(classes):
            members = np.flatnonzero(classes == number).tolist()
            groups.append(sorted(members, key=lambda d: d != device))
        if all(len(g) == 1 for g in groups) or not values:
            return values
        attrs = {"replica_groups": self.all_replicas(groups)}
        return [out.add("collective_broadcast", [v], v.type, attrs, loc=loc).result for v in values]

    def number(self, out: Block, table: np.ndarray, loc: Loc) -> Value:
        """The entry of a table that belongs to the device that runs, as a scalar i32."""
        if not table.any():
            return out.add("constant", [], Tensor((), i32), {"value": np.array(0, np.int32)}, loc=loc).result
        kind = Tensor((len(table),), i32)
        entries = out.add("constant", [], kind, {"value": table.astype(np.int32)}, loc=loc).result
        here = out.add("convert", [self.here], Tensor((), i32), loc=loc).result
        one = out.add("dynamic_slice", [entries, here], Tensor((1,), i32), {"slice_sizes": (1,)}, loc=loc).result
        return out.add("reshape", [one], Tensor((), i32), loc=loc).result

    def all_replicas(self, groups: Groups) -> np.ndarray:
        """Groups of partitions as groups of devices, for each replica."""
        return padded([[r * self.partitions + p for p in g] for r in range(self.replicas) for g in groups])


def complete(splits: Iterable[Split], classes: np.ndarray) -> bool:
    """Do the devices of each class have every combination of parts, all equally often?"""
    return _complete(tuple(splits), classes.tobytes())


@lru_cache(4096)
def _complete(splits: tuple[Split, ...], classes: bytes) -> bool:
    _, places = np.unique(np.frombuffer(classes, np.int64), return_inverse=True)
    number, count = places.reshape(-1), 1
    for parts, index in splits:
        number, count = number * parts + np.frombuffer(index, np.int64), count * parts
    held = np.bincount(number, minlength=count * (places.max() + 1)).reshape(-1, count)
    return bool((held == held[:, :1]).all() and held.all())


def reducer(name: str, dtype: DType) -> Block:
    """The body of a reduction by an op."""
    scalar = Tensor((), dtype)
    body = Block([scalar, scalar])
    body.results = body.add(name, body.args, scalar).results
    return body


def refines_along(fine: Tiling, coarse: Tiling, dim: int) -> bool:
    """Is each device's part of a dimension within its part under a coarser tiling?"""
    steps, rest = divmod(fine.counts[dim], coarse.counts[dim])
    return not rest and np.array_equal(fine.index[:, dim] // steps, coarse.index[:, dim])


def _near(have: Tiling, want: Tiling) -> bool:
    """Is what is wanted part of what each device has, or a term with that in it?"""
    if have.terms > 1:
        return False
    if want.terms > 1:
        return _is_term(have, want)
    return all(refines_along(want, have, d) for d in range(len(have.counts)))


def _exchanged(have: Tiling, want: Tiling) -> tuple[int, int] | None:
    """The dimension that is to be joined and the one that is to be split, if the same devices share the one as then
    the other and nothing else differs."""
    differ = [d for d in range(len(have.counts)) if not np.array_equal(have.index[:, d], want.index[:, d])]
    if len(differ) != 2:
        return None
    join, split = differ if have.counts[differ[1]] == 1 else differ[::-1]
    if have.counts[split] != 1 or want.counts[join] != 1 or have.counts[join] != want.counts[split]:
        return None
    return (join, split) if np.array_equal(have.index[:, join], want.index[:, split]) else None


def _is_term(have: Tiling, want: Tiling) -> bool:
    """Does each device that wants a term of some part have a part of its own of that?"""
    if not all(refines_along(have, want, d) for d in range(len(want.counts))):
        return False
    own = have.inside(want).tile
    return len(np.unique(own * want.terms + want.term)) == len(np.unique(own)) == want.terms


def _scattered(have: Tiling, want: Tiling) -> int | None:
    """The dimension along which the devices that have the terms of a part want its parts, if nothing else differs."""
    differ = [d for d in range(len(have.counts)) if have.counts[d] != want.counts[d]]
    if want.terms > 1 or len(differ) != 1:
        return None
    (dim,) = differ
    if want.counts[dim] != have.counts[dim] * have.terms or not refines_along(want, have, dim):
        return None
    rows = want.index[:, dim] % have.terms
    same = np.array_equal(np.delete(want.index, dim, 1), np.delete(have.index, dim, 1))
    pairs = np.unique(rows * have.terms + have.term)
    return dim if same and len(pairs) == len(np.unique(rows)) == have.terms else None


def _teams(classes: np.ndarray, label: np.ndarray, labels: int) -> Groups:
    """Groups of devices of one class each, with every label once and in order."""
    teams: Groups = []
    for number in np.unique(classes):
        holders = [np.flatnonzero((classes == number) & (label == one)).tolist() for one in range(labels)]
        if len({len(h) for h in holders}) != 1:
            raise Unsupported(
                "a sharding splits an array within a manual computation along axes that are manual already",
                fix="shard inner arrays along the other axes of the mesh only",
            )
        teams += [list(team) for team in zip(*holders, strict=True)]
    return teams


def size_of(value: Value) -> int:
    """Bytes of all of it; 0 for what is no tensor."""
    return value.type.nbytes if isinstance(value.type, Tensor) else 0
