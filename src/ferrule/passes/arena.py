"""The arena: where storages lie that a program has only while it runs.

Storages whose lifetimes do not overlap share bytes. On a device whose queue runs independent commands at the same time,
shared bytes are an order between them that no data asks for: there a storage gets used bytes only if all who touched
them come before its writer anyway, as long as the arena does not grow by more than ROOM.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

ALIGN = 64

# Commands whose temporaries are larger than this fill a device by themselves.
ROOM = 32 << 20


class Need(NamedTuple):
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
    together = _Together()
    offsets = [together.take(need) for need in needs]
    if not apart:
        return offsets, together.high
    arena = _Apart(together.high + ROOM)
    return [arena.take(need) for need in needs], arena.high


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class _Together:
    """Best fit among the bytes that are free at a storage's first tick."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int]] = []  # first byte and end of those in use; they do not overlap
        self.ends: list[tuple[int, int]] = []  # a heap of them: the last tick at which it is in use, its first byte
        self.high = 0

    def take(self, need: Need) -> int:
        size, pieces, ends = _aligned(need.size), self.pieces, self.ends
        while ends and ends[0][0] < need.begin:
            del pieces[bisect_left(pieces, (heappop(ends)[1],))]
        at, best, best_gap = 0, -1, self.high + size + 1  # wider than any
        for begin, end in pieces:
            if size <= begin - at < best_gap:
                best, best_gap = at, begin - at
            at = end
        if best >= 0:
            at = best
        self.high = max(self.high, at + size)
        if size:
            insort(pieces, (at, at + size))
            heappush(ends, (need.end, at))
        return at


class _Apart:
    """The same where independent ops are kept apart, within `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.pieces: list[_Piece] = []  # by their first byte; they do not overlap
        self.limit, self.high = limit, 0

    def take(self, need: Need) -> int:
        size = _aligned(need.size)
        at = self._fit(size, need.begin, need.ended)
        if at + size > max(self.limit, self.high):
            at = self._fit(size, need.begin, None)
        self.high = max(self.high, at + size)
        if size:
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
