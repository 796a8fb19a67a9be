"""Formulas for complex lanes."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen.complexes import Z, multiply
from ferrule.errors import Internal

FORMULAS: dict[str, Callable[..., Z]] = {"square": lambda z: multiply(z, z)}


def apply(name: str, *operands: Z) -> Z:
    """The function StableHLO calls `name`."""
    if name not in FORMULAS:
        raise Internal(f"no formula for {name} of complex numbers", why="codegen/math_complex lacks it")
    return FORMULAS[name](*operands)
