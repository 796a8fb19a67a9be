"""The math library: the C library's functions called lane by lane, or what a device has instead."""

from __future__ import annotations

from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import Builder, V

# StableHLO's name → the C library's name for double.
LIBM = {
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log": "log",
    "log_plus_one": "log1p",
    "sine": "sin",
    "cosine": "cos",
    "tan": "tan",
    "tanh": "tanh",
    "sinh": "sinh",
    "cosh": "cosh",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "cbrt": "cbrt",
    "erf": "erf",
    "erfc": "erfc",
    "lgamma": "lgamma",
    "power": "pow",
    "atan2": "atan2",
    "remainder": "fmod",
}


def call_libm(name: str, *xs: Num) -> Num:
    """`name` (spelled for double) of each lane."""
    return xs[0].b.dialect.function(name, *xs)


def c_function(name: str, *xs: Num) -> Num:
    """The C library's function. Vectors go through one function per module, to keep the code small."""
    x = xs[0]
    symbol = name + ("f" if x.base == "float" else "")
    if x.lanes == 1:
        return Num(x.b, x.b.call(x.v.type, symbol, *(o.v for o in xs)))
    helper = f"ferrule.{symbol}.{x.lanes}"
    if helper not in x.b.globals:
        inner = Builder(helper, x.v.type, [x.v.type] * len(xs), "noinline nounwind")
        inner.head = inner.head.replace("define", "define internal", 1)
        total = V(x.v.type, "poison")
        for i in range(x.lanes):
            lanes = [inner.emit(x.base, f"extractelement {a}, i64 {i}") for a in inner.args]
            total = inner.emit(x.v.type, f"insertelement {total}, {inner.call(x.base, symbol, *lanes)}, i64 {i}")
        x.b.globals[helper] = inner.finish(total)
        x.b.declares.update(inner.declares)
    return Num(x.b, x.b.emit(x.v.type, f"call {x.v.type} @{helper}({', '.join(str(o.v) for o in xs)})"))
