"""Powers with a constant exponent as products, quotients and roots: rules of simplify.

What is exact, rounded once or rounded twice takes the place of a power, which costs as much as a logarithm and an
exponential together. `x ** 0.5` arrives as a power from every framework.
"""

from __future__ import annotations

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir.types import i1


def of_constant(out: Block, op: Op, x: Value, exponent: float) -> Value | None:
    """Something simpler for xᵉ of a real floating-point x, or None."""
    bits = op.result.dtype.bits
    if bits < 32 and exponent in (3.0, 1.5):
        return None  # would be rounded twice
    if bits < 16 and exponent in (0.5, -0.5):
        return None  # some of these types have no zero, or no infinity

    def add(name: str, *operands: Value) -> Value:
        return out.add(name, operands, [op.result.type], {}, (), op.loc).result

    def number(value: float) -> Value:
        element = np.asarray(value).astype(op.result.dtype.numpy)
        attrs = {"value": np.broadcast_to(element, op.result.shape)}
        return out.add("constant", [], [op.result.type], attrs, (), op.loc).result

    def of_root(value: Value, at_minus_infinity: float) -> Value:
        """Roots of -∞ are NaN, where the power is a number."""
        flags, attrs = Tensor(op.result.shape, i1), {"comparison_direction": "EQ", "compare_type": "FLOAT"}
        lowest = out.add("compare", [x, number(-np.inf)], [flags], attrs, (), op.loc).result
        return add("select", lowest, number(at_minus_infinity), value)

    match exponent:
        case 0.0:
            return number(1.0)  # of NaN, too
        case 1.0:
            return x
        case 2.0:
            return add("multiply", x, x)
        case 3.0:
            return add("multiply", add("multiply", x, x), x)
        case -1.0:
            return add("divide", number(1.0), x)
    if exponent not in (0.5, -0.5, 1.5):
        return None
    x = add("add", x, number(0.0))  # the root of -0 is -0, its power 0
    if exponent == -0.5:
        return of_root(add("rsqrt", x), 0.0)
    root = add("sqrt", x)
    return of_root(root if exponent == 0.5 else add("multiply", x, root), np.inf)
