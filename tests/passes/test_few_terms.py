"""Products of few terms become sums of elementwise products: which do, and that they mean the same."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir import Block
from ferrule.ir.verifier import verify
from ferrule.passes.hoist import hoist
from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block
from jax import lax

R = np.random.default_rng(5)


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    x = R.standard_normal(shape) * 4
    return (x + 1j * R.standard_normal(shape) if dtype.startswith("complex") else x).astype(jnp.dtype(dtype))


def products(block: Block) -> int:
    """How many products are left to kernels and libraries of their own."""
    return sum(op.name in ("dot", "dot_general", "library") for op in block.walk())


def results(function, *args: np.ndarray) -> Block:
    """The graph after the pass, whose results, where it needs no library, are NumPy's of the graph before."""
    before = simplify(graph(function, *args))
    wanted = evaluate_block(before, [*args])
    after = simplify(match(before, host()))
    verify(after, "match")
    if any(op.name == "library" for op in after.walk()):
        return after
    for got, want in zip(evaluate_block(after, [*args]), wanted, strict=True):
        kind = np.complex128 if np.iscomplexobj(want) else np.float64
        eps = 0 if np.asarray(want).dtype.kind in "iu" else float(jnp.finfo(np.asarray(want).dtype).eps)
        scale = np.abs(np.asarray(want).astype(kind)).max()
        np.testing.assert_allclose(
            np.asarray(got).astype(kind), np.asarray(want).astype(kind), rtol=0, atol=8 * eps * scale
        )
    return after


SPECS = [
    *("nk,kj->nj", "nk,jk->nj", "kn,kj->nj", "kn,kj->jn", "nk,k->n", "kn,k->n", "jk,knm->jnm", "nmk,kj->nmj"),
    *(
        "nkm,kj->njm",
        "nkmi,ijkl->njml",
        "nki,ik->n",
        "kjn,kln->jln",
        "bnk,bkj->nbj",
        "bnk,kj->bnj",
        "nj,j->nj",
        "n,j->nj",
    ),
]


@pytest.mark.parametrize("spec", SPECS)
def test_written_out(spec: str) -> None:
    sizes = dict(n=1100, m=6, b=3, k=3, j=4, i=2, l=2)
    sides = [numbers(tuple(sizes[d] for d in side)) for side in spec.split("->")[0].split(",")]
    assert products(results(lambda x, y: jnp.einsum(spec, x, y), *sides)) == 0
    assert products(results(lambda x, y: jnp.einsum(spec, y, x), *sides[::-1])) == 0


@pytest.mark.parametrize(
    "kind", ["f64 f64", "bf16 bf16", "bf16 f32", "f16 f16", "i8 i32", "i32 i32", "c64 c64", "c128 c128"]
)
def test_types(kind: str) -> None:
    names = {"f": "float", "bf": "bfloat", "i": "int", "c": "complex"}
    operand, result = (names[k.rstrip("0123456789")] + k.lstrip("abcdefghi") for k in kind.split())
    with jax.enable_x64(True):
        args = numbers((500, 3), operand), numbers((3, 3), operand)
        left = results(lambda x, y: jnp.matmul(x, y, preferred_element_type=result), *args)
    assert products(left) == 0


def test_others_stay() -> None:
    """Products of many terms, of some rows and columns, and little ones, which are a kernel's."""
    for m, k, n in ((2000, 9, 3), (2000, 9, 300), (170, 3, 190), (20, 3, 3), (3, 100, 3)):
        assert products(results(lambda x, y: x @ y, numbers((m, k)), numbers((k, n)))) == 1
    assert products(results(lambda x, y: x @ y, numbers((900, 3, 3)), numbers((900, 3, 3)))) == 1


def test_computed_operands() -> None:
    """What is dear is computed once for all its readers, what is cheap with them."""
    dear = results(lambda x, y: jnp.tanh(x) @ y, numbers((500, 3)), numbers((3, 3)))
    assert [op.operands[0].shape for op in dear.walk() if op.name == "optimization_barrier"] == [(500, 3)]
    cheap = results(lambda x, y: (2 * x) @ y.T, numbers((500, 3)), numbers((3, 3)))
    assert not any(op.name == "optimization_barrier" for op in cheap.walk())


def test_before_loops() -> None:
    """One that no iteration changes is computed before the loop."""

    def function(x, y):
        return lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) + jnp.exp(x) @ y, jnp.zeros_like(x))

    after = hoist(results(function, numbers((500, 3)) * 0.1, numbers((3, 3))))
    (loop,) = [op for op in after.walk() if op.name == "while"]
    assert not any(op.name == "multiply" for op in loop.regions[1].walk())


@pytest.mark.parametrize("spec", ["nk,kj->nj", "nk,jk->nj", "kn,kj->nj", "bnk,bkj->bnj"])
@pytest.mark.parametrize(("j", "terms", "left"), [(12, 4, 0), (15, 3, 0), (9, 7, 0), (16, 3, 1), (13, 5, 1)])
def test_short_rows_of_results(spec: str, j: int, terms: int, left: int) -> None:
    """Written out up to rows that are interleaved, and up to so many products for each element of the larger side."""
    sizes = dict(n=2000 if left else 70_000, b=2, k=terms, j=j)
    sides = [numbers(tuple(sizes[d] for d in side)) for side in spec.split("->")[0].split(",")]
    assert products(results(lambda x, y: jnp.einsum(spec, x, y), *sides)) == left


@pytest.mark.parametrize("spec", ["nk,kj->nj", "nk,jk->nj", "kn,kj->nj", "kn,jk->nj", "bnk,bjk->bnj", "nk,jkl->njl"])
@pytest.mark.parametrize(("n", "j", "terms"), [(190, 180, 3), (1100, 33, 8), (33, 1100, 2)])
def test_many_results(spec: str, n: int, j: int, terms: int) -> None:
    """Written out whatever the number of rows; vectors read the right side in order."""
    sizes = dict(n=n, b=2, k=terms, j=j, l=2)
    left, right = spec.split("->")[0].split(",")
    after = results(lambda x, y: jnp.einsum(spec, x, y), *(numbers(tuple(sizes[d] for d in s)) for s in (left, right)))
    assert products(after) == 0
    turned = [op.operands[0].shape for op in after.walk() if op.name == "optimization_barrier"]
    assert turned == {"jk": [(terms, j)], "bjk": [(2, terms, j)]}.get(right, [])
