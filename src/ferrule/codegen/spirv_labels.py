"""Repairs what LLVM 22 gets wrong when it makes more than one function of SPIR-V in a process.

It remembers the ids of blocks by the address of their function, and addresses are used again: a block may get the id of
a block of an earlier function, or module, which here may be that of a type or a value. Every label gets a new id.
"""

from __future__ import annotations

from array import array

_HEADER = 5  # words before the first instruction; word 3 is the bound of all ids
_NAME, _FUNCTION, _LABEL = 5, 54, 248


class Ambiguous(Exception):
    """Two blocks of one function have the same id: it cannot be told which is meant."""


def with_unique_labels(code: bytes) -> bytes:
    """The module with a fresh id for each label; names for people are left out."""
    words = array("I", code)
    out = words[:_HEADER]
    fresh: dict[int, int] = {}
    at = _HEADER
    while at < len(words):
        size, opcode = words[at] >> 16, words[at] & 0xFFFF
        if opcode == _FUNCTION:
            fresh = {}
            look = at
            while look < len(words) and (words[look] & 0xFFFF != _FUNCTION or look == at):
                if words[look] & 0xFFFF == _LABEL:
                    if words[look + 1] in fresh:
                        raise Ambiguous
                    fresh[words[look + 1]] = out[3]
                    out[3] += 1
                look += words[look] >> 16
        elif fresh:
            for place in _labels(opcode, at, size):
                words[place] = fresh[words[place]]
        if opcode != _NAME:
            out.extend(words[at : at + size])
        at += size
    return out.tobytes()


def _labels(opcode: int, at: int, size: int) -> range | tuple[int, ...]:
    """The places of an instruction's labels."""
    match opcode:
        case 247 | 248 | 249:  # OpSelectionMerge, OpLabel, OpBranch
            return (at + 1,)
        case 246:  # OpLoopMerge
            return (at + 1, at + 2)
        case 250:  # OpBranchConditional
            return (at + 2, at + 3)
        case 245:  # OpPhi: pairs of a value and the block that it comes from
            return range(at + 4, at + size, 2)
    return ()
