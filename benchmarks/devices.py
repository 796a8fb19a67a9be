"""Several devices of one process: programs over a mesh, beside XLA:CPU's.

    FERRULE_NUM_DEVICES=8 python benchmarks/devices.py [WORD…]

Both platforms have as many devices, take turns, and share the processors. Collectives stand in a `shard_map`; the
others are programs under `jit` whose arguments are sharded. A figure is the median time of a call; results are
compared to XLA:CPU's, and said to differ where they do.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# Both platforms read how many devices they have when JAX is loaded; so the imports below stand behind it.
COUNT = int(os.environ.setdefault("FERRULE_NUM_DEVICES", "8"))
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={COUNT}"

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import jax  # noqa: E402
from jax import lax, nn  # noqa: E402

P = PartitionSpec
SECONDS, MOST = 0.3, 2000

# Makes a call on some devices.
Maker = Callable[[list[Any]], Callable[[], Any]]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def line(devices: list[Any]) -> Mesh:
    return Mesh(np.array(devices), ("i",))


def mapped(body: Callable[[Any], Any], out: Any, size: int) -> Maker:
    """A shard_map over a vector of so many numbers on each device."""

    def make(devices: list[Any]) -> Callable[[], Any]:
        mesh = line(devices)
        f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=out, check_vma=False))
        return partial(f, jax.device_put(numbers(COUNT * size), NamedSharding(mesh, P("i"))))

    return make


def ring(x: Any) -> Any:
    return lax.ppermute(x, "i", [(d, (d + 1) % COUNT) for d in range(COUNT)])


def turned(x: Any) -> Any:
    return lax.all_to_all(x.reshape(COUNT, -1), "i", 0, 0).reshape(-1)


def repeated(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, c: lax.psum(c, "i") * (1 / COUNT), x)


def collectives() -> Iterator[tuple[str, Maker]]:
    for size in (16, 1 << 16, 1 << 20):
        yield f"psum of {size}", mapped(lambda x: lax.psum(x, "i"), P(), size)
        yield f"psum_scatter of {size}", mapped(lambda x: lax.psum_scatter(x, "i", tiled=True), P("i"), size)
        yield f"all_gather of {size}", mapped(lambda x: lax.all_gather(x, "i", tiled=True), P(), size)
        yield f"all_to_all of {size}", mapped(turned, P("i"), size)
        yield f"ppermute of {size}", mapped(ring, P("i"), size)
        yield f"20 psum of {size} in a loop", mapped(repeated, P("i"), size)


def placed(mesh: Mesh, *spec: Any) -> Callable[[np.ndarray], jax.Array]:
    return lambda array: jax.device_put(array, NamedSharding(mesh, P(*spec)))


def elementwise(size: int) -> Maker:
    return lambda devices: partial(
        jax.jit(lambda x: jnp.tanh(x) * 2 + 1), placed(line(devices), "i")(numbers(COUNT * size))
    )


def resharded(devices: list[Any]) -> Callable[[], Any]:
    mesh = line(devices)
    return partial(jax.device_put, placed(mesh, "i")(numbers(1024, 1024)), NamedSharding(mesh, P(None, "i")))


def deep(layers: int, width: int, batch: int) -> Maker:
    """Data parallel: many parameters on every device, the batch split."""

    def make(devices: list[Any]) -> Callable[[], Any]:
        mesh = line(devices)
        params = [placed(mesh)(numbers(width, width, seed=n) / width**0.5) for n in range(layers)]

        def loss(params: Any, x: Any) -> Any:
            for w in params:
                x = jnp.tanh(x @ w)
            return (x**2).mean()

        def step(params: Any, x: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

        return partial(jax.jit(step), params, placed(mesh, "i")(numbers(COUNT * batch, width)))

    return make


def wide(devices: list[Any]) -> Callable[[], Any]:
    """Tensor parallel: a layer's columns, then the next one's rows."""
    mesh = line(devices)
    up, down = placed(mesh, None, "i")(numbers(512, 2048) / 20), placed(mesh, "i")(numbers(2048, 512) / 40)
    return partial(jax.jit(lambda x, a, b: nn.gelu(x @ a) @ b), placed(mesh)(numbers(128, 512)), up, down)


def transformer(rows: int, columns: int, split: bool) -> Maker:
    """A training step of two blocks: the batch over `rows` devices, heads and widths over `columns`; with `split` the
    parameters are split as the batch is, too (FSDP)."""
    width, heads, length, batch, words = 256, 4, 64, 8, 512

    def make(devices: list[Any]) -> Callable[[], Any]:
        mesh = Mesh(np.array(devices).reshape(rows, columns), ("d", "t"))
        row = "d" if split else None

        def weight(shape: tuple[int, ...], *spec: Any) -> jax.Array:
            return placed(mesh, *spec)(numbers(*shape) / 50)

        blocks = [
            {
                "qkv": weight((width, 3 * width), row, "t"),
                "out": weight((width, width), "t", row),
                "up": weight((width, 4 * width), row, "t"),
                "down": weight((4 * width, width), "t", row),
                "scale": placed(mesh)(np.ones(width, np.float32)),
            }
            for _ in range(2)
        ]
        params = {"words": weight((words, width), None, row), "blocks": blocks}
        text = np.random.default_rng(1).integers(0, words, (batch, length)).astype(np.int32)

        def loss(params: Any, text: Any) -> Any:
            x = params["words"][text]
            for block in params["blocks"]:
                y = x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * block["scale"]
                q, k, v = jnp.moveaxis((y @ block["qkv"]).reshape(batch, length, heads, 3, -1), 3, 0)
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
                scores = jnp.where(jnp.tri(length) > 0, scores, -1e9)
                y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v).reshape(batch, length, width)
                x = x + y @ block["out"]
                x = x + nn.gelu(x @ block["up"]) @ block["down"]
            logits = nn.log_softmax((x @ params["words"].T)[:, :-1])
            return -jnp.take_along_axis(logits, text[:, 1:, None], -1).mean()

        def step(params: Any, text: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, text)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        places = jax.tree.map(lambda p: p.sharding, params)
        return partial(jax.jit(step, out_shardings=(places, None)), params, placed(mesh, "d")(text))

    return make


def scanned(devices: list[Any]) -> Callable[[], Any]:
    """Layers in a scan, each split as the batch is."""
    mesh = line(devices)
    layers, x = placed(mesh, None, "i")(numbers(6, 256, 256) / 16), placed(mesh, "i")(numbers(COUNT * 32, 256))

    def loss(layers: Any, x: Any) -> Any:
        return (lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0] ** 2).mean()

    return partial(jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x)), layers, x)


def convolutions(devices: list[Any]) -> Callable[[], Any]:
    """The gradient of two convolutions with batch norms between them, the images split."""
    mesh = line(devices)
    kernels = [placed(mesh)(numbers(3, 3, a, b) / 10) for a, b in ((3, 32), (32, 32))]

    def loss(kernels: Any, x: Any) -> Any:
        for k in kernels:
            x = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = nn.relu((x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5))
        return (x.mean((1, 2)) ** 2).sum()

    return partial(jax.jit(jax.grad(loss)), kernels, placed(mesh, "i")(numbers(2 * COUNT, 32, 32, 3)))


def heat(devices: list[Any]) -> Callable[[], Any]:
    """20 steps in a plate with fixed edges, its rows split."""

    def step(_: int, u: Any) -> Any:
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].add(0.1 * (around - 4 * u[1:-1, 1:-1]))

    return partial(jax.jit(lambda u: lax.fori_loop(0, 20, step, u)), placed(line(devices), "i")(numbers(1024, 1024)))


def torus(devices: list[Any]) -> Callable[[], Any]:
    """20 steps of the game of life on a torus, split both ways."""
    mesh = Mesh(np.array(devices).reshape(-1, 2), ("x", "y"))

    def step(_: int, cells: Any) -> Any:
        near = sum(jnp.roll(cells, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)) - cells
        return ((near == 3) | ((near == 2) & (cells == 1))).astype(jnp.int32)

    cells = (numbers(1024, 1024) > 0.5).astype(np.int32)
    return partial(jax.jit(lambda c: lax.fori_loop(0, 20, step, c)), placed(mesh, "x", "y")(cells))


def vocabulary(devices: list[Any]) -> Callable[[], Any]:
    """The gradient of a cross entropy, the words of the table and of the logits split."""
    mesh, words, width = line(devices), 4096, 128
    table = placed(mesh, "i")(numbers(words, width) / 10)
    text = np.random.default_rng(1).integers(0, words, (8, 64)).astype(np.int32)

    def loss(table: Any, text: Any) -> Any:
        logits = nn.log_softmax(jnp.tanh(table[text]) @ table.T)
        return -jnp.take_along_axis(logits[:, :-1], text[:, 1:, None], -1).mean()

    f = jax.jit(lambda t, x: t - 0.1 * jax.grad(loss)(t, x), out_shardings=table.sharding)
    return partial(f, table, placed(mesh)(text))


def programs() -> Iterator[tuple[str, Maker]]:
    yield "tanh(x) * 2 + 1, 4096 each", elementwise(4096)
    yield "tanh(x) * 2 + 1, 1 M each", elementwise(1 << 20)
    yield "1024 x 1024, rows for columns", resharded
    yield "20 layers of 64, batch split", deep(20, 64, 8)
    yield "20 layers of 256, batch split", deep(20, 256, 32)
    yield "128 x 512 x 2048 x 512, widths split", wide
    yield "transformer, batch split", transformer(COUNT, 1, split=False)
    yield "transformer, batch and widths split", transformer(COUNT // 2, 2, split=False)
    yield "transformer, batch and parameters split", transformer(COUNT, 1, split=True)
    yield "transformer, all split", transformer(COUNT // 2, 2, split=True)
    yield "scanned layers, batch and parameters split", scanned
    yield "convolutions and batch norms, images split", convolutions
    yield "cross entropy, vocabulary split", vocabulary
    yield "heat, rows split", heat
    yield "life on a torus, split both ways", torus


def measure(make: Maker) -> tuple[dict[str, float], dict[str, float], bool]:
    """Seconds of a call and of the first one by platform, and whether the results agree."""
    calls, first, results = {}, {}, []
    for name in ("ferrule", "cpu"):
        calls[name] = make(jax.devices(name)[:COUNT])
        begin = time.perf_counter()
        results.append(jax.tree.leaves(jax.block_until_ready(calls[name]())))
        first[name] = time.perf_counter() - begin
    close = [np.allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-3) for a, b in zip(*results, strict=True)]
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + SECONDS * len(calls)
    while time.perf_counter() < end and len(times["cpu"]) < MOST or len(times["cpu"]) < 5:
        for name, call in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(t) for name, t in times.items()}, first, all(close)


def main() -> None:
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    print(f"{COUNT} devices, {os.cpu_count()} processors; µs a call; s to compile and call first\n")
    print("| | Ferrule | XLA:CPU | ratio | first | XLA:CPU's first |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    ratios = []
    for name, make in (*collectives(), *programs()):
        if words and not any(word in name for word in words):
            continue
        seconds, first, agree = measure(make)
        ratios.append(seconds["cpu"] / seconds["ferrule"])
        mine, other = (seconds[n] * 1e6 for n in ("ferrule", "cpu"))
        note = "" if agree else " (results differ)"
        print(
            f"| {name}{note} | {mine:.0f} | {other:.0f} | {ratios[-1]:.2f} | {first['ferrule']:.2f} | "
            f"{first['cpu']:.2f} |",
            flush=True,
        )
    print(f"\nGeometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
