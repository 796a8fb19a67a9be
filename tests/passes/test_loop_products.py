"""Products of loops' iterations become one product before the loop or after it; those that must stay, stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.ir import Block, Op, Value, rewrite
from ferrule.ir.verifier import verify
from ferrule.passes import products_before, products_plan, steps
from ferrule.passes.loop_products import loop_products
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block
from jax import lax


@pytest.fixture(autouse=True)
def of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for which it would not pay are tested all the same."""
    if request.function is not test_small_ones_stay:
        monkeypatch.setattr(products_before, "LITTLE", 0)
        monkeypatch.setattr(products_plan, "LITTLE", 0)


def garbage(block: Block) -> Block:
    """What is not initialized holds NaN, or a large number."""

    def rule(out: Block, op: Op, operands: list[Value]):
        if op.name != "uninitialized":
            return None
        dtype = op.result.dtype
        fill = np.full(op.result.shape, -77 if dtype.kind == "int" else np.nan, dtype.numpy)
        return out.add("constant", [], [op.result.type], {"value": fill}, (), op.loc).results

    return rewrite(block, rule)


def results(function, *args, rtol=2e-5):
    """The graph after the pass; its results are those from before."""
    before = simplify(graph(function, *args))
    after = loop_products(before)
    verify(after, "loop_products")
    got, want = evaluate_block(garbage(after), [*args]), evaluate_block(before, [*args])
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * max(1.0, np.abs(w).max(initial=0)))
    return after


def inside(block: Block, name: str = "dot_general") -> list[int]:
    """How many such ops each loop has, outer loops with their inner ones."""
    loops = [op for op in block.walk() if op.name == "while"]
    return [sum(op.name == name for op in loop.regions[1].walk()) for loop in loops]


W, STEPS, BATCH = 4, 6, 3


def lstm(w, b, xs, reverse=False):
    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], W), xs.dtype)
    return lax.scan(cell, (zero, zero), xs, reverse=reverse)[1]


def gru(w, u, b, xs):
    def cell(h, x):
        rx, zx, nx = jnp.split(x @ w + b, 3, -1)
        rh, zh, nh = jnp.split(h @ u, 3, -1)
        r, z = jax.nn.sigmoid(rx + rh), jax.nn.sigmoid(zx + zh)
        h = (1 - z) * jnp.tanh(nx + r * nh) + z * h
        return h, h

    return lax.scan(cell, jnp.zeros((xs.shape[1], W), xs.dtype), xs)[1]


def several_kernels(wx, wh, b, xs):
    """As Flax's OptimizedLSTMCell has it: the kernels of the gates are put together in the cell."""

    def cell(carry, x):
        h, c = carry
        own = jnp.split(h @ jnp.concatenate(wh, 1) + jnp.concatenate(b), 4, -1)
        i, f, g, o = (a + s for a, s in zip(jnp.split(x @ jnp.concatenate(wx, 1), 4, -1), own, strict=True))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], W), xs.dtype)
    return lax.scan(cell, (zero, zero), xs)[1]


def batch_first(w, u, xs):
    """The iterations cut the second dimension, and the result is put together along it."""

    def body(i, carry):
        h, ys = carry
        h = jnp.tanh(lax.dynamic_index_in_dim(xs, i, 1, False) @ w + h)
        return h, lax.dynamic_update_index_in_dim(ys, h @ u, i, 1)

    start = jnp.zeros((xs.shape[0], W)), jnp.zeros((*xs.shape[:2], W))
    return lax.fori_loop(0, xs.shape[1], body, start)[1]


XS = normal(STEPS, BATCH, W, seed=1)
LSTM = normal(2 * W, 4 * W) * 0.5, normal(4 * W, seed=3), XS
GRU = normal(W, 3 * W), normal(W, 3 * W, seed=2), normal(3 * W, seed=3), XS
GATES = [tuple(normal(*shape, seed=10 * n + i) for i in range(4)) for n, shape in enumerate([(W, W), (W, W), (W,)])]


def gradient(function, over):
    return jax.grad(lambda *args: (function(*args) ** 2).sum(), over)


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm(reverse) -> None:
    """One product of the state is left in each step; forwards and backwards."""
    assert inside(results(lambda *a: lstm(*a, reverse=reverse), *LSTM)) == [1]
    for over in ((0, 1), (0, 1, 2)):
        after = results(gradient(lambda *a: lstm(*a, reverse=reverse), over), *LSTM)
        assert inside(after) == [1, 1]
        assert inside(after, "reduce") == [0, 0]


def test_gru() -> None:
    assert inside(results(gru, *GRU)) == [1]
    assert inside(results(gradient(gru, (0, 1, 2, 3)), *GRU)) == [1, 1]


def test_kernels_put_together_in_the_cell() -> None:
    flat = [a for group in GATES for a in group]
    function = lambda *a: several_kernels(a[:4], a[4:8], a[8:12], a[12])  # noqa: E731
    assert inside(results(function, *flat, XS)) == [1]
    assert inside(results(gradient(function, tuple(range(13))), *flat, XS)) == [1, 1]


def test_other_dimensions() -> None:
    assert inside(results(batch_first, normal(W, W), normal(W, W, seed=5), XS)) == [0]


A, B = normal(5, 3, 4), normal(5, 3, 2, seed=7)


def total(a, b):
    return lax.fori_loop(0, 5, lambda i, c: c + a[i].T @ b[i], jnp.ones((4, 2), a.dtype))


def total_backwards(a, b):
    """One of the two is read from its end."""
    return lax.fori_loop(0, 5, lambda i, c: a[4 - i].T @ b[i] + c, jnp.zeros((4, 2)))


def two_terms(a, b):
    def body(i, c):
        s, h = c
        h = jnp.sin(h + a[i])
        return (s + a[i].T @ b[i]) + (h.T @ b[i] + h.sum()), h

    return lax.fori_loop(0, 5, body, (jnp.ones((4, 2)), a[0]))[0]


def nested(a, b):
    """The products of both loops become one."""
    inner = lambda c, x: (c + x[0].T @ x[1], None)  # noqa: E731
    pairs = jnp.stack([a, a * 2]), jnp.stack([b, b + 1])
    return lax.scan(lambda c, x: (lax.scan(inner, c, x)[0], None), jnp.zeros((4, 2)), pairs)[0]


def batches(a, b):
    """A product with a batch of its own, of narrow sums in a wide total."""
    start = jnp.zeros((3, 4, 2), jnp.float32)
    return lax.fori_loop(0, 5, lambda i, c: c + jnp.einsum("bi,bj->bij", a[i], b[i]), start)


@pytest.mark.parametrize("function", [total, total_backwards, two_terms, nested, batches], ids=lambda f: f.__name__)
def test_totals(function) -> None:
    assert sum(inside(results(function, A, B))) == 0


def test_types() -> None:
    """Integers are exact, also where they wrap around; narrow floats are rounded once, not in each step."""
    whole = [np.random.RandomState(k).randint(-(1 << 20), 1 << 20, (5, 3, 4), np.int32) for k in range(2)]
    before = simplify(graph(total_of_ints, *whole))
    after = loop_products(before)
    assert inside(after) == []
    np.testing.assert_array_equal(evaluate_block(after, whole)[0], evaluate_block(before, whole)[0])
    narrow = [normal(200, 3, 4).astype(jnp.bfloat16), normal(200, 3, 2, seed=7).astype(jnp.bfloat16)]
    exact = np.einsum("tbi,tbj->ij", *(a.astype(np.float64) for a in narrow))
    errors = []
    for block in (before := simplify(graph(total_of_narrow, *narrow)), loop_products(before)):
        errors.append(np.abs(evaluate_block(block, narrow)[0].astype(np.float64) - exact).max())
    assert errors[1] < errors[0] / 2


def total_of_ints(a, b):
    return lax.fori_loop(0, 5, lambda i, c: c + a[i].T @ b[i], jnp.full((4, 4), 1 << 30, jnp.int32))


def total_of_narrow(a, b):
    return lax.fori_loop(0, 200, lambda i, c: c + a[i].T @ b[i], jnp.zeros((4, 2), a.dtype))


def read_in_the_loop(a, b):
    return lax.scan(lambda c, x: (c + x[0].T @ x[1], c.sum()), jnp.zeros((4, 2)), (a, b))


def read_by_the_condition(a, b):
    def body(c):
        i, s = c
        return i + 1, s + a[i].T @ b[i]

    return lax.while_loop(lambda c: (c[0] < 5) & (c[1][0, 0] < 100), body, (0, jnp.zeros((4, 2))))[1]


def scaled(a, b):
    return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + a[i].T @ b[i], jnp.zeros((4, 2)))


def added_twice(a, b):
    return lax.fori_loop(0, 5, lambda i, c: c + c + a[i].T @ b[i], jnp.zeros((4, 2)))


def used_elsewhere(a, b):
    def body(i, c):
        s, h = c
        p = a[i].T @ (b[i] + h)
        return s + p, jnp.tanh(p[:3])

    return lax.fori_loop(0, 5, body, (jnp.zeros((4, 2)), b[0]))


@pytest.mark.parametrize(
    "function", [read_in_the_loop, read_by_the_condition, scaled, added_twice, used_elsewhere], ids=lambda f: f.__name__
)
def test_totals_that_stay(function) -> None:
    """What they need of each step may be computed before the loop; what they add up is added up in it."""
    before = simplify(graph(function, A, B))
    after = results(function, A, B)
    sums = [[op for op in b.walk() if op.name == "add" and op.result.shape == (4, 2)] for b in (before, after)]
    assert len(sums[0]) == len(sums[1]) and inside(after, "add")[0] > 0
    if function is used_elsewhere:
        assert inside(after) == [1]


def test_indices_that_are_clamped() -> None:
    """The last steps read the same part again, as XLA moves indices inside the bounds."""

    def clamped(a, b):
        cut = lambda i: lax.dynamic_slice(a, (i + 2, 0, 0), (1, 3, 4))[0]  # noqa: E731
        return lax.fori_loop(0, 5, lambda i, c: c + cut(i).T @ b[i], jnp.zeros((4, 2)))

    results(clamped, A, B)
    # in bounds it is one product
    within = lambda a, b: lax.fori_loop(0, 3, lambda i, c: c + a[i + 2].T @ b[4 - i], jnp.zeros((4, 2)))  # noqa: E731
    assert inside(results(within, A, B)) == []


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_few_steps(steps) -> None:
    results(lambda a, b: lax.fori_loop(0, steps, lambda i, c: c + a[i].T @ b[i], jnp.ones((4, 2))), A, B)
    results(lstm, *LSTM[:2], XS[:steps])


def test_what_is_not_a_number_goes_where_it_went() -> None:
    a = A.copy()
    a[2, 1, 3], a[4, 0, 0] = np.nan, np.inf
    before = simplify(graph(total, a, B))
    got, want = (evaluate_block(block, [a, B])[0] for block in (loop_products(before), before))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


def projected(w, u, xs):
    """The output of each step is read by nobody in the loop."""

    def cell(h, x):
        h = jnp.tanh(x + h @ w)
        return h, jnp.tanh(h @ u + 1)

    return lax.scan(cell, jnp.zeros((BATCH, W)), xs, reverse=True)


def test_outputs_are_multiplied_after_the_loop() -> None:
    after = results(projected, normal(W, W), normal(W, 7, seed=2), XS)
    assert inside(after) == [1]
    after = results(gradient(lambda *a: projected(*a)[1], (0, 1, 2)), normal(W, W), normal(W, 7, seed=2), XS)
    assert inside(after) == [1, 1]


def test_memory_is_bounded(monkeypatch) -> None:
    for module in (products_before, products_plan):
        monkeypatch.setattr(module, "BYTES", 100)
    assert inside(results(gradient(lstm, (0, 1)), *LSTM)) == [1, 2]


def test_small_ones_stay() -> None:
    assert inside(results(lstm, *LSTM)) == [1]
    assert inside(results(gradient(lstm, (0, 1)), *LSTM)) == [1, 2]


def test_what_follows_from_another_result_is_not_kept() -> None:
    """1 - y² beside y, which a gradient wants, is computed from y where it is read."""

    def function(xs):
        def cell(h, x):
            y = jnp.tanh(h + x)
            return y, (y, 1 - y * y, -h)

        ys, slopes, others = lax.scan(cell, xs[0], xs)[1]
        return lax.scan(lambda c, x: (jnp.sin(c * x[0]) + x[1], None), xs[1], (slopes, ys), reverse=True)[0], others

    after = results(function, XS)
    assert inside(after, "dynamic_update_slice") == [2, 0]
    assert inside(after, "dynamic_slice") == [1, 1]
    both = results(lambda xs: function(xs) + (lax.cumsum(xs),), XS)
    assert inside(both, "dynamic_update_slice") == [2, 0]


def test_large_results_of_products_go_although_their_states_are_small(monkeypatch) -> None:
    """What is bounded is what a loop keeps in addition, not the results that it has anyway."""
    monkeypatch.setattr(products_plan, "BYTES", 4 * STEPS * BATCH * W)
    monkeypatch.setattr(steps, "BYTES", 0)
    args = normal(W, W), normal(W, 70, seed=2), XS
    assert inside(results(projected, *args)) == [1]
