"""Operands that are read across: squares of rows and lanes change places in registers, complex numbers' both parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from fused import Case, Graph, case, check

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host

SHAPES = [(8, 8), (64, 96), (5, 130), (33, 65), (4, 1), (3, 31, 37), (40, 3, 16)]


# What crosses is shorter than a square's side, on one side or on both: the next dimensions go with it.
SHORT = [
    ((3, 22, 16, 2, 64), (2, 3, 4, 1, 0)),
    ((24, 9, 4, 3, 8, 8), (1, 4, 2, 5, 0, 3)),
    ((3, 6, 64, 51), (1, 3, 2, 0)),
    ((14, 6, 24, 6, 5), (0, 4, 2, 1, 3)),
    ((9, 32, 14, 33), (3, 1, 0, 2)),
    ((3, 12, 9, 2, 6, 32), (1, 2, 4, 5, 3, 0)),
    ((6, 8, 10, 4, 20, 2), (2, 4, 5, 3, 1, 0)),
]


def turned(g: Graph, x: Value) -> Value:
    """The last dimension first."""
    rank = len(x.shape)
    return g("transpose", x, permutation=(rank - 1, *range(rank - 1)))


def moved(g: Graph, x: Value, order: tuple[int, ...]) -> Value:
    return g("transpose", x, permutation=order)


def cases(dtype: str) -> list[Case]:
    made = []
    for shape in SHAPES:
        across = (shape[-1], *shape[:-1])
        made += [
            case(f"turned {shape}", [(shape, dtype)], turned),
            case(f"and added {shape}", [(shape, dtype), (across, dtype)], lambda g, x, y: g("add", turned(g, x), y)),
            case(
                f"less itself {shape}",
                [(shape, dtype)],
                lambda g, x: g("subtract", turned(g, x), g("negate", turned(g, x))),
            ),
        ]
    return made


@pytest.mark.parametrize("size", [64, 32, 16])
@pytest.mark.parametrize("dtype", ["complex<f32>", "complex<f64>", "f32", "f64", "bf16", "i8"])
def test_squares_and_edges(dtype: str, size: int) -> None:
    if size > host().vector_bytes:
        pytest.skip(f"this processor has no vectors of {size} bytes")
    check(cases(dtype), replace(host(), vector_bytes=size))


def test_parts_beside_real_numbers() -> None:
    def build(g: Graph, x: Value, y: Value) -> Value:
        return g("multiply", turned(g, g("real", x)), turned(g, y))

    check([case("real", [((70, 37), "complex<f32>"), ((70, 37), "f32")], build, tolerance=1e-6)])


@pytest.mark.parametrize("dtype", ["complex<f32>", "complex<f64>"])
def test_complex_numbers_are_not_gathered(dtype: str) -> None:
    g = Graph(Tensor((128, 128), DTYPES[dtype]))
    text = emit_kernel(g.done(turned(g, g.args[0])), "k", replace(host(), vector_bytes=32)).text
    assert "gather" not in text


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_few_images_are_turned_in_squares(count: int) -> None:
    g = Graph(Tensor((count, 96, 64), DTYPES["f32"]))
    text = emit_kernel(g.done(g("transpose", g.args[0], permutation=(0, 2, 1))), "k", host()).text
    assert "squares" in text


@pytest.mark.parametrize("size", [64, 32, 16])
@pytest.mark.parametrize("dtype", ["complex<f32>", "f32", "f64", "bf16", "i8"])
def test_short_dimensions_go_together(dtype: str, size: int) -> None:
    if size > host().vector_bytes:
        pytest.skip(f"this processor has no vectors of {size} bytes")
    made = []
    for shape, order in SHORT:
        across = tuple(shape[d] for d in order)
        made.append(case(f"{shape} {order}", [(shape, dtype)], partial(moved, order=order)))
        made.append(
            case(
                f"added {shape} {order}",
                [(shape, dtype), (across, dtype)],
                lambda g, x, y, order=order: g("add", moved(g, x, order), y),
            )
        )
    check(made, replace(host(), vector_bytes=size))


@pytest.mark.parametrize(("shape", "order"), SHORT)
def test_they_are_turned_in_squares(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    g = Graph(Tensor(shape, DTYPES["f32"]))
    text = emit_kernel(g.done(moved(g, g.args[0], order)), "k", host()).text
    assert "squares" in text and "gather" not in text


def factored(g: Graph, x: Value, y: Value, order: tuple[int, ...], along: int) -> Value:
    """Times a factor of its own for each place along one dimension of the result."""
    across = moved(g, x, order)
    type = Tensor(across.shape, x.dtype)
    return g("multiply", across, g("broadcast_in_dim", y, result=type, broadcast_dimensions=(along,)))


FACTORED = [
    ((4, 20, 32, 16), (1, 2, 3, 0)),
    ((256, 20, 48), (2, 0, 1)),
    ((40, 7, 35), (2, 0, 1)),
    ((9, 64, 33), (1, 2, 0)),
]


@pytest.mark.parametrize("size", [64, 32])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
def test_with_a_factor_along_a_dimension(dtype: str, size: int) -> None:
    if size > host().vector_bytes:
        pytest.skip(f"this processor has no vectors of {size} bytes")
    made = [
        case(
            f"{shape} {order} along {along}",
            [(shape, dtype), ((shape[order[along]],), dtype)],
            partial(factored, order=order, along=along),
        )
        for shape, order in FACTORED
        for along in range(len(shape))
    ]
    check(made, replace(host(), vector_bytes=size))


@pytest.mark.parametrize("along", range(4))
def test_only_what_is_large_is_turned_in_squares(along: int) -> None:
    """A few images side by side are interleaved; a factor for each row does not change that."""
    shape, order = FACTORED[0]
    g = Graph(Tensor(shape, DTYPES["f32"]), Tensor((shape[order[along]],), DTYPES["f32"]))
    text = emit_kernel(g.done(factored(g, *g.args, order, along)), "k", host()).text
    assert "squares" not in text and "gather" not in text
