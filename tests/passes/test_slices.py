"""Slices of joined, padded and broadcast arrays are fewer ops with the same values; joined arrays stay unwritten."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.passes.count import count
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block

X, Y = normal(6, 10), normal(6, 10, seed=1)
# Functions of two arrays, and the ops of more than one element that are left of them.
LEFT = {
    "slice of a slice": (lambda x, y: x[1:6:2, 2:9][1:, 1::3], ["slice"]),
    "part of a stack": (lambda x, y: jnp.stack([x, y])[1], ["broadcast_in_dim"]),
    "part of a part": (lambda x, y: jnp.concatenate([x, y, x])[7:11, 1::2], ["slice"]),
    "two of three parts": (lambda x, y: jnp.concatenate([x, y, x])[8:15], ["slice", "concatenate"]),
    "all parts": (lambda x, y: jnp.concatenate([x, y])[1:11], ["slice", "concatenate"]),
    "strides over parts": (lambda x, y: jnp.concatenate([x, y, x], 1)[:, 11:27:5], ["slice", "concatenate"]),
    "inside of a padding": (lambda x, y: jnp.pad(x, ((2, 3), (1, 0)))[3:8:2, 1:], ["slice"]),
    "some of a padding": (lambda x, y: jnp.pad(x, ((2, 3), (1, 0)))[1:8], ["slice", "pad"]),
    "cut by a padding": (lambda x, y: jax.lax.pad(x, 0.0, ((-1, -2, 0), (0, 3, 0)))[:, 2:9], ["slice"]),
    "dilated": (lambda x, y: jax.lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0)))[2:5], ["slice", "pad"]),
    "broadcast": (lambda x, y: jnp.broadcast_to(x[:, None], (6, 4, 10))[2:5, 1:3, ::4], ["slice", "broadcast_in_dim"]),
    "broadcast of one": (lambda x, y: jnp.broadcast_to(x[:1], (6, 10))[2:5, 3:], ["slice", "broadcast_in_dim"]),
    "halves joined": (lambda x, y: jnp.concatenate([x[:, :4], x[:, 4:]], 1), []),
    "neighbours joined": (lambda x, y: jnp.concatenate([y[1:2], y[2:5], x[:1]]), ["slice", "concatenate"]),
    "steps joined": (lambda x, y: jnp.concatenate([x[:, 1:5:2], x[:, 5:9:2]], 1), ["slice"]),
    "not neighbours": (lambda x, y: jnp.concatenate([x[:2], x[3:]]), ["slice", "concatenate"]),
    "in the other order": (lambda x, y: jnp.concatenate([x[:, 4:], x[:, :4]], 1), ["slice", "concatenate"]),
    "other columns": (lambda x, y: jnp.concatenate([x[:2, 1:], x[2:, :9]]), ["slice", "concatenate"]),
    "part of what is computed": (
        lambda x, y: (jnp.stack([x, y]) * 2 - 1)[1],
        ["broadcast_in_dim", "multiply", "subtract"],
    ),
    "indices": (
        lambda x, y: (jnp.mgrid[:6, :10] - 3)[1] + x,
        ["add", "broadcast_in_dim", "convert", "iota", "subtract"],
    ),
    "beside an array": (lambda x, y: (jnp.concatenate([x, y]) + x[:1])[1:5, ::2], ["add", "broadcast_in_dim", "slice"]),
    "joined twice": (
        lambda x, y: (jnp.concatenate([x, y]) * jnp.concatenate([y[:3], x[:3], x]))[7:, 1:],
        ["multiply", "slice"],
    ),
    "scalars beside": (
        lambda x, y: jax.lax.clamp(0.0, jnp.concatenate([x, y], 1), x[0, 0])[:, 3:7],
        ["broadcast_in_dim", "clamp", "slice"],
    ),
    "costly": (
        lambda x, y: jnp.exp(jnp.tanh(jnp.concatenate([x, y])))[6:],
        ["concatenate", "exponential", "slice", "tanh"],
    ),
    "of both parts": (lambda x, y: (jnp.concatenate([x, y]) * 2)[2:8], ["concatenate", "multiply", "slice"]),
    "beside a sum": (
        lambda x, y: (jnp.concatenate([x, y], 1) - x.sum(1, keepdims=True))[:, :10],
        ["broadcast_in_dim", "concatenate", "reduce", "slice", "subtract"],
    ),
    "rows as columns": (lambda x, y: jnp.stack([x[1], y[2]]).T, ["broadcast_in_dim", "concatenate", "slice"]),
    "vectors last": (
        lambda x, y: jnp.moveaxis(jnp.stack([x, y, x]), 0, -1),
        ["broadcast_in_dim", "concatenate"],
    ),
    "in the middle": (
        lambda x, y: jnp.stack([x, y], 1).transpose(1, 0, 2),
        ["broadcast_in_dim", "concatenate"],
    ),
    "turned parts": (
        lambda x, y: jnp.stack([x, y]).transpose(2, 1, 0),
        ["broadcast_in_dim", "concatenate", "transpose"],
    ),
    "one turned part": (lambda x, y: jnp.concatenate([x[:1], y]).T, ["concatenate", "slice", "transpose"]),
    "other steps": (lambda x, y: jnp.concatenate([x[:, 0:4:2], x[:, 4:]], 1), ["slice", "concatenate"]),
}


@pytest.mark.parametrize("name", LEFT)
def test_slices_of_joined_arrays(name):
    function, left = LEFT[name]
    block = graph(function, X, Y)
    (expected,), slim = evaluate_block(block, [X, Y]), simplify(block)
    (got,) = evaluate_block(slim, [X, Y])
    np.testing.assert_array_equal(got, expected)
    with jax.default_device(jax.devices("cpu")[0]):
        np.testing.assert_allclose(got, np.asarray(function(X, Y)), rtol=1e-5, atol=1e-6)
    assert sorted({o.name for o in slim.ops} - {"constant", "reshape"}) == sorted(left)


@pytest.mark.parametrize("seed", range(30))
def test_random_slices_of_joined_arrays(seed):
    rng = np.random.default_rng(seed)

    def cut(v):
        at = []
        for n in v.shape:
            first = int(rng.integers(n))
            at.append(slice(first, int(rng.integers(first + 1, n + 1)), int(rng.integers(1, 4))))
        return v[tuple(at)]

    def step(v, other):
        axis = int(rng.integers(2))
        match int(rng.integers(7)):
            case 0 | 1:
                return cut(v)
            case 2:
                return jnp.concatenate([v, jnp.resize(other, v.shape), v[: v.shape[0] // 2 + 1]][: 3 - axis], axis)
            case 3:
                low, high = (int(n) for n in rng.integers(-(v.shape[axis] // 3), 4, 2))
                return jax.lax.pad(v, np.float32(7), [(low, high, 0) if d == axis else (0, 0, 0) for d in range(2)])
            case 4:
                return v * jnp.concatenate([v[:1], v[:-1]]) - 1
            case 5:
                return jnp.where(jnp.concatenate([v[:, 1:], v[:, :1]], 1) > 0, v, jnp.maximum(v, v[:1]))
        at = int(rng.integers(v.shape[axis]))
        halves = jnp.split(v, [at], axis)
        return jnp.concatenate(halves[:: 1 if rng.integers(2) else -1], axis)

    def function(x, y):
        v = x
        for _ in range(6):
            v = step(v, y)
        return v

    block = graph(function, X, Y)
    (expected,), (got,) = evaluate_block(block, [X, Y]), evaluate_block(simplify(block), [X, Y])
    np.testing.assert_array_equal(got, expected)


WIDE = normal(64, 100)
# What becomes of large joined arrays: their readers select from the parts, one kernel mixes the parts of each short
# row, or the parts are written one after the other.
JOINED = {
    "roll": (lambda x: x - jnp.roll(x, 1, 1), "selected"),
    "stencil": (lambda x: sum(jnp.roll(x, s, a) for a in (0, 1) for s in (1, -1)) - 4 * x, "selected"),
    "rotary": (lambda x: jnp.concatenate([-x[:, 50:], x[:, :50]], 1) * 2 + x, "selected"),
    "padded terms": (
        lambda x: jnp.pad(x[:, :30], ((0, 0), (0, 70))) + jnp.pad(x[:, 30:], ((0, 0), (30, 0))),
        "selected",
    ),
    "indices": (lambda x: x[jnp.arange(6400) % 64, jnp.arange(6400) % 100], "selected"),
    "computed indices": (
        lambda x: x[jnp.cos(x * 3 + jnp.sin(x)).astype(int) * 20, (jnp.sqrt(jnp.abs(x)) * jnp.exp(x)).astype(int)],
        "selected",
    ),
    "interpolation": (
        lambda x: jax.scipy.ndimage.map_coordinates(x, list(jnp.mgrid[:64, :100] * 0.7 + 1.5), 1),
        "selected",
    ),
    "costly indices that are needed": (
        lambda x: (lambda i: x[jnp.sin(x).astype(int), i] + jnp.flip(i))(jnp.exp(jnp.tan(x)).astype(int)),
        "selected",
    ),
    "places of a scatter": (lambda x: x.at[jnp.arange(6400) % 64, jnp.arange(6400) % 100].add(1.0), "mixed"),
    "rows by indices": (lambda x: x[:, None, :, None][jnp.arange(3000) % 64, 0], "mixed"),
    "a result": (lambda x: jnp.concatenate([x, x * 2]), "selected"),
    "moved": (lambda x: jnp.roll(x, (3, -3), (0, 1)).reshape(8, 8, 5, 20).transpose(0, 2, 1, 3), "selected"),
    "moved in short runs": (lambda x: jnp.roll(x, (3, -3), (0, 1)).reshape(8, 8, 20, 5).swapaxes(1, 2), "written"),
    "turned": (lambda x: jnp.roll(x, 3, 0).T, "written"),
    "turned image": (lambda x: jnp.rot90(jnp.roll(x.reshape(8, 8, 20, 5), 7, 1), 1, (1, 2)), "selected"),
    "padded and turned": (lambda x: jnp.pad(x, 1).T, "selected"),
    "summed": (lambda x: (jnp.roll(x, 1, 1) * x)[:, ::2].sum(0), "selected"),
    "short rows": (lambda x: jnp.stack([x, jnp.exp(x), x * 2], -1), "mixed"),
    "another shape": (lambda x: jnp.roll(x, 1, 1).reshape(6400), "selected"),
    "a side of a product": (lambda x: jnp.concatenate([x, x * 2], 1) @ jnp.ones((200, 50)), "mixed"),
    "costly parts": (lambda x: jnp.concatenate([jnp.tanh(x), jnp.exp(x)], 1) + 1, "written"),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_elementwise_readers_take_is_not_written(name):
    function, fate = JOINED[name]
    block = simplify(graph(function, WIDE))
    expanded = expand(block, host())
    assert any(o.name == "dynamic_update_slice" for o in expanded.ops) == (fate == "written")
    if fate == "selected":
        kernels = fuse(count(expanded), host())
        assert sum(o.name == "fusion" for o in kernels.ops) == 1
        (got,), (expected,) = evaluate_block(kernels, [WIDE]), evaluate_block(block, [WIDE])
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


IMAGES = {
    "rolled": (lambda x: jnp.rot90(jnp.roll(x, 7, 1), 1, (1, 2)), True),
    "rolled twice": (lambda x: jnp.roll(x, (7, 3), (1, 2)).swapaxes(1, 2), True),
    "in many pieces": (lambda x: jnp.concatenate(jnp.split(x, 8, 1)[::-1], 1).swapaxes(1, 2), False),
    "no channels": (lambda x: jnp.roll(x, 7, 1).transpose(0, 3, 2, 1), False),
}


@pytest.mark.parametrize("name", IMAGES)
def test_pixels_of_joined_images_are_read_where_they_are(name):
    function, selected = IMAGES[name]
    expanded = expand(simplify(graph(function, normal(2, 40, 40, 3))), host())
    assert all(o.name != "dynamic_update_slice" for o in expanded.ops) == selected


TURNED = {
    "trace of a product": (lambda x, y: (x * y.T).sum(), 1),
    "asymmetry": (lambda x, y: ((x - x.T) ** 2).sum(), 1),
    "softmax": (lambda x, y: jax.nn.softmax(x + y.T, -1), 1),
    "computed": (lambda x, y: (x * jnp.exp(y).T).max(1), 1),
    "elementwise": (lambda x, y: x + y.T, 0),
    "columns": (lambda x, y: (x * y.T).sum(0), 0),
    "short rows": (lambda x, y: (x[:200].T + y[:, :200]).max(1), 0),
    "heads": (lambda x, y: (x.reshape(10, 3, 10, 300).swapaxes(1, 2) * y.reshape(10, 10, 3, 300)).sum(-1), 0),
}


@pytest.mark.parametrize("name", TURNED)
def test_transposed_arrays_in_reductions(name):
    """What a reduction's vectors would read across memory is transposed first, in squares."""
    function, written = TURNED[name]
    x, y = normal(300, 300), normal(300, 300, seed=1)
    block = fuse(expand(simplify(graph(function, x, y)), host()), host())
    alone = [op for op in block.ops if op.name == "fusion" and op.regions[0].results[0].op.name == "transpose"]
    assert len(alone) == written
    (found,) = evaluate_block(block, [x, y])
    with jax.default_device(jax.devices("cpu")[0]):
        np.testing.assert_allclose(found, np.asarray(function(x, y)), rtol=2e-4, atol=2e-4)
