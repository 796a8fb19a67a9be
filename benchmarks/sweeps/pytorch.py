"""Operations as people write them in JAX and in PyTorch, in pairs: `benchmarks/beside_pytorch.py` times both.

Both are expressions in x, y, z, …, the arguments, so that PyTorch is needed only where they are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax
from jax import lax, nn
from sweeps import integers, normal, positive_definite

Arguments = Callable[[], tuple[np.ndarray, ...]]
NAMES = "xyzuvw"
SHAPES = ((300, 301), (1000, 1000), (2000, 3001))

ELEMENTWISE = {
    "exp": ("jnp.exp(x)", "x.exp()"),
    "log1p": ("jnp.log1p(abs(x))", "x.abs().log1p()"),
    "tanh": ("jnp.tanh(x)", "x.tanh()"),
    "sigmoid": ("nn.sigmoid(x)", "x.sigmoid()"),
    "gelu": ("nn.gelu(x, approximate=False)", "F.gelu(x)"),
    "gelu by tanh": ("nn.gelu(x)", "F.gelu(x, approximate='tanh')"),
    "silu": ("nn.silu(x)", "F.silu(x)"),
    "relu": ("nn.relu(x)", "F.relu(x)"),
    "mish": ("nn.mish(x)", "F.mish(x)"),
    "elu": ("nn.elu(x)", "F.elu(x)"),
    "softplus": ("nn.softplus(x)", "F.softplus(x)"),
    "erf": ("lax.erf(x)", "x.erf()"),
    "sin": ("jnp.sin(x)", "x.sin()"),
    "rsqrt": ("lax.rsqrt(abs(x))", "x.abs().rsqrt()"),
    "reciprocal": ("1 / x", "x.reciprocal()"),
    "round": ("jnp.round(x)", "x.round()"),
    "clip": ("jnp.clip(x, -1, 1)", "x.clamp(-1, 1)"),
    "isnan": ("jnp.isnan(x)", "x.isnan()"),
    "add": ("x + y", "x + y"),
    "divide": ("x / y", "x / y"),
    "maximum": ("jnp.maximum(x, y)", "torch.maximum(x, y)"),
    "atan2": ("jnp.arctan2(x, y)", "torch.atan2(x, y)"),
    "pow": ("abs(x) ** y", "x.abs() ** y"),
    "hypot": ("jnp.hypot(x, y)", "torch.hypot(x, y)"),
    "where": ("jnp.where(x > 0, x, y)", "torch.where(x > 0, x, y)"),
    "lerp": ("x + 0.3 * (y - x)", "torch.lerp(x, y, 0.3)"),
    "greater": ("x > y", "x > y"),
    "of i32, add": ("(x * 50).astype(int) + (y * 50).astype(int)", "(x * 50).int() + (y * 50).int()"),
    "of bf16, gelu": ("nn.gelu(x.astype(jnp.bfloat16))", "F.gelu(x.bfloat16(), approximate='tanh')"),
}
REDUCTIONS = {
    "sum": ("x.sum()", "x.sum()"),
    "largest": ("x.max()", "x.max()"),
    "variance": ("x.var()", "x.var(correction=0)"),
    "norm": ("jnp.linalg.norm(x)", "x.norm()"),
    "argmax": ("jnp.argmax(x)", "x.argmax()"),
    "logsumexp": ("nn.logsumexp(x)", "x.flatten().logsumexp(0)"),
    "any": ("(x > 9).any()", "(x > 9).any()"),
    "dot": ("(x * y).sum()", "x.flatten() @ y.flatten()"),
    "squared error": ("((x - y) ** 2).mean()", "F.mse_loss(x, y)"),
    "masked sum": ("jnp.where(x > 0, x, 0).sum()", "x[x > 0].sum()"),
    "sum of columns": ("x.sum(0)", "x.sum(0)"),
    "sum of rows": ("x.sum(1)", "x.sum(1)"),
    "largest of columns": ("x.max(0)", "x.amax(0)"),
    "largest of rows": ("x.max(1)", "x.amax(1)"),
    "argmax of columns": ("x.argmax(0)", "x.argmax(0)"),
    "argmax of rows": ("x.argmax(1)", "x.argmax(1)"),
    "variance of columns": ("x.var(0)", "x.var(0, correction=0)"),
    "variance of rows": ("x.var(1)", "x.var(1, correction=0)"),
    "softmax": ("nn.softmax(x)", "x.softmax(1)"),
    "softmax of columns": ("nn.softmax(x, 0)", "x.softmax(0)"),
    "log-softmax": ("nn.log_softmax(x)", "x.log_softmax(1)"),
    "layer norm": ("nn.standardize(x, epsilon=1e-5)", "F.layer_norm(x, x.shape[1:])"),
    "normalize": ("x / jnp.linalg.norm(x, axis=1, keepdims=True)", "F.normalize(x)"),
    "cumsum": ("jnp.cumsum(x, 1)", "x.cumsum(1)"),
    "cumsum of columns": ("jnp.cumsum(x, 0)", "x.cumsum(0)"),
    "cummax": ("lax.cummax(x, 1)", "x.cummax(1)[0]"),
    "sort": ("jnp.sort(x)", "x.sort()[0]"),
    "sort of columns": ("jnp.sort(x, 0)", "x.sort(0)[0]"),
    "top 10": ("lax.top_k(x, 10)[0]", "x.topk(10)[0]"),
    "covariance": ("jnp.cov(x[:200])", "torch.cov(x[:200])"),
    "product with itself": ("x[:200] @ x[:200].T", "x[:200] @ x[:200].T"),
}
MOVES = {
    "transpose": ("x.T", "x.T.contiguous()"),
    "flip": ("jnp.flip(x, 1)", "x.flip(1)"),
    "roll": ("jnp.roll(x, 3, 1)", "x.roll(3, 1)"),
    "tril": ("jnp.tril(x)", "x.tril()"),
    "concatenate rows": ("jnp.concatenate([x, y])", "torch.cat([x, y])"),
    "concatenate columns": ("jnp.concatenate([x, y], 1)", "torch.cat([x, y], 1)"),
    "stack last": ("jnp.stack([x, y], 2)", "torch.stack([x, y], 2)"),
    "pad": ("jnp.pad(x, 1)", "F.pad(x, (1, 1, 1, 1))"),
    "pad by reflection": ("jnp.pad(x, 2, mode='reflect')", "F.pad(x[None], (2, 2, 2, 2), mode='reflect')[0]"),
    "repeat": ("jnp.repeat(x, 2, 1)", "x.repeat_interleave(2, 1)"),
    "tile": ("jnp.tile(x, (2, 2))", "x.repeat(2, 2)"),
    "strided slice": ("x[::2, ::3] + 1", "x[::2, ::3] + 1"),
    "diff": ("jnp.diff(x)", "x.diff()"),
}
IMAGES = {
    "max 2 x 2": ("pool(x, -jnp.inf, lax.max, 2, 2)", "F.max_pool2d(x, 2)"),
    "mean 2 x 2": ("pool(x, 0.0, lax.add, 2, 2) / 4", "F.avg_pool2d(x, 2)"),
    "mean of all pixels": ("x.mean((2, 3))", "x.mean((2, 3))"),
    "instance norm": ("nn.standardize(x, (2, 3), epsilon=1e-5)", "F.instance_norm(x)"),
    "nearest, twice the size": ("jnp.repeat(jnp.repeat(x, 2, 2), 2, 3)", "F.interpolate(x, scale_factor=2)"),
    "bilinear, twice the size": (
        "jax.image.resize(x, (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]), 'bilinear')",
        "F.interpolate(x, scale_factor=2, mode='bilinear')",
    ),
    "channels last": ("x.transpose(0, 2, 3, 1)", "x.permute(0, 2, 3, 1).contiguous()"),
    "softmax of channels": ("nn.softmax(x, 1)", "x.softmax(1)"),
    "argmax of channels": ("x.argmax(1)", "x.argmax(1)"),
    "mirrored": ("x[..., ::-1]", "x.flip(-1)"),
}
CHAINS = {  # x: numbers, y: places below 1000, z: 1000 sorted numbers
    "argsort": ("jnp.argsort(x)", "x.argsort(stable=True)"),
    "counts": ("jnp.bincount(y, length=1000)", "torch.bincount(y, minlength=1000)"),
    "search": ("jnp.searchsorted(z, x)", "torch.searchsorted(z, x)"),
    "take": ("z[y]", "z[y.long()]"),
    "scatter-add": ("z.at[y].add(x)", "z.index_add(0, y.long(), x)"),
    "running logsumexp": ("lax.cumlogsumexp(x)", "x.logcumsumexp(0)"),
    "fft": ("jnp.fft.fft(x)", "torch.fft.fft(x)"),
    "real fft": ("jnp.fft.rfft(x)", "torch.fft.rfft(x)"),
}
MATRICES = {  # x: positive definite, y: a few columns, z: its Cholesky factor
    "inverse": ("jnp.linalg.inv(x)", "torch.linalg.inv(x)"),
    "solve": ("jnp.linalg.solve(x, y)", "torch.linalg.solve(x, y)"),
    "Cholesky": ("jnp.linalg.cholesky(x)", "torch.linalg.cholesky(x)"),
    "log of the determinant": ("jnp.linalg.slogdet(x)[1]", "torch.linalg.slogdet(x)[1]"),
    "eigenvalues": ("jnp.linalg.eigvalsh(x)", "torch.linalg.eigvalsh(x)"),
    "singular values": ("jnp.linalg.svd(x, compute_uv=False)", "torch.linalg.svdvals(x)"),
    "triangular solve": (
        "jax.scipy.linalg.solve_triangular(z, y, lower=True)",
        "torch.linalg.solve_triangular(z, y, upper=False)",
    ),
    "transposed triangular solve": (
        "jax.scipy.linalg.solve_triangular(z, y, lower=True, trans=1)",
        "torch.linalg.solve_triangular(z.mT, y, upper=True)",
    ),
    "Cholesky solve": ("jax.scipy.linalg.cho_solve((z, True), y)", "torch.cholesky_solve(y, z)"),
}


def pool(x: Any, start: float, combine: Any, size: int, step: int) -> Any:
    return lax.reduce_window(x, start, combine, (1, 1, size, size), (1, 1, step, step), "VALID")


SCOPE = {"jax": jax, "jnp": jnp, "lax": lax, "nn": nn, "pool": pool}


@dataclass(frozen=True)
class Pair:
    name: str
    jax: str
    torch: str
    arguments: Arguments
    tolerance: float = 1e-2

    def function(self, *args: Any) -> Any:
        return eval(self.jax, SCOPE | dict(zip(NAMES, args)))

    def torch_function(self, torch: Any) -> Callable[..., Any]:
        names = ", ".join(NAMES[: len(self.arguments())])
        return eval(f"lambda {names}: {self.torch}", {"torch": torch, "F": torch.nn.functional})


def _each(
    table: dict[str, tuple[str, str]], where: str, arguments: Arguments, tolerance: float = 1e-2
) -> Iterator[Pair]:
    for name, (in_jax, in_torch) in table.items():
        yield Pair(f"{name}, {where}", in_jax, in_torch, arguments, tolerance)


def pairs() -> Iterator[Pair]:
    for shape in SHAPES:
        for table in (ELEMENTWISE, REDUCTIONS, MOVES):
            yield from _each(table, " x ".join(map(str, shape)), partial(_numbers, shape, shape))
    for batch, channels, size in ((1, 64, 112), (8, 32, 28), (4, 16, 50)):
        yield from _each(IMAGES, f"{batch} x {channels} x {size}²", partial(_numbers, (batch, channels, size, size)))
    for n in (10_000, 300_000):
        yield from _each(CHAINS, str(n), partial(_chain, n))
    for n, columns in ((30, 5), (100, 1), (300, 5), (1000, 2)):
        yield from _each(MATRICES, f"{n} and {columns} columns", partial(_system, n, columns))
    yield from _layers()


def _system(n: int, columns: int) -> tuple[np.ndarray, ...]:
    x = positive_definite(1, n)[0] / np.float32(n)
    return x, normal(n, columns, seed=3), np.linalg.cholesky(x)


def _numbers(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return tuple(normal(*shape, seed=seed) for seed, shape in enumerate(shapes))


def _chain(n: int) -> tuple[np.ndarray, ...]:
    return normal(n), integers(1000, n, seed=1), np.sort(normal(1000, seed=2))


def _rows_and_places(words: int, depth: int, count: int) -> tuple[np.ndarray, ...]:
    return normal(words, depth), integers(words, count), normal(count, depth, seed=1)


def _logits_and_classes(rows: int, classes: int) -> tuple[np.ndarray, ...]:
    return normal(rows, classes), integers(classes, rows)


def _layers() -> Iterator[Pair]:
    for m, k, n in ((1, 1000, 1000), (8, 512, 512), (32, 784, 256), (64, 300, 300), (128, 768, 768), (77, 512, 2048)):
        args = partial(_numbers, (m, k), (n, k), (n,))
        yield Pair(f"linear, {m} x {k} x {n}", "x @ y.T + z", "F.linear(x, y, z)", args)
        yield Pair(f"linear and relu, {m} x {k} x {n}", "nn.relu(x @ y.T + z)", "F.relu(F.linear(x, y, z))", args)
    for batch, m, k, n in ((100, 3, 3, 3), (64, 32, 32, 32), (12, 77, 64, 77), (5, 100, 200, 50)):
        args = partial(_numbers, (batch, m, k), (batch, k, n))
        yield Pair(f"batched product, {batch} of {m} x {k} x {n}", "x @ y", "x @ y", args)
    for batch, heads, length, depth in ((1, 12, 128, 64), (2, 8, 333, 40), (1, 16, 1024, 64)):
        args = partial(_numbers, *[(batch, heads, length, depth)] * 3)
        for causal in (False, True):
            turned = ", ".join(f"{name}.transpose(0, 2, 1, 3)" for name in "xyz")
            yield Pair(
                f"{'causal ' * causal}attention, {batch} x {heads} x {length} x {depth}",
                f"jax.nn.dot_product_attention({turned}, is_causal={causal}).transpose(0, 2, 1, 3)",
                f"F.scaled_dot_product_attention(x, y, z, is_causal={causal})",
                args,
            )
    for batch, inside, size, out, taps, step in ((1, 3, 224, 64, 7, 2), (8, 64, 28, 64, 3, 1), (1, 128, 14, 256, 1, 1)):
        yield Pair(
            f"convolution {taps} x {taps} / {step}, {batch} x {inside} x {size}² to {out}",
            f"lax.conv_general_dilated(x, y, ({step}, {step}), [({taps // 2}, {taps // 2})] * 2)",
            f"F.conv2d(x, y, stride={step}, padding={taps // 2})",
            partial(_numbers, (batch, inside, size, size), (out, inside, taps, taps)),
        )
    for words, depth, count in ((1000, 64, 100), (30_000, 300, 2000)):
        args = partial(_rows_and_places, words, depth, count)
        yield Pair(f"embedding, {count} of {words} x {depth}", "x[y]", "F.embedding(y.long(), x)", args)
        added = "x.index_add(0, y.long(), z)"
        yield Pair(f"rows added, {count} of {words} x {depth}", "x.at[y].add(z)", added, args)
    for rows, classes in ((64, 10), (1000, 1000), (32, 30_000)):
        yield Pair(
            f"cross entropy, {rows} x {classes}",
            "-jnp.take_along_axis(nn.log_softmax(x), y[:, None], 1).mean()",
            "F.cross_entropy(x, y.long())",
            partial(_logits_and_classes, rows, classes),
        )
