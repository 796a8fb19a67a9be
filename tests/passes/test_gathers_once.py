"""What is picked from anywhere is written once where several kernels read it, or a kernel reads each element often."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.codegen.kernel import emit_kernel
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host

R = np.random.default_rng(8)
X, TABLE = R.normal(size=(300, 50)).astype("f"), R.normal(size=(400, 16)).astype("f")
COLUMNS, ROWS = R.integers(0, 50, 60), R.integers(0, 400, 1000)
# The function, its arguments, in how many kernels something is picked, and whether one of them does no exponential or
# difference.
ONCE = {
    "picked, then reduced and read": (lambda x, i: jax.nn.softmax(x[:, i], 0), (X, COLUMNS), 1, True),
    "picked once": (lambda x, i: x[:, i] * 2 + 1, (X, COLUMNS), 1, True),
    "few": (lambda x, i: jax.nn.softmax(x[:9, i], 0), (X, COLUMNS), 2, True),
    "rows for each pair": (lambda t, i: t[i][:, None] - t[i][None, :], (TABLE, ROWS[:300]), 1, True),
    "rows of a kernel over rows": (lambda t, i: jax.nn.softmax(t[i]), (TABLE, ROWS), 1, False),
}


def kernels_of(function, *args):
    block = fuse(expand(simplify(graph(function, *args)), host()), host())
    return [op for op in block.ops if op.name == "fusion"]


@pytest.mark.parametrize("name", ONCE)
def test_kernels(name):
    function, args, count, alone = ONCE[name]
    kernels = [[o.name for o in kernel.regions[0].walk()] for kernel in kernels_of(function, *args)]
    picking = [names for names in kernels if "gather" in names]
    assert len(picking) == count
    assert any({"exponential", "subtract"}.isdisjoint(names) for names in picking) == alone
    with jax.default_device(jax.devices("ferrule")[0]):
        got = jax.jit(function)(*args)
    with jax.default_device(jax.devices("cpu")[0]):
        want = function(*map(jnp.asarray, args))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_rows_are_as_long_as_their_dimensions_together():
    kernel = kernels_of(lambda x, i: x[i] * 2, R.normal(size=(8, 64, 2)).astype("f"), R.permutation(8))[-1]
    text = emit_kernel(kernel.regions[0], "k", host()).text
    assert "<2 x float>" not in text and "x float>" in text
