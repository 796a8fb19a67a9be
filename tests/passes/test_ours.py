"""Passes that take ops over, or look only at what is new, give what they give when they copy and look at everything."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal, residual

import jax
from ferrule.ir import dismantle
from ferrule.ir.printer import print_block
from ferrule.ir.verifier import verify
from ferrule.passes.allocate import allocate
from ferrule.passes.count import count
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.match import match
from ferrule.passes.match_attention import match_attention
from ferrule.passes.simplify import simplify
from ferrule.pipeline import match_all
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.reader import read
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block


def attention(x, w):
    def loss(x):
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        logits = jnp.where(jnp.tri(64, dtype=bool), q @ k.T, -jnp.inf)
        return (jax.nn.softmax(logits) @ v).sum()

    return jax.grad(loss)(x)


def loops(x):
    """Constants, counters and kernels within loops and branches, which read values from outside."""
    rows = jnp.arange(8, dtype=jnp.float32)[:, None] * x

    def body(i, s):
        s = jax.lax.cond(i % 2 == 0, lambda s: s + rows, lambda s: jnp.tanh(s) * jnp.arange(8.0)[:, None], s)
        return s.at[i].set(jnp.sort(s[i]) + jnp.cumsum(rows[i]))

    return jax.lax.fori_loop(0, x.shape[0] - 1, body, x), jnp.argmax(rows, -1)


def shared(x, y):
    """Cheap values that several kernels compute for themselves, and an update in place."""
    a = x * 2 + 1
    b = jax.lax.dynamic_update_slice(y, a[:2], (1, 0))
    key = jax.random.key_data(jax.random.split(jax.random.key(3)))
    return a.sum(0), a.sum(1), jnp.concatenate([a, b]), jnp.where(b > 0, jnp.clip(b, 0, 1), a), key


def views(x):
    """Products between transposes and slices, which are simplified with what the products leave."""
    y = (x.reshape(2, 4, 8).transpose(2, 0, 1) @ x[:4, :4]).transpose(1, 2, 0)
    values, places = jax.lax.top_k(y[..., ::2].reshape(-1), 3)
    return y[:, 1:], values[1:], places, jnp.transpose(jnp.transpose(x) @ x)


def clipped(x):
    """Functions that are called several times."""
    return jnp.clip(x, 0, 1) + jnp.clip(x * 2, 0, 1) + jnp.where(x > 0, x, 0), jax.nn.relu(x) @ jax.nn.relu(x).T


PROGRAMS = {
    "attention": (attention, normal(64, 96), normal(96, 96) / 8),
    "loops": (loops, normal(8, 8)),
    "shared": (shared, normal(4, 6), normal(5, 6)[:4]),
    "views": (views, normal(8, 8)),
    "clipped": (clipped, normal(8, 8)),
    "residual": residual(3),
}


@pytest.fixture(params=PROGRAMS)
def program(request):
    return PROGRAMS[request.param]


def prepared(program):
    function, *args = program
    return count(expand(match_all(simplify(graph(function, *args)), host()), host()))


def test_what_is_fused_moves(program):
    copied = print_block(fuse(prepared(program), host()))
    block = prepared(program)
    moved = fuse(block, host(), ours=True)
    dismantle(block)  # nothing of what has moved
    verify(moved, "fuse")
    assert print_block(moved) == copied
    allocate(moved, [-1] * len(moved.args))


def test_what_match_leaves_alone_is_simple(program):
    function, *args = program
    whole = simplify(match(match_attention(simplify(graph(function, *args)), host()), host()))
    part = match_all(simplify(graph(function, *args)), host())
    verify(part, "match")
    assert print_block(part) == print_block(whole)


def test_new_ops_join_the_ones_before():
    """What a pass adds may be the same as an op that was there, which is then not computed twice."""
    x = normal(3, 5)
    block = simplify(graph(lambda x: (x.T, jnp.tanh(x)), x))
    settled = set(block.walk())
    (turned, _), (arg,) = block.results, block.args
    again = block.add("transpose", [arg], [turned.type], {"permutation": (1, 0)}).result
    back = block.add("transpose", [turned], [arg.type], {"permutation": (1, 0)}).result
    both = block.add("add", [turned, again], [turned.type]).result
    block.results = [both, block.add("tanh", [back], [arg.type]).result]
    slim = simplify(block, ours=True, settled=settled)
    assert [op.name for op in slim.ops] in (["transpose", "add", "tanh"], ["transpose", "tanh", "add"])
    for got, want in zip(evaluate_block(slim, [x]), (2 * x.T, np.tanh(x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_imported_ops_are_the_ones_that_were_read(program):
    from jaxlib import _jax
    from jaxlib.mlir.dialects import stablehlo

    function, *args = program
    lowered = jax.jit(function, keep_unused=True).trace(*args).lower(lowering_platforms=("cpu",))
    code = bytes(
        _jax.mlir.serialize_portable_artifact(lowered.compiler_ir("stablehlo"), stablehlo.get_current_version(), True)
    )
    module = legalize(read(code, "mlir"))
    copied = import_module(module)
    moved = import_module(module, ours=True)
    for f in module.functions.values():
        dismantle(f.body)
    verify(moved.main.body, "import")
    assert print_block(moved.main.body) == print_block(copied.main.body)
