"""Whether elements that are asked for beside each other lie so in memory, for what is computed where it is read.

A kernel computes an operand of a gather, a broadcast or a scatter where it reads it. That is best where vectors of the
operand are vectors of what it is made of, and where each element is read once. Else the operand is better written to
memory first, and read from there.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen.borders import JOINING
from ferrule.ir import Op, Value
from ferrule.ops import OPS

# Rows of so many elements are read as vectors.
IN_ROWS = 8
# Fewer elements are not worth a kernel of their own.
WORTH = 1 << 14
# What is read no more often than this is not worth one either; nor, of what is picked, one of so many elements.
FEW, LITTLE = 4, 64

# Whose elements lie as their operands' do; and those that bring together what lies apart.
_VIEWS = frozenset({"broadcast_in_dim", "reshape", "slice", "dynamic_slice"})
_SCATTERING = frozenset({*JOINING, "reverse"})


def in_rows(gather: Op) -> bool:
    """Does it take rows of neighbours, which are neighbours in the result?"""
    at, rank = gather.attrs["dimension_numbers"].offset_dims, len(gather.result.shape)
    return list(at) == list(range(rank - len(at), rank)) and prod(gather.attrs["slice_sizes"]) >= IN_ROWS


def _of_rows(scatter: Op) -> bool:
    """Does it update rows of neighbours, which are neighbours among the updates?"""
    shape, at = scatter.operands[-1].shape, list(scatter.attrs["scatter_dimension_numbers"].update_window_dims)
    first = len(shape) - len(at)
    return at == list(range(first, len(shape))) and prod(shape[first:]) >= IN_ROWS


def _keeps_places(op: Op) -> bool:
    return op.name in _VIEWS or (op.name in OPS and OPS[op.name].elementwise)


class Neighbours:
    """What is known of the values of a block, whose ops are noted in their order."""

    def __init__(self) -> None:
        self.stored: set[Value] = set()  # in memory
        self.direct: set[Value] = set()  # these, and what is made of them, or of a little that may be, one by one
        self.scattered: set[Value] = set()  # made of elements that do not lie beside each other

    def note(self, op: Op, stored: bool) -> None:
        """`stored`: its results are in memory."""
        if stored:
            self.stored.update(op.results)
        elif self._is_scattered(op):
            self.scattered.update(op.results)
        if stored or self._is_direct(op):
            self.direct.update(op.results)

    def _is_direct(self, op: Op) -> bool:
        if op.name == "iota":
            return True
        if not _keeps_places(op) and not (op.name == "gather" and in_rows(op)):
            return False
        spread = op.name == "broadcast_in_dim"
        if spread and op.operands[0].shape and 1 < op.result.shape[-1] < IN_ROWS:
            return False
        return all(v.op is None or v in self.direct or (spread and self._often(op, v)) for v in op.operands)

    def _is_scattered(self, op: Op) -> bool:
        if op.name in _SCATTERING or (op.name == "slice" and max(op.attrs["strides"], default=1) > 1):
            return True
        return _keeps_places(op) and any(v in self.scattered for v in op.operands)

    def _is_joined(self, value: Value) -> bool:
        """Is it an array joined of such, or padded?"""
        op = value.op
        return op is not None and op.name in JOINING and all(v.op is None or v in self.direct for v in op.operands)

    @staticmethod
    def _often(user: Op, value: Value) -> bool:
        return prod(user.result.shape) > FEW * prod(value.shape)

    def better_written(self, user: Op, value: Value) -> bool:
        """Is an operand of `user` to be written to memory, cheap as it may be?"""
        if user.name == "broadcast_in_dim":
            return value in self.scattered and prod(user.result.shape) >= WORTH and self._often(user, value)
        if value in self.direct:
            return False
        if user.name == "gather" and value is user.operands[0] and in_rows(user):
            picked, size = prod(user.result.shape), prod(value.shape)
            return picked > max(WORTH, size) if self._is_joined(value) else picked >= max(WORTH, size / FEW)
        updates = (len(user.operands) + 1) // 2  # arrays, places, updates
        return user.name == "scatter" and value in user.operands[updates:] and _of_rows(user)

    def better_picked(self, gather: Op, value: Value) -> bool:
        """Is what a gather picks of this operand to be computed where it is picked? It takes no more than there is; of
        what does not lie in rows, or is neither made element by element nor joined of such, much less."""
        picked, size = prod(gather.result.shape), prod(value.shape)
        if value in self.stored:
            return False
        if value not in self.direct:
            return picked * (1 if self._is_joined(value) else LITTLE) <= size
        return picked * (1 if in_rows(gather) else IN_ROWS) <= size
