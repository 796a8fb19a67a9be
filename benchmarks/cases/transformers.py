"""Transformers: a GPT block forward, its training and its decoding with a cache; a small model's training; a ViT."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, Gradient, integers, normal

import jax

SHAPES = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}


def block_weights(width, seed=0):
    found = {}
    for i, (name, (a, b)) in enumerate(SHAPES.items()):
        found[name] = normal(a * width, b * width, seed=seed + i, scale=(a * width) ** -0.5)
        found[f"{name}.b"] = normal(b * width, seed=seed + i + 50, scale=0.02)
    for i, name in enumerate(("norm1", "norm2")):
        found[name] = 1 + normal(width, seed=seed + i + 90, scale=0.02)
        found[f"{name}.b"] = normal(width, seed=seed + i + 95, scale=0.02)
    return found


def norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def split(x, heads):
    """Batch × heads × sequence × features of a head."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attend(q, k, v, mask=None):
    scores = q @ k.transpose(0, 1, 3, 2) * (q.shape[-1] ** -0.5)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jax.nn.softmax(scores) @ v


def block(p, x, heads, causal=True):
    q, k, v = (split(t, heads) for t in jnp.split(norm(x, p["norm1"], p["norm1.b"]) @ p["qkv"] + p["qkv.b"], 3, -1))
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool)) if causal else None
    mixed = attend(q, k, v, mask).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + mixed @ p["out"] + p["out.b"]
    hidden = jax.nn.gelu(norm(x, p["norm2"], p["norm2.b"]) @ p["up"] + p["up.b"])
    return x + hidden @ p["down"] + p["down.b"]


def block_torch(p, x, heads, causal=True):
    f, width = torch.nn.functional, x.shape[-1]
    h = f.layer_norm(x, (width,), p["norm1"], p["norm1.b"])
    q, k, v = ((h @ p["qkv"]) + p["qkv.b"]).split(width, -1)
    q, k, v = (t.reshape(*t.shape[:2], heads, -1).transpose(1, 2) for t in (q, k, v))
    mixed = f.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(x.shape)
    x = x + (mixed @ p["out"] + p["out.b"])
    hidden = f.gelu(f.layer_norm(x, (width,), p["norm2"], p["norm2.b"]) @ p["up"] + p["up.b"], approximate="tanh")
    return x + (hidden @ p["down"] + p["down.b"])


def block_flops(tokens, width, sequence):
    return 2.0 * tokens * (12 * width * width + 2 * sequence * width)


# Decoding one token: the new key and value go into the cache at the position, attention reads all of it.


def decode(keys, values, p, x, position, heads=12):
    q, k, v = (split(t, heads) for t in jnp.split(norm(x, p["norm1"], p["norm1.b"]) @ p["qkv"] + p["qkv.b"], 3, -1))
    zero = jnp.zeros_like(position)
    keys = jax.lax.dynamic_update_slice(keys, k, (zero, zero, position, zero))
    values = jax.lax.dynamic_update_slice(values, v, (zero, zero, position, zero))
    mask = jnp.arange(keys.shape[2]) <= position
    mixed = attend(q, keys, values, mask).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + mixed @ p["out"] + p["out.b"]
    hidden = jax.nn.gelu(norm(x, p["norm2"], p["norm2.b"]) @ p["up"] + p["up.b"])
    return keys, values, x + hidden @ p["down"] + p["down.b"]


def decode_torch(keys, values, p, x, position, heads=12):
    f, width = torch.nn.functional, x.shape[-1]
    h = f.layer_norm(x, (width,), p["norm1"], p["norm1.b"])
    q, k, v = ((h @ p["qkv"]) + p["qkv.b"]).split(width, -1)
    q, k, v = (t.reshape(*t.shape[:2], heads, -1).transpose(1, 2) for t in (q, k, v))
    index = position.long().reshape(1)
    keys.index_copy_(2, index, k)
    values.index_copy_(2, index, v)
    mask = torch.arange(keys.shape[2]) <= position
    mixed = (
        f.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None])
        .transpose(1, 2)
        .reshape(x.shape)
    )
    x = x + (mixed @ p["out"] + p["out.b"])
    hidden = f.gelu(f.layer_norm(x, (width,), p["norm2"], p["norm2.b"]) @ p["up"] + p["up.b"], approximate="tanh")
    return keys, values, x + (hidden @ p["down"] + p["down.b"])


def decode_arguments(length=1024, width=768, heads=12):
    cache = (1, heads, length, width // heads)
    return (
        normal(*cache),
        normal(*cache, seed=1),
        block_weights(width),
        normal(1, 1, width, seed=2),
        np.int32(length - 100),
    )


# A small language model: embedding, blocks, the loss over the vocabulary.


def model_weights(layers, width, vocabulary, sequence):
    return {
        "embed": normal(vocabulary, width, scale=0.05),
        "places": normal(sequence, width, seed=1, scale=0.05),
        "blocks": [block_weights(width, 100 * i) for i in range(layers)],
    }


def model_loss(params, tokens, heads=8):
    x = params["embed"][tokens[:, :-1]] + params["places"]
    for p in params["blocks"]:
        x = block(p, x, heads)
    logits = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def model_step(params, tokens):
    value, grads = jax.value_and_grad(model_loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


def model_loss_torch(params, tokens, heads=8):
    f = torch.nn.functional
    x = f.embedding(tokens[:, :-1], params["embed"]) + params["places"]
    for p in params["blocks"]:
        x = block_torch(p, x, heads)
    logits = x @ params["embed"].T
    return f.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().long())


def model_update_torch(args, value, grads):
    params = jax.tree.leaves(args[0])
    return [*torch._foreach_sub(params, torch._foreach_mul(grads, 0.01)), value]


def model_arguments(layers, width=256, batch=4, sequence=128, vocabulary=1000):
    return model_weights(layers, width, vocabulary, sequence), integers(vocabulary, batch, sequence + 1)


# ViT-S/16: patches as one product, twelve blocks of width 384 without a mask.


def vit(p, images):
    n, size, _, channels = images.shape
    side = size // 16
    x = images.reshape(n, side, 16, side, 16, channels).transpose(0, 1, 3, 2, 4, 5).reshape(n, side * side, -1)
    x = x @ p["patch"] + p["places"]
    for weights in p["blocks"]:
        x = block(weights, x, 6, causal=False)
    return x.mean(1) @ p["head"]


def vit_torch(p, images):
    n, size, _, channels = images.shape
    side = size // 16
    x = images.reshape(n, side, 16, side, 16, channels).permute(0, 1, 3, 2, 4, 5).reshape(n, side * side, -1)
    x = x @ p["patch"] + p["places"]
    for weights in p["blocks"]:
        x = block_torch(weights, x, 6, causal=False)
    return x.mean(1) @ p["head"]


def vit_arguments(width=384):
    return {
        "patch": normal(768, width, scale=768**-0.5),
        "places": normal(196, width, seed=1, scale=0.02),
        "blocks": [block_weights(width, 100 * i) for i in range(12)],
        "head": normal(width, 1000, seed=2, scale=0.05),
    }, normal(1, 224, 224, 3, seed=3)


LAYERS, ROWS, TOKENS, NARROW = 4, 4, 64, 256


def stacked_arguments():
    """The weights of all layers in three arrays, as flax.linen.scan keeps them."""
    sizes = ((NARROW, NARROW), (NARROW, 2 * NARROW), (2 * NARROW, NARROW))
    return tuple(normal(LAYERS, *s, seed=i, scale=0.02) for i, s in enumerate(sizes)), normal(ROWS, NARROW)


def stacked_layers(weights, x):
    def layer(x, w):
        x = x + jnp.tanh(x @ w[0])
        return x + jax.nn.silu(x @ w[1]) @ w[2], None

    def token(x, _):
        x = jax.lax.scan(layer, x, weights)[0]
        x = x / (1 + jnp.abs(x))
        return x, x.sum(-1)

    return jax.lax.scan(token, x, None, TOKENS)[1]


def stacked_layers_torch(weights, x):
    found = []
    for _ in range(TOKENS):
        for a, b, c in zip(*weights, strict=True):
            x = x + torch.tanh(x @ a)
            x = x + torch.nn.functional.silu(x @ b) @ c
        x = x / (1 + x.abs())
        found.append(x.sum(-1))
    return torch.stack(found)


def cases() -> list[Case]:
    width, sequence = 768, 512
    weights = 12 * width * width

    def block_arguments():
        return block_weights(width), normal(1, sequence, width, seed=7)

    def attention_arguments():
        return tuple(normal(1, 12, 1024, 64, seed=i) for i in range(3))

    def causal(q, k, v):
        return attend(q, k, v, jnp.tril(jnp.ones((q.shape[2],) * 2, bool)))

    def causal_torch(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def narrow_arguments():
        return tuple(normal(1, 12, 1024, 64, seed=i, dtype=jnp.bfloat16) for i in range(3))

    def causal_narrow(q, k, v):
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).transpose(0, 2, 1, 3)

    attention = 4.0 * 12 * 1024 * 1024 * 64
    moved = 4.0 * 4 * 12 * 1024 * 64
    model = 12 * 4 * 256 * 256 + 1000 * 256
    common = {"tolerance": 1e-3}
    return [
        Case(
            "causal attention, 12 heads, 1024 × 64",
            causal,
            attention_arguments,
            torch=causal_torch,
            flops=attention / 2,
            bytes=moved,
        ),
        Case(
            "causal attention, 2 heads, 4096 × 64",
            causal,
            lambda: tuple(normal(1, 2, 4096, 64, seed=i) for i in range(3)),
            torch=causal_torch,
            flops=4.0 * 2 * 4096 * 4096 * 64 / 2,
            bytes=4.0 * 4 * 2 * 4096 * 64,
        ),
        Case(
            "causal attention, gradient, 12 heads, 1024 × 64",
            jax.grad(lambda q, k, v: (causal(q, k, v) ** 2).sum(), (0, 1, 2)),
            attention_arguments,
            torch=Gradient(lambda q, k, v: (causal_torch(q, k, v) ** 2).sum(), 3),
            flops=3.5 * attention / 2,
            bytes=2 * moved,
        ),
        Case(
            "causal attention of bf16, 12 heads, 1024 × 64",
            causal_narrow,
            narrow_arguments,
            torch=causal_torch,
            flops=attention / 2,
            bytes=moved / 2,
            peak="bf16",
            tolerance=5e-2,
        ),
        Case(
            "causal attention of bf16, gradient, 12 heads, 1024 × 64",
            jax.grad(lambda q, k, v: (causal_narrow(q, k, v).astype(jnp.float32) ** 2).sum(), (0, 1, 2)),
            narrow_arguments,
            torch=Gradient(lambda q, k, v: (causal_torch(q, k, v).float() ** 2).sum(), 3),
            flops=3.5 * attention / 2,
            bytes=moved,
            peak="bf16",
            tolerance=5e-2,
        ),
        Case(
            "GPT block inference, 512 × 768",
            lambda p, x: block(p, x, 12),
            block_arguments,
            torch=lambda p, x: block_torch(p, x, 12),
            flops=block_flops(sequence, width, sequence),
            bytes=4.0 * weights,
        ),
        Case(
            "GPT block gradient, 512 × 768",
            jax.grad(lambda p, x: (block(p, x, 12) ** 2).mean(), (0, 1)),
            block_arguments,
            torch=Gradient(lambda p, x: (block_torch(p, x, 12) ** 2).mean(), 2),
            flops=3 * block_flops(sequence, width, sequence),
            bytes=8.0 * weights,
            **common,
        ),
        Case(
            "GPT block decoding one token, cache of 1024, donated",
            decode,
            decode_arguments,
            torch=decode_torch,
            donate=(0, 1),
            flops=block_flops(1, width, 1024),
            bytes=4.0 * (weights + 2 * 1024 * width),
        ),
        Case(
            "transformer 4 × 256, training step",
            model_step,
            lambda: model_arguments(4),
            torch=Gradient(model_loss_torch, 1, model_update_torch),
            flops=3 * 2.0 * 512 * model,
            bytes=4.0 * 3 * model,
            **common,
        ),
        Case(
            "4 scanned layers of 256, 4 rows, 64 tokens",
            stacked_layers,
            stacked_arguments,
            torch=stacked_layers_torch,
            flops=2.0 * TOKENS * LAYERS * ROWS * 5 * NARROW**2,
            tolerance=1e-3,
        ),
        Case("ViT-S/16 inference, batch 1", vit, vit_arguments, torch=vit_torch, flops=9.2e9, bytes=4.0 * 22e6),
    ]
