"""Comparators: by which keys a sort's comparator orders its operands.

JAX's comparators look at one operand, or at a few of them, the later ones where the earlier are equal
(`jnp.lexsort`, `lax.sort` with `num_keys`; complex numbers by their real, then their imaginary parts). What has such
keys is sorted by numbers, without calls of compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferrule.ir import Block, Value, splat


@dataclass(frozen=True)
class Key:
    """One operand of a sort, or a part of each of its complex numbers.

    Floats are compared in the total order: by their bits, or (`canonical`) so that -0 equals +0 and all NaN are equal
    and last.
    """

    operand: int
    rising: bool
    canonical: bool = False
    part: str = ""  # the name of an op: "real", "imag"

    def attributes(self, is_float: bool) -> dict[str, Any]:
        """Of the call `sort`."""
        order = "lt" if self.rising else "gt"
        total = is_float and not self.canonical
        return {"key": self.operand, "order": order, "total": total, "total_canonical": self.canonical}


def sort_keys(comparator: Block) -> list[Key]:
    """The keys of a comparator, the one that decides first; empty when it does something else."""
    keys: list[Key] = []
    rest: Value | None = comparator.results[0]
    while rest is not None:
        found = _first_key(comparator, rest)
        if found is None:
            return []
        key, rest = found
        keys.append(key)
    return keys


def _first_key(block: Block, result: Value) -> tuple[Key, Value | None] | None:
    """The key and what is returned where it does not decide: of `less`, or of `less | (equal & rest)`."""
    op = result.op
    if op is None or op.name != "or":
        key = _compared(block, result, ("LT", "GT"))
        return None if key is None else (key, None)
    for less, other in (op.operands, op.operands[::-1]):
        key = _compared(block, less, ("LT", "GT"))
        if key is None or other.op is None or other.op.name != "and":
            continue
        for equal, rest in (other.op.operands, other.op.operands[::-1]):
            same = _compared(block, equal, ("EQ",))
            if same is not None and (same.operand, same.part, same.canonical) == (key.operand, key.part, key.canonical):
                return key, rest
    return None


def _compared(block: Block, value: Value, directions: tuple[str, ...]) -> Key | None:
    """What a comparison of the two elements of one operand looks at; it says "rising" where it is true of a first one
    that is less."""
    op = value.op
    if op is None or op.name != "compare" or op.attrs["comparison_direction"] not in directions:
        return None
    left, right = op.operands
    if left.dtype.kind == "complex":
        return None
    canonical = False
    if left.dtype.is_float:
        if op.attrs.get("compare_type") != "TOTALORDER":
            return None  # a plain < on floats is no order for NaN: leave it to the comparator itself
        a, b = _canonical(left), _canonical(right)
        if a is not None and b is not None:
            left, right, canonical = a, b, True
    parts = [_argument(block, v) for v in (left, right)]
    if None in parts:
        return None
    (i, part), (j, other) = parts  # type: ignore[misc]
    if i // 2 != j // 2 or i == j or part != other:
        return None
    return Key(i // 2, (op.attrs["comparison_direction"] == "LT") == (i < j), canonical, part)


def _argument(block: Block, value: Value) -> tuple[int, str] | None:
    """(i, ""), when the value is argument i of the comparator, or (i, part of it)."""
    part = ""
    if value.op is not None and value.op.name in ("real", "imag"):
        part, value = value.op.name, value.op.operands[0]
    return (value.index, part) if value.op is None and value in block.args else None


def _canonical(value: Value) -> Value | None:
    """x, when `value` is x with -0 made +0 and every NaN made the same, as lax.sort does; else None."""
    outer = value.op
    if outer is None or outer.name != "select":
        return None
    test, yes, no = outer.operands
    nan = splat(yes)
    if nan is None or nan == nan or test.op is None or test.op.name != "compare":
        return None
    if test.op.attrs["comparison_direction"] != "NE" or test.op.operands[0] is not test.op.operands[1]:
        return None
    inner = no.op
    if inner is None or inner.name != "select":
        return None
    zero_test, zero, x = inner.operands
    if splat(zero) is None or splat(zero) != 0 or zero_test.op is None or zero_test.op.name != "compare":
        return None
    if zero_test.op.attrs["comparison_direction"] != "EQ" or zero_test.op.operands[0] is not x:
        return None
    against = splat(zero_test.op.operands[1])
    checked = test.op.operands[0]
    return x if against is not None and against == 0 and checked in (x, no) else None
