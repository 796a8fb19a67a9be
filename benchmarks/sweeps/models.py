"""Pieces of machine learning models as people write them: blocks, losses, their gradients, optimizer steps, decoding.

No benchmark's kernels and few round sizes; each is what a user of JAX puts in one `jit`, at the size of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax
from jax import grad, lax, nn, value_and_grad
from sweeps import Program, integers, normal, uniform


def programs() -> Iterator[Program]:
    yield from _vision()
    yield from _attention_variants()
    yield from _language()
    yield from _state_space()
    yield from _recurrent()
    yield from _losses()
    yield from _generative()
    yield from _graphs_and_sets()
    yield from _reinforcement()
    yield from _low_precision()
    yield from _optimizers()
    yield from _other()
    yield from _libraries()


def _weight(*shape: int, seed: int = 0) -> np.ndarray:
    return normal(*shape, seed=seed, scale=math.prod(shape[:-1]) ** -0.5)


def _weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [_weight(*shape, seed=i) for i, shape in enumerate(shapes)]


def _conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def _standardize(x: Any, axes: Any = -1) -> Any:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5)


def _rms_norm(x: Any, scale: Any = 1.0) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _heads(x: Any, count: int) -> Any:
    return x.reshape(*x.shape[:-1], count, -1).swapaxes(-2, -3)


def _attend(q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
    scores = jnp.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1]) + bias
    return jnp.einsum("...qk,...kd->...qd", nn.softmax(scores), v)


def _merge(x: Any) -> Any:
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], -1)


def _causal(length: int, window: int | None = None) -> Any:
    behind = jnp.arange(length)[:, None] - jnp.arange(length)
    return jnp.where((behind >= 0) & (behind < (window or length)), 0.0, -1e9)


def _self_attention(x: Any, wqkv: Any, wo: Any, heads: int, bias: Any = 0.0) -> Any:
    q, k, v = (_heads(t, heads) for t in jnp.split(x @ wqkv, 3, -1))
    return _merge(_attend(q, k, v, bias)) @ wo


def _block(x: Any, weights: Any, heads: int, bias: Any = 0.0) -> Any:
    wqkv, wo, w1, w2 = weights
    x = x + _self_attention(_standardize(x), wqkv, wo, heads, bias)
    return x + nn.gelu(_standardize(x) @ w1) @ w2


def _block_weights(d: int, hidden: int) -> list[np.ndarray]:
    return _weights((d, 3 * d), (d, d), (d, hidden), (hidden, d))


def _mlp(weights: Any, x: Any, activation: Any = nn.relu) -> Any:
    *hidden, last = weights
    for w in hidden:
        x = activation(x @ w)
    return x @ last


def _vision() -> Iterator[Program]:
    def unet(w: Any, x: Any) -> Any:
        skip = nn.relu(_conv(x, w[0]))
        x = lax.reduce_window(skip, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = nn.relu(_conv(x, w[1]))
        x = lax.conv_transpose(x, w[2], (2, 2), "SAME")
        return (_conv(jnp.concatenate([skip, x], -1), w[3]) ** 2).mean()

    weights = lambda: _weights((3, 3, 3, 16), (3, 3, 16, 32), (2, 2, 32, 16), (3, 3, 32, 5))  # noqa: E731
    yield Program("u-net gradient", value_and_grad(unet), lambda: (weights(), normal(2, 40, 40, 3)))

    def inverted_residual(x: Any, expand: Any, depthwise: Any, project: Any) -> Any:
        y = nn.relu6(_standardize(_conv(x, expand), (0, 1, 2)))
        y = nn.relu6(_standardize(_conv(y, depthwise, groups=y.shape[-1]), (0, 1, 2)))
        return x + _standardize(_conv(y, project), (0, 1, 2))

    kernels = lambda: _weights((1, 1, 24, 144), (3, 3, 1, 144), (1, 1, 144, 24))  # noqa: E731
    yield Program("inverted residual", inverted_residual, lambda: (normal(2, 28, 28, 24), *kernels()))

    def squeeze_excite(x: Any, w1: Any, w2: Any) -> Any:
        return x * nn.sigmoid(nn.swish(x.mean((1, 2)) @ w1) @ w2)[:, None, None]

    yield Program("squeeze and excite", squeeze_excite, lambda: (normal(6, 24, 24, 96), *_weights((96, 6), (6, 96))))

    def convnext(w: Any, x: Any) -> Any:
        y = _standardize(_conv(x, w["depthwise"], groups=x.shape[-1]))
        return x + w["scale"] * (nn.gelu(y @ w["up"] + w["bias"]) @ w["down"])

    block = lambda: {  # noqa: E731
        **{"depthwise": _weight(7, 7, 1, 60), "scale": normal(60), "bias": normal(240)},
        **{"up": _weight(60, 240), "down": _weight(240, 60)},
    }
    yield Program("convnext block", convnext, lambda: (block(), normal(2, 21, 21, 60)))
    loss = grad(lambda w, x: (convnext(w, x) ** 2).mean())
    yield Program("convnext block gradient", loss, lambda: (block(), normal(2, 21, 21, 60)))

    def bottleneck(w: Any, x: Any) -> Any:
        y = nn.relu(w[3] * _standardize(_conv(x, w[0]), (0, 1, 2)) + w[4])
        y = nn.relu(_standardize(_conv(y, w[1], stride=2), (0, 1, 2)))
        y = _standardize(_conv(y, w[2]), (0, 1, 2))
        return ((nn.relu(y + x[:, ::2, ::2]) - 0.5) ** 2).mean()

    residual = lambda: [*_weights((1, 1, 96, 24), (3, 3, 24, 24), (1, 1, 24, 96)), normal(24), normal(24)]  # noqa: E731
    yield Program("bottleneck training", value_and_grad(bottleneck), lambda: (residual(), normal(6, 14, 14, 96)))

    def vit(x: Any, patch: Any, position: Any, block: Any) -> Any:
        n, h, w, c = x.shape
        x = x.reshape(n, h // 12, 12, w // 12, 12, c).swapaxes(2, 3).reshape(n, -1, 12 * 12 * c)
        return _block(x @ patch + position, block, 3).mean(1)

    yield Program(
        "vit", vit, lambda: (normal(2, 96, 96, 3), _weight(432, 192), normal(64, 192), _block_weights(192, 768))
    )

    def swin(x: Any, wqkv: Any, wo: Any, bias: Any) -> Any:
        n, h, w, c = x.shape
        y = jnp.roll(x, (-3, -3), (1, 2)).reshape(n, h // 7, 7, w // 7, 7, c).swapaxes(2, 3).reshape(-1, 49, c)
        y = _self_attention(_standardize(y), wqkv, wo, 3, bias)
        y = y.reshape(n, h // 7, w // 7, 7, 7, c).swapaxes(2, 3).reshape(x.shape)
        return x + jnp.roll(y, (3, 3), (1, 2))

    yield Program("swin", swin, lambda: (normal(2, 28, 28, 96), *_weights((96, 288), (96, 96)), normal(3, 49, 49)))

    def pixel_shuffle(x: Any, w1: Any, w2: Any) -> Any:
        y = _conv(nn.relu(_conv(x, w1)), w2)
        n, h, w, _ = y.shape
        return y.reshape(n, h, w, 3, 3, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 3 * h, 3 * w, 3)

    yield Program(
        "pixel shuffle", pixel_shuffle, lambda: (normal(1, 50, 50, 3), *_weights((3, 3, 3, 24), (3, 3, 24, 27)))
    )

    def decoder(w: Any, x: Any) -> Any:
        for kernel in w:
            n, h, wide, c = x.shape
            x = nn.relu(_conv(jax.image.resize(x, (n, 2 * h, 2 * wide, c), "bilinear"), kernel))
        return (x**2).mean()

    upward = lambda: _weights((3, 3, 32, 16), (3, 3, 16, 9))  # noqa: E731
    yield Program("bilinear decoder gradient", grad(decoder), lambda: (upward(), normal(2, 13, 17, 32)))


def _attention_variants() -> Iterator[Program]:
    def rotate(x: Any) -> Any:
        angle = jnp.arange(x.shape[-2])[:, None] / 10000 ** (jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)

    def llama(w: Any, x: Any) -> Any:
        q, k, v = (_heads(_rms_norm(x) @ w[i], 4) for i in range(3))
        x = x + _merge(_attend(rotate(q), rotate(k), v, _causal(x.shape[1]))) @ w[3]
        y = _rms_norm(x)
        return x + (nn.silu(y @ w[4]) * (y @ w[5])) @ w[6]

    d = 120
    weights = lambda: _weights(*[(d, d)] * 4, (d, 320), (d, 320), (320, d))  # noqa: E731
    yield Program("rotary block", llama, lambda: (weights(), normal(3, 77, d)))
    loss = grad(lambda w, x: (llama(w, x) ** 2).mean())
    yield Program("rotary block gradient", loss, lambda: (weights(), normal(2, 77, d)))

    def alibi(q: Any, k: Any, v: Any) -> Any:
        slopes = 2.0 ** -jnp.arange(1, q.shape[1] + 1)
        distance = jnp.arange(q.shape[2])[:, None] - jnp.arange(q.shape[2])
        return _attend(q, k, v, _causal(q.shape[2]) - slopes[:, None, None] * distance)

    qkv = lambda *shape: tuple(normal(*shape, seed=i) for i in range(3))  # noqa: E731
    yield Program("alibi attention", alibi, lambda: qkv(3, 6, 77, 32))

    def grouped(q: Any, k: Any, v: Any) -> Any:
        q = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
        return _attend(q, k[:, :, None], v[:, :, None], _causal(q.shape[-2]))

    yield Program("grouped attention", grouped, lambda: (normal(2, 12, 99, 40), *[normal(2, 3, 99, 40, seed=1)] * 2))
    windowed = lambda q, k, v: _attend(q, k, v, _causal(q.shape[2], 25))  # noqa: E731
    yield Program("sliding window attention", windowed, lambda: qkv(1, 4, 200, 32))

    def blockwise(q: Any, k: Any, v: Any) -> Any:
        def step(carry: Any, block: Any) -> Any:
            most, total, sums = carry
            scores = q @ block[0].swapaxes(-1, -2) / math.sqrt(q.shape[-1])
            larger = jnp.maximum(most, scores.max(-1, keepdims=True))
            p, shrink = jnp.exp(scores - larger), jnp.exp(most - larger)
            return (larger, total * shrink + p.sum(-1, keepdims=True), sums * shrink + p @ block[1]), None

        zero = jnp.zeros_like(q[..., :1])
        blocks = tuple(t.reshape(*t.shape[:2], 5, -1, t.shape[-1]).transpose(2, 0, 1, 3, 4) for t in (k, v))
        (_, total, sums), _ = lax.scan(step, (zero - jnp.inf, zero, jnp.zeros_like(q)), blocks)
        return sums / total

    yield Program("blockwise attention", blockwise, lambda: qkv(2, 3, 250, 40))

    def relative_bias(table: Any, q: Any, k: Any, v: Any) -> Any:
        distance = jnp.arange(q.shape[2]) - jnp.arange(q.shape[2])[:, None]
        far = 8 + (jnp.log(jnp.maximum(jnp.abs(distance), 1) / 8) / math.log(128 / 8) * 8).astype(jnp.int32)
        near = jnp.where(jnp.abs(distance) < 8, jnp.abs(distance), jnp.minimum(far, 15))
        bucket = near + jnp.where(distance > 0, 16, 0)
        return (_attend(q, k, v, table[bucket].transpose(2, 0, 1)) ** 2).mean()

    yield Program("t5 relative bias gradient", grad(relative_bias), lambda: (normal(32, 6), *qkv(2, 6, 60, 32)))


def _language() -> Iterator[Program]:
    def decode(x: Any, keys: Any, values: Any, position: Any, wqkv: Any, wo: Any) -> Any:
        q, k, v = (_heads(t, 6) for t in jnp.split(_rms_norm(x) @ wqkv, 3, -1))
        keys = lax.dynamic_update_slice_in_dim(keys, k, position, 2)
        values = lax.dynamic_update_slice_in_dim(values, v, position, 2)
        mask = jnp.where(jnp.arange(keys.shape[2]) <= position, 0.0, -1e9)
        return x + _merge(_attend(q, keys, values, mask)) @ wo, keys, values

    cache = lambda seed: normal(3, 6, 150, 40, seed=seed)  # noqa: E731
    yield Program(
        "kv-cache",
        decode,
        lambda: (normal(3, 1, 240), cache(0), cache(1), np.int32(99), *_weights((240, 720), (240, 240))),
    )

    def generate(first: Any, embedding: Any, w: Any) -> Any:
        def step(state: Any) -> Any:
            i, tokens, h = state
            h = jnp.tanh(embedding[tokens[:, i]] + h @ w)
            return i + 1, tokens.at[:, i + 1].set((h @ embedding.T).argmax(-1)), h

        tokens = jnp.zeros((first.shape[0], 25), jnp.int32).at[:, 0].set(first)
        start = (0, tokens, jnp.zeros((first.shape[0], w.shape[0])))
        return lax.while_loop(lambda s: (s[0] < 24) & ~(s[1] == 1).any(), step, start)[2]

    yield Program("greedy generation", generate, lambda: (np.arange(6) + 7, normal(777, 100), _weight(100, 100)))

    def language_model(w: Any, tokens: Any) -> Any:
        bias = _causal(tokens.shape[1] - 1)
        block = jax.checkpoint(lambda x, layer: (_block(x, layer, 4, bias), None))
        x, _ = lax.scan(block, w["embedding"][tokens[:, :-1]], w["layers"])
        logits = nn.log_softmax(_standardize(x) @ w["embedding"].T)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

    stacked = lambda: [np.stack([w, w[::-1], -w]) for w in _block_weights(60, 240)]  # noqa: E731
    model = lambda: {"embedding": normal(301, 60, scale=0.1), "layers": stacked()}  # noqa: E731
    yield Program("language model training", value_and_grad(language_model), lambda: (model(), integers(301, 3, 50)))

    def mixture(x: Any, router: Any, up: Any, down: Any) -> Any:
        gates, experts = lax.top_k(nn.softmax(x @ router), 2)
        combine = (nn.one_hot(experts, router.shape[1]) * (gates / gates.sum(-1, keepdims=True))[..., None]).sum(1)
        hidden = nn.gelu(jnp.einsum("td,edh->eth", x, up))
        return jnp.einsum("eth,ehd,te->td", hidden, down, combine)

    yield Program(
        "mixture of experts", mixture, lambda: (normal(154, 96), *_weights((96, 6), (6, 96, 192), (6, 192, 96)))
    )

    def beam_step(scores: Any, logits: Any, history: Any) -> Any:
        beams, vocabulary = logits.shape[1:]
        total = (scores[..., None] + nn.log_softmax(logits)).reshape(len(logits), -1)
        best, index = lax.top_k(total, beams)
        parents = jnp.take_along_axis(history, (index // vocabulary)[..., None], 1)
        return best, jnp.concatenate([parents, (index % vocabulary)[..., None]], -1)

    yield Program("beam search step", beam_step, lambda: (normal(6, 5), normal(6, 5, 2003), integers(2003, 6, 5, 20)))

    def sample_top_k(seed: Any, logits: Any) -> Any:
        values, index = lax.top_k(logits / 0.8, 40)
        choice = jax.random.categorical(jax.random.key(seed), values)
        return jnp.take_along_axis(index, choice[:, None], 1)[:, 0]

    yield Program("sample top k", sample_top_k, lambda: (np.int32(7), normal(6, 10_007)))

    def sample_top_p(seed: Any, logits: Any) -> Any:
        p = nn.softmax(2 * logits)
        order = jnp.argsort(-p, -1)
        ordered = jnp.take_along_axis(p, order, -1)
        kept = jnp.where(jnp.cumsum(ordered, -1) - ordered < 0.9, jnp.log(ordered), -jnp.inf)
        return jnp.take_along_axis(order, jax.random.categorical(jax.random.key(seed), kept)[:, None], 1)[:, 0]

    yield Program("sample top p", sample_top_p, lambda: (np.int32(7), normal(6, 2003)))


def _state_space() -> Iterator[Program]:
    def selective_scan(w: Any, u: Any) -> Any:
        step, b, c = nn.softplus(u @ w["step"]), u @ w["b"], u @ w["c"]
        decay = jnp.exp(-step[..., None] * jnp.exp(w["log_a"]))
        drive = (step * u)[..., None] * b[:, :, None]
        join = lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1])  # noqa: E731
        _, h = lax.associative_scan(join, (decay, drive), axis=1)
        return (h * c[:, :, None]).sum(-1) + u * w["skip"]

    mamba = lambda: {  # noqa: E731
        **{"step": _weight(48, 48), "b": _weight(48, 8, seed=1), "c": _weight(48, 8, seed=2)},
        **{"log_a": np.log(np.arange(1.0, 9, dtype=np.float32)) + np.zeros((48, 8), np.float32), "skip": normal(48)},
    }
    yield Program("mamba selective scan", selective_scan, lambda: (mamba(), normal(2, 77, 48)))
    loss = grad(lambda w, u: (selective_scan(w, u) ** 2).mean())
    yield Program("mamba selective scan gradient", loss, lambda: (mamba(), normal(1, 77, 48)))

    def rwkv(k: Any, v: Any, r: Any, decay: Any, bonus: Any) -> Any:
        def step(carry: Any, kv: Any) -> Any:
            (num, den), (k, v) = carry, kv
            now = jnp.exp(bonus + k)
            out = (num + now * v) / (den + now)
            return (num * decay + jnp.exp(k) * v, den * decay + jnp.exp(k)), out

        return nn.sigmoid(r) * lax.scan(step, (jnp.zeros_like(v[0]), jnp.zeros_like(v[0])), (k, v))[1]

    sequence = lambda: tuple(normal(150, 6, 77, seed=i) for i in range(3))  # noqa: E731
    yield Program("rwkv", rwkv, lambda: (*sequence(), uniform(77, low=0.5), normal(77)))

    def linear_attention(q: Any, k: Any, v: Any) -> Any:
        q, k = nn.elu(q) + 1, nn.elu(k) + 1
        states, norms = jnp.cumsum(jnp.einsum("btd,bte->btde", k, v), 1), jnp.cumsum(k, 1)
        return jnp.einsum("btd,btde->bte", q, states) / (q * norms).sum(-1, keepdims=True)

    yield Program("linear attention", linear_attention, lambda: tuple(normal(4, 77, 24, seed=i) for i in range(3)))


def _recurrent() -> Iterator[Program]:
    def lstm(w: Any, xs: Any, reverse: bool = False) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x + h @ w[1] + w[2], 4, -1)
            c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((xs.shape[1], w[1].shape[0]))
        return lax.scan(cell, (zero, zero), xs @ w[0], reverse=reverse)[1]

    def bidirectional(w: Any, xs: Any, labels: Any) -> Any:
        h = jnp.concatenate([lstm(w[0], xs), lstm(w[1], xs, reverse=True)], -1)
        return -(nn.log_softmax(h.mean(0) @ w[2]) * nn.one_hot(labels, 13)).sum(-1).mean()

    cell = lambda x, h: [_weight(x, 4 * h), _weight(h, 4 * h, seed=1), normal(4 * h)]  # noqa: E731
    yield Program("lstm", lstm, lambda: (cell(50, 150), normal(40, 6, 50)))
    coders = lambda: [cell(30, 77), cell(30, 77), _weight(154, 13)]  # noqa: E731
    yield Program(
        "bidirectional lstm gradient",
        value_and_grad(bidirectional),
        lambda: (coders(), normal(40, 6, 30), integers(13, 6)),
    )

    def gru(w: Any, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            z, r = jnp.split(nn.sigmoid(x @ w[0] + h @ w[1]), 2, -1)
            h = (1 - z) * h + z * jnp.tanh(x @ w[2] + (r * h) @ w[3])
            return h, h

        return (lax.scan(cell, jnp.zeros((xs.shape[1], w[3].shape[0])), xs)[1] ** 2).mean()

    gates = lambda: _weights((40, 200), (100, 200), (40, 100), (100, 100))  # noqa: E731
    yield Program("gru gradient", grad(gru), lambda: (gates(), normal(33, 6, 40)))

    def causal_conv(x: Any, w: Any, dilation: int) -> Any:
        pad = ((w.shape[0] - 1) * dilation, 0)
        return lax.conv_general_dilated(
            x, w, (1,), [pad], rhs_dilation=(dilation,), dimension_numbers=("NWC", "WIO", "NWC")
        )

    def wavenet(x: Any, filters: Any, outs: Any) -> Any:
        skip = 0.0
        for i, (w, out) in enumerate(zip(filters, outs)):
            a, b = jnp.split(causal_conv(x, w, 2**i), 2, -1)
            y = (jnp.tanh(a) * nn.sigmoid(b)) @ out
            x, skip = x + y, skip + y
        return nn.relu(skip)

    yield Program("wavenet", wavenet, lambda: (normal(2, 500, 24), [_weight(2, 24, 48)] * 6, [_weight(24, 24)] * 6))

    def upsampler(x: Any, w1: Any, w2: Any) -> Any:
        x = lax.conv_transpose(x, w1, (5,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        return jnp.tanh(lax.conv_transpose(nn.leaky_relu(x), w2, (4,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))

    yield Program("vocoder upsampling", upsampler, lambda: (normal(2, 77, 40), *_weights((10, 40, 20), (8, 20, 10))))


def _losses() -> Iterator[Program]:
    def contrastive(w: Any, x: Any, y: Any) -> Any:
        a, b = _mlp(w[0], x), _mlp(w[1], y)
        a, b = (t / jnp.linalg.norm(t, axis=-1, keepdims=True) for t in (a, b))
        logits = a @ b.T / 0.2
        same = jnp.arange(len(x))
        return -(nn.log_softmax(logits, 1)[same, same] + nn.log_softmax(logits, 0)[same, same]).mean() / 2

    towers = lambda: [_weights((100, 150), (150, 64)), _weights((77, 150), (150, 64))]  # noqa: E731
    yield Program("infonce gradient", value_and_grad(contrastive), lambda: (towers(), normal(90, 100), normal(90, 77)))

    def dice(logits: Any, mask: Any) -> Any:
        p, t = nn.softmax(logits), nn.one_hot(mask, logits.shape[-1])
        return 1 - ((2 * (p * t).sum((1, 2)) + 1) / ((p + t).sum((1, 2)) + 1)).mean()

    yield Program("dice loss gradient", grad(dice), lambda: (normal(2, 96, 96, 5), integers(5, 2, 96, 96)))


def _generative() -> Iterator[Program]:
    def vae(w: Any, x: Any, seed: Any) -> Any:
        mean, log_variance = jnp.split(_mlp(w[0], x), 2, -1)
        z = mean + jnp.exp(log_variance / 2) * jax.random.normal(jax.random.key(seed), mean.shape)
        logits = _mlp(w[1], z)
        bits = (nn.softplus(logits) - x * logits).sum(-1)
        return (bits + 0.5 * (mean**2 + jnp.exp(log_variance) - log_variance - 1).sum(-1)).mean()

    coder = lambda: [_weights((784, 200), (200, 40)), _weights((20, 200), (200, 784))]  # noqa: E731
    yield Program("vae training", value_and_grad(vae), lambda: (coder(), uniform(50, 784), np.int32(3)))

    def diffusion(w: Any, x: Any, t: Any, seed: Any) -> Any:
        noise = jax.random.normal(jax.random.key(seed), x.shape, x.dtype)
        signal = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 1000, dtype=x.dtype))[t][:, None, None, None]
        noisy = jnp.sqrt(signal) * x + jnp.sqrt(1 - signal) * noise
        angle = t[:, None] * jnp.exp(-jnp.arange(8, dtype=x.dtype) / 2)
        time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1) @ w[2]
        return ((_conv(nn.silu(_conv(noisy, w[0]) + time[:, None, None]), w[1]) - noise) ** 2).mean()

    denoiser = lambda: _weights((3, 3, 3, 20), (3, 3, 20, 3), (16, 20))  # noqa: E731
    yield Program(
        "diffusion training",
        value_and_grad(diffusion),
        lambda: (denoiser(), normal(3, 32, 32, 3), integers(1000, 3), np.int32(5)),
    )

    def nerf(w: Any, origins: Any, directions: Any) -> Any:
        depth = jnp.linspace(1.0, 4.0, 24)
        points = origins[:, None] + directions[:, None] * depth[:, None]
        angle = (points[..., None] * 2.0 ** jnp.arange(5)).reshape(*points.shape[:-1], -1)
        out = _mlp(w, jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1))
        alpha = 1 - jnp.exp(-nn.relu(out[..., 3]) * (depth[1] - depth[0]))
        through = jnp.cumprod(1 - alpha + 1e-6, -1)
        return (nn.sigmoid(out[..., :3]) * (alpha * through)[..., None]).sum(1)

    rays = lambda: (_weights((30, 64), (64, 64), (64, 4)), normal(100, 3), normal(100, 3, seed=1, scale=0.5))  # noqa: E731
    yield Program("nerf rendering", nerf, rays)
    yield Program("nerf rendering gradient", grad(lambda w, o, d: (nerf(w, o, d) ** 2).mean()), rays)


def _graphs_and_sets() -> Iterator[Program]:
    def gcn(w: Any, x: Any, source: Any, target: Any) -> Any:
        degree = jax.ops.segment_sum(jnp.ones(len(source)), target, len(x)) + 1
        norm = lax.rsqrt(degree)[:, None]
        for layer in w:
            h = (x @ layer) * norm
            x = nn.relu(norm * (jax.ops.segment_sum(h[source], target, len(x)) + h))
        return (x**2).mean()

    edges = lambda: (integers(500, 3000), integers(500, 3000, seed=1))  # noqa: E731
    yield Program("gcn gradient", grad(gcn), lambda: (_weights((77, 40), (40, 13)), normal(500, 77), *edges()))

    def gat(x: Any, w: Any, a: Any, source: Any, target: Any) -> Any:
        h = (x @ w).reshape(len(x), 4, -1)
        score = nn.leaky_relu((h * a[0]).sum(-1)[source] + (h * a[1]).sum(-1)[target])
        e = jnp.exp(score - jax.ops.segment_max(score, target, len(x))[target])
        alpha = e / jax.ops.segment_sum(e, target, len(x))[target]
        return jax.ops.segment_sum(alpha[..., None] * h[source], target, len(x))

    yield Program("graph attention", gat, lambda: (normal(500, 50), _weight(50, 60), normal(2, 4, 15), *edges()))

    def pointnet(w: Any, points: Any, labels: Any) -> Any:
        logits = _mlp(w[1], nn.relu(_mlp(w[0], points)).max(1))
        return -jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], 1).mean()

    sets = lambda: [_weights((3, 32), (32, 100)), _weights((100, 50), (50, 13))]  # noqa: E731
    yield Program("pointnet gradient", grad(pointnet), lambda: (sets(), normal(6, 300, 3), integers(13, 6)))

    def deep_set(w: Any, points: Any, count: Any) -> Any:
        kept = jnp.arange(len(points))[:, None] < count
        return _mlp(w[1], jnp.where(kept, nn.relu(_mlp(w[0], points)), 0.0).sum(0) / count)

    ragged = lambda: (sets(), normal(20, 77, 3), integers(76, 20) + 1)  # noqa: E731
    yield Program("deep sets, ragged", jax.vmap(deep_set, (None, 0, 0)), ragged)

    def dlrm(w: Any, dense: Any, ids: Any) -> Any:
        features = jax.vmap(lambda table, i: table[i].sum(1), (0, 1), 1)(w["tables"], ids)
        features = jnp.concatenate([features, _mlp(w["bottom"], dense)[:, None]], 1)
        pairs = (features @ features.swapaxes(1, 2))[:, *jnp.tril_indices(features.shape[1], -1)]
        return nn.softplus(_mlp(w["top"], pairs)).mean()

    tables = lambda: {  # noqa: E731
        **{"tables": normal(8, 1000, 16), "bottom": _weights((13, 50), (50, 16)), "top": _weights((36, 50), (50, 1))}
    }
    yield Program("dlrm gradient", grad(dlrm), lambda: (tables(), normal(64, 13), integers(1000, 64, 8, 5)))


def _reinforcement() -> Iterator[Program]:
    def ppo(w: Any, states: Any, actions: Any, old: Any, rewards: Any, dones: Any) -> Any:
        values = _mlp(w[1], states, jnp.tanh)[..., 0]

        def backwards(advantage: Any, step: Any) -> Any:
            reward, value, following, done = step
            advantage = reward + 0.99 * following * (1 - done) - value + 0.94 * (1 - done) * advantage
            return advantage, advantage

        steps = lax.stop_gradient((rewards[:-1], values[:-1], values[1:], dones[:-1]))
        advantages = lax.scan(backwards, jnp.zeros(rewards.shape[1]), steps, reverse=True)[1]
        log_p = nn.log_softmax(_mlp(w[0], states[:-1], jnp.tanh))
        ratio = jnp.exp(jnp.take_along_axis(log_p, actions[:-1, :, None], -1)[..., 0] - old[:-1])
        normed = _standardize(advantages, (0, 1))
        policy = -jnp.minimum(ratio * normed, jnp.clip(ratio, 0.8, 1.2) * normed).mean()
        return (
            policy + 0.5 * ((advantages + steps[1] - values[:-1]) ** 2).mean() + 0.01 * (jnp.exp(log_p) * log_p).mean()
        )

    rollout = lambda: (  # noqa: E731
        *(normal(65, 10, 17), integers(6, 65, 10), uniform(65, 10, low=-2.0, high=-1.5), normal(65, 10)),
        (uniform(65, 10) < 0.05).astype(np.float32),
    )
    networks = lambda: [_weights((17, 64), (64, 6)), _weights((17, 64), (64, 1))]  # noqa: E731
    yield Program("ppo with gae gradient", grad(ppo), lambda: (networks(), *rollout()))


def _low_precision() -> Iterator[Program]:
    def lora(adapter: Any, w: Any, x: Any) -> Any:
        return ((x @ w + 2.0 * (x @ adapter[0]) @ adapter[1]) ** 2).mean()

    yield Program("lora", grad(lora), lambda: (_weights((300, 8), (8, 500)), normal(300, 500), normal(154, 300)))

    def int8_linear(x: Any, w: Any, scales: Any) -> Any:
        by_row = jnp.abs(x).max(1, keepdims=True) / 127
        q = jnp.round(x / by_row).astype(jnp.int8)
        return lax.dot(q, w, preferred_element_type=jnp.int32).astype(jnp.float32) * by_row * scales

    quantized = lambda: ((integers(255, 300, 500) - 127).astype(np.int8), uniform(500))  # noqa: E731
    yield Program("int8 linear", int8_linear, lambda: (normal(77, 300), *quantized()))
    only_weights = lambda x, w, scales: x @ (w.astype(jnp.float32) * scales)  # noqa: E731
    yield Program("int8 weights only", only_weights, lambda: (normal(6, 300), *quantized()))

    def bf16_mlp(w: Any, x: Any) -> Any:
        half = jax.tree.map(lambda t: t.astype(jnp.bfloat16), w)
        return (_mlp(half, x.astype(jnp.bfloat16), nn.gelu).astype(jnp.float32) ** 2).mean()

    wide = lambda: (_weights((100, 300), (300, 300), (300, 77)), normal(60, 100))  # noqa: E731
    yield Program("bfloat16 mlp gradient", grad(bf16_mlp), wide, 5e-2)

    @jax.custom_vjp
    def fake_quantize(x: Any) -> Any:
        scale = jnp.abs(x).max() / 7
        return jnp.round(x / scale) * scale

    fake_quantize.defvjp(lambda x: (fake_quantize(x), None), lambda _, g: (g,))
    aware = lambda w, x: (_mlp([fake_quantize(t) for t in w], x) ** 2).mean()  # noqa: E731
    yield Program("quantization-aware gradient", grad(aware), wide)


def _optimizers() -> Iterator[Program]:
    def adam(p: Any, g: Any, m: Any, v: Any, t: Any) -> Any:
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        step = lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8) + 0.01 * p)  # noqa: E731
        return jax.tree.map(step, p, m, v), m, v

    shapes = [(3, 3, 3, 32), (32,), (77, 300), (300,), (300, 301), (301, 13), (13,)]
    tree = lambda seed: [normal(*s, seed=seed) for s in shapes]  # noqa: E731
    squares = lambda: [x * x for x in tree(3)]  # noqa: E731
    yield Program("adamw step", adam, lambda: (tree(0), tree(1), tree(2), squares(), np.float32(7)))

    def lamb(p: Any, g: Any, v: Any) -> Any:
        def step(p: Any, g: Any, v: Any) -> Any:
            update = g / (jnp.sqrt(0.999 * v + 0.001 * g * g) + 1e-6) + 0.01 * p
            return p - 1e-2 * jnp.linalg.norm(p.ravel()) / jnp.linalg.norm(update.ravel()) * update

        return jax.tree.map(step, p, g, v)

    yield Program("lamb step", lamb, lambda: (tree(0), tree(1), squares()))

    def adafactor(p: Any, g: Any, rows: Any, columns: Any) -> Any:
        rows = 0.99 * rows + 0.01 * (g * g).mean(1)
        columns = 0.99 * columns + 0.01 * (g * g).mean(0)
        update = g * lax.rsqrt(rows / rows.mean())[:, None] * lax.rsqrt(columns)
        return p - 1e-2 * update / jnp.maximum(1.0, jnp.sqrt((update**2).mean())), rows, columns

    norms = lambda: (uniform(500, low=0.5), uniform(301, low=0.5))  # noqa: E731
    yield Program("adafactor step", adafactor, lambda: (normal(500, 301), normal(500, 301, seed=1), *norms()))

    def momentum(p: Any, g: Any, velocity: Any, average: Any) -> Any:
        norm = jnp.sqrt(sum((x**2).sum() for x in jax.tree.leaves(g)))
        g = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), g)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, g)
        p = jax.tree.map(lambda p, g, v: p - 0.1 * (g + 0.9 * v), p, g, velocity)
        return p, velocity, jax.tree.map(lambda a, p: 0.999 * a + 0.001 * p, average, p)

    yield Program("clipped momentum and average", momentum, lambda: (tree(0), tree(1), tree(2), tree(0)))

    def spectral_norm(w: Any, u: Any, x: Any) -> Any:
        unit = lambda v: v / jnp.linalg.norm(v)  # noqa: E731
        u = lax.stop_gradient(lax.fori_loop(0, 5, lambda _, u: unit(unit(u @ w.T) @ w), unit(u)))
        return ((x @ w / jnp.linalg.norm(w @ u)) ** 2).mean()

    yield Program("spectral norm", grad(spectral_norm), lambda: (normal(150, 200), normal(200), normal(60, 150)))

    def private(w: Any, x: Any, y: Any) -> Any:
        loss = lambda w, x, y: ((_mlp(w, x) - y) ** 2).mean()  # noqa: E731
        g = jax.vmap(grad(loss), (None, 0, 0))(w, x, y)
        norm = jnp.sqrt(sum((t**2).sum((1, 2)) for t in g))
        return [jnp.einsum("bij,b->ij", t, jnp.minimum(1, 1 / norm)) for t in g]

    yield Program("gradients by example", private, lambda: (_weights((30, 50), (50, 7)), normal(60, 30), normal(60, 7)))


def _other() -> Iterator[Program]:
    def stochastic_depth(w: Any, x: Any, seed: Any) -> Any:
        for i, layer in enumerate(w):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
            dropped = lambda x, w=layer, k=keys[0]: x + nn.gelu(x @ w) * jax.random.bernoulli(k, 0.9, x.shape) / 0.9  # noqa: E731
            x = lax.cond(jax.random.bernoulli(keys[1], 0.7), dropped, lambda x: x, x)
        return (x**2).mean()

    yield Program(
        "dropout gradient", grad(stochastic_depth), lambda: ([_weight(100, 100)] * 4, normal(77, 100), np.int32(3))
    )

    def neural_ode(w: Any, x: Any) -> Any:
        def rk4(x: Any, _: Any) -> Any:
            f = partial(_mlp, w, activation=jnp.tanh)
            k1 = f(x)
            k2 = f(x + 0.05 * k1)
            k3 = f(x + 0.05 * k2)
            return x + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + 0.1 * k3)), None

        return (lax.scan(rk4, x, None, length=20)[0] ** 2).mean()

    yield Program("neural ode gradient", grad(neural_ode), lambda: (_weights((9, 50), (50, 9)), normal(60, 9)))

    def capsules(votes: Any) -> Any:
        def route(logits: Any, _: Any) -> Any:
            s = jnp.einsum("bijd,bij->bjd", votes, nn.softmax(logits))
            square = (s**2).sum(-1, keepdims=True)
            v = s * jnp.sqrt(square + 1e-8) / (1 + square)
            return logits + jnp.einsum("bijd,bjd->bij", votes, v), v

        return lax.scan(route, jnp.zeros(votes.shape[:-1]), None, length=3)[1][-1]

    yield Program("capsule routing", capsules, lambda: (normal(6, 150, 10, 16, scale=0.1),))


def _libraries() -> Iterator[Program]:
    try:
        import optax
        from flax import linen
    except ImportError:
        return

    def ctc(logits: Any, labels: Any) -> Any:
        padding = (jnp.arange(labels.shape[1]) >= 9).astype(jnp.float32) * jnp.ones((len(labels), 1))
        return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, padding).mean()

    yield Program("ctc gradient", value_and_grad(ctc), lambda: (normal(6, 77, 30), integers(29, 6, 12) + 1))

    class Classifier(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.max_pool(nn.relu(linen.Conv(16, (5, 5))(x)), (2, 2), (2, 2))
            x = linen.avg_pool(nn.relu(linen.Conv(24, (3, 3))(x)), (2, 2), (2, 2))
            return linen.Dense(13)(linen.LayerNorm()(x.reshape(len(x), -1)))

    def train(params: Any, x: Any, labels: Any) -> Any:
        loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(Classifier().apply(p, x), labels).mean()  # noqa: E731
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
        updates, _ = optimizer.update(grad(loss)(params), optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    def arguments() -> tuple[Any, ...]:
        x = normal(6, 28, 28, 3)
        shapes = jax.eval_shape(Classifier().init, jax.random.key(0), x)
        return jax.tree.map(lambda s: normal(*s.shape, scale=0.1), shapes), x, integers(13, 6)

    yield Program("flax classifier step", train, arguments)
