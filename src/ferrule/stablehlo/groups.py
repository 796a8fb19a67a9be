"""Which devices a collective connects: replica groups, channels and mesh axes → lists of device numbers.

A device's number is replica * partitions + partition. What the numbers in `replica_groups` mean depends on the op, its
channel and `use_global_device_ids`, as the StableHLO specification says for each op ("process groups").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ferrule.errors import InvalidArgument
from ferrule.ir import Op
from ferrule.stablehlo.sdy import Axis, Mesh, MeshGroups, coordinate

Groups = list[list[int]]

# The ops in which a channel means groups of partitions; in the others it means replicas of every partition.
_BY_PARTITION = {"all_to_all", "collective_permute", "collective_broadcast"}


def device_groups(op: Op, meshes: Mapping[str, Mesh], replicas: int, partitions: int) -> Groups:
    """The groups of a collective, each in the order of the group."""
    found = op.attrs.get("replica_groups")
    if isinstance(found, MeshGroups):
        return _of_mesh(op, found, meshes, replicas, partitions)
    rows = np.asarray(found if found is not None else ())
    groups = [[int(i) for i in row if i >= 0] for row in rows] if rows.ndim == 2 else []
    count, spread = _meaning(op, replicas, partitions)
    groups = [g for g in groups if g] or [list(range(count))]
    if any(i >= count for group in groups for i in group):
        raise InvalidArgument(
            f"op {op.name!r} is between the devices {groups}",
            where=op.loc,
            why=f"the program is for {count} of them",
            fix="compile it for as many replicas or partitions as its groups name",
        )
    return spread(groups)


def device_pairs(op: Op, replicas: int, partitions: int) -> list[tuple[int, int]]:
    """The (source, target) pairs of a collective_permute by device number."""
    pairs = np.asarray(op.attrs.get("source_target_pairs", ())).reshape(-1, 2)
    count, spread = _meaning(op, replicas, partitions)
    if pairs.size and (pairs.max() >= count or pairs.min() < 0):
        raise InvalidArgument(
            f"op {op.name!r} names the device {int(pairs.max())}", where=op.loc, why=f"the program has {count} of them"
        )
    for side, what in ((0, "source"), (1, "target")):
        if len(set(pairs[:, side].tolist())) < len(pairs):
            raise InvalidArgument(f"op {op.name!r} names a {what} twice", where=op.loc, why=f"{pairs.tolist()}")
    return [(s, t) for s, t in spread(pairs.tolist())]


def _meaning(op: Op, replicas: int, partitions: int) -> tuple[int, Callable[[Groups], Groups]]:
    """How many ids there are, and what turns groups of ids into groups of devices."""
    channel = op.attrs.get("channel_handle", (0, 0))[0] > 0
    if op.name not in _BY_PARTITION and op.attrs.get("use_global_device_ids"):
        return replicas * partitions, lambda groups: groups
    if not channel:  # cross_replica
        return replicas, lambda groups: [[r * partitions + p for r in g] for g in groups for p in range(partitions)]
    if op.name in _BY_PARTITION:  # cross_partition
        return partitions, lambda groups: [[r * partitions + p for p in g] for g in groups for r in range(replicas)]
    # cross_replica_and_partition
    return replicas, lambda groups: [[r * partitions + p for p in range(partitions) for r in g] for g in groups]


def _of_mesh(op: Op, found: MeshGroups, meshes: Mapping[str, Mesh], replicas: int, partitions: int) -> Groups:
    mesh = meshes.get(found.mesh) if isinstance(found.mesh, str) else found.mesh
    if not isinstance(mesh, Mesh) or mesh.size != replicas * partitions:
        raise InvalidArgument(
            f"op {op.name!r} names groups of the mesh {found.mesh}",
            where=op.loc,
            why=f"the program has {replicas * partitions} devices",
        )
    place, _ = coordinate(mesh, found.axes)
    # Devices that differ in these axes only: what is left of a device's position without them.
    rest: dict[Any, list[int]] = {}
    full = [coordinate(mesh, (axis,))[0] for axis in remaining_axes(mesh, found.axes)]
    for device in range(mesh.size):
        rest.setdefault(tuple(int(c[device]) for c in full), []).append(device)
    return [sorted(group, key=lambda d: int(place[d])) for group in rest.values()]


def remaining_axes(mesh: Mesh, axes: Sequence[Axis]) -> list[Axis]:
    """The axes, and parts of axes, that `axes` leaves out."""
    left: list[Axis] = []
    for name, size in mesh.axes:
        used = sorted(a.part or (1, size) for a in axes if a.name == name)
        at = 1
        for before, count in used:
            if before > at:
                left.append(Axis(name, (at, before // at)))
            at = before * count
        if at < size:
            left.append(Axis(name, (at, size // at)))
    return left


def padded(groups: Groups) -> np.ndarray:
    """The groups as StableHLO writes them: one row each, -1 fills short ones."""
    width = max((len(g) for g in groups), default=0)
    return np.array([g + [-1] * (width - len(g)) for g in groups], np.int64).reshape(len(groups), width)


def only_device(op: Op, meshes: Mapping[str, Mesh]) -> int | None:
    """The one device on which a custom call is to run, where JAX says so: a callback of a program over several."""
    text = op.attrs.get("mhlo.sharding")
    if isinstance(text, str) and (found := re.search(r"maximal device=(\d+)", text)):
        return int(found[1])
    shardings = op.attrs.get("sdy.sharding")
    for sharding in shardings if isinstance(shardings, tuple) else ():
        mesh = meshes.get(sharding.mesh) if isinstance(sharding.mesh, str) else sharding.mesh
        if isinstance(mesh, Mesh) and not mesh.axes and len(mesh.device_ids) == 1:
            return int(mesh.device_ids[0])
    return None
