"""ResNet-50: inference with folded statistics, and a training step with batch statistics and momentum.

Channels are last, as in Flax, but for one case with channels first, as PyTorch's programs are exported.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, Gradient, integers, normal

import jax
from cases.convolution import convolve, first

STAGES = (3, 4, 6, 3)
FLOPS = 8.2e9  # of one image of 224 × 224, forward


def weights() -> dict[str, np.ndarray]:
    """Kernels (HWIO), scales and biases of normalizations, running means and variances; by name."""
    found = {}

    def layer(name, size, inputs, outputs):
        seed = len(found)
        found[f"{name}.w"] = normal(size, size, inputs, outputs, seed=seed, scale=(2 / (size * size * inputs)) ** 0.5)
        last_of_block = name.endswith(".c")
        found[f"{name}.scale"] = np.full(outputs, 0.3 if last_of_block else 1, np.float32)
        found[f"{name}.bias"] = normal(outputs, seed=seed + 1, scale=0.1)
        found[f"{name}.mean"] = normal(outputs, seed=seed + 2, scale=0.1)
        found[f"{name}.variance"] = 1 + normal(outputs, seed=seed + 3, scale=0.1) ** 2

    layer("stem", 7, 3, 64)
    inputs = 64
    for stage, blocks in enumerate(STAGES):
        features = 64 * 2**stage
        for block in range(blocks):
            name = f"{stage}.{block}"
            layer(f"{name}.a", 1, inputs, features)
            layer(f"{name}.b", 3, features, features)
            layer(f"{name}.c", 1, features, 4 * features)
            if not block:
                layer(f"{name}.skip", 1, inputs, 4 * features)
            inputs = 4 * features
    found["head.w"] = normal(2048, 1000, seed=5, scale=0.02)
    found["head.b"] = np.zeros(1000, np.float32)
    return found


def network(p, x, training, pool, apply, relu, head):
    """The network's shape, for both frameworks."""

    def unit(name, x, stride=1):
        return apply(p, name, x, stride, training)

    x = pool(relu(unit("stem", x, 2)))
    for stage, blocks in enumerate(STAGES):
        for block in range(blocks):
            name, stride = f"{stage}.{block}", 2 if stage and not block else 1
            y = relu(unit(f"{name}.a", x))
            y = relu(unit(f"{name}.b", y, stride))
            y = unit(f"{name}.c", y)
            skip = x if block else unit(f"{name}.skip", x, stride)
            x = relu(y + skip)
    return head(p, x)


def apply_jax(p, name, x, stride, training):
    x = convolve(x, p[f"{name}.w"], stride)
    if training:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    else:
        mean, variance = p[f"{name}.mean"], p[f"{name}.variance"]
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.scale"]) + p[f"{name}.bias"]


def pool_jax(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def forward(p, x, training=False):
    return network(
        p, x, training, pool_jax, apply_jax, jax.nn.relu, lambda p, x: x.mean((1, 2)) @ p["head.w"] + p["head.b"]
    )


def forward_first(p, x):
    def apply(p, name, x, stride, training):
        w, window = p[f"{name}.w"], (stride, stride)
        x = jax.lax.conv_general_dilated(x, w, window, "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        scale = jax.lax.rsqrt(p[f"{name}.variance"] + 1e-5) * p[f"{name}.scale"]
        return (x - p[f"{name}.mean"][:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][:, None, None]

    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")

    return network(p, x, False, pool, apply, jax.nn.relu, lambda p, x: x.mean((2, 3)) @ p["head.w"] + p["head.b"])


def apply_torch(p, name, x, stride, training):
    w = p[f"{name}.w"]
    total = max((-(-x.shape[2] // stride) - 1) * stride + w.shape[2] - x.shape[2], 0)
    low, high = total // 2, total - total // 2
    if low != high:
        x, low = torch.nn.functional.pad(x, (low, high, low, high)), 0
    x = torch.conv2d(x, w, stride=stride, padding=low)
    mean, variance = (None, None) if training else (p[f"{name}.mean"], p[f"{name}.variance"])
    return torch.nn.functional.batch_norm(x, mean, variance, p[f"{name}.scale"], p[f"{name}.bias"], training, 0.1, 1e-5)


def pool_torch(x):
    return torch.max_pool2d(torch.nn.functional.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2)


def forward_torch(p, x, training=False):
    return forward_first_torch(p, first(x), training)


def forward_first_torch(p, x, training=False):
    return network(
        p,
        x,
        training,
        pool_torch,
        apply_torch,
        torch.relu,
        lambda p, x: x.mean((2, 3)) @ p["head.w"] + p["head.b"],
    )


def loss(trained, x, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(forward(trained, x, True)), labels[:, None], 1).mean()


def step(trained, momentum, x, labels):
    value, grads = jax.value_and_grad(loss)(trained, x, labels)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, trained, momentum), momentum, value


def loss_torch(trained, momentum, x, labels):
    return torch.nn.functional.cross_entropy(forward_torch(trained, x, True), labels.long())


def update_torch(args, value, grads):
    trained, momentum = ([tree[k] for k in sorted(tree)] for tree in args[:2])
    momentum = torch._foreach_add(torch._foreach_mul(momentum, 0.9), grads)
    return [*torch._foreach_sub(trained, torch._foreach_mul(momentum, 0.01)), *momentum, value]


def kernels_first(args):
    def turn(tree):
        return {k: np.ascontiguousarray(v.transpose(3, 2, 0, 1)) if v.ndim == 4 else v for k, v in tree.items()}

    return tuple(turn(a) if isinstance(a, dict) else a for a in args)


def kernels_last(found):
    return [x.permute(2, 3, 1, 0) if x.ndim == 4 else x for x in found]


def inference(batch):
    return Case(
        f"ResNet-50 inference, batch {batch}",
        forward,
        lambda: (weights(), normal(batch, 224, 224, 3, seed=99)),
        torch=forward_torch,
        torch_arguments=kernels_first,
        flops=FLOPS * batch,
        bytes=4.0 * 25.5e6,
    )


def training_arguments(batch, size):
    trained = {k: v for k, v in weights().items() if not k.endswith((".mean", ".variance"))}
    momentum = {k: np.zeros_like(v) for k, v in trained.items()}
    return trained, momentum, normal(batch, size, size, 3, seed=99), integers(1000, batch)


def cases() -> list[Case]:
    return [
        inference(1),
        inference(4),
        Case(
            "ResNet-50 inference, batch 1, channels first",
            forward_first,
            lambda: (*kernels_first([weights()]), normal(1, 3, 224, 224, seed=99)),
            torch=forward_first_torch,
            flops=FLOPS,
            bytes=4.0 * 25.5e6,
        ),
        Case(
            "ResNet-50 training step, batch 4, 128²",
            step,
            lambda: training_arguments(4, 128),
            torch=Gradient(loss_torch, 1, update_torch),
            torch_arguments=kernels_first,
            torch_results=kernels_last,
            flops=3 * FLOPS * 4 * (128 / 224) ** 2,
            bytes=4.0 * 25.5e6 * 5,
            tolerance=2e-2,  # statistics over 64 elements in the last stage, fifty layers deep
            outliers=0.01,
        ),
    ]
