"""Tilings: which part of an array each device holds, whatever words a program has for it.

Shardy's shardings (axes of a mesh) and XLA's (text in `mhlo.sharding`) become the same table: for every device the
index of its tile in each dimension. So device orders, parts of axes and several axes per dimension need no care later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.stablehlo.sdy import Axis, Mesh, Sharding, coordinate

# How a dimension is split: into how many parts, and which of them each device has (the bytes of an array of int64).
Split = tuple[int, bytes]
# OpSharding's kinds of what the tiles leave over.
_REPLICATED, _UNREDUCED = 0, 6


@dataclass(frozen=True, eq=False)
class Tiling:
    """`counts` tiles per dimension, `index[device]` the device's tile, one number per dimension.

    With `terms` > 1 the array is a sum of so many arrays, of which each device holds number `term[device]`.
    """

    counts: tuple[int, ...]
    index: np.ndarray
    term: np.ndarray
    terms: int = 1

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for tilings that put the same data on the same devices."""
        return self.counts, self.index.tobytes(), self.terms, self.term.tobytes() if self.terms > 1 else b""

    @cached_property
    def tiles(self) -> int:
        return prod(self.counts)

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """How each dimension is split."""
        return tuple((n, self.index[:, d].tobytes()) for d, n in enumerate(self.counts))

    @property
    def is_whole(self) -> bool:
        """True when every device holds the whole array."""
        return self.tiles == 1 and self.terms == 1

    @cached_property
    def tile(self) -> np.ndarray:
        """Each device's tile as one number, the last dimension the fastest."""
        number = np.zeros(len(self.index), np.int64)
        for d, count in enumerate(self.counts):
            number = number * count + self.index[:, d]
        return number

    def with_terms(self, term: np.ndarray, terms: int) -> Tiling:
        """The same parts, of each device's term of a sum."""
        return Tiling(self.counts, self.index, term, terms)

    @property
    def summed(self) -> Tiling:
        """The same parts, of the sum."""
        return self.with_terms(np.zeros_like(self.term), 1)

    def inside(self, coarse: Tiling) -> Tiling:
        """How the parts of a coarser tiling are split further."""
        steps = tuple(a // b for a, b in zip(self.counts, coarse.counts, strict=True))
        return Tiling(steps, self.index % steps, np.zeros_like(self.term))

    def permuted(self, order: Sequence[int]) -> Tiling:
        """The tiling of the transposed array."""
        return Tiling(tuple(self.counts[d] for d in order), self.index[:, list(order)], self.term, self.terms)

    def local(self, shape: Sequence[int], what: str) -> tuple[int, ...]:
        """The shape of one tile of an array."""
        for size, count in zip(shape, self.counts, strict=True):
            if size % count:
                raise Unsupported(
                    f"{what} of shape {list(shape)} is split into {list(self.counts)} tiles",
                    why=f"{size} does not divide by {count}",
                    fix="pad the array to a multiple, or replicate it",
                )
        return tuple(size // count for size, count in zip(shape, self.counts, strict=True))

    def op_sharding(self) -> bytes:
        """XLA's OpSharding as protobuf bytes; empty when every device holds the whole array."""
        devices = len(self.index)
        if self.is_whole:
            return b""
        if self.tiles == 1 and self.terms == devices:
            return b"\x08\x06"
        order = np.argsort(self.tile * self.terms + self.term, kind="stable")
        copies = devices // (self.tiles * self.terms)
        dims = [*self.counts, *(n for n in (self.terms, copies) if n > 1)]
        data = b"\x08\x03" + _packed(3, dims) + _packed(4, order.tolist())
        if self.terms > 1:
            return data + _packed(8, [_UNREDUCED, _REPLICATED] if copies > 1 else [_UNREDUCED])
        return data + (b"\x30\x01" if copies > 1 else b"")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _packed(field: int, values: Sequence[int]) -> bytes:
    body = b"".join(map(_varint, values))
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def whole(rank: int, devices: int) -> Tiling:
    """Every device holds everything."""
    return Tiling((1,) * rank, np.zeros((devices, rank), np.int64), np.zeros(devices, np.int64))


@lru_cache(4096)
def of_splits(splits: tuple[Split, ...], devices: int) -> Tiling:
    """The tiling whose dimensions are split so."""
    index = np.zeros((devices, len(splits)), np.int64)
    for d, (_, places) in enumerate(splits):
        index[:, d] = np.frombuffer(places, np.int64)
    return Tiling(tuple(n for n, _ in splits), index, np.zeros(devices, np.int64))


def of_sharding(
    sharding: Sharding,
    rank: int,
    meshes: Mapping[str, Mesh],
    devices: int,
    what: str,
    only: Collection[str] | None = None,
) -> Tiling:
    """The tiling that a Shardy sharding describes; of the axes named in `only`, if that is given."""
    mesh = meshes.get(sharding.mesh) if isinstance(sharding.mesh, str) else sharding.mesh
    if not isinstance(mesh, Mesh):
        raise InvalidArgument(f"the sharding of {what} names the mesh {sharding.mesh!r}, which does not exist")
    used = [a for d in sharding.dims for a in d.axes] + list(sharding.unreduced)
    sizes = dict(mesh.axes)
    if all(sizes.get(a.name) == 1 for a in used):
        return whole(rank, devices)
    if unknown := {a.name for a in used} - sizes.keys():
        raise InvalidArgument(f"the sharding of {what} names the axis {min(unknown)!r}, which its mesh has not")
    if mesh.size != devices or len(sharding.dims) != rank:
        raise InvalidArgument(
            f"the sharding of {what} does not fit",
            why=f"its mesh has {mesh.size} devices and the program {devices}; it has {len(sharding.dims)} dimensions "
            f"and the array {rank}",
        )

    def kept(axes: Sequence[Axis]) -> list[Axis]:
        return [a for a in axes if only is None or a.name in only]

    places = [coordinate(mesh, kept(d.axes)) for d in sharding.dims]
    index = np.stack([p for p, _ in places], 1) if places else np.zeros((devices, 0), np.int64)
    term, terms = coordinate(mesh, kept(sharding.unreduced))
    if terms > 1 and sharding.reduction:
        raise Unsupported(f"{what} is left unreduced by another operation than a sum", fix="reduce it by lax.psum")
    return Tiling(tuple(c for _, c in places), index, term, terms)


def of_text(text: str, rank: int, devices: int, what: str) -> Tiling:
    """The tiling that XLA's text describes: {devices=[2,1,4]<=[8] last_tile_dim_replicate}."""
    if "maximal" in text:
        raise Unsupported(f"{what} lives on one device of several ({text})", fix="replicate it or split it evenly")
    found = _places(text, rank, devices, what)
    if found is None:
        return whole(rank, devices)
    dims, index = found
    return Tiling(dims[:rank], index[:, :rank], np.zeros(devices, np.int64))


def classes_of_text(text: str, rank: int, devices: int, what: str) -> np.ndarray:
    """A number for each device, equal for those between which the values of a text's sharding are split or copied.

    They differ along what the text calls manual: {devices=[1,2,4]<=[8] last_tile_dims={manual}}.
    """
    number = np.zeros(devices, np.int64)
    kinds = re.search(r"last_tile_dims=\{([^}]*)\}", text)
    found = _places(text, rank, devices, what)
    if kinds is None or found is None:
        return number
    dims, index = found
    for at, kind in enumerate(kinds[1].split(",")):
        if kind.strip() == "manual":
            number = number * dims[rank + at] + index[:, rank + at]
    return number


def _places(text: str, rank: int, devices: int, what: str) -> tuple[tuple[int, ...], np.ndarray] | None:
    """The grid of devices that a text describes, and where in it each device is; None without one."""
    found = re.search(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))", text)
    if found is None:
        return None

    def numbers(group: str) -> list[int]:
        return [int(n) for n in group.split(",")]

    dims = numbers(found[1])
    if found[2]:
        ids = np.arange(prod(numbers(found[2]))).reshape(numbers(found[2]))
        ids = ids.transpose(numbers(found[3])).reshape(-1) if found[3] else ids.reshape(-1)
    else:
        ids = np.array(numbers(found[4]))
    if ids.size != devices or prod(dims) != devices or len(dims) < rank:
        raise InvalidArgument(f"the sharding {text} of {what} does not fit {devices} devices and {rank} dimensions")
    position = np.empty(devices, np.int64)
    position[ids] = np.arange(devices)
    return tuple(dims), np.stack(np.unravel_index(position, dims), 1)
