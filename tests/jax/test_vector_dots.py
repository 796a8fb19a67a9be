"""Products that leave few results are reductions (passes/vector_dots.py)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_finish import steps

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call
from jax import lax

TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 bfloat16 float16 float32 float64 complex64 complex128".split()


def draw(name, shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    if name == "bool":
        return rng.random(shape) < 0.02
    dtype = jnp.dtype(name)
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype.kind == "c" else x).astype(dtype)


def exact(text, x, y):
    """The sums as they are, and how large their terms are together."""
    if x.dtype == bool:
        return np.einsum(text, x.astype(np.int64), y.astype(np.int64)) > 0, 0
    if x.dtype.kind in "iu":
        return np.einsum(text, x.astype(np.int64), y.astype(np.int64)).astype(x.dtype), 0
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    return np.einsum(text, x.astype(wide), y.astype(wide)), np.einsum(text, abs(x.astype(wide)), abs(y.astype(wide)))


# One dot product, several; a matrix and a vector on either side, and as it lies in memory or not; few by few,
# crosswise; in a batch; over two dimensions; over one that lies between others, or two around one.
PRODUCTS = {
    "dot": ("i,i->", (3001,), (3001,)),
    "long": ("i,i->", (1 << 18,), (1 << 18,)),
    "dots": ("bi,bi->b", (5, 1100), (5, 1100)),
    "matrix, vector": ("ij,j->i", (70, 900), (900,)),
    "many rows, vector": ("ij,j->i", (300, 37), (37,)),
    "many rows, column": ("ij,jk->ik", (1000, 500), (500, 1)),
    "row, many columns": ("ki,ji->kj", (1, 20), (700, 20)),
    "many rows of two sums": ("aijb,jb->ai", (20, 30, 3, 5), (3, 5)),
    "many rows turned around": ("ajib,bj->ai", (20, 3, 30, 5), (5, 3)),
    "turned matrix, vector": ("ji,j->i", (900, 70), (900,)),
    "vector, matrix": ("i,ij->j", (900,), (900, 70)),
    "rows, columns": ("ik,kj->ij", (2, 4500), (4500, 2)),
    "rows, rows": ("ik,jk->ij", (3, 4500), (4, 4500)),
    "columns, columns": ("ki,kj->ij", (4500, 4), (4500, 3)),
    "batch": ("bki,bk->bi", (3, 1100, 2), (3, 1100)),
    "small batch": ("bij,bj->bi", (9, 17, 33), (9, 33)),
    "small batch across": ("bij,bi->bj", (5, 31, 16), (5, 31)),
    "batch behind": ("kb,ikb->bi", (1100, 3), (2, 1100, 3)),
    "two sums": ("ijk,ikj->", (2, 40, 60), (2, 60, 40)),
    "between": ("k,bkd->bd", (14,), (40, 14, 2)),
    "between, first": ("abkcd,k->dcab", (2, 5, 70, 3, 7), (70,)),
    "between in a batch": ("bhk,bkhd->bhd", (2, 3, 20), (2, 20, 3, 5)),
    "batch between": ("bhd,bkhd->bhk", (2, 3, 40), (2, 9, 3, 40)),
    "around": ("kl,kbl->b", (9, 4), (9, 6, 4)),
    "batch inside": ("tbc,tbc->bc", (50, 3, 70), (50, 3, 70)),
    "batch inside, columns": ("ki,kji->ji", (20, 90), (20, 5, 90)),
    "batch inside, two sums": ("fga,fgda->ad", (5, 6, 33), (5, 6, 4, 33)),
    "batch inside, all": ("hwc,hwc->c", (11, 30, 24), (11, 30, 24)),
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", TYPES)
def test_against_exact_sums(device, name, product):
    text, *shapes = PRODUCTS[product]
    x, y = (draw(name, shape, seed) for seed, shape in enumerate(shapes))
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(lambda x, y: jnp.einsum(text, x, y))(*jax.device_put((x, y), device)))
    want, size = exact(text, x, y)
    assert got.dtype == x.dtype and got.shape == want.shape
    if got.dtype.kind in "biu":
        return np.testing.assert_array_equal(got, want)
    digits = {2: 11 if name == "float16" else 8, 4: 24, 8: 24 if name == "complex64" else 53, 16: 53}[
        got.dtype.itemsize
    ]
    wide = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
    finite = np.isfinite(wide)  # float16 goes to 65504
    assert finite.any() or name == "float16"
    limit = 2.0 ** (1 - digits) * abs(want) + 2.0 ** (1 - max(24, digits)) * 40 * size
    assert (abs(wide - want)[finite] <= limit[finite]).all()


def test_of_what_is_computed(device):
    """Operands that are computed, or read by others as well, and what comes after."""
    x, y = draw("complex64", (40, 2000)), draw("complex64", (2000,), 1)

    def f(x, y):
        z = jnp.exp(1j * y.real) * y
        v = (x * 2) @ z
        return v / jnp.vdot(z, z).real, jnp.vdot(v, v), z

    got = jax.jit(f)(*jax.device_put((x, y), device))
    x, y = x.astype(np.complex128), y.astype(np.complex128)
    z = np.exp(1j * y.real) * y
    v = (x * 2) @ z
    for a, b in zip(got, (v / np.vdot(z, z).real, np.vdot(v, v), z), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * abs(b).max())


def test_wider_results(device):
    x, y = draw("int8", (20_000,)), draw("int8", (20_000,), 1)
    h, g = draw("float16", (20_000,)), draw("float16", (20_000,), 1)

    def f(x, y, h, g):
        return (
            lax.dot(x, y, preferred_element_type=jnp.int32),
            lax.dot(h, g, preferred_element_type=jnp.float32),
            lax.dot(h.astype(jnp.bfloat16), g.astype(jnp.bfloat16), preferred_element_type=jnp.float32),
        )

    a, b, c = jax.jit(f)(*jax.device_put((x, y, h, g), device))
    assert a.dtype == np.int32 and int(a) == int(x.astype(np.int64) @ y.astype(np.int64))
    want = h.astype(np.float64) @ g.astype(np.float64)
    assert b.dtype == np.float32 and abs(float(b) - want) < 1e-3
    assert c.dtype == np.float32 and abs(float(c) - want) < 2.0


def grouped(x, w, s):
    return x @ (w.reshape(16, -1, w.shape[1]).astype(x.dtype) * s).reshape(w.shape)


def packed(x, w, s):
    low, high = (w & 15).astype(x.dtype) - 8, (w >> 4).astype(x.dtype) - 8
    return x @ (jnp.stack([low, high], 1).reshape(-1, w.shape[1]) * s)


# Weights in few bits: a scale for each group of rows, a row of the transposed matrix, a column; two in a byte; others'.
COMPUTED = {
    "groups": (grouped, "int8", (640, 130), (16, 1, 130)),
    "groups of 4 bits": (grouped, "int4", (640, 130), (16, 1, 130)),
    "rows, transposed": (lambda x, w, s: x @ (w.astype(x.dtype) * s[:, None]).T, "int8", (130, 640), (130,)),
    "columns": (lambda x, w, s: x @ (w.astype(x.dtype) * s), "int8", (640, 130), (130,)),
    "two in a byte": (packed, "uint8", (320, 130), (130,)),
    "8-bit floats": (lambda x, w, s: (x @ w.astype(x.dtype)) * s, "float8_e4m3fn", (640, 130), (130,)),
    "matrix first": (lambda x, w, s: (w.astype(x.dtype) * s[:, None]) @ x[0], "int8", (130, 640), (130,)),
}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("weights", COMPUTED)
def test_matrices_that_are_computed(device, weights, kind):
    f, stored, shape, scales = COMPUTED[weights]
    rng = np.random.default_rng(3)
    dtype = jnp.dtype(stored)
    if dtype.kind == "u":
        w = rng.integers(0, 256, shape).astype(dtype)
    else:
        w = rng.integers(-7, 8, shape).astype(np.float32).astype(dtype)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=(1, 640)), kind)
        s = jnp.asarray(rng.uniform(0.5, 1, size=scales), kind)
        got = np.asarray(jax.jit(f)(*jax.device_put((x, w, s), device))).astype(np.float64)
        wide = [np.asarray(v).astype(np.float64) for v in (x, s)]
        want = np.asarray(jax.jit(f)(*jax.device_put((wide[0], w, wide[1]), jax.devices("cpu")[0])))
    error = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-13}[kind]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=error * abs(want).max())


def test_a_computed_matrix_is_not_stored():
    """Neither the scaled weights nor a product in the library: 4 MB of them would be the program's memory."""
    f = jax.jit(grouped)
    shapes = (jnp.zeros((1, 1024)), jnp.zeros((1024, 1024), jnp.int8), jnp.zeros((16, 1, 1024)))
    program = f.lower(*jax.device_put(shapes, jax.devices("ferrule")[0])).compile()
    assert program.memory_analysis().temp_size_in_bytes < 1 << 16
    many = jax.device_put((jnp.zeros((64, 1024)), *shapes[1:]), jax.devices("ferrule")[0])
    program = f.lower(*many).compile()  # the product computes them where it packs them (passes/made_sides.py)
    assert program.memory_analysis().temp_size_in_bytes < 1 << 16
    # For two products they are stored.
    twice = jax.jit(lambda x, *weights: (grouped(x, *weights), grouped(jnp.exp(x), *weights)))
    assert twice.lower(*many).compile().memory_analysis().temp_size_in_bytes >= 4 << 20


@pytest.mark.parametrize("text", ["k,bkd->bd", "bhk,bkhd->bhd"])
def test_an_array_around_what_is_summed_is_not_transposed(text):
    """The stages of a batch of differential equations, a cache of keys: read where they lie."""
    shapes = ((14,), (256, 14, 64)) if text[0] == "k" else ((2, 8, 64), (2, 64, 8, 64))
    arrays = jax.device_put([np.zeros(shape, np.float32) for shape in shapes], jax.devices("ferrule")[0])
    program = jax.jit(lambda x, y: jnp.einsum(text, x, y)).lower(*arrays).compile()
    assert program.memory_analysis().temp_size_in_bytes < arrays[1].nbytes // 2


@pytest.mark.parametrize(
    "text, shape",
    [("i...,i...->...", (63, 5, 51, 7)), ("bk,bk->b", (100, 300)), ("k,k->", (50,)), ("bij,bji->b", (20, 30, 30))],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_two_vectors_each(device, text, shape, dtype):
    """Of whatever size: each number is read once."""
    x, y = (np.random.default_rng(n).integers(-4, 5, shape).astype(jnp.dtype(dtype)) for n in range(2))

    def function(x, y):
        return jnp.einsum(text, x, y, preferred_element_type=jnp.int32 if dtype == "int8" else jnp.float32)

    assert set(steps(function, x, y)) == {"launch"}
    with jax.default_device(device):
        got = jax.jit(function)(x, y)
    np.testing.assert_array_equal(got, np.einsum(text, x.astype("f"), y.astype("f")))


@pytest.mark.parametrize("text", ["ij,j->i", "ij,jk->ik", "jk,ij->ki"])
def test_many_short_rows_are_sums_of_their_own(text):
    """No library call: dot products one after the other take four times as long."""
    shapes = {"ij": (4096, 48), "j": (48,), "jk": (48, 1)}
    arrays = [np.zeros(shapes[side], np.float32) for side in text.split("->")[0].split(",")]
    text = str(jax.jit(lambda x, y: jnp.einsum(text, x, y)).lower(*arrays).compiler_ir("stablehlo"))
    program = compile_program(text.encode())
    assert not any(isinstance(step, Call) for block in program.blocks for step in block)


@pytest.mark.parametrize("text, shapes", [(t, s) for n, (t, *s) in PRODUCTS.items() if n.startswith("batch inside")])
def test_lanes_along_a_batch(text, shapes):
    """No library picks the numbers of each product apart."""
    x, y = (np.zeros(shape, "f") for shape in shapes)
    lowered = jax.jit(lambda x, y: jnp.einsum(text, x, y)).lower(x, y)
    program = compile_program(str(lowered.compiler_ir("stablehlo")).encode())
    assert not any(isinstance(step, Call) for block in program.blocks for step in block)
