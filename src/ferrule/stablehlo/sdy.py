"""Shardy's attributes: meshes and shardings, as frozen dataclasses, and how they are encoded in bytecode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ferrule.stablehlo.bytecode import Cursor, malformed
from ferrule.stablehlo.tables import Tables


@dataclass(frozen=True)
class Mesh:
    """Named axes with sizes; `device_ids` is empty for the natural order."""

    axes: tuple[tuple[str, int], ...] = ()
    device_ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)


@dataclass(frozen=True)
class Axis:
    """A mesh axis, or the part (pre_size, size) of one."""

    name: str
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class DimSharding:
    """The axes along which a dimension is split; an open dimension may be split further by propagation."""

    axes: tuple[Axis, ...]
    closed: bool
    priority: int | None = None


@dataclass(frozen=True)
class Sharding:
    """How a tensor is laid out over a mesh (by name, or given in place)."""

    mesh: str | Mesh
    dims: tuple[DimSharding, ...]
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()
    reduction: int = 0

    @property
    def is_replicated(self) -> bool:
        """True if no dimension is split and nothing is left to reduce."""
        return not self.unreduced and not any(d.axes for d in self.dims)


@dataclass(frozen=True)
class OpShardingRule:
    """How the dimensions of an op's operands and results belong together; JAX attaches it to custom calls."""

    factor_sizes: tuple[int, ...]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    reduction: tuple[int, ...]
    need_replication: tuple[int, ...]
    permutation: tuple[int, ...]
    blocked: tuple[int, ...]
    is_custom: bool


@dataclass(frozen=True)
class MeshGroups:
    """The replica groups of a collective, given as axes of a mesh."""

    mesh: str | Mesh
    axes: tuple[Axis, ...]


def coordinate(mesh: Mesh, axes: Sequence[Axis]) -> tuple[np.ndarray, int]:
    """Each device's position along some axes, the first the slowest, and how many positions there are."""
    sizes = [size for _, size in mesh.axes]
    names = [name for name, _ in mesh.axes]
    devices = np.asarray(mesh.device_ids or range(mesh.size))
    position = np.empty(mesh.size, np.int64)
    position[devices] = np.arange(mesh.size)
    parts = np.unravel_index(position, sizes) if sizes else ()
    place, count = np.zeros(mesh.size, np.int64), 1
    for axis in axes:
        size = sizes[names.index(axis.name)]
        before, width = axis.part or (1, size)
        place = place * width + parts[names.index(axis.name)] // (size // (before * width)) % width
        count *= width
    return place, count


def _list(t: Tables, c: Cursor, kind: type) -> tuple[Any, ...]:
    at, found = c.at, t.read_attrs(c)
    if not all(isinstance(item, kind) for item in found):
        malformed(at, f"a list of {kind.__name__} holds something else")
    return found


def _mesh_axis(t: Tables, c: Cursor) -> tuple[str, int]:
    return t.read_string(c), c.signed()


def _pair(t: Tables, c: Cursor) -> tuple[int, int]:
    return c.signed(), c.signed()


def _dim_sharding(t: Tables, c: Cursor) -> DimSharding:
    axes, closed, priority = _list(t, c, Axis), bool(c.byte()), c.varint()
    return DimSharding(axes, closed, priority >> 1 if priority & 1 else None)


def _sharding(t: Tables, c: Cursor, version: int) -> Sharding:
    at, mesh = c.at, t.read_attr(c)
    if not isinstance(mesh, (str, Mesh)):
        malformed(at, "a sharding does not name a mesh")
    dims, replicated = _list(t, c, DimSharding), _list(t, c, Axis)
    unreduced = _list(t, c, Axis) if version >= 2 else ()
    return Sharding(mesh, dims, replicated, unreduced, c.signed() if version >= 3 else 0)


def _rule(t: Tables, c: Cursor) -> OpShardingRule:
    sizes, operands, results = c.signed_list("factors"), t.read_attrs(c), t.read_attrs(c)
    a, b, p, d = (c.signed_list("factors") for _ in range(4))
    return OpShardingRule(sizes, operands, results, a, b, p, d, bool(c.byte()))


def attribute(t: Tables, c: Cursor) -> Any:
    """Decodes one attribute; a list of shardings becomes a tuple."""
    at, code = c.at, c.varint()
    if code == 0:
        return _list(t, c, str)
    if code == 1:
        return _mesh_axis(t, c)
    if code == 2:
        return Mesh(_list(t, c, tuple), c.signed_list("device ids"))
    if code == 3:
        return _pair(t, c)
    if code == 4:
        return Axis(t.read_string(c), t.read_optional_attr(c))
    if code == 5:
        return _dim_sharding(t, c)
    if code in (6, 15, 17):
        return _sharding(t, c, {6: 1, 15: 2, 17: 3}[code])
    if code in (7, 16):
        return _list(t, c, Sharding)
    if code == 8:
        return c.signed_list("factors")
    if code in (9, 11, 12, 14):
        return t.read_attrs(c)
    if code == 10:
        return _rule(t, c)
    if code == 13:
        return _list(t, c, Axis), c.signed(), c.signed()
    malformed(at, f"sdy attribute code {code} is not known")
