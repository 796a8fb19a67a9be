"""Convolutions: shapes of ResNet-50, depthwise, 1 × 1, three-dimensional, transposed, gradients. Images are NHWC."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, Gradient, integers, normal

import jax


def convolve(x, w, stride=1, groups=1, padding="SAME", wide=None):
    n = x.ndim - 2
    axes = "DHW"[3 - n :]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    more = dict(dimension_numbers=numbers, feature_group_count=groups, preferred_element_type=wide)
    return jax.lax.conv_general_dilated(x, w, (stride,) * n, padding, **more)


def first(x):
    """Channels before space, in the same memory: PyTorch's channels_last."""
    return x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))


def last(x):
    return x.permute(0, *range(2, x.ndim), 1)


def convolve_torch(x, w, stride=1, groups=1):
    n = x.ndim - 2
    f = (torch.conv1d, torch.conv2d, torch.conv3d)[n - 1]
    size, kernel = x.shape[1], w.shape[2]
    # JAX's SAME puts the odd element at the end; PyTorch pads both sides alike, so the odd one is added before.
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    low, high = total // 2, total - total // 2
    x = first(x)
    if low != high:
        x = torch.nn.functional.pad(x, (low, high) * n)
        low = 0
    return last(f(x, w, stride=stride, padding=low, groups=groups))


def weights_first(args):
    """Kernels as PyTorch wants them: output features, input features, space; channels_last in memory."""
    x, w, *rest = args
    n = w.ndim - 2
    return x, np.ascontiguousarray(w.transpose(n + 1, n, *range(n))), *rest


def shape(name, x, w, stride=1, groups=1, **more):
    outputs = [-(-s // stride) for s in x[1:-1]]
    flops = 2 * x[0] * np.prod(outputs) * np.prod(w)
    count = np.prod(x) + np.prod(w) + x[0] * np.prod(outputs) * w[-1]
    return Case(
        name,
        partial(convolve, stride=stride, groups=groups),
        lambda: (normal(*x), normal(*w, seed=1, scale=float(np.prod(w[:-1])) ** -0.5)),
        torch=partial(convolve_torch, stride=stride, groups=groups),
        torch_arguments=weights_first,
        flops=float(flops),
        bytes=4.0 * float(count),
        **more,
    )


def transposed(x, w):
    return jax.lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def transposed_torch(x, w):
    return last(torch.nn.functional.conv_transpose2d(first(x), w, stride=2, padding=1))


def transposed_weights(args):
    """PyTorch's transposed convolution is the other's gradient: its kernel is turned round, input features first."""
    x, w = args
    return x, np.ascontiguousarray(w[::-1, ::-1].transpose(2, 3, 0, 1))


def gradients(f):
    return jax.grad(lambda x, w, g: (f(x, w) * g).sum(), (0, 1))


def causal(x, w):
    """Each channel's last positions, as in front of a state-space model."""
    numbers = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(
        x, w, (1,), [(w.shape[0] - 1, 0)], dimension_numbers=numbers, feature_group_count=x.shape[-1]
    )


def causal_torch(x, w):
    x = torch.nn.functional.pad(x.transpose(1, 2), (w.shape[-1] - 1, 0))
    return torch.conv1d(x, w, groups=w.shape[0]).transpose(1, 2)


def channels_first(name, x, w, groups=1):
    """As jax.lax.conv and PyTorch take them."""

    def convolve(x, w):
        numbers = ("NCHW", "OIHW", "NCHW")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)

    positions = x[0] * x[2] * x[3]
    return Case(
        name,
        convolve,
        lambda: (normal(*x), normal(*w, seed=1, scale=float(np.prod(w[1:])) ** -0.5)),
        torch=lambda x, w: torch.conv2d(x, w, padding=w.shape[2] // 2, groups=groups),
        flops=2.0 * positions * float(np.prod(w)),
        bytes=4.0 * float(np.prod(x) + np.prod(w) + positions * w[0]),
    )


def dense_block(x, *kernels, convolve=convolve, join=lambda parts: jnp.concatenate(parts, -1), activation=jax.nn.silu):
    """As of a DenseNet: each layer reads what all before it have made. Small convolutions and other work take turns.

    With a smooth activation: where one with a kink is near it, rounding decides about a gradient."""
    for narrow, wide in zip(kernels[::2], kernels[1::2], strict=True):
        x = join([x, convolve(activation(convolve(activation(x), narrow)), wide)])
    return x


def dense_block_torch(x, *kernels):
    join = partial(torch.cat, dim=-1)
    return dense_block(x, *kernels, convolve=convolve_torch, join=join, activation=torch.nn.functional.silu)


def pooled(x, w, b):
    """What a network for digits begins with."""
    y = jax.nn.relu(convolve(x, w, padding="VALID") + b)
    return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def pooled_torch(x, w, b):
    return last(torch.nn.functional.max_pool2d(torch.relu(torch.conv2d(first(x), w, b)), 2))


def with_residual(x, w, b, r):
    return jax.nn.relu(convolve(x, w) + b + r)


def with_residual_torch(x, w, b, r):
    return torch.relu(convolve_torch(x, w) + b + r)


def dense_kernels(layers, start, growth):
    found = []
    for i in range(layers):
        features = start + i * growth
        found.append(normal(1, 1, features, 4 * growth, seed=2 * i + 1, scale=features**-0.5))
        found.append(normal(3, 3, 4 * growth, growth, seed=2 * i + 2, scale=(36 * growth) ** -0.5))
    return found


def all_weights_first(args):
    x, *kernels = args
    return x, *(weights_first((x, w))[1] for w in kernels)


def cases() -> list[Case]:
    found = [
        Case(
            "convolve of 100 K with 32 taps",
            jnp.convolve,
            lambda: (normal(100_000), normal(32, seed=1, scale=0.2)),
            torch=lambda x, w: torch.conv1d(x[None, None], w.flip(0)[None, None], padding=31)[0, 0],
            flops=2.0 * 100_000 * 32,
            bytes=8e5,
        ),
        shape("ResNet-50 7×7/2, 224² × 3 to 64", (1, 224, 224, 3), (7, 7, 3, 64), 2),
        shape("ResNet-50 1×1, 56² × 64 to 64", (1, 56, 56, 64), (1, 1, 64, 64)),
        shape("ResNet-50 3×3, 56² × 64", (1, 56, 56, 64), (3, 3, 64, 64)),
        shape("ResNet-50 1×1, 56² × 64 to 256", (1, 56, 56, 64), (1, 1, 64, 256)),
        shape("ResNet-50 1×1/2, 56² × 256 to 512", (1, 56, 56, 256), (1, 1, 256, 512), 2),
        shape("ResNet-50 3×3/2, 56² × 128", (1, 56, 56, 128), (3, 3, 128, 128), 2),
        shape("ResNet-50 3×3, 28² × 128", (1, 28, 28, 128), (3, 3, 128, 128)),
        shape("ResNet-50 3×3, 14² × 256", (1, 14, 14, 256), (3, 3, 256, 256)),
        shape("ResNet-50 1×1, 14² × 1024 to 256", (1, 14, 14, 1024), (1, 1, 1024, 256)),
        shape("ResNet-50 3×3, 7² × 512", (1, 7, 7, 512), (3, 3, 512, 512)),
        shape("ResNet-50 1×1, 7² × 512 to 2048", (1, 7, 7, 512), (1, 1, 512, 2048)),
        shape("3×3, batch 8, 28² × 128", (8, 28, 28, 128), (3, 3, 128, 128)),
        shape("3×3, 28² × 32", (1, 28, 28, 32), (3, 3, 32, 32)),
        shape("1×1, 14² × 128", (1, 14, 14, 128), (1, 1, 128, 128)),
        Case(
            "dense block, 6 layers, 4 × 32²",
            dense_block,
            lambda: (normal(4, 32, 32, 24), *dense_kernels(6, 24, 12)),
            torch=dense_block_torch,
            torch_arguments=all_weights_first,
            flops=2.0 * 4 * 32 * 32 * 6 * 48 * (24 + 30 + 9 * 12),
        ),
        Case(
            "dense block, 6 layers, 4 × 32², gradient",
            jax.grad(lambda x, *kernels: (dense_block(x, *kernels) ** 2).mean(), tuple(range(13))),
            lambda: (normal(4, 32, 32, 24), *dense_kernels(6, 24, 12)),
            torch=Gradient(lambda x, *kernels: (dense_block_torch(x, *kernels) ** 2).mean(), 13),
            torch_arguments=all_weights_first,
            torch_results=lambda found: (found[0], *(w.permute(2, 3, 1, 0) for w in found[1:])),
            flops=6.0 * 4 * 32 * 32 * 6 * 48 * (24 + 30 + 9 * 12),
        ),
        shape("depthwise 3×3, 112² × 96", (1, 112, 112, 96), (3, 3, 1, 96), groups=96),
        shape("depthwise 3×3, 14² × 576", (1, 14, 14, 576), (3, 3, 1, 576), groups=576),
        shape("depthwise 5×5/2, 56² × 144", (1, 56, 56, 144), (5, 5, 1, 144), 2, groups=144),
        shape("1×1, 256² × 32 to 1", (1, 256, 256, 32), (1, 1, 32, 1)),
        shape("3×3, 256² × 64 to 3", (1, 256, 256, 64), (3, 3, 64, 3)),
        shape("grouped 3×3, 32 groups, 28² × 256", (1, 28, 28, 256), (3, 3, 8, 256), groups=32),
        shape("1-D, width 9, 4 × 16000 × 32", (4, 16000, 32), (9, 32, 32)),
        shape("3-D 3×3×3, 16 × 56² × 16", (1, 16, 56, 56, 16), (3, 3, 3, 16, 32)),
        Case(
            "transposed 4×4/2, 32² × 128 to 64",
            transposed,
            lambda: (normal(1, 32, 32, 128), normal(4, 4, 128, 64, seed=1, scale=0.02)),
            torch=transposed_torch,
            torch_arguments=transposed_weights,
            flops=2.0 * 32 * 32 * 16 * 128 * 64,
            bytes=4.0 * (32 * 32 * 128 + 16 * 128 * 64 + 64 * 64 * 64),
        ),
        Case(
            "transposed 4×4/2, 8 × 32² × 64 to 3",
            transposed,
            lambda: (normal(8, 32, 32, 64), normal(4, 4, 64, 3, seed=1, scale=0.03)),
            torch=transposed_torch,
            torch_arguments=transposed_weights,
            flops=2.0 * 8 * 32 * 32 * 16 * 64 * 3,
            bytes=4.0 * 8 * (32 * 32 * 64 + 64 * 64 * 3),
        ),
    ]
    found.append(
        Case(
            "3×3, 14² × 256 int8",
            partial(convolve, wide=jnp.int32),
            lambda: (
                integers(127, 1, 14, 14, 256, low=-127, dtype=np.int8),
                integers(127, 3, 3, 256, 256, low=-127, seed=1, dtype=np.int8),
            ),
            flops=2.0 * 14 * 14 * 9 * 256**2,
            bytes=14 * 14 * 256 * 5 + 9 * 256**2,
            peak="int8",
            tolerance=0,
        )
    )
    count = 8 * 28 * 28 * 64
    found.append(
        Case(
            "3×3 of bf16, batch 8, 28² × 64, both gradients",
            gradients(convolve),
            lambda: (
                normal(8, 28, 28, 64, dtype=jnp.bfloat16),
                normal(3, 3, 64, 64, seed=1, scale=0.04, dtype=jnp.bfloat16),
                normal(8, 28, 28, 64, seed=2, dtype=jnp.bfloat16),
            ),
            torch=Gradient(lambda x, w, g: (convolve_torch(x, w) * g).sum(), 2),
            torch_arguments=weights_first,
            torch_results=lambda found: (found[0], found[1].permute(2, 3, 1, 0)),
            flops=4.0 * count * 9 * 64,
            bytes=2.0 * (3 * count + 2 * 9 * 64 * 64),
            tolerance=2e-2,
        )
    )
    count = 8 * 28 * 28 * 128
    found.append(
        Case(
            "3×3, batch 8, 28² × 128, both gradients",
            gradients(convolve),
            lambda: (
                normal(8, 28, 28, 128),
                normal(3, 3, 128, 128, seed=1, scale=0.03),
                normal(8, 28, 28, 128, seed=2),
            ),
            torch=Gradient(lambda x, w, g: (convolve_torch(x, w) * g).sum(), 2),
            torch_arguments=weights_first,
            torch_results=lambda found: (found[0], found[1].permute(2, 3, 1, 0)),
            flops=4.0 * count * 9 * 128,
            bytes=4.0 * (3 * count + 2 * 9 * 128 * 128),
        )
    )
    found += [
        channels_first("3×3, 14² × 256, channels first", (1, 256, 14, 14), (256, 256, 3, 3)),
        channels_first("1×1, 8 × 28² × 128 to 512, channels first", (8, 128, 28, 28), (512, 128, 1, 1)),
        channels_first("3×3, 16 × 32² × 64 to 3, channels first", (16, 64, 32, 32), (3, 64, 3, 3)),
        channels_first("depthwise 3×3, 8 × 56² × 64, channels first", (8, 64, 56, 56), (64, 1, 3, 3), 64),
        channels_first("depthwise 7×7, 4 × 56² × 96, channels first", (4, 96, 56, 56), (96, 1, 7, 7), 96),
        channels_first("blur of 3 channels, 5×5, 8 × 128², channels first", (8, 3, 128, 128), (3, 1, 5, 5), 3),
        channels_first("3×3, 8 × 14² × 512 in 32 groups, channels first", (8, 512, 14, 14), (512, 16, 3, 3), 32),
    ]
    count = 4 * 1024 * 256
    found.append(
        Case(
            "causal depthwise, 4 taps, 4 × 1024 × 256",
            causal,
            lambda: (normal(4, 1024, 256), normal(4, 1, 256, seed=1)),
            torch=causal_torch,
            torch_arguments=weights_first,
            flops=8.0 * count,
            bytes=8.0 * count,
        )
    )
    found.append(
        Case(
            "causal depthwise, 4 taps, 4 × 1024 × 256, both gradients",
            gradients(causal),
            lambda: (normal(4, 1024, 256), normal(4, 1, 256, seed=1), normal(4, 1024, 256, seed=2)),
            torch=Gradient(lambda x, w, g: (causal_torch(x, w) * g).sum(), 2),
            torch_arguments=weights_first,
            torch_results=lambda found: (found[0], found[1].permute(2, 1, 0)),
            flops=16.0 * count,
            bytes=12.0 * count,
        )
    )
    count = 8 * 28 * 28 * 192
    found.append(
        Case(
            "depthwise 7×7, 8 × 28² × 192, both gradients",
            gradients(partial(convolve, groups=192)),
            lambda: (
                normal(8, 28, 28, 192),
                normal(7, 7, 1, 192, seed=1, scale=0.1),
                normal(8, 28, 28, 192, seed=2),
            ),
            torch=Gradient(lambda x, w, g: (convolve_torch(x, w, groups=192) * g).sum(), 2),
            torch_arguments=weights_first,
            torch_results=lambda found: (found[0], found[1].permute(2, 3, 1, 0)),
            flops=4.0 * count * 49,
            bytes=12.0 * count,
        )
    )
    # What follows a convolution, and pooling that reads through it.
    positions = 128 * 26 * 26
    found.append(
        Case(
            "3×3, bias, relu, max pooling, 128 × 28² × 1 to 32",
            pooled,
            lambda: (normal(128, 28, 28, 1), normal(3, 3, 1, 32, seed=1), normal(32, seed=2)),
            torch=pooled_torch,
            torch_arguments=weights_first,
            flops=2.0 * positions * 9 * 32,
            bytes=4.0 * (128 * 28 * 28 + positions * 8),
        )
    )
    count = 8 * 56 * 56
    found.append(
        Case(
            "1×1, bias, residual, relu, 8 × 56² × 64 to 256",
            with_residual,
            lambda: (
                normal(8, 56, 56, 64),
                normal(1, 1, 64, 256, seed=1, scale=0.1),
                normal(256, seed=2),
                normal(8, 56, 56, 256, seed=3),
            ),
            torch=with_residual_torch,
            torch_arguments=weights_first,
            flops=2.0 * count * 64 * 256,
            bytes=4.0 * count * (64 + 512),
        )
    )
    return found
