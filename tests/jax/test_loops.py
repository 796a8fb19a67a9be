"""Loops that become kernels (passes/control.py): lengths that are known and not, all widths, values from outside."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax

SHAPES = [(), (1,), (5,), (16,), (37,), (3, 130), (1000,), (2053,)]
DTYPES = ["float32", "bfloat16", "float16", "int8", "int32", "uint16", "complex64", "bool"]


def start(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.RandomState(len(shape) + sum(shape))
    x = random.uniform(-2, 2, shape) * (20 if "int" in dtype else 1)
    return np.asarray(
        x > 0 if dtype == "bool" else x + 1j * x[..., ::-1] if "complex" in dtype and shape else x
    ).astype(jnp.dtype(dtype))


def step(x: jax.Array, y: jax.Array) -> jax.Array:
    if x.dtype == bool:
        return x ^ y
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x * 3 + y
    return x * x.dtype.type(0.5) + y


def agree(function, *args: np.ndarray) -> None:
    """On Ferrule as with every op by itself on XLA's CPU backend: nothing is contracted or put in another order."""
    got = jax.tree.leaves(jax.jit(function)(*args))
    with jax.disable_jit(), jax.default_device(jax.devices("cpu")[0]):
        want = jax.tree.leaves(function(*(jnp.asarray(a) for a in args)))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(
            np.asarray(g).astype(np.complex64), np.asarray(w).astype(np.complex64), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_counted(device: jax.Device, shape: tuple[int, ...], dtype: str) -> None:
    x, y = start(shape, dtype), start(shape, dtype)[..., ::-1] if shape else start(shape, dtype)
    agree(lambda x, y: lax.fori_loop(0, 21, lambda i, c: step(c, y).reshape(c.shape), x), x, np.array(y))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_until_a_scalar_says_so(device: jax.Device, shape: tuple[int, ...]) -> None:
    """Scalars and arrays are carried together, in another order in the results; one is only handed through."""

    def function(x, y, n):
        def body(c):
            n, x, total, y = c
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), x + jnp.sin(y) * n, total + n, y

        n, x, total, y = lax.while_loop(lambda c: c[0] != 1, body, (n, x, jnp.float32(0), y))
        return total, y, x, n

    agree(function, start(shape, "float32"), start(shape, "float32") + 1, np.int32(97))
    agree(function, start(shape, "float32"), start(shape, "float32") + 1, np.int32(1))  # no iteration


def test_within_a_loop_that_stays(device: jax.Device) -> None:
    def outer(i, c):
        x, k = c
        x, _ = lax.while_loop(lambda s: s[1] < k, lambda s: (s[0] * 0.5 + i, s[1] + 1), (x, jnp.int32(0)))
        return x[::-1].cumsum(), k + 1

    agree(lambda x: lax.fori_loop(0, 12, outer, (x, jnp.int32(0))), start((37,), "float32"))


def test_what_the_elements_share(device: jax.Device) -> None:
    """A captured scalar, a broadcast, an iota; two arrays that take each other's place."""

    def function(x, scale):
        def body(i, c):
            a, b = c
            return b * scale + jnp.arange(130, dtype=jnp.float32), jnp.broadcast_to(scale * i, (3, 130)) - a

        return lax.fori_loop(0, 30, body, (x, x + 1))

    agree(function, start((3, 130), "float32"), np.float32(0.25))


def test_a_long_loop_does_not_hold_the_caller(device: jax.Device) -> None:
    """A kernel may run for long whatever its sizes: the call returns before."""
    import time

    run = jax.jit(lambda x, n: lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) + 1, c[1] + 1), (x, 0))[0])
    jax.block_until_ready(run(np.float32(1), np.int32(1)))
    begin = time.perf_counter()
    result = run(np.float32(1), np.int32(10_000_000))
    called = time.perf_counter() - begin
    jax.block_until_ready(result)
    assert called < 0.5 * (time.perf_counter() - begin)


@pytest.mark.parametrize("size, steps", [(64, 1_000_000), (300_000, 600)])
def test_nor_one_that_was_short_and_waited_for(device: jax.Device, size: int, steps: int) -> None:
    import time

    run = jax.jit(lambda x, n: lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) + 1, c[1] + 1), (x, 0))[0])
    x = jax.device_put(np.ones(size, np.float32))
    for _ in range(12):
        jax.block_until_ready(run(x, np.int32(1)))
    begin = time.perf_counter()
    result = run(x, np.int32(steps))
    called = time.perf_counter() - begin
    jax.block_until_ready(result)
    assert called < 0.5 * (time.perf_counter() - begin)


def inner(x):
    """Three steps of a loop whose length the compiler does not know."""
    few = 3 * (jnp.ravel(x)[0] > 0).astype(int)
    return lax.while_loop(lambda c: c[1] < few, lambda c: (c[0] + 1, c[1] + 1), (x, 0))[0] - 2


@pytest.mark.parametrize("kind", ["scalar", "vector", "product", "nested", "nested vectors", "branch"])
def test_runs_that_turn_out_long(device: jax.Device, kind: str) -> None:
    """A loop that was short is tried on the caller's thread, and starts anew elsewhere when it is long this time."""
    step = {
        "scalar": lambda x: x + 1,
        "vector": lambda x: x + 1,
        "product": lambda x: x @ jnp.eye(8, dtype=x.dtype) + 1,
        "nested": inner,
        "nested vectors": inner,
        "branch": lambda x: lax.cond(x.sum() > 0, lambda: x + 1, lambda: x + 2),
    }[kind]
    start = np.ones({"scalar": (), "nested": (), "product": (8, 8)}.get(kind, 64), np.float32)
    run = jax.jit(lambda x, n: lax.while_loop(lambda c: c[1] < n, lambda c: (step(c[0]), c[1] + 1), (x, 0)))
    long = 3000 if device.platform == "xpu" else 30_000  # there nothing is tried, and each step is a command
    for n in (2, 2, long, 3, 3, long, 0):
        x, count = run(start, np.int32(n))
        assert (np.asarray(x) == 1 + n).all() and count == n


def rows(x):
    def body(i, x):
        row = lax.dynamic_slice(x, (i - 1, 0), (1, x.shape[1]))
        return lax.dynamic_update_slice(x, row * x.dtype.type(2) + x.dtype.type(1), (i, 0))

    return lax.fori_loop(1, x.shape[0], body, x)


def stacked(x):
    return lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(x.shape[1], x.dtype), x)


def backwards(x):
    return lax.scan(lambda c, r: (c * r, c - r), jnp.ones(x.shape[1], x.dtype), x, reverse=True)


def scattered(x):
    """Reads and writes elements; two arrays take each other's place; the end depends on the data."""

    def body(c):
        x, y, i, n = c
        at = (i * 7 + 3) % x.shape[0]
        return y.at[at].add(x[i % x.shape[0]]), x, i + 1, n + (i % 3)

    return lax.while_loop(lambda c: c[3] < 60, body, (x, x * x.dtype.type(3), jnp.int32(0), jnp.int32(0)))[:3]


def looked_up(x):
    """The second loop's condition reads an array; it lies within a loop that the host runs."""

    def outer(i, c):
        found = lax.while_loop(lambda k: (k < 39) & (x[k, 0] < x[k + 1, 0]), lambda k: k + 1, i)
        return lax.rev(c, (0,)) + found.astype(x.dtype)

    return lax.fori_loop(0, 9, outer, x[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32", "complex64"])
@pytest.mark.parametrize("function", [rows, stacked, backwards, scattered, looked_up], ids=lambda f: f.__name__)
def test_small_kernels_in_turn(device: jax.Device, function, dtype: str) -> None:
    if function is looked_up and dtype == "complex64":
        pytest.skip("complex numbers have no order")
    x = start((40, 19), dtype) if dtype == "int8" else start((40, 19), dtype) / 2
    agree(function, np.asarray(x, jnp.dtype(dtype)))


@pytest.mark.parametrize("width", [5, 40])
def test_branches_in_a_loop_of_steps(device: jax.Device, width: int) -> None:
    """Branches, with loops in them and in the branches of others; the number of a branch is out of range."""

    def until(c):
        return lax.while_loop(lambda c: jnp.abs(c[0]).max() > 0.1, lambda c: (c[0][::-1] * 0.5, c[1] + 1), (c, 0))[0]

    def body(i, c):
        c = lax.cond(c[0] > c[1], lambda c: c * 0.5, lambda c: c[::-1] + 0.25, c)
        which = lambda c: [c, c + 1, c[::-1] * 0.5, until(c)]  # noqa: E731
        return lax.switch(i % 7 - 1, [lambda c, k=k: which(c)[k] for k in range(4)], c)

    agree(lambda x: lax.fori_loop(0, 40, body, x), start((width,), "float32"))


def test_loops_in_a_loop_of_steps(device: jax.Device) -> None:
    def inner(j, c):
        return c.at[j].set(c.sum() * 0.1)

    def body(c, x):
        c = lax.fori_loop(0, 3, inner, c + x)
        c = lax.while_loop(lambda c: c.max() > 1, lambda c: c[::-1] * 0.5, c)
        return lax.cond(c[0] > 0.1, lambda c: lax.fori_loop(0, 9, inner, c), lambda c: c[::-1] * 2, c), c.sum()

    agree(lambda x: lax.scan(body, x[0], x), start((20, 12), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_a_state_in_parts(device: jax.Device, dtype: str) -> None:
    """Systems of equations, whose state is stacked: each part is a carry of its own (passes/split.py)."""

    def slope(s):
        x, y, z = s
        return jnp.stack([y - x, x * (1 - z) - y, x * y - z])

    def step(s, _):
        return s + s.dtype.type(0.05) * slope(s + s.dtype.type(0.025) * slope(s)), s[0]

    for width in (1, 40, 3000):
        agree(lambda s: lax.scan(step, s, None, length=20), start((3, width), dtype) * 0.2)


@pytest.mark.parametrize("trips", [8, 9, 10, 33])
def test_places_that_change_roles(device: jax.Device, trips: int) -> None:
    """Carries that cannot be computed in place: odd and even numbers of steps, several at once, within other loops."""

    def turned(i, c):
        return c[::-1] * 0.5 + c.sum() * 0.001 + i * 0.01

    def several(i, c):
        x, y, z = c
        return y[::-1] * 0.5, x[::-1] + z * 0.25, jnp.roll(x, 2) * 0.5 + y

    def outer(i, c):
        c = lax.fori_loop(0, trips, turned, c)
        return lax.cond(c[0] > c[1], lambda c: lax.fori_loop(0, trips + 1, turned, c), lambda c: c[::-1] - 1, c[::-1])

    def until(c):
        return turned(c[1], c[0]), c[1] + 1

    x = start((300,), "float32")
    agree(lambda x: lax.fori_loop(0, trips, turned, x), x)
    agree(lambda x: lax.fori_loop(0, trips, several, (x, x * 2, x - 1)), x)
    agree(lambda x: lax.fori_loop(0, trips, outer, x), x)
    agree(lambda x, n: lax.while_loop(lambda c: c[1] < n, until, (x, 0)), x, np.int32(trips))
    agree(lambda x: lax.scan(lambda c, x: (turned(0, c) + x, c[::-1]), x[0], x)[1], start((trips, 20), "float32"))


@pytest.mark.parametrize("trips", [2, 3, 8])
def test_a_carry_that_becomes_what_was_computed_before_the_loop(device: jax.Device, trips: int) -> None:
    """Its place is read in every iteration: it must not change roles with the carry's."""

    def body(c, x):
        a, b = c
        new = jnp.exp(jnp.sin(b[::-1]))
        return (new, b), new * 2 + a.sum() * 0.001 + x

    def nested(i, c):
        a, b = lax.fori_loop(0, trips, lambda j, c: body(c, 0.0)[0], c)
        return jnp.tanh(b + a * 0.1), b * 0.9 + a[0] * 0.01

    x = start((40,), "float32")
    agree(lambda x, xs: lax.scan(body, (x, x * 2), xs), x, start((trips, 40), "float32"))
    agree(lambda x: lax.fori_loop(0, trips, nested, (x, x - 1)), x)


@pytest.mark.parametrize("steps", [3, 4, 7, 12])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_large_states_change_places(device: jax.Device, steps: int, dtype: str) -> None:
    """Of stencils, of methods that keep one or two states before, and in place (passes/alternate.py)."""
    x = (start((517, 300), dtype) * 0.1).astype(dtype)
    half = np.asarray(1 if dtype == "int32" else 0.5, dtype)

    def around(u):
        return jnp.roll(u, 1, 0) - jnp.roll(u, -1, 1)

    def body(i, c):
        u, before, v, w, x, y, z = c
        return u - before + around(u) * half, u, v * half + around(v), w + 1, y + around(z), x, y

    agree(lambda x: lax.fori_loop(0, steps, body, (x, x + 1, x, x, x, x, x + 1)), x)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_states_with_one_value(device: jax.Device, steps: int, which: tuple[int, ...]) -> None:
    """Several states become the same value, which is not computed in the place of any; some are read after the loop."""

    def turned(i, c):
        new = jnp.flip(c[2]) * 2 + 1
        return new, new, new

    def nested(i, c):
        new = lax.fori_loop(0, i + 1, turned, (c[1], c[1], c[1]))[1]
        return new, new, new

    x = start((23,), "float32")
    for body in (turned, nested):
        agree(lambda x, n, body=body: [lax.fori_loop(0, n, body, (x, x, x))[k] + 1 for k in which], x, np.int32(steps))
        agree(lambda x, body=body: [lax.fori_loop(0, steps, body, (x, x + 1, x))[k] for k in which], x)
