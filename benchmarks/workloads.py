"""Whole programs beside XLA:CPU: MLP, ResNet-50, transformer training, LSTM scan, FFT, sort, and elementwise streams.

    python benchmarks/workloads.py [--only NAME,…] [--write docs/performance.md]

Prints a table: median time per call on each platform in one interleaved run, and the time of the first call.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "ferrule,cpu")

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
from timing import HEADER, compare, platforms, row

import jax

Case = tuple[Callable[..., Any], tuple[Any, ...]]
CPU = jax.devices("cpu")[0]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def mlp() -> Case:
    """Three layers of 512, batch 128: a training step with Adam."""
    sizes = (784, 512, 512, 10)
    params = [(normal(a, b) * 0.05, np.zeros(b, np.float32)) for a, b in zip(sizes, sizes[1:], strict=False)]
    optimizer = optax.adam(1e-3)
    with jax.default_device(CPU):
        state = optimizer.init(params)

    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        logits = x @ params[-1][0] + params[-1][1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    labels = np.random.RandomState(1).randint(0, 10, 128).astype(np.int32)
    return step, (params, jax.tree.map(np.asarray, state), normal(128, 784), labels)


class Bottleneck(nn.Module):
    """ResNet's bottleneck block."""

    features: int
    strides: int = 1

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.Conv(self.features, (1, 1), use_bias=False)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=True)(y))
        y = nn.Conv(self.features, (3, 3), (self.strides, self.strides), use_bias=False)(y)
        y = nn.relu(nn.BatchNorm(use_running_average=True)(y))
        y = nn.BatchNorm(use_running_average=True)(nn.Conv(4 * self.features, (1, 1), use_bias=False)(y))
        if x.shape != y.shape:
            x = nn.Conv(4 * self.features, (1, 1), (self.strides, self.strides), use_bias=False)(x)
            x = nn.BatchNorm(use_running_average=True)(x)
        return nn.relu(x + y)


class ResNet50(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.BatchNorm(use_running_average=True)(nn.Conv(64, (7, 7), (2, 2), use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                x = Bottleneck(64 * 2**stage, 2 if stage and not block else 1)(x)
        return nn.Dense(1000)(x.mean((1, 2)))


def resnet50() -> Case:
    """ResNet-50 inference, batch 1, 224×224, f32."""
    model, image = ResNet50(), normal(1, 224, 224, 3)
    with jax.default_device(CPU):
        params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.PRNGKey(0), image))
    return model.apply, (params, image)


def transformer() -> Case:
    """Four layers, width 256, 8 heads, sequence 128, batch 4: a training step with SGD."""
    width, layers, heads, vocabulary = 256, 4, 8, 1000

    def block(p: Any, x: Any) -> Any:
        def norm(v: Any) -> Any:
            return (v - v.mean(-1, keepdims=True)) * jax.lax.rsqrt(v.var(-1, keepdims=True) + 1e-5)

        h = norm(x)
        q, k, v = ((h @ w).reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for w in (p["q"], p["k"], p["v"]))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width / heads).astype(np.float32)
        scores = jnp.where(np.tril(np.ones((x.shape[1],) * 2, bool)), scores, -1e9)
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ p["o"]
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens[:, :-1]]
        for p in params["blocks"]:
            x = block(p, x)
        logits = x @ params["embed"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    shapes = {
        "q": (256, 256),
        "k": (256, 256),
        "v": (256, 256),
        "o": (256, 256),
        "up": (256, 1024),
        "down": (1024, 256),
    }
    blocks = [{n: normal(*s, seed=10 * i + j) * 0.05 for j, (n, s) in enumerate(shapes.items())} for i in range(layers)]
    params = {"embed": normal(vocabulary, width) * 0.05, "blocks": blocks}
    return step, (params, np.random.RandomState(0).randint(0, vocabulary, (4, 129)).astype(np.int32))


def lstm() -> Case:
    """An LSTM cell of 256 scanned over 100 steps, batch 16, with its gradient."""

    def run(w: Any, b: Any, xs: Any) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w + b, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((xs.shape[1], 256))
        return jax.lax.scan(cell, (zero, zero), xs)[1].sum()

    return jax.value_and_grad(run), (normal(512, 1024) * 0.05, np.zeros(1024, np.float32), normal(100, 16, 256))


CASES: dict[str, Callable[[], Case]] = {
    "MLP 784-512-512-10, batch 128, Adam step": mlp,
    "ResNet-50 inference, batch 1": resnet50,
    "transformer 4×256, train step": transformer,
    "LSTM 256, 100 steps, gradient": lstm,
    "FFT of 64 × 4096 complex": lambda: (
        jnp.fft.fft,
        ((normal(64, 4096) + 1j * normal(64, 4096)).astype(np.complex64),),
    ),
    "2-D FFT of 512 × 512": lambda: (jnp.fft.fft2, ((normal(512, 512) + 0j).astype(np.complex64),)),
    "sort of 1 M floats": lambda: (jnp.sort, (normal(1_000_000),)),
    "argsort of 1 M floats": lambda: (jnp.argsort, (normal(1_000_000),)),
    "top 10 of 1 M floats": lambda: (lambda x: jax.lax.top_k(x, 10), (normal(1_000_000),)),
    "2·x + 1 of 16 M floats": lambda: (lambda x: 2 * x + 1, (normal(16_000_000),)),
    "exp(-x²) of 4 M floats": lambda: (lambda x: jnp.exp(-x * x), (normal(4_000_000),)),
    "sum of 16 M floats": lambda: (jnp.sum, (normal(16_000_000),)),
    "softmax of 1024 × 1024": lambda: (jax.nn.softmax, (normal(1024, 1024),)),
    "matmul 1024³ f32": lambda: (jnp.matmul, (normal(1024, 1024), normal(1024, 1024, seed=1))),
    "transpose 4096 × 4096": lambda: (lambda x: x.T + 0, (normal(4096, 4096),)),
    "random normal 1 M": lambda: (lambda k: jax.random.normal(k, (1_000_000,)), (np.array([0, 7], np.uint32),)),
    "cumsum of 1 M floats": lambda: (jnp.cumsum, (normal(1_000_000),)),
    "while loop, 10000 scalar steps": lambda: (
        lambda x: jax.lax.fori_loop(0, 10000, lambda i, c: c * 0.999 + 0.1, x),
        (np.float32(1),),
    ),
    "solve 512 × 512": lambda: (jnp.linalg.solve, (normal(512, 512), normal(512, 16))),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names (or parts of names), comma separated")
    parser.add_argument("--write", type=Path, help="a Markdown file whose table is replaced")
    arguments = parser.parse_args()
    wanted = [w for w in arguments.only.split(",") if w]
    names, lines = platforms(), [HEADER]
    print(HEADER)
    for name, make in CASES.items():
        if wanted and not any(w in name for w in wanted):
            continue
        function, args = make()
        try:
            line = row(name, compare(function, args, names))
        except Exception as error:  # a workload that fails is a line of the table, not the end of it
            line = f"| {name} | failed: {type(error).__name__}: {str(error).splitlines()[0]} | | | | |"
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        text = arguments.write.read_text()
        begin, end = "<!-- workloads -->", "<!-- end -->"
        before, after = text.split(begin)[0], text.split(end)[1]
        arguments.write.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
