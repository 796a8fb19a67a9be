"""Formulas for f32 lanes."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen.lanes import Num


def sqrt(x: Num) -> Num:
    return x.intrinsic("sqrt")


def rsqrt(x: Num) -> Num:
    """Through f64: one rounding, right to half an ulp."""
    return (1.0 / x.f64().intrinsic("sqrt")).f32()


FORMULAS: dict[str, Callable[..., Num]] = {
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "square": lambda x: x * x,
}
