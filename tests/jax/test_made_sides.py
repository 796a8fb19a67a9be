"""Products whose right side is computed where they pack it: which ones, their values, and that nothing else changes."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax
from ferrule import pipeline
from ferrule.native import library_path
from ferrule.pipeline import compile_program
from ferrule.program import Call

RNG = np.random.default_rng(0)
K, N = 700, 1100  # neither fits blocks
BYTES = RNG.integers(-127, 128, (K, N)).astype(np.int8)
SCALES = RNG.uniform(0.5, 2, N).astype("f") / 100
GROUPS = RNG.uniform(0.5, 2, (K // 50, 1, N)).astype("f") / 100
HALVES = RNG.integers(0, 256, (K // 2, N)).astype(np.uint8)


def rows(count: int, dtype: Any = "f") -> np.ndarray:
    return RNG.standard_normal((count, K)).astype("f").astype(dtype)


def by_column(x: Any, w: Any, s: Any) -> Any:
    return x @ (w.astype(x.dtype) * s.astype(x.dtype))


def by_group(x: Any, w: Any, s: Any) -> Any:
    return x @ (w.reshape(-1, 50, N).astype(x.dtype) * s.astype(x.dtype)).reshape(K, N)


def halves(x: Any, w: Any, s: Any) -> Any:
    parts = jnp.stack([(w & 15).astype(jnp.int8) - 8, (w >> 4).astype(jnp.int8) - 8], 1).reshape(K, N)
    return x @ (parts.astype(x.dtype) * s)


def transposed(x: Any, w: Any, s: Any) -> Any:
    return jnp.einsum("bk,nk->bn", x, w.astype(x.dtype) * s[:, None].astype(x.dtype))


def followed(x: Any, w: Any, s: Any) -> Any:
    return jnp.tanh(by_column(x, w, s) / 100 + s)


def transposed_and_followed(x: Any, w: Any, s: Any) -> Any:
    return jnp.tanh(transposed(x, w, s) / 100 + s)


def by_layer(x: Any, w: Any, s: Any) -> Any:
    """Stacked weights: the part of a layer is part of what is computed."""
    stack = jnp.stack([w, -w, w // 2])
    stack, s, x = jax.lax.optimization_barrier((stack, s, x))
    return jax.lax.scan(lambda y, layer: (y / 2 + by_column(x, layer, s), y.sum()), jnp.zeros((len(x), N)), stack)


CASES = {
    "by column": (by_column, BYTES, SCALES),
    "by group": (by_group, BYTES, GROUPS),
    "halves": (halves, HALVES, SCALES),
    "transposed": (transposed, np.ascontiguousarray(BYTES.T), SCALES),
    "followed": (followed, BYTES, SCALES),
    "transposed and followed": (transposed_and_followed, np.ascontiguousarray(BYTES.T), SCALES),
    "f16": (by_column, BYTES.astype(np.float16), SCALES),
    "by layer": (by_layer, BYTES, SCALES),
}


def made(function: Any, *args: Any) -> list[bool]:
    """Of each product of the program, whether its right side is computed for it."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("cpu",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    calls = [step for block in program.blocks for step in block if isinstance(step, Call)]
    return ["made" in call.attrs for call in calls if call.target == "gemm"]


@pytest.mark.parametrize("count", [2, 3, 8, 21, 40, 130, 260])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, count: int) -> None:
    f, w, s = CASES[name]
    x = rows(count)
    with jax.default_device(jax.devices("ferrule")[0]):
        found = jax.tree.leaves(jax.jit(f)(x, w, s))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        exact = jax.tree.leaves(jax.jit(f)(x.astype("d"), w, s.astype("d")))
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-6 * np.abs(other).max())


@pytest.mark.parametrize("name", CASES)
def test_what_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, w, s = CASES[name]
    assert made(f, rows(8), w, s) == [True]
    monkeypatch.setattr(pipeline, "made_sides", lambda graph, _: graph)
    assert made(f, rows(8), w, s) == [False]


@pytest.mark.parametrize("count", [2, 9, 33])
@pytest.mark.parametrize("name", ["by column", "by group", "transposed"])
def test_narrow_floats(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are rounded to the type that they are multiplied in, as the program says."""
    f, w, s = CASES[name]
    x = rows(count, ml_dtypes.bfloat16)
    with jax.default_device(jax.devices("ferrule")[0]):
        found = np.asarray(jax.jit(lambda *a: f(*a))(x, w, s), "f")
        monkeypatch.setattr(pipeline, "made_sides", lambda graph, _: graph)
        apart = np.asarray(jax.jit(lambda *a: f(*a))(x, w, s), "f")
    np.testing.assert_allclose(found, apart, rtol=2**-7, atol=1e-6 * np.abs(apart).max())
    # Sums of exact products of the rounded weights, in f64.
    with jax.default_device(jax.devices("cpu")[0]):
        exact = x.astype("d") @ np.asarray(jax.jit(f)(np.eye(K, dtype=ml_dtypes.bfloat16), w, s), "d")
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-5 * np.abs(exact).max())


OTHERS = {
    "read by another, too": lambda x, w, s: (by_column(x, w, s), (w.astype("f") * s).sum(0)),
    "a result, too": lambda x, w, s: (x @ (y := w.astype("f") * s), y),
    "of two products": lambda x, w, s: (x @ (y := w.astype("f") * s), (x + 1) @ y),
    "small": lambda x, w, s: by_column(x[:, :200], w[:200], s),
    "few columns": lambda x, w, s: by_column(x, w[:, :400], s[:400]),
    "reduced": lambda x, w, s: x @ jax.nn.softmax(w.astype("f"), 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_made(name: str) -> None:
    calls = made(OTHERS[name], rows(8), BYTES, SCALES)
    assert calls and not any(calls), calls


@pytest.mark.parametrize("turned", [False, True])
def test_over_what_it_is_made_of(turned: bool) -> None:
    """A donated matrix that the side is made of, and one that a loop carries, are read to the end."""
    x, q = (RNG.standard_normal((1024, 1024)).astype("f") for _ in range(2))
    s = RNG.uniform(0.5, 2, 1024).astype("f")

    def step(q: Any) -> Any:
        return jnp.tanh(x @ ((q * s).T if turned else q * s) / 50 + s)

    def exact(q: Any) -> Any:
        return np.tanh(x.astype("d") @ ((q * s).T if turned else q * s) / 50 + s)

    with jax.default_device(jax.devices("ferrule")[0]):
        found = jax.jit(step, donate_argnums=0)(jax.device_put(q))
        looped = jax.jit(lambda q: jax.lax.fori_loop(0, 3, lambda _, q: step(q), q))(q)
    np.testing.assert_allclose(found, exact(q.astype("d")), rtol=0, atol=3e-6)
    np.testing.assert_allclose(looped, exact(exact(exact(q.astype("d")))), rtol=0, atol=1e-5)


def damaged(change: dict[str, Any]) -> str:
    """What loading says of a program whose product has other attributes."""
    module = jax.jit(by_column).trace(rows(8), BYTES, SCALES).lower(lowering_platforms=("cpu",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    for block in program.blocks:
        for i, step in enumerate(block):
            if isinstance(step, Call) and "made" in step.attrs:
                block[i] = replace(step, attrs={**step.attrs, **change})
    program.packed = b""  # the blocks as they were
    lib, data, handle = ctypes.CDLL(library_path()), program.serialize(), ctypes.c_void_p()
    lib.ferrule_program_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    lib.ferrule_last_error.restype = ctypes.c_char_p
    lib.ferrule_program_free.argtypes = [ctypes.c_void_p]
    if lib.ferrule_program_load(data, len(data), ctypes.byref(handle)):
        return lib.ferrule_last_error().decode()
    lib.ferrule_program_free(handle)
    return ""


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, ""),
        ({"made_of": 0}, "what the right side is made of does not fit the operands"),
        ({"made_of": -1}, "what the right side is made of does not fit the operands"),
        ({"made_of": 3}, "what the right side is made of does not fit the operands"),
        ({"made_of": 2**40}, "what the right side is made of does not fit the operands"),
        ({"made": 1}, "attribute `made` is not a function"),
        ({"b_strides": (0, N + 1, 1)}, "a right side that is computed does not fit"),
        ({"b_strides": (0, 1, N)}, "a right side that is computed does not fit"),
        ({"batch": 2, "m": 4}, "a right side that is computed does not fit"),
    ],
)
def test_damaged(change: dict[str, Any], said: str) -> None:
    found = damaged(change)
    assert said in found if said else not found, found
