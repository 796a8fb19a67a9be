"""How jit over sharded arrays divides the work: what the devices exchange, and that the results are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from meshes import COUNT, P, X, Y, grid, line, numbers

import jax
from ferrule.ir import Block
from ferrule.passes.partition import partition
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.reader import read
from jax import lax

N = COUNT
MESH, LINE = grid(), line()


def exchanges(f: Any, *arguments: Any) -> tuple[Counter[str], Block]:
    """How often each collective stands in one device's program, and the program; "loop:" what is in a loop."""
    module = import_module(legalize(read(jax.jit(f).lower(*arguments).as_text().encode(), "mlir")))
    main = partition(module, 1, N).main.body
    found: Counter[str] = Counter()

    def count(block: Block, where: str) -> None:
        for op in block.ops:
            for region in op.regions:
                count(region, "loop:" if op.name == "while" else where)
            # What nobody reads is dropped later.
            if op.name == "library" and op.attrs["target"] != "device_number":
                found[where + op.attrs["target"]] += any(r in used for r in op.results)

    used = {*main.results}
    for _ in range(20):  # from readers to what they read
        before = len(used)
        _needed(main, used)
        if len(used) == before:
            break
    count(main, "")
    return +found, main


def _needed(block: Block, used: set[Any]) -> None:
    for op in reversed(block.ops):
        if any(r in used for r in op.results):
            used.update(op.operands)
            for region in op.regions:
                used.update(region.results)
        for region in op.regions:
            _needed(region, used)


@dataclass
class Case:
    f: Callable[..., Any]
    arguments: list[tuple[np.ndarray, Any, Any]]
    expected: dict[str, int] = field(default_factory=dict)

    def placed(self) -> list[jax.Array]:
        return [jax.device_put(a, NamedSharding(mesh, spec)) for a, mesh, spec in self.arguments]


W1, W2, BATCH = numbers(24, 4 * N, seed=1) / 5, numbers(4 * N, 16, seed=2) / 6, numbers(2 * N, 24, seed=3)
IMAGES, KERNEL = numbers(N, 3, 8, 8, seed=4), numbers(5, 3, 3, 3, seed=5)
TABLE, IDS = numbers(50, 2 * N, seed=6), np.random.default_rng(7).integers(0, 50, (2 * N, 3)).astype(np.int32)
SPLIT = numbers(6 * N, 2 * N, seed=15)
STACK = numbers(3, 2 * N, 2 * N, seed=8) / 4
SQUARE = numbers(4 * N, 2 * N, seed=9)


def mlp(w1: Any, w2: Any, x: Any) -> Any:
    return ((jnp.tanh(x @ w1) @ w2) ** 2).sum() / x.shape[0]


def trained(w1: Any, w2: Any, x: Any) -> Any:
    g1, g2 = jax.grad(mlp, (0, 1))(w1, w2, x)
    return w1 - 0.1 * g1, w2 - 0.1 * g2


def layers(w: Any, x: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum(0)), x, w)


def summed(w: Any, batches: Any) -> Any:
    """Accumulates gradients, then takes a step."""
    grad = jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).sum())
    total, _ = lax.scan(lambda total, x: (total + grad(w, x), None), jnp.zeros_like(w), batches)
    return w - 0.1 * total


def convolved(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1, 1), "SAME")


def asked(a: Any, spec: Any) -> Any:
    return lax.with_sharding_constraint(a, NamedSharding(LINE, spec))


def grown(x: Any) -> Any:
    """A carry that begins as zeros everywhere and is in parts after a turn."""
    return lax.fori_loop(0, 4, lambda i, c: (c[0] + jnp.sin(x) * c[1], c[1] * 2.0), (jnp.zeros_like(x), 1.0))[0]


def heat(u: Any) -> Any:
    """A step of the heat equation with fixed edges."""
    inner = u[1:-1, 1:-1]
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return u.at[1:-1, 1:-1].set(inner + 0.1 * (around - 4 * inner))


WAYS = [(s, d) for s in (1, -1) for d in (0, 1)]
ROWS, COLUMNS, WHOLE = P("i"), P(None, "i"), P()
CASES = {
    "products of rows": Case(lambda x, w: x @ w, [(BATCH, LINE, ROWS), (W1, LINE, WHOLE)]),
    "data parallel": Case(trained, [(W1, LINE, WHOLE), (W2, LINE, WHOLE), (BATCH, LINE, ROWS)], {"all_reduce": 1}),
    "a layer split by its width": Case(
        lambda x, a, b: jax.nn.gelu(x @ a) @ b,
        [(BATCH, LINE, WHOLE), (W1, LINE, COLUMNS), (W2, LINE, ROWS)],
        {"all_reduce": 1},
    ),
    "parameters split as the batch": Case(
        trained,
        [(W1, LINE, ROWS), (W2, LINE, ROWS), (BATCH, LINE, ROWS)],
        {"all_gather": 2, "reduce_scatter": 2},
    ),
    "both axes": Case(
        trained,
        [(W1, MESH, P(None, "y")), (W2, MESH, P("y", None)), (BATCH, MESH, P("x"))],
        {"all_reduce": 2},
    ),
    "softmax along a split dimension": Case(
        lambda a: jax.nn.softmax(a, axis=0), [(SQUARE, LINE, ROWS)], {"all_reduce": 2}
    ),
    "layer norm of rows": Case(lambda a: jax.nn.standardize(a, axis=1), [(SQUARE, LINE, ROWS)]),
    "sort along a whole dimension": Case(lambda a: jnp.sort(a, axis=1), [(SQUARE, LINE, ROWS)]),
    "sort along a split dimension": Case(lambda a: jnp.sort(a, axis=0), [(SQUARE, LINE, ROWS)], {"all_gather": 1}),
    "largest place": Case(lambda a: jnp.argmax(a, axis=1), [(SQUARE, LINE, ROWS)]),
    "cumulative sum": Case(lambda a: jnp.cumsum(a, axis=1), [(SQUARE, LINE, ROWS)]),
    "rows of a table": Case(lambda t, i: t[i], [(TABLE, LINE, WHOLE), (IDS, LINE, ROWS)]),
    "columns of a table": Case(lambda t, i: t[i], [(TABLE, LINE, COLUMNS), (IDS, LINE, WHOLE)]),
    "rows of a split table": Case(lambda t, i: t[i], [(SPLIT, LINE, ROWS), (IDS[:N], LINE, WHOLE)], {"all_reduce": 1}),
    "more rows than it has": Case(lambda t, i: t[i], [(SPLIT, LINE, ROWS), (IDS, LINE, WHOLE)], {"all_gather": 1}),
    "rows of a split table, some outside": Case(
        lambda t, i: t.at[i].get(mode="fill", fill_value=7.0) + t.at[i - 30].get(mode="clip"),
        [(SPLIT, LINE, ROWS), (IDS[:N] * 2 - 20, LINE, WHOLE)],
        {"all_reduce": 1},
    ),
    "elements of a table split both ways": Case(
        lambda t, i: t[i[:, 0], i[:, 1] % t.shape[1]],
        [(SPLIT, MESH, P("x", "y")), (IDS, MESH, WHOLE)],
        {"all_reduce": 1},
    ),
    "one of each row": Case(
        lambda a, i: jnp.take_along_axis(jax.nn.log_softmax(a), i % a.shape[1], 1),
        [(SQUARE[: 2 * N], MESH, P("x", "y")), (IDS, MESH, P("x"))],
        {"all_reduce": 3},
    ),
    "rows added to a split table": Case(
        lambda t, i: t.at[i].add(1.5), [(SPLIT, LINE, ROWS), (IDS * 2 - 20, LINE, WHOLE)]
    ),
    "elements of a split table set": Case(
        lambda t, i: t.at[i[:, 0], i[:, 1]].max(2.5), [(SPLIT, MESH, P("x", "y")), (IDS, MESH, WHOLE)]
    ),
    "bytes as indices": Case(
        lambda t, i: t[i.astype(jnp.uint8)], [(SPLIT, LINE, ROWS), (IDS[:N] % (6 * N), LINE, WHOLE)], {"all_reduce": 1}
    ),
    "gradient of a table": Case(
        jax.grad(lambda t, i: (t[i] ** 2).sum()), [(TABLE, LINE, WHOLE), (IDS, LINE, ROWS)], {"all_reduce": 1}
    ),
    "convolution of a batch": Case(convolved, [(IMAGES, LINE, ROWS), (KERNEL, LINE, WHOLE)]),
    "gradient of a convolution": Case(
        jax.grad(lambda k, x: (convolved(x, k) ** 2).sum()),
        [(KERNEL, LINE, WHOLE), (IMAGES, LINE, ROWS)],
        {"all_reduce": 1},
    ),
    "heads in groups": Case(
        lambda a, k: jnp.einsum("qkgd,tkd->kgqt", a.reshape(4, 2, N, 3), k.reshape(4, 2, 3)).reshape(2 * N, 4, 4),
        [(numbers(4, 6 * N, seed=11), LINE, COLUMNS), (numbers(4, 6, seed=12), LINE, WHOLE)],
    ),
    "dimensions joined": Case(
        lambda a: jnp.sin(a.reshape(N // 2, 2, 8, N).transpose(1, 0, 2, 3).reshape(2, -1)).reshape(2 * 4, -1),
        [(SQUARE, LINE, ROWS)],
    ),
    "dimensions parted and joined": Case(
        lambda a: jnp.sin(a.reshape(2, N // 2, -1)).reshape(N, -1), [(SQUARE, LINE, ROWS)]
    ),
    "heads": Case(
        lambda a: jnp.einsum("qhd,khd->hqk", a.reshape(4, N, -1), a.reshape(4, N, -1)),
        [(numbers(4, 6 * N, seed=11), LINE, COLUMNS)],
    ),
    "rows for columns": Case(lambda a: asked(jnp.sin(a), COLUMNS), [(SQUARE, LINE, ROWS)], {"all_to_all": 1}),
    "scanned layers": Case(layers, [(STACK, LINE, WHOLE), (BATCH[:, : 2 * N], LINE, ROWS)], {"all_reduce": 1}),
    "scanned layers, split": Case(
        layers, [(STACK, LINE, P(None, "i")), (BATCH[:, : 2 * N], LINE, WHOLE)], {"loop:all_reduce": 1}
    ),
    "scanned along a split dimension": Case(
        lambda a: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(a.shape[1]), a), [(SQUARE, LINE, ROWS)],
        {"all_gather": 1},
    ),  # fmt: skip
    "gradients of scanned layers": Case(
        jax.grad(lambda w, x: (layers(w, x)[0] ** 2).sum()),
        [(STACK, LINE, WHOLE), (BATCH[:, : 2 * N], LINE, ROWS)],
        {"all_reduce": 1},
    ),
    "gradients summed over small batches": Case(
        summed, [(W1, LINE, WHOLE), (BATCH.reshape(2, N, 24), LINE, COLUMNS)], {"all_reduce": 1}
    ),
    "a carry that becomes split": Case(grown, [(SQUARE, LINE, ROWS)]),
    "branches": Case(
        lambda a, n: lax.cond(n > 0, jnp.sin, lambda a: a * 2, a), [(SQUARE, LINE, ROWS), (IDS[0, 0], LINE, WHOLE)]
    ),
    "two sums, one exchange": Case(
        lambda a, b: a.T @ a + b.T @ b, [(SQUARE, LINE, ROWS), (SQUARE + 1, LINE, ROWS)], {"all_reduce": 1}
    ),
    "dropout": Case(
        lambda a: a * jax.random.bernoulli(jax.random.key(1), 0.5, a.shape), [(SQUARE, LINE, ROWS)]
    ),
    "pooled": Case(
        lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), [(SQUARE, LINE, ROWS)]
    ),
    "every second row": Case(lambda a: a[::2] + a[1::2], [(SQUARE, LINE, ROWS)]),
    "every second row but the last": Case(lambda a: a[1:-2:2], [(SQUARE, LINE, ROWS)], {"all_gather": 1}),
    "turned around": Case(lambda a: a[::-1] * 2, [(SQUARE, LINE, ROWS)], {"collective_permute": 1}),
    "turned around both ways": Case(
        lambda a: a[::-1, ::-1], [(SQUARE, MESH, P("x", "y"))], {"collective_permute": 2}
    ),
    "largest place along a split dimension": Case(
        lambda a: jnp.argmax(a, axis=0), [(SQUARE, LINE, ROWS)], {"all_gather": 2}
    ),
    "two sums at once": Case(
        lambda a: lax.reduce((a, a * a), (0.0, 0.0), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0,)),
        [(SQUARE, LINE, ROWS)],
        {"all_gather": 2},
    ),
    "two sums from three on": Case(
        lambda a: lax.reduce((a, a * a), (3.0, 3.0), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0,)),
        [(SQUARE, LINE, ROWS)],
        {"all_gather": 2},
    ),
    "flags that are equal, from False on": Case(
        lambda a: lax.reduce(a > 0, np.bool_(False), lambda x, y: x == y, (0,)),
        [(SQUARE, LINE, ROWS)],
        {"all_gather": 1},
    ),
    "smallest place, split both ways": Case(
        lambda a: jnp.argmin(a * 0 + 1, axis=1), [(SQUARE, MESH, P("x", "y"))], {"all_gather": 2}
    ),
    "bands": Case(lambda a: a[:, 1:-1] + jnp.pad(a, ((0, 0), (1, 1)))[:, 3:-1], [(SQUARE, LINE, ROWS)]),
    "rolled": Case(lambda a: jnp.roll(a, 1, 0) - jnp.roll(a, -1, 0), [(SQUARE, LINE, ROWS)], {"collective_permute": 2}),
    "rolled far": Case(lambda a: jnp.roll(a, 7, 0), [(SQUARE, LINE, ROWS)], {"collective_permute": 2}),
    "rolled by whole parts": Case(lambda a: jnp.roll(a, 8, 0), [(SQUARE, LINE, ROWS)], {"collective_permute": 1}),
    "rolled along both axes": Case(
        lambda a: sum(jnp.roll(a, s, d) for s in (1, -1) for d in (0, 1)),
        [(SQUARE, MESH, P("x", "y"))],
        {"collective_permute": 4},
    ),
    "heat in a torus": Case(
        lambda u: lax.fori_loop(0, 5, lambda _, u: u + 0.1 * sum(jnp.roll(u, *by) - u for by in WAYS), u),
        [(SQUARE, MESH, P("x"))],
        {"loop:collective_permute": 2},
    ),
    "differences": Case(
        lambda a: a[1:] - a[:-1], [(SQUARE, LINE, ROWS)], {"collective_permute": 1, "all_gather": 1}
    ),
    "differences, padded": Case(
        lambda a: jnp.pad(a[1:] - a[:-1], ((0, 1), (0, 0))), [(SQUARE, LINE, ROWS)], {"collective_permute": 1}
    ),
    "sum of squared differences": Case(
        lambda a: ((a[1:] - a[:-1]) ** 2).sum() + jnp.abs(a[2:] * 0.5 - a[:-2]).max(),
        [(SQUARE, LINE, ROWS)],
        {"collective_permute": 3, "all_reduce": 2},
    ),
    "heat": Case(heat, [(SQUARE, LINE, ROWS)], {"collective_permute": 2}),
    "heat, split both ways": Case(heat, [(SQUARE, MESH, P("x", "y"))], {"collective_permute": 4}),
    "heat, many steps": Case(
        lambda u: lax.fori_loop(0, 5, lambda _, u: heat(u), u), [(SQUARE, LINE, ROWS)], {"loop:collective_permute": 2}
    ),
    "a slice added to": Case(
        lambda a, r: a.at[2:-1].add(a[1:-2] * r),
        [(SQUARE, LINE, ROWS), (SQUARE[0], LINE, WHOLE)],
        {"collective_permute": 1},
    ),
    "a window of another array": Case(
        lambda a, b: lax.dynamic_update_slice(a, b[3:-2, 1:], (5, 0)),
        [(SQUARE, LINE, ROWS), (SQUARE + 1, LINE, ROWS)],
        {"collective_permute": 2},
    ),
    "outer product of one axis": Case(lambda a: a @ a.T, [(SQUARE, LINE, ROWS)], {"all_gather": 1}),
    "systems of a batch": Case(
        lambda a: jnp.linalg.cholesky(a @ a.mT + jnp.eye(4)), [(numbers(N, 4, 4, seed=12), LINE, ROWS)]
    ),
    "eigenvalues of a batch": Case(
        lambda a: jnp.linalg.eigvalsh(a + a.mT), [(numbers(N, 5, 5, seed=13), LINE, ROWS)]
    ),
    "systems of a batch by LU": Case(
        lambda a: jnp.linalg.solve(a, a[:, :, :2] + 1), [(numbers(N, 5, 5, seed=14), LINE, ROWS)]
    ),
    "a transform": Case(lambda a: jnp.abs(jnp.fft.fft(a, axis=1)), [(SQUARE, LINE, ROWS)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_division(name: str) -> None:
    case = CASES[name]
    arguments = case.placed()
    found, _ = exchanges(case.f, *arguments)
    assert dict(found) == case.expected
    with jax.default_device(jax.devices("cpu")[0]):
        expected = (
            jax.jit(case.f)(*(a for a, _, _ in case.arguments))
            if "asked" not in case.f.__code__.co_names
            else np.sin(SQUARE)
        )
    jax.tree.map(
        lambda r, e: np.testing.assert_allclose(r, e, rtol=2e-4, atol=2e-4), jax.jit(case.f)(*arguments), expected
    )


def test_local_shapes() -> None:
    """Of a layer split by its width each device multiplies by its own columns, then by its own rows."""
    case = CASES["a layer split by its width"]
    _, main = exchanges(case.f, *case.placed())
    shapes = [tuple(v.shape for v in op.operands) for op in main.walk() if op.name == "dot_general"]
    assert shapes == [((2 * N, 24), (24, 4)), ((2 * N, 4), (4, 16))]


def test_outputs_that_are_left_open_stay_in_parts() -> None:
    x, w = (jax.device_put(a, NamedSharding(LINE, s)) for a, s in ((BATCH, ROWS), (W1, WHOLE)))
    assert jax.jit(lambda x, w: jnp.tanh(x @ w))(x, w).sharding.is_equivalent_to(NamedSharding(LINE, ROWS), 2)
    assert jax.jit(lambda x: x.sum(0))(x).sharding.is_fully_replicated
    y = jax.device_put(SQUARE, NamedSharding(MESH, P("x", "y")))
    assert jax.jit(lambda y: y.sum(0))(y).sharding.is_equivalent_to(NamedSharding(MESH, P("y")), 1)
    assert jax.jit(lambda y: y.T)(y).sharding.is_equivalent_to(NamedSharding(MESH, P("y", "x")), 2)


def test_functions_with_a_partitioning_of_their_own() -> None:
    """custom_partitioning: the function is divided as any other."""
    from jax.experimental.custom_partitioning import custom_partitioning

    @custom_partitioning
    def f(x: Any) -> Any:
        return jnp.sin(x) * 2

    f.def_partition(partition=None, infer_sharding_from_operands=None, sharding_rule="i j -> i j")
    a = jax.device_put(SQUARE, NamedSharding(LINE, ROWS))
    assert exchanges(f, a)[0] == {}
    np.testing.assert_allclose(jax.jit(f)(a), np.sin(SQUARE) * 2, rtol=1e-5)


@pytest.mark.skipif(not jax.config.jax_use_shardy_partitioner, reason="XLA's text does not say what stays split")
def test_axes_that_are_not_manual_stay_split() -> None:
    """A shard_map over x of an array that is split along y as well."""
    body = jax.shard_map(
        lambda a: lax.psum(jnp.sin(a), "x"), mesh=MESH, in_specs=P("x"), out_specs=P(), axis_names={"x"}
    )
    a = jax.device_put(SQUARE, NamedSharding(MESH, P("x", "y")))
    found, _ = exchanges(body, a)
    assert dict(found) == {"all_reduce": 1}
    expected = np.sin(SQUARE).reshape(X, -1, SQUARE.shape[1]).sum(0)
    result = jax.jit(body)(a)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert result.sharding.is_equivalent_to(NamedSharding(MESH, P(None, "y")), 2)
    assert Y == 2
