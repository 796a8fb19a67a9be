"""Products, convolutions and attention read parts of stacked arrays where they lie (passes/operand_parts.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call, Launch
from jax import lax

RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(dtype)


X, W, V = normal(48, 128), normal(5, 128, 192), normal(5, 192, 128)  # no small ones, which are kernels
DEEP = normal(3, 5, 128, 128)
KERNELS, IMAGES = normal(4, 3, 3, 16, 16), normal(2, 12, 12, 16)
HEADS = normal(4, 2, 8, 128, 32)


def layers(x, w, v):
    def layer(x, both):
        return jnp.tanh(x + jax.nn.silu(x @ both[0]) @ both[1]), x.sum()

    return lax.scan(layer, x, (w, v))


def tokens(x, w, v):
    return lax.fori_loop(0, 3, lambda i, x: layers(x, w, v)[0], x)


def unrolled(x, w, v):
    for i in range(5):
        x = jnp.tanh((x @ w[i]) @ v[i])
    return x


def any_index(x, w, i):
    """As JAX clamps it."""
    return x @ lax.dynamic_index_in_dim(w, i, keepdims=False)


def of_two(x, w, i, j):
    """Two indices: copied."""
    return x @ w[i, j]


def reshaped(x, w, i):
    rows = w.reshape(640, 192)
    return x @ lax.dynamic_slice_in_dim(rows, 64 * i, 128), x @ w.reshape(10, 64, 192)[2:4].reshape(128, 192)


def columns(x, w):
    """Parts that lie in many pieces: copied."""
    return x @ w[1:, :, :90].swapaxes(0, 1).reshape(128, -1), x @ w[1, :, :100]


def updated(x, w):
    """A cache that is written: what is read of it is what was there before."""

    def step(i, both):
        x, w = both
        part = lax.dynamic_index_in_dim(w, i, keepdims=False)
        w = lax.dynamic_update_index_in_dim(w, part * 2 + x[0, 0], i, 0)
        return jnp.tanh(x @ part), w

    return lax.fori_loop(0, 5, step, (x, w))


def read_elsewhere(x, w):
    part = jnp.tanh(w)[3]
    return x @ part, part.sum(0), part


def within(x, w):
    return x @ w[2, 16:80], x @ w[4, :64]


def convolutions(x, kernels):
    def layer(x, kernel):
        return jax.nn.relu(
            lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        ), None

    return lax.scan(layer, x, kernels)[0]


def attentions(q, keys, values):
    def layer(q, kv):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, kv[0]) / 6
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), kv[1]), None

    return lax.scan(layer, q, (keys, values))[0]


def gradient(x, w, v):
    return jax.grad(lambda x, w, v: layers(x, w, v)[0].sum(), (0, 1, 2))(x, w, v)


# The function, its arguments, and whether operands of calls are parts.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "layers": (layers, (X, W, V), True),
    "layers for each token": (tokens, (X, W, V), True),
    "layers of f64": (layers, tuple(a.astype(np.float64) for a in (X, W, V)), True),
    "layers of bf16": (layers, tuple(a.astype(jnp.bfloat16) for a in (X, W, V)), True),
    "unrolled": (unrolled, (X, W, V), True),
    "first": (any_index, (X, W, np.int32(0)), True),
    "below the first": (any_index, (X, W, np.int32(-7)), True),
    "last": (any_index, (X, W, np.int64(4)), True),
    "past the last": (any_index, (X, W, np.int32(99)), True),
    "rows of one": (within, (X[:, :64], W), True),
    "reshaped": (reshaped, (X, W, np.int32(3)), True),
    "two indices": (of_two, (X, DEEP, np.int32(2), np.int32(4)), False),
    "two numbers": (lambda x, w: x @ w[2, 4], (X, DEEP), True),
    "columns": (columns, (X, DEEP[0]), False),
    "written": (updated, (X, DEEP[0]), False),
    "read elsewhere": (read_elsewhere, (X, W), False),
    "gradient": (gradient, (X, W, V), True),
    "convolutions": (convolutions, (IMAGES, KERNELS), True),
    "attention": (attentions, (HEADS[0], HEADS, HEADS * 2), True),
}


def parts_of(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, list[str]]:
    """How many operands are parts, and the kernels that a program launches."""
    program = compile_program(jax.jit(f).lower(*args).as_text().encode())
    count = 0
    for step in (s for steps in program.blocks for s in steps):
        numbers = list(step.attrs.get("parts", ())) if isinstance(step, Call) else []
        while numbers:
            count, numbers = count + 1, numbers[6 + numbers[5] :]
    return count, [
        program.functions[s.function].symbol for steps in program.blocks for s in steps if isinstance(s, Launch)
    ]


def check(f: Callable[..., Any], args: tuple[Any, ...], device: Any) -> None:
    found = jax.jit(f)(*args)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = jax.jit(f)(*args)
    for y, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert y.devices() == {device} and want.devices() != {device}
        bound = 2e-2 if want.dtype == jnp.bfloat16 else 2e-5
        np.testing.assert_allclose(np.asarray(y, np.float64), np.asarray(want, np.float64), rtol=bound, atol=bound)


@pytest.mark.parametrize("name", CASES)
def test_parts(device, name: str) -> None:
    f, args, wanted = CASES[name]
    with jax.enable_x64(True):
        found, kernels = parts_of(f, args)
        copies = [k for k in kernels if "slice" in k and "update" not in k]
        assert (found > 0) == wanted and (name == "gradient" or not wanted or not copies), kernels
        check(f, args, device)


def test_attributes_of_others_may_be_called_parts() -> None:
    """A handler's own attribute is its own affair."""
    f = jax.ffi.ffi_call("nobody_knows", jax.ShapeDtypeStruct((4,), np.float32))
    program = compile_program(jax.jit(lambda x: f(x, parts=np.int64(3))).lower(np.ones(4, "f")).as_text().encode())
    (call,) = [s for steps in program.blocks for s in steps if isinstance(s, Call)]
    assert call.ffi and int(call.attrs["parts"]) == 3
