"""The arena: where storages lie that a program has only while it runs.

Storages whose lifetimes do not overlap share bytes. On a device whose queue runs independent commands at the same time,
shared bytes are an order between them that no data asks for: there a storage gets used bytes only if all who touched
them come before its writer anyway, as long as the arena does not grow by more than ROOM.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

ALIGN = 64

# Commands whose temporaries are larger than this fill a device by themselves.
ROOM = 32 << 20


@dataclass(frozen=True)
class Need:
    """A storage's bytes and ticks; as bit sets of ops, who touches it, and who is known to have ended by its begin."""

    size: int
    begin: int
    end: int
    touched_by: int = 0
    ended: int = 0


@dataclass
class _Piece:
    begin: int
    end: int
    last: int  # the last tick at which somebody needs its content
    touched_by: int


def pack(needs: list[Need], apart: bool = False) -> tuple[list[int], int]:
    """The offset of each, in order of their first tick, and the bytes of all; `apart` keeps independent ops apart."""
    together = _Arena()
    offsets = [together.take(need, None) for need in needs]
    if not apart:
        return offsets, together.high
    arena = _Arena()
    return [arena.take(need, together.high + ROOM) for need in needs], arena.high


class _Arena:
    """Best fit among the bytes that are free at a storage's first tick."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []  # by their first byte; they do not overlap
        self.soonest = -1  # the first tick after which a piece is of no use
        self.high = 0

    def take(self, need: Need, limit: int | None) -> int:
        """`limit`: the bytes within which independent ops are kept apart; None: not at all."""
        size = -(-need.size // ALIGN) * ALIGN
        if limit is None and self.soonest < need.begin:
            self.pieces = [piece for piece in self.pieces if piece.last >= need.begin]
            self.soonest = min((piece.last for piece in self.pieces), default=need.end)
        at = self._fit(size, need.begin, None if limit is None else need.ended)
        if limit is not None and at + size > max(limit, self.high):
            at = self._fit(size, need.begin, None)
        self.high = max(self.high, at + size)
        if size and limit is None:
            self.soonest = min(self.soonest, need.end)
            insort(self.pieces, _Piece(at, at + size, need.end, 0), key=attrgetter("begin"))
        elif size:
            self._put(at, at + size, need)
        return at

    def _fit(self, size: int, tick: int, ended: int | None) -> int:
        """The smallest gap that is large enough; `ended`: only between pieces that nobody but these touched."""
        at, best, best_gap = 0, -1, None
        for piece in self.pieces:
            if piece.last < tick and (ended is None or not piece.touched_by & ~ended):
                continue
            gap = piece.begin - at
            if gap >= size and (best_gap is None or gap < best_gap):
                best, best_gap = at, gap
            at = piece.end
        return at if best < 0 else best

    def _put(self, begin: int, end: int, need: Need) -> None:
        """Whoever may write over the new piece comes after those who touched what was there before."""
        below, above, touched_by = list[_Piece](), list[_Piece](), need.touched_by
        for piece in self.pieces:
            if piece.end <= begin or piece.begin >= end:
                (below if piece.end <= begin else above).append(piece)
                continue
            if piece.begin < begin:
                below.append(_Piece(piece.begin, begin, piece.last, piece.touched_by))
            if piece.end > end:
                above.append(_Piece(end, piece.end, piece.last, piece.touched_by))
            touched_by |= piece.touched_by
        self.pieces = [*below, _Piece(begin, end, need.end, touched_by), *above]
