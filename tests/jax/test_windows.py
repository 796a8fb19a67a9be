"""Long windows and the gradient of max pooling, which are computed in steps (passes/windows.py)."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo
from test_finish import steps

import jax
from ferrule.codegen.scan import direction
from ferrule.ir import tensor
from ferrule.passes.simplify import simplify
from ferrule.passes.windows import windows
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.reader import read
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block
from jax import lax


def graph(function, *args):
    """As Ferrule's rules write it: XLA's pad what is pooled, and then lose the gradient of a NaN at an edge."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",)).compiler_ir("stablehlo")
    code = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    return import_module(legalize(read(code, "mlir"))).main.body


OPS = {"max": (lax.max, -np.inf, np.maximum), "min": (lax.min, np.inf, np.minimum), "add": (lax.add, 0, np.add)}


def ferrule(function, *args):
    with jax.default_device(jax.devices("ferrule")[0]):
        return np.asarray(jax.jit(function)(*args))


def special(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Ties, zeros of both signs, infinities, and a few NaN."""
    random = np.random.default_rng(1)
    x = random.integers(-5, 6, shape) * np.float32(random.choice([-1, 1]))
    x = np.where(x == 0, random.choice([-0.0, 0.0], shape), x)
    for value, share in ((np.inf, 0.001), (-np.inf, 0.001), (np.nan, 0.001)):
        x = np.where(random.random(shape) < share, value, x)
    return x.astype(dtype)


def slid(kind, x, window, strides, padding, dtype=np.float64):
    """The meaning, in f64, by all of each window."""
    _, init, ufunc = OPS[kind]
    full = np.pad(x.astype(dtype), padding, constant_values=init)
    views = np.lib.stride_tricks.sliding_window_view(full, window)
    views = views[tuple(slice(None, None, s) for s in strides)]
    with np.errstate(invalid="ignore"):
        return ufunc.reduce(views, axis=tuple(range(x.ndim, 2 * x.ndim)))


# shape, window, strides, padding
FORMS = {
    "line": ((3000,), (100,), (1,), ((0, 0),)),
    "multiples": ((640,), (64,), (1,), ((0, 0),)),
    "one window": ((20000,), (20000,), (1,), ((0, 0),)),
    "padded": ((1500,), (77,), (1,), ((38, 38),)),
    "wide edges": ((200,), (100,), (1,), ((99, 250),)),
    "steps": ((4000,), (100,), (7,), ((3, 5),)),
    "steps that divide": ((9000,), (96,), (16,), ((0, 0),)),
    "blocks": ((25600,), (128,), (128,), ((0, 0),)),
    "rows": ((9, 333), (1, 70), (1, 1), ((0, 0), (35, 34))),
    "columns": ((333, 9), (70, 1), (2, 1), ((0, 69), (0, 0))),
    "square": ((40, 50), (11, 9), (1, 2), ((5, 5), (4, 4))),
    "long and short": ((90, 50), (65, 3), (1, 1), ((0, 0), (1, 1))),
    "few channels": ((2, 40, 41, 3), (1, 5, 4, 1), (1, 1, 1, 1), ((0, 0), (2, 2), (1, 2), (0, 0))),
    "few channels in steps": ((2, 40, 41, 3), (1, 3, 2, 1), (1, 2, 2, 1), ((0, 0), (0, 2), (1, 0), (0, 0))),
    "few columns": ((4000, 7), (5, 1), (1, 1), ((4, 0), (0, 0))),
    "many channels": ((2, 20, 21, 24), (1, 3, 3, 1), (1, 1, 1, 1), ((0, 0), (1, 1), (1, 1), (0, 0))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", OPS)
def test_long_windows(form, kind):
    shape, window, strides, padding = FORMS[form]
    op, init, _ = OPS[kind]

    def function(x):
        return lax.reduce_window(x, np.array(init, x.dtype), op, window, strides, padding)

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) if kind == "add" else special(*shape)
    want = slid(kind, x, window, strides, padding)
    got = ferrule(function, x)
    whole = form in ("blocks", "one window")  # nothing is read twice: added up one by one
    if kind == "add":
        near = 1e-5 if whole else 1e-6
        np.testing.assert_allclose(got, want, rtol=near, atol=2e-1 * near * np.prod(window) ** 0.5)
    else:
        np.testing.assert_array_equal(got, want)
        if max(window) > 5:  # one loop over a window keeps either of two zeros
            np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected_zero(function, x)[got == 0]))
    steps = windows(simplify(graph(function, x)))
    left = [o for o in steps.ops if o.name == "reduce_window" and direction(o) is None]
    if whole:
        assert len(steps.ops) == len(simplify(graph(function, x)).ops)
    else:
        assert max((max(o.attrs["window_dimensions"]) for o in left), default=0) < 64


def test_rows_of_few_channels_are_joined_to_long_ones():
    """A neighbour is then three elements away; and windows along two dimensions are one along each."""

    def function(x):
        return lax.reduce_window(x, 0.0, lax.add, (1, 5, 4, 1), (1, 1, 1, 1), "SAME")

    x = np.random.default_rng(0).standard_normal((2, 30, 40, 3)).astype(np.float32)
    steps = [o for o in windows(simplify(graph(function, x))).ops if o.name == "reduce_window"]
    assert [o.operands[0].shape for o in steps] == [(2, 30, 120)] * 2
    assert [o.attrs["window_dimensions"] for o in steps] == [(1, 5, 1), (1, 1, 4)]
    assert steps[1].attrs["window_dilations"] == (1, 1, 3)
    assert tuple(map(tuple, steps[1].attrs["padding"])) == ((0, 0), (0, 0), (3, 6))


# What is reduced, from how many channels, in which windows, and whether one kernel does, with registers of 64 bytes and
# of 32.
AT_ONCE = [
    ("add", "f4", 64, (3, 3), lambda x: x, (True, True)),
    ("add", "f4", 64, (4, 4), lambda x: x, (True, True)),
    ("add", "f4", 64, (5, 4), lambda x: x, (False, False)),
    ("add", "f4", 3, (5, 3), lambda x: x, (True, True)),
    ("add", "f4", 3, (4, 4), lambda x: x, (False, False)),
    ("add", "f4", 64, (3, 3), lambda x: jnp.maximum(x, 0), (True, True)),
    ("add", "f4", 64, (3, 3), lambda x: jnp.maximum(x * 2 + 1, 0), (False, False)),
    ("add", "f4", 64, (3, 3), jnp.tanh, (True, True)),  # written first
    ("add", "f4", 64, (3, 3), lambda x: x.transpose(0, 2, 1, 3), (True, True)),
    ("add", "f4", 3, (3, 3), lambda x: x.transpose(0, 2, 1, 3), (False, False)),
    ("add", "i4", 64, (3, 3), lambda x: x, (True, True)),
    ("add", "f2", 64, (3, 3), lambda x: x, (False, False)),
    ("max", "f4", 64, (3, 3), lambda x: x, (True, False)),
    ("max", "f4", 64, (2, 2), lambda x: x, (True, True)),
    ("max", "f4", 64, (4, 3), lambda x: x, (False, False)),
    ("max", "f4", 3, (2, 2), lambda x: x, (True, False)),
    ("max", "f4", 3, (3, 2), lambda x: x, (False, False)),
    ("max", "i1", 64, (2, 2), lambda x: x, (False, False)),
]


@pytest.mark.parametrize("kind, dtype, channels, window, before, expected", AT_ONCE)
def test_small_windows_are_read_at_once(kind, dtype, channels, window, before, expected):
    """Two dimensions one after the other would write the array in between."""
    op, init, _ = OPS[kind]
    x = np.random.default_rng(0).integers(-5, 6, (2, 30, 32, channels)).astype(dtype)
    start = np.iinfo(dtype).min if kind == "max" and "i" in dtype else init

    def function(x):
        return lax.reduce_window(before(x), x.dtype.type(start), op, (1, *window, 1), (1, 1, 1, 1), "SAME")

    block = simplify(graph(function, x))
    counts = [
        sum(o.name == "reduce_window" for o in windows(block, replace(host(), vector_bytes=size)).ops)
        for size in (64, 32)
    ]
    assert [n == 1 for n in counts] == list(expected)
    (want,) = evaluate_block(block, [x])
    np.testing.assert_allclose(ferrule(function, x), want, atol=0 if before is not jnp.tanh else 1e-5)


def test_no_elements():
    for shape, window in (((0, 30, 3), (1, 3, 1)), ((4, 30, 0), (1, 3, 1)), ((4, 0, 3), (1, 1, 1))):
        x = np.ones(shape, np.float32)
        got = ferrule(lambda x, w=window: lax.reduce_window(x, 0.0, lax.add, w, (1, 1, 1), "SAME"), x)
        assert got.shape == shape


def expected_zero(function, x):
    return np.asarray(evaluate_block(simplify(graph(function, x)), [x])[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32", "int8"])
def test_dtypes(dtype):
    x = (np.random.default_rng(0).standard_normal(2000) * 3).astype(jnp.dtype(dtype))
    for kind in ("max", "add"):
        op, init, _ = OPS[kind]
        init = np.iinfo(dtype).min if kind == "max" and "int" in dtype else init
        with jax.enable_x64(True):
            got = ferrule(
                lambda x, o=op, i=init: lax.reduce_window(x, np.array(i, x.dtype), o, (90,), (1,), "VALID"), x
            )
        want = slid(kind, x, (90,), (1,), ((0, 0),))
        if kind == "add" and dtype == "int8":
            want = want.astype(np.int64).astype(np.int8)
        near = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 1e-12}.get(dtype, 0)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=near, atol=1e-4 * near)


def test_sums_lose_nothing_to_what_left_the_window():
    """A large number in an early window does not spoil the later ones, as it does in differences of totals."""
    x = np.ones(4000, np.float32)
    x[5] = 1e30
    got = ferrule(lambda x: lax.reduce_window(x, 0.0, lax.add, (100,), (1,), "VALID"), x)
    np.testing.assert_array_equal(got[6:], 100)


POOLS = {
    "2 by 2": ((2, 64, 64, 8), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "3 by 3": ((2, 41, 43, 8), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "steps of one": ((2, 30, 31, 5), (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    "few channels": ((2, 40, 41, 3), (1, 5, 5, 1), (1, 1, 1, 1), "SAME"),
    "gaps": ((2, 90, 91, 3), (1, 2, 2, 1), (1, 3, 3, 1), "VALID"),
    "channels first": ((2, 6, 50, 52), (1, 1, 3, 2), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 2), (0, 1))),
    "many around": ((100, 100), (9, 9), (1, 1), "SAME"),
    "line": ((20000,), (3,), (2,), "VALID"),
}


@pytest.mark.parametrize("form", POOLS)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_gradients_of_pooling(form, kind):
    shape, window, strides, padding = POOLS[form]
    op, init, _ = OPS[kind]

    def function(x, g):
        return jax.vjp(lambda x: lax.reduce_window(x, init, op, window, strides, padding), x)[1](g)[0]

    x = special(*shape)
    place = jax.eval_shape(lambda x: lax.reduce_window(x, init, op, window, strides, padding), x)
    g = np.random.default_rng(2).integers(1, 50, place.shape).astype(np.float32)  # sums in any order are exact
    block = simplify(graph(function, x, g))
    (want,) = evaluate_block(block, [x, g])
    np.testing.assert_array_equal(ferrule(function, x, g), want)
    (op_,) = [o for o in windows(block).ops if o.name == "select_and_scatter"]
    assert len(op_.operands) == 4 and tensor(op_.operands[3]).dtype.name == "i32"


MEANS = {
    "even": ((2, 30, 32, 5), (1, 2, 2, 1), "VALID", True),
    "with a rest": ((2, 31, 34, 3), (1, 2, 3, 1), "VALID", True),
    "with edges": ((2, 31, 34, 3), (1, 4, 3, 1), "SAME", True),
    "line": ((5000,), (7,), "VALID", True),
}


@pytest.mark.parametrize("form", MEANS)
def test_gradients_of_means_over_parts(form):
    """Each element of the gradient is repeated over its part."""
    shape, window, padding, repeated = MEANS[form]

    def sums(x):
        return lax.reduce_window(x, 0.0, lax.add, window, window, padding)

    def function(x, g):
        return jax.vjp(sums, x)[1](g)[0]

    x = special(*shape)
    g = special(*jax.eval_shape(sums, x).shape)
    block = simplify(graph(function, x, g))
    (want,) = evaluate_block(block, [x, g] if len(block.args) == 2 else [g])
    got = ferrule(function, x, g)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))
    names = [o.name for o in windows(block).ops]
    assert ("reduce_window" not in names) is repeated


def test_windows_over_gaps():
    """Written as StableHLO has it, with a dilation; a maximum has its own start."""
    x = special(60, 70)
    for window, base, low, high, repeated in (
        ((3, 2), (3, 2), (2, 1), (2, 1), True),
        ((3, 2), (3, 2), (2, 1), (6, 1), True),
        ((3, 2), (3, 2), (1, 1), (2, 1), True),
        ((3, 2), (3, 2), (5, 0), (0, 3), True),
        ((3, 2), (4, 2), (2, 1), (2, 1), False),
    ):
        for kind in OPS:
            op, init, _ = OPS[kind]

            def function(x, op=op, init=init, window=window, base=base, low=low, high=high):
                padding = tuple(zip(low, high, strict=True))
                return lax.reduce_window(x, np.float32(init), op, window, (1, 1), padding, base_dilation=base)

            block = simplify(graph(function, x))
            (want,) = evaluate_block(block, [x])
            np.testing.assert_array_equal(ferrule(function, x), want)
            names = [o.name for o in windows(block).ops]
            assert ("reduce_window" not in names) is repeated


def test_gradients_of_other_types():
    def function(x, g):
        return jax.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), x)[1](g)[
            0
        ]

    for dtype in (jnp.bfloat16, np.float16):
        x = special(2, 64, 64, 8).astype(dtype)
        g = np.random.default_rng(2).integers(1, 50, (2, 32, 32, 8)).astype(dtype)
        (want,) = evaluate_block(simplify(graph(function, x, g)), [x, g])
        np.testing.assert_array_equal(ferrule(function, x, g).astype(np.float32), want.astype(np.float32))


def scaled(x):
    return jnp.maximum(x * jnp.arange(1, 1 + x.shape[-1], dtype=np.float32) - 2, 0)


def costly(x):
    return jax.nn.gelu(scaled(x))


# What is reduced, the window, its strides, and how many kernels there are: an element that is in several windows is
# computed again in each while that is less than to write it and read it again.
BEFORE = [
    (scaled, (2, 2), (2, 2), 1),
    (scaled, (3, 3), (2, 2), 1),
    (costly, (2, 2), (2, 2), 1),
    (costly, (2, 2), (3, 2), 1),
    (costly, (5, 5), (1, 1), 3),  # windows of each dimension, one after the other
    (lambda x: scaled(x.transpose(0, 2, 3, 1) * 3 + 1), (2, 2), (2, 2), 1),
    (lambda x: scaled(x) + jnp.sum(x, 2, keepdims=True), (2, 2), (2, 2), 2),
]


@pytest.mark.parametrize("kind", ["max", "add"])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("before, window, strides, kernels", BEFORE)
def test_producers_are_computed_on_the_way(before, window, strides, kernels, padding, kind):
    op, init, _ = OPS[kind]

    def function(x):
        return lax.reduce_window(before(x), np.float32(init), op, (1, *window, 1), (1, *strides, 1), padding)

    x = special(2, 24, 28, 32)
    assert steps(function, x).count("launch") == kernels
    (want,) = evaluate_block(simplify(graph(function, x)), [x])
    exact = before is scaled and kind == "max"
    np.testing.assert_allclose(ferrule(function, x), want, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4)


def test_a_producer_that_others_read():
    """The gradient of a network's pooling reads what was pooled, too: it may be computed again in each."""

    def function(x, g):
        def pooled(x):
            return lax.reduce_window(scaled(x), -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

        y, back = jax.vjp(pooled, x)
        return y, back(g)[0]

    x, g = special(2, 24, 28, 32), special(2, 12, 14, 32)
    want = evaluate_block(simplify(graph(function, x, g)), [x, g])
    with jax.default_device(jax.devices("ferrule")[0]):
        got = jax.jit(function)(x, g)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)
