"""Data in another order: transposes, concatenation, padding, broadcasts."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, integers, normal

import jax

N = 1 << 24


def heads(x):
    return x.transpose(0, 2, 1, 3)


def pixels(x, dtype=jnp.float32):
    """Images of bytes as a network wants them: normalized, channels first."""
    mean, deviation = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return ((x.astype(dtype) / 255 - mean) / deviation).transpose(0, 3, 1, 2)


def pixels_torch(x):
    mean, deviation = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
    return ((x.float() / 255 - mean) / deviation).permute(0, 3, 1, 2).contiguous()


def windows(x):
    """Shifted windows of 7 × 7 pixels (Swin)."""
    b, h, w, c = x.shape
    x = jnp.roll(x, (-3, -3), (1, 2)).reshape(b, h // 7, 7, w // 7, 7, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


def windows_torch(x):
    b, h, w, c = x.shape
    x = torch.roll(x, (-3, -3), (1, 2)).view(b, h // 7, 7, w // 7, 7, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 49, c)


def patches(x, side=16):
    """An image as a row of its patches' pixels (ViT)."""
    b, h, w, c = x.shape
    x = x.reshape(b, h // side, side, w // side, side, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, side * side * c)


def patches_torch(x, side=16):
    b, h, w, c = x.shape
    x = x.view(b, h // side, side, w // side, side, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(b, -1, side * side * c)


def moved(shape, order):
    name = f"{' × '.join(map(str, shape))} by {order}"
    return Case(
        name,
        lambda x: x.transpose(order),
        lambda: (normal(*shape),),
        torch=lambda x: x.permute(order).contiguous(),
        bytes=8 * int(np.prod(shape)),
    )


def cases() -> list[Case]:
    def square():
        return (normal(4096, 4096),)

    # PyTorch's transposes are views until somebody asks for memory in order.
    return [
        Case("transpose, 4096²", lambda x: x.T, square, torch=lambda x: x.T.contiguous(), bytes=8 * N),
        Case(
            "transpose, 1000²",
            lambda x: x.T,
            lambda: (normal(1000, 1000),),
            torch=lambda x: x.T.contiguous(),
            bytes=8e6,
        ),
        Case(
            "transpose, 3001 × 2003",
            lambda x: x.T,
            lambda: (normal(3001, 2003),),
            torch=lambda x: x.T.contiguous(),
            bytes=8.0 * 3001 * 2003,
        ),
        Case(
            "x + row, 4000 × 1001",
            lambda x, y: x + y,
            lambda: (normal(4000, 1001), normal(1001, seed=1)),
            torch=lambda x, y: x + y,
            bytes=8.0 * 4000 * 1001,
        ),
        Case(
            "transpose of bf16, 4096²",
            lambda x: x.T,
            lambda: (normal(4096, 4096, dtype=jnp.bfloat16),),
            torch=lambda x: x.T.contiguous(),
            bytes=4 * N,
        ),
        *(
            Case(
                f"{'shrink' if to < size else 'enlarge'} images, 4 × {size}² × 32 to {to}²",
                lambda x, to=to: jax.image.resize(x, (4, to, to, 32), "bilinear", antialias=False),
                lambda size=size: (normal(4, size, size, 32),),
                torch=lambda x, to=to: torch.nn.functional.interpolate(
                    x.permute(0, 3, 1, 2), (to, to), mode="bilinear"
                ).permute(0, 2, 3, 1),
                bytes=4 * 4 * 32 * (size**2 + to**2),
            )
            for size, to in ((64, 128), (100, 224), (160, 64))
        ),
        Case(
            "enlarge images, 64 × 112² to 224², channels first",
            lambda x: jax.image.resize(x, (1, 64, 224, 224), "bilinear"),
            lambda: (normal(1, 64, 112, 112),),
            torch=lambda x: torch.nn.functional.interpolate(x, (224, 224), mode="bilinear"),
            bytes=4 * 64 * (112**2 + 224**2),
        ),
        Case("x + xᵀ, 4096²", lambda x: x + x.T, square, torch=lambda x: x + x.T, bytes=8 * N),
        Case(
            "heads first, 8 × 512 × 12 × 64",
            heads,
            lambda: (normal(8, 512, 12, 64),),
            torch=lambda x: x.transpose(1, 2).contiguous(),
            bytes=8 * 8 * 512 * 12 * 64,
        ),
        *(
            Case(
                f"NHWC to NCHW, {' × '.join(map(str, shape))}",
                lambda x: x.transpose(0, 3, 1, 2),
                lambda shape=shape: (normal(*shape),),
                torch=lambda x: x.permute(0, 3, 1, 2).contiguous(),
                bytes=8 * int(np.prod(shape)),
            )
            for shape in ((8, 112, 112, 64), (4, 56, 56, 256))
        ),
        Case(
            "NCHW to NHWC, 16 × 3 × 224 × 224",
            lambda x: x.transpose(0, 2, 3, 1),
            lambda: (normal(16, 3, 224, 224),),
            torch=lambda x: x.permute(0, 2, 3, 1).contiguous(),
            bytes=8 * 16 * 224 * 224 * 3,
        ),
        Case(
            "4 × 100 × 8192 to the end, times a factor for each of 100",
            lambda x, y: x.transpose(1, 2, 0) * y[:, None, None],
            lambda: (normal(4, 100, 8192), normal(100, seed=1)),
            torch=lambda x, y: (x.permute(1, 2, 0) * y[:, None, None]).contiguous(),
            bytes=8 * 4 * 100 * 8192,
        ),
        Case(
            "normalized bytes to NCHW, 16 × 224 × 224 × 3",
            pixels,
            lambda: (integers(256, 16, 224, 224, 3, dtype=np.uint8),),
            torch=pixels_torch,
            exact=lambda x: pixels(x, jnp.float64),
            bytes=5 * 16 * 224 * 224 * 3,
        ),
        Case(
            "shifted windows, 8 × 56 × 56 × 96",
            windows,
            lambda: (normal(8, 56, 56, 96),),
            torch=windows_torch,
            bytes=8 * 8 * 56 * 56 * 96,
        ),
        Case(
            "patches of 16 × 16, 8 × 224 × 224 × 3",
            patches,
            lambda: (normal(8, 224, 224, 3),),
            torch=patches_torch,
            bytes=8 * 8 * 224 * 224 * 3,
        ),
        moved((3, 224, 16, 2, 64), (2, 3, 4, 1, 0)),
        moved((48, 64, 24, 5, 6), (2, 0, 3, 1, 4)),
        moved((48, 512, 3, 20), (1, 0, 3, 2)),
        Case(
            "stack of 4 columns of 300 K",
            lambda *xs: jnp.stack(xs, -1),
            lambda: tuple(normal(300_000, seed=i) for i in range(4)),
            torch=lambda *xs: torch.stack(xs, -1),
            bytes=32 * 300_000,
        ),
        Case(
            "concatenate 4 of 1 M",
            lambda *xs: jnp.concatenate(xs),
            lambda: tuple(normal(1 << 20, seed=i) for i in range(4)),
            torch=lambda *xs: torch.cat(xs),
            bytes=32 << 20,
        ),
        Case(
            "join rows, 3 of 4096 × 768",
            lambda *xs: jnp.concatenate(xs, 1),
            lambda: tuple(normal(4096, 768, seed=i) for i in range(3)),
            torch=lambda *xs: torch.cat(xs, 1),
            bytes=8 * 3 * 4096 * 768,
        ),
        Case(
            "pad images, 16 × 224 × 224 × 3",
            lambda x: jnp.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0))),
            lambda: (normal(16, 224, 224, 3),),
            torch=lambda x: torch.nn.functional.pad(x, (0, 0, 3, 3, 3, 3)),
            bytes=8 * 16 * 224 * 224 * 3,
        ),
        Case(
            "reflect images, 16 × 3 × 224 × 224",
            lambda x: jnp.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)), mode="reflect"),
            lambda: (normal(16, 3, 224, 224),),
            torch=lambda x: torch.nn.functional.pad(x, (3, 3, 3, 3), mode="reflect"),
            bytes=8 * 16 * 224 * 224 * 3,
        ),
        Case(
            "outer sum, 4096²",
            lambda x, y: x[:, None] + y,
            lambda: (normal(4096), normal(4096, seed=1)),
            torch=lambda x, y: x[:, None] + y,
            bytes=4 * N,
        ),
        Case(
            "roll and turn by 90°, 8 × 256² × 3",
            lambda x: jnp.rot90(jnp.roll(x, 7, 1), 1, (1, 2)),
            lambda: (normal(8, 256, 256, 3),),
            torch=lambda x: torch.rot90(torch.roll(x, 7, 1), 1, (1, 2)),
            bytes=8 * 8 * 256 * 256 * 3,
        ),
        Case(
            "differences of neighbours, 4096²",
            lambda x: jnp.diff(x),
            lambda: (normal(4096, 4096),),
            torch=lambda x: x.diff(),
            bytes=8 * N,
        ),
        Case("reverse, 16 M", lambda x: x[::-1], lambda: (normal(N),), torch=lambda x: x.flip(0), bytes=8 * N),
    ]
