"""A transformer of GPT-2 small's width (768, 12 heads, 128 tokens): its blocks stacked by `scan`, batched by `vmap`,
differentiated by `jax.grad`, on Ferrule, and the same on XLA's own CPU backend.

    JAX_PLATFORMS=ferrule,cpu python examples/transformer_block.py

Prints compile and run times of both and the largest difference between their results.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "ferrule,cpu")

import jax.numpy as jnp
import numpy as np

import jax

WIDTH, HEADS, TOKENS = 768, 12, 128
Params = dict[str, jax.Array]
# Relative to the largest magnitude of each result: float32 sums of a few thousand terms in another order.
TOLERANCE = 1e-4


def make_params(layers: int) -> dict[str, np.ndarray]:
    """Random weights at GPT-2's scale, one slice per layer; made by NumPy so that both platforms get the same."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (0.02 * random.standard_normal((layers, *shape))).astype(np.float32)

    return {
        "qkv": normal(WIDTH, 3 * WIDTH),
        "out": normal(WIDTH, WIDTH),
        "up": normal(WIDTH, 4 * WIDTH),
        "down": normal(4 * WIDTH, WIDTH),
        "norm1": np.ones((layers, WIDTH), np.float32),
        "norm2": np.ones((layers, WIDTH), np.float32),
    }


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(x: jax.Array, params: Params) -> jax.Array:
    heads = (x @ params["qkv"]).reshape(TOKENS, 3, HEADS, WIDTH // HEADS)
    q, k, v = heads[:, 0], heads[:, 1], heads[:, 2]
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(WIDTH // HEADS)
    causal = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(TOKENS, WIDTH) @ params["out"]


def block(x: jax.Array, params: Params) -> jax.Array:
    """One pre-norm transformer block on one sequence (TOKENS, WIDTH)."""
    x = x + attention(layer_norm(x, params["norm1"]), params)
    return x + jax.nn.gelu(layer_norm(x, params["norm2"]) @ params["up"]) @ params["down"]


def forward(params: Params, x: jax.Array) -> jax.Array:
    """All layers on a batch: vmap over sequences of a scan over layers."""

    def sequence(tokens: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, layer: (block(carry, layer), None), tokens, params)[0]

    return jax.vmap(sequence)(x)


def loss(params: Params, x: jax.Array, target: jax.Array) -> jax.Array:
    return ((forward(params, x) - target) ** 2).mean()


def measure(function: Any, arguments: tuple[Any, ...], repeats: int) -> tuple[Any, float, float]:
    """The result, the compile time in s and the fastest run in ms."""
    begin = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    compile_time = time.perf_counter() - begin
    result = jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return result, compile_time, min(times) * 1e3


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest magnitude of the array it is in."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    hosts = ((np.asarray(a), np.asarray(b)) for a, b in pairs)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in hosts)


def main() -> int:
    """The example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="GPT-2 small has 12")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    random = np.random.default_rng(1)
    x, target = (random.standard_normal((options.batch, TOKENS, WIDTH)).astype(np.float32) for _ in range(2))
    params = make_params(options.layers)
    print(f"devices: {jax.devices()}")
    print(f"{options.layers} layers, width {WIDTH}, {HEADS} heads, {options.batch} sequences of {TOKENS} tokens")
    platforms = {"ferrule": jax.devices()[0], "XLA:CPU": jax.devices("cpu")[0]}
    failed = False
    cases = {"forward": (forward, (params, x)), "forward and backward": (jax.value_and_grad(loss), (params, x, target))}
    for name, (function, arguments) in cases.items():
        results = {}
        for label, device in platforms.items():
            placed = jax.device_put(arguments, device)
            results[label], compile_time, run = measure(partial(function), placed, options.repeats)
            print(f"{name:20} on {label:8}: compiled in {compile_time:5.2f} s, runs in {run:7.1f} ms")
        far = difference(results["ferrule"], results["XLA:CPU"])
        failed |= not far <= TOLERANCE
        print(f"{name:20} largest difference: {far:.1e} of the largest magnitude")
    if failed:
        print(f"a difference is above {TOLERANCE:.0e}: something is wrong", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
