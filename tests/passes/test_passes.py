"""The passes keep the meaning of programs: planned memory, run byte by byte, gives what the importer's graph gives."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from simulate import simulate

import jax
from ferrule.codegen.kernel import structure_key
from ferrule.errors import Unsupported
from ferrule.ir import Block, Tensor
from ferrule.ir.types import f32
from ferrule.passes.allocate import allocate
from ferrule.passes.count import count
from ferrule.passes.expand import expand
from ferrule.passes.fuse import fuse
from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.reader import read
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block


def graph(f, *args):
    from jaxlib import _jax
    from jaxlib.mlir.dialects import stablehlo

    module = jax.jit(f, keep_unused=True).trace(*args).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    # As for a plugin: CHLO's ops have become StableHLO's.
    code = bytes(_jax.mlir.serialize_portable_artifact(module, stablehlo.get_current_version(), True))
    return import_module(legalize(read(code, "mlir"))).main.body


def normal(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def softmax(x):
    return jax.nn.softmax(x)


def adam(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.1 * m / (jnp.sqrt(v) + 1e-8), m, v


def scan(x):
    def body(c, xi):
        c = jnp.tanh(c + xi)
        return c, c * 2

    return jax.lax.scan(body, x[0], x)


def shift_register(a, b, c):
    return jax.lax.fori_loop(0, 5, lambda i, s: (s[1] + 1, s[2], s[0] * 2), (a, b, c))


def read_after_overwrite(x):
    """The body reads the outer x although the carry starts as x."""
    return jax.lax.fori_loop(0, 4, lambda i, c: c * 0.5 + x[::-1], x)


def in_place(x):
    return jax.lax.fori_loop(0, 10, lambda i, c: c.at[i].add(c[9 - i]), x)


def nested(x):
    def outer(i, c):
        return jax.lax.fori_loop(0, 3, lambda j, d: jnp.where(d > 1, d - 1, d * 2), c) + c

    return jax.lax.fori_loop(0, 3, outer, x), x * 3


def branches(x):
    y = jax.lax.cond(x[0] > 0, lambda: (x * 2, x), lambda: (x - 1, x + 1))
    z = jax.lax.switch(jnp.int32(x[1]), [lambda: x, lambda: y[0], lambda: y[1] * 2])
    return y, z, x


def reused_view(x):
    y = x.reshape(5, 2)
    return jax.lax.fori_loop(0, 3, lambda i, c: (c + c.reshape(2, 5).T.reshape(10)) * 0.3, x), y.sum(0)


def parts(a, b):
    return jnp.concatenate([a, b * 2]), jnp.pad(a, ((3, 4),)), a


def reversed_view(x):
    """The last reader of x's memory reads it backwards, through a view, and its result fits x's memory."""
    y = x.reshape(10)
    z = y.at[3].set(x[0, 1])
    return y[::-1] * z[4]


def updated_view(x):
    y = x.reshape(10)
    total = y.sum()
    return y.at[::2].add(total).reshape(2, 5)


def update_reads_another_view(x):
    z = jnp.cumsum(x)
    return z.at[jnp.arange(0, 10, 2)].add(z.reshape(2, 5).T.reshape(10)[::2])


def update_of_a_view(x):
    z = jnp.cumsum(x)
    y = z.reshape(2, 5)
    return y.at[jnp.arange(2), 0].add(z[::-1][:2]), x


def carried_view(x):
    def body(i, c):
        y = c.reshape(10)
        return jnp.flip(y).reshape(2, 5) + y.sum()

    return jax.lax.fori_loop(0, 3, body, x)


V = normal(10)


def unread_of_a_branch(x, y, k):
    """Branches of a loop exchange its carries; one of their results nobody reads."""

    def body(i, state):
        x, y, k = state
        m = k + 1
        a, _, c, d = jax.lax.cond(i % 2 == 0, lambda: (x, y, k, m), lambda: (y, x, m, k))
        return a, a, c + d

    return jax.lax.fori_loop(0, 2, body, (x, y, k))


PROGRAMS = {
    "softmax": (softmax, (normal(3, 7),)),
    "adam": (adam, (V, normal(10, seed=1), normal(10, seed=2), np.abs(normal(10, seed=3)))),
    "scan": (scan, (normal(6, 4),)),
    "swap": (lambda a, b: (b, a), (V, V + 1)),
    "rotate": (lambda a, b, c: (b, c, a + b), (V, V + 1, V + 2)),
    "shift_register": (shift_register, (V, V + 1, V + 2)),
    "read_after_overwrite": (read_after_overwrite, (V,)),
    "in_place": (in_place, (V,)),
    "nested": (nested, (V,)),
    "branches": (branches, (V,)),
    "reused_view": (reused_view, (V,)),
    "reversed_view": (reversed_view, (normal(2, 5),)),
    "updated_view": (updated_view, (normal(2, 5),)),
    "update_reads_another_view": (update_reads_another_view, (V,)),
    "update_of_a_view": (update_of_a_view, (V,)),
    "carried_view": (carried_view, (normal(2, 5),)),
    "parts": (parts, (normal(3000), normal(2000, seed=1))),
    "unread_of_a_branch": (unread_of_a_branch, (V, V + 1, V + 2)),
    "same_twice": (lambda x: (x + 1, x + 1, x), (V,)),
    "constants": (lambda x: (jnp.zeros(3), jnp.arange(4), x), (V,)),
    "reverse": (lambda x, y: (y[::-1] + x, x.sum()), (V, V + 1)),
    "big_sum": (lambda x: (x.sum(), x.max(), x.sum(0)), (normal(300, 700),)),
    "gradient": (jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (normal(4, 5), normal(3, 4))),
}


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_planned_memory(name, donate):
    f, args = PROGRAMS[name]
    block = graph(f, *args)
    arrays = [np.asarray(a) for a in args]
    expected = evaluate_block(block, arrays)
    fused = fuse(count(expand(simplify(block))))
    # Every parameter is donated into the first output of its size that is still free.
    aliases, free = [], list(range(len(fused.results)))
    for arg in fused.args:
        fit = next((k for k in free if fused.results[k].type.nbytes == arg.type.nbytes), -1)
        if fit >= 0:
            free.remove(fit)
        aliases.append(fit)
    plan = allocate(fused, aliases)
    got = simulate(fused, plan, arrays, aliases, donate)
    for want, have in zip(expected, got, strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-4, atol=1e-5)


def test_a_hint_that_changes_the_type_is_refused():
    """The importer resolves hints that are the identity; one that reshards to another shape must not pass as it."""
    block = Block([Tensor((4,), f32)])
    attrs = {"call_target_name": "SPMDFullToShardShape", "api_version": 1}
    block.results = block.add("custom_call", block.args, Tensor((2,), f32), attrs).results
    with pytest.raises(Unsupported, match="SPMDFullToShardShape"):
        match(block)


def test_results_without_elements_are_constants():
    """LAPACK refuses matrices without rows, and jaxlib's call of it then damaged memory."""

    def empty(x):
        return jax.lax.sort(x), jax.lax.fori_loop(0, 3, lambda _, c: c @ c.T @ c, x), jnp.sum(x, 1)

    slim = simplify(graph(empty, np.zeros((0, 4), np.float32)))
    assert {op.name for op in slim.ops} == {"constant"}


def test_loops_do_not_carry_what_has_no_elements():
    def grow(x, n):
        return jax.lax.fori_loop(0, n, lambda i, c: (c[0] * 2, c[1] + i), (x, n))

    (loop,) = (op for op in simplify(graph(grow, np.zeros((0, 4), np.float32), np.int32(3))).ops if op.name == "while")
    assert all(v.type.size for v in loop.operands)


def test_equal_reductions_are_one_and_what_spreads_them_is_not_stored():
    """The mean and the variance of columns: two sums over the array, and nothing as large as it in memory."""

    def moments(x):
        return x.sum(0) / 300, ((x - x.sum(0) / 300) ** 2).sum(0) / 300

    x = normal(300, 40)
    block = simplify(graph(moments, x))
    assert [op.name for op in block.ops].count("reduce") == 2
    fused = fuse(block)
    assert max(r.type.size for op in fused.ops for r in op.results) == 40
    for got, want in zip(evaluate_block(fused, [x]), (x.mean(0), x.var(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_regions_that_differ_are_not_equal():
    def both(x, y):
        first = jax.lax.reduce(x, 0.0, jax.lax.add, (0,))
        return first, jax.lax.reduce(x, 0.0, jax.lax.max, (0,)), jax.lax.reduce(x, 1.0, jax.lax.add, (0,)), y

    block = simplify(graph(both, normal(4, 5), normal(2)))
    assert [op.name for op in block.ops].count("reduce") == 3


def test_reductions_of_one_element_are_the_body():
    """Also for -0.0, to which a sum's 0.0 is added, and for a start that matters."""

    def f(x):
        column = x[:, :1]
        return (
            jax.lax.reduce(column, np.float32(0), jax.lax.add, (1,)),
            jax.lax.reduce(column[None], np.float32(0.5), jax.lax.max, (0, 2)),
            jax.lax.reduce(column > 0, True, jax.lax.bitwise_and, (1,)),
            jax.lax.reduce(x, np.float32(1), jax.lax.mul, (0,)),
        )

    x = normal(4, 3)
    x[0, 0], x[1, 0] = -0.0, np.nan
    block = graph(f, x)
    slim = simplify(block)
    assert [op.name for op in slim.ops].count("reduce") == 1
    for got, want in zip(evaluate_block(slim, [x]), evaluate_block(graph(f, x), [x]), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def residual(layers):
    """A network whose layers add to what runs through them, and its gradient."""

    def forward(x, weights):
        for w in weights:
            mean = x.mean(-1, keepdims=True)
            y = (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
            x = x + y @ w
        return (x * x).sum()

    return jax.grad(forward, (0, 1)), normal(32, 256), [normal(256, 256, seed=i) / 16 for i in range(layers)]


def fused(function, *args):
    """The block after all passes up to fusion."""
    block = simplify(match(simplify(graph(function, *args)), host()))
    return fuse(count(expand(block, host())), host())


def test_what_runs_through_layers_is_stored():
    """Not computed from the first layer's input anew in each; so equal layers have equal kernels."""
    kernels = {}
    for layers in (3, 9):
        f, *args = residual(layers)
        fusions = [op for op in fused(f, *args).walk() if op.name == "fusion"]
        tensors = [sum(v.shape == (32, 256) for v in op.operands) for op in fusions]
        assert max(tensors) <= 4
        kernels[layers] = len({structure_key(op.regions[0]) for op in fusions})
    assert kernels[9] == kernels[3]


@pytest.mark.parametrize("ours", [False, True])
def test_one_walk_simplifies(ours):
    """What a rule adds is simplified at once: chains of views and of constants, and what becomes equal by that."""
    block = Block([Tensor((2, 3), f32)])
    (x,) = block.args
    ends = []
    for _ in range(2):
        turned = block.add("transpose", [x], [Tensor((3, 2), f32)], {"permutation": (1, 0)}).result
        back = block.add("transpose", [turned], [Tensor((2, 3), f32)], {"permutation": (1, 0)}).result
        flat = block.add("reshape", [back], [Tensor((6,), f32)]).result
        again = block.add("reshape", [flat], [Tensor((3, 2), f32)]).result
        ends.append(block.add("reshape", [again], [Tensor((6,), f32)]).result)
    one = block.add("constant", [], [Tensor((), f32)], {"value": np.asarray(1, np.float32)}).result
    two = block.add("add", [one, one], [Tensor((), f32)]).result
    half = block.add("divide", [one, two], [Tensor((), f32)]).result
    whole = block.add("add", [half, half], [Tensor((), f32)]).result
    spread = block.add("broadcast_in_dim", [whole], [Tensor((6,), f32)], {"broadcast_dimensions": ()}).result
    ends[0] = block.add("multiply", [ends[0], spread], [Tensor((6,), f32)]).result
    block.results = [block.add("add", ends, [Tensor((6,), f32)]).result]
    once = simplify(block, rounds=1, ours=ours)
    assert [op.name for op in once.ops] == ["reshape", "add"]
    assert once.ops[1].operands == [once.ops[0].result] * 2 and once.ops[0].operands == once.args


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32])
def test_limits_of_integers(dtype):
    """Between the least and the greatest there is everything; beyond the greatest there is nothing else."""
    least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.arange(8, dtype=dtype)
    inside = simplify(graph(lambda x: jnp.minimum(dtype(greatest), jnp.maximum(x, dtype(least))), x))
    assert inside.ops == [] and inside.results == inside.args
    beyond = simplify(graph(lambda x, i: jnp.maximum(x, dtype(greatest)).at[i].get(mode="clip"), x, np.array([3, 1])))
    assert [op.name for op in beyond.ops] == ["constant"]


RUNNING = {
    "followed": lambda x: jnp.tanh(jnp.cumsum(x)),
    "between": lambda x: jnp.cumsum(jnp.tanh(jnp.cumsum(x))),
    "two": lambda x: jax.lax.cummax(x) - jax.lax.cummin(x),
    "backward": lambda x: jax.lax.cumlogsumexp(x, reverse=True) * 2,
    "summed": lambda x: jnp.sum(jnp.cumsum(x)),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.tanh(jnp.cumsum(y)), x),
}


@pytest.mark.parametrize("name", RUNNING)
def test_running_totals_are_kernels_of_their_own(name):
    """Inside another kernel each element would be summed from the beginning of its line: n² operations."""

    def kernels(block):
        for op in block.ops:
            if op.name == "fusion":
                yield op
            else:
                for region in op.regions:
                    yield from kernels(region)

    totals = [
        k
        for k in kernels(fused(RUNNING[name], normal(1000)))
        if any(o.name == "reduce_window" for o in k.regions[0].ops)
    ]
    assert totals
    assert all(v.op.name == "reduce_window" for k in totals for v in k.regions[0].results)


def test_layers_of_interleaved_arrays_are_written():
    """In one kernel each vector would compute all layers below it, for both of what is interleaved."""

    def size(block):
        return sum(1 + sum(size(r) for r in op.regions) for op in block.ops)

    block = simplify(graph(lambda x: jax.lax.associative_scan(jnp.add, x), normal(10_000)))
    kernels = [o for o in fuse(expand(block, host()), host()).ops if o.name == "fusion"]
    assert len(kernels) > 13  # more than one for each of the halvings
    assert max(size(k.regions[0]) for k in kernels) < 20


@pytest.mark.parametrize(("size", "times"), [(64, 1), (4, 2)])
def test_a_dear_value_that_stays_in_a_near_cache_is_computed_once(size, times):
    """An update stores it, and the kernel that reads it at its own index writes it; where a kernel would cost more
    than the function, both compute it."""

    def function(x, all, i):
        y = jnp.tanh(x * 2)
        return jax.lax.dynamic_update_index_in_dim(all, y, i, 0), y * x

    args = normal(size, size), normal(3, size, size), np.int32(1)
    fused = fuse(simplify(graph(function, *args)), host())
    assert [op.name for op in fused.walk()].count("tanh") == times
    assert sum(op.name == "fusion" and bool(op.results[0].shape) for op in fused.ops) == 2


def test_what_is_not_turned_is_no_reversal():
    """Over no dimensions, over such of one element, and there and back; the others become one."""
    x = normal(4, 1, 600)
    cases = [
        (lambda x: jax.lax.rev(x, ()), None),
        (lambda x: jax.lax.rev(x, (1,)), None),
        (lambda x: jax.lax.rev(jax.lax.rev(x, (0, 2)), (2, 0, 1)), None),
        (lambda x: jax.lax.rev(jax.lax.rev(x, (0, 2)), (2, 1)), (0,)),
        (lambda x: jax.lax.rev(x, (1, 2)), (2,)),
        (lambda x: jax.lax.rev(x, (2, 0)), (2, 0)),
    ]
    for f, turned in cases:
        block = simplify(graph(f, x))
        assert [(op.name, op.attrs["dimensions"]) for op in block.ops] == ([("reverse", turned)] if turned else [])
        for found, want in zip(evaluate_block(block, [x]), evaluate_block(graph(f, x), [x]), strict=True):
            np.testing.assert_array_equal(found, want)
    block = graph(lambda x, y: jnp.concatenate([x, jax.lax.rev(y, ())]), x, x + 1)
    expand(simplify(block), host())  # once it asked for the last of no dimensions


def test_dimensions_for_a_library_are_views():
    """A line that gets dimensions of size one for a convolution is not copied; one that is repeated is."""
    x, w = normal(4096), normal(32, seed=1)

    def repeated(x, w):
        rows = jnp.broadcast_to(x[None, None], (3, 1, 4096))
        return jax.lax.conv_general_dilated(rows, w[None, None], (1,), "SAME")

    found = []
    for f in (jnp.convolve, repeated):
        block = fuse(expand(simplify(match(simplify(graph(f, x, w)), host())), host()), host())
        (call,) = [op for op in block.ops if op.name == "library"]
        found.append(call.operands[0].op.name)
        want = evaluate_block(graph(f, x, w), [x, w])
        for g, v in zip(evaluate_block(expand(graph(f, x, w)), [x, w]), want, strict=True):
            np.testing.assert_array_equal(g, v)
    assert found == ["reshape", "fusion"]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "int8", "uint32", "bfloat16"])
@pytest.mark.parametrize("largest", [True, False])
def test_large_reductions_of_every_width_are_split(dtype, largest):
    """NumPy's iinfo knows no integers of less than 8 bits."""
    dtype = jnp.dtype(dtype)
    x = np.random.default_rng(0).integers(0, 2, (1 << 17,)).astype(dtype)
    about = jnp.finfo(dtype) if dtype == jnp.bfloat16 else jnp.iinfo(dtype)
    start = (-np.inf if largest else np.inf) if dtype == jnp.bfloat16 else about.min if largest else about.max
    op = jax.lax.max if largest else jax.lax.min
    block = graph(lambda v: jax.lax.reduce(v, jnp.asarray(start, dtype), op, (0,)), x)
    split = expand(block, host())
    assert sum(o.name == "reduce" for o in split.ops) == 2
    assert evaluate_block(split, [x])[0] == evaluate_block(block, [x])[0]


def test_kernels_merge_only_where_no_path_leads_back():
    """Not even one through what comes later in the program and a kernel with results on both sides."""

    def dear(x):
        return jnp.exp(jnp.sin(jnp.tanh(x)))

    def f(p, q):
        x, y = dear(p), dear(q)  # each has two readers, which could be one kernel: b with e, and c with d
        b = y + 1
        c = x * 2
        d = x - b.T
        k = c.T + 5  # comes after d; from c by k and m to e, which is one kernel with b, which d reads
        m = k.T * 3
        e = y * m.T
        return b, c, d, k, m, e

    p, q = normal(64, 64), normal(64, 64, seed=1)
    block = fused(f, p, q)  # a cycle was an error
    b, *_, e = block.results
    assert b.op is e.op
    for got, want in zip(evaluate_block(block, [p, q]), evaluate_block(graph(f, p, q), [p, q]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_gates_on_one_state_after_another():
    """As quantum circuits apply them: each computes the two halves of its result from both halves of what is before,
    so that a kernel of all gates would evaluate each element of the first in 4 to the power of their number of ways."""

    def f(state, angles):
        for qubit in range(8):
            a, b = jnp.split(state, 2, axis=qubit)
            c, s = jnp.cos(angles[qubit]), jnp.sin(angles[qubit])
            state = jnp.concatenate([a * c - b * s, a * s + b * c], axis=qubit)
        return state

    state, angles = normal(*[2] * 8), normal(8, seed=1)
    block = fused(f, state, angles)
    joined = [sum(op.name == "concatenate" for op in k.regions[0].walk()) for k in block.walk() if k.name == "fusion"]
    assert 1 <= max(joined) <= 3
    (got,) = evaluate_block(block, [state, angles])
    (want,) = evaluate_block(graph(f, state, angles), [state, angles])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def apart(x):
    return jax.lax.optimization_barrier(x)  # kernels end here


def observations(x):
    """A loop carries what each step makes anew."""

    def step(i, seen):
        made = apart(jnp.zeros_like(seen).at[i, :].set(1.5))
        return apart(jnp.where(i > 2, x, made) + 1)

    return jax.lax.fori_loop(0, 5, step, x)


NUMBERS = normal(100, 64, seed=1)


def two_results(m):
    """Of one kernel, which has `m` for itself."""
    s = jnp.exp(jnp.sin(jnp.tanh(m)))
    return apart((s + 1, s * 2))


def carried_beside_another(x):
    """One of the results goes on in the carry's memory, in which `m` is already."""

    def step(_, state):
        seen, sums = state
        a, b = two_results(apart(seen * 0.5))
        return b, sums + a[::-1]

    return jax.lax.fori_loop(0, 3, step, (x, x))


@pytest.mark.parametrize(
    "f, arrays",
    [
        (lambda x: apart(x * 2) + 1, 0),  # in the result's memory from the start
        (lambda x: apart(apart(x * 2) + 1).sum(), 1),
        (lambda x: apart(apart(x * 2) + 1).T.sum(0), 1),
        (lambda x: apart(NUMBERS + apart(x * 2)).sum(), 1),  # no constant is overwritten
        (lambda x: apart((z := apart(x * 2) + 1) + z[::-1]).sum(), 2),  # each element is read twice
        (lambda x: (m := apart(x * 2), apart(m + 1).sum()), 1),  # a result stays
        (lambda x: apart((m := apart(x * 2))[::-1] * apart(m + 1)).sum(), 2),  # is read later
        (lambda x: apart(apart((x * 2).astype(jnp.float16)).astype(jnp.float32) + 1).sum(), 1),  # half as large
        (lambda x: apart((r := two_results(apart(x * 2)))[0] + r[1][::-1]).sum(), 2),  # only one has room there
        (observations, 0),  # in the carry's memory
        (lambda x: observations(x).sum(), 1),
        (carried_beside_another, None),
        (lambda x: carried_beside_another(x)[1], None),  # the next iteration alone reads the other
    ],
    ids=range(13),
)
def test_results_replace_what_is_read_for_the_last_time(f, arrays):
    x = normal(100, 64)
    block = fused(f, x)
    plan = allocate(block, [-1])
    if arrays is not None:
        assert arrays * x.nbytes <= plan.arena_bytes < (arrays + 1) * x.nbytes
    expected = evaluate_block(graph(f, x), [x])
    for want, have in zip(expected, simulate(block, plan, [x], [-1], False), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("f", [lambda x: apart(x * 2) + 1, lambda x: apart(apart(x * 2) + 1).sum()])
def test_results_replace_nothing_where_kernels_run_at_the_same_time(f):
    x = normal(100, 64)
    one, many = (allocate(fused(f, x), [-1], apart=apart).arena_bytes for apart in (False, True))
    assert many >= one + x.nbytes


def test_what_only_its_own_kernel_reads_is_not_written():
    x = normal(100, 64)
    (kernel,) = fused(two_results, x).ops
    assert len(kernel.results) == 2  # not what both are computed from
