"""Small matrix products as kernels: every order in memory, sizes that do and do not fill vectors, all types of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from fused import Case, check, sample

from ferrule.codegen import small_products
from ferrule.ir import Block, DotDims, Tensor
from ferrule.ir import types as t
from ferrule.targets.cpu import host

SIZES = [(1, 1, 9), (1, 16, 1), (1, 33, 40), (16, 1, 64), (37, 1, 19), (64, 1, 3), (3, 3, 3), (4, 4, 4), (5, 7, 6)]
SIZES += [(12, 20, 31), (8, 64, 50), (25, 32, 2), (2, 130, 17), (31, 5, 100), (1, 1, 300), (48, 32, 16)]
TYPES = [
    "f32",
    "f64",
    "i32",
    "ui64",
    "complex<f32>",
    "complex<f64>",
    "bf16 f32",
    "f16",
    "bf16",
    "i8 i32",
    "f8E4M3FN f32",
]


def tolerance(result: str) -> float:
    """For sums of up to 300 products of normal numbers; those of narrow types are summed in f32 and rounded once."""
    dtype = t.DTYPES[result]
    if dtype.is_int:
        return 0
    epsilon = float(ml_dtypes.finfo(dtype.part.numpy).eps)
    return epsilon if dtype.bits < 32 else 300 * epsilon


def product(name: str, sizes: Sequence[int], lhs: str, rhs: str, types: str, tail: bool = True) -> Case:
    """Sides with the dimensions b (batch), m or n, and k in the given order; what follows adds and negates."""
    size = dict(zip("mnkbM", [*sizes, 3, 2], strict=False))
    operand, result = (types.split() * 2)[:2]
    shapes = [tuple(size[d] for d in side) for side in (lhs, rhs)]
    dims = DotDims(
        *(tuple(s.index(d) for d in "b" if d in s) for s in (lhs, rhs)),
        *((s.index("k"),) for s in (lhs, rhs)),
    )
    kept = [d for d in "b" if d in lhs] + [d for s in (lhs, rhs) for d in s if d not in "bk"]
    out = Tensor(tuple(size[d] for d in kept), t.DTYPES[result])
    block = Block([*(Tensor(s, t.DTYPES[operand]) for s in shapes), out])
    dot = block.add("dot_general", block.args[:2], [out], {"dot_dimension_numbers": dims}).result
    tail = tail and out.dtype.bits >= 32
    block.results = [block.add("add", [dot, block.args[2]], [out]).result, dot] if tail else [dot]
    args = [*(sample(s, operand) for s in shapes), sample(out.shape, result)]
    assert small_products.plan(block), name
    return Case(f"{name} {types} {sizes} {lhs} {rhs}", block, args, tolerance=tolerance(result))


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("orders", ["mk kn", "mk nk", "bmk bkn", "bmk bnk", "mMk kn", "km kn"])
def test_types(types: str, orders: str) -> None:
    lhs, rhs = orders.split()
    sizes = SIZES[:: 1 if types in ("f32", "f64") else 2]
    if lhs == "mMk":
        sizes = [s for s in sizes if s[1] > 1]
    check([product("product", s, lhs, rhs, types) for s in sizes])


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("types", ["f32", "f64", "complex<f32>", "f16 f32", "i32"])
def test_vectors(types: str, vector_bytes: int) -> None:
    """Vectors of every machine; where this one has only shorter ones, LLVM cuts them."""
    orders = [("mk", "kn"), ("mk", "nk"), ("km", "kn"), ("bmk", "nbk"), ("mbk", "bkn")]
    check(
        [product("product", s, *o, types) for s in SIZES[2::2] for o in orders],
        replace(host(), vector_bytes=vector_bytes),
    )


@pytest.mark.parametrize("rhs", ["kn", "nk"])
def test_special_values(rhs: str) -> None:
    """NaN, infinities and zeros go where they belong, and only there."""
    cases = []
    for size in ((5, 7, 6), (1, 33, 40), (37, 1, 19), (31, 5, 100)):
        case = product("special", size, "mk", rhs, "f32", tail=False)
        case.block.args.pop()
        case.args.pop()
        a, b = case.args
        a[0, -1], a[-1, 0], b[-1, 0], a[a.shape[0] // 2] = np.nan, np.inf, -np.inf, -0.0
        cases.append(case)
    check(cases)
