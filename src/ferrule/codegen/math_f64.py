"""Formulas for f64 lanes."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen.lanes import Num


def sqrt(x: Num) -> Num:
    return x.intrinsic("sqrt")


FORMULAS: dict[str, Callable[..., Num]] = {
    "sqrt": sqrt,
    "rsqrt": lambda x: 1.0 / x.intrinsic("sqrt"),
    "square": lambda x: x * x,
}
