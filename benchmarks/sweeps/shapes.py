"""Sizes that are no powers of two: products, factorizations, convolutions, pooling, transforms; and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax
from jax import lax
from sweeps import Program, integers, normal, positive_definite


def programs() -> Iterator[Program]:
    yield from _products()
    yield from _factorizations()
    yield from _convolutions()
    yield from _windows()
    yield from _einsum()
    yield from _transforms()
    yield from _random()


def _products() -> Iterator[Program]:
    for k in (7, 13, 33, 50, 77, 100, 150, 250, 300, 500, 777):
        count = max(1, 50_000 // k**2)
        yield Program(f"matmul {k}", jnp.matmul, lambda k=k: (normal(k, k), normal(k, k, seed=1)))
        yield Program(
            f"matmul {count} of {k}", jnp.matmul, lambda n=count, k=k: (normal(n, k, k), normal(n, k, k, seed=1))
        )
    for m, k, n in ((1, 300, 1000), (6, 777, 777), (5003, 21, 13), (21, 5003, 13), (3, 3, 10007), (10007, 3, 3)):
        yield Program(f"matmul {m}x{k}x{n}", jnp.matmul, lambda m=m, k=k, n=n: (normal(m, k), normal(k, n, seed=1)))
        yield Program(
            f"matmul {m}x{k}x{n} bfloat16",
            lambda a, b: (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)).astype(jnp.float32),
            lambda m=m, k=k, n=n: (normal(m, k), normal(k, n, seed=1)),
            4e-2,
        )
    yield Program("vector times matrix", jnp.matmul, lambda: (normal(1001), normal(1001, 999)))
    yield Program("outer product", jnp.outer, lambda: (normal(1001), normal(999)))
    yield Program("dot of vectors", jnp.dot, lambda: (normal(300_001), normal(300_001, seed=1)))
    yield Program("complex matmul 150", jnp.matmul, lambda: (_complex(150, 150), _complex(150, 150)))
    yield Program("int32 matmul 150", jnp.matmul, lambda: (integers(100, 150, 150), integers(100, 150, 150)))


def _factorizations() -> Iterator[Program]:
    svd = partial(jnp.linalg.svd, full_matrices=False)
    for k in (3, 7, 13, 33, 50, 77, 100, 150, 250):
        count = min(64, max(1, 50_000 // k**2))
        spd: Callable[..., Any] = lambda n=count, k=k: (positive_definite(n, k),)  # noqa: E731
        with_sides: Callable[..., Any] = lambda n=count, k=k: (positive_definite(n, k), normal(n, k, 3))  # noqa: E731
        yield Program(f"cholesky {count} of {k}", jnp.linalg.cholesky, spd)
        yield Program(f"solve {count} of {k}", jnp.linalg.solve, with_sides)
        yield Program(f"inv {count} of {k}", jnp.linalg.inv, spd)
        yield Program(f"det {count} of {k}", lambda a, k=k: jnp.linalg.det(a / k), spd)
        yield Program(f"qr {count} of {k}", jnp.linalg.qr, spd)
        yield Program(f"lu {count} of {k}", jax.scipy.linalg.lu_factor, spd)
        if k <= 100:
            few: Callable[..., Any] = lambda n=count, k=k: (positive_definite(min(16, n), k),)  # noqa: E731
            yield Program(f"eigh {min(16, count)} of {k}", jnp.linalg.eigh, few, 0)
            yield Program(f"svd {min(16, count)} of {k}", svd, few, 0)
            yield Program(f"gradient of slogdet {count} of {k}", _slogdet_gradient, spd)
    lower = lambda: (np.tril(normal(200, 200)) + 20 * np.eye(200, dtype=np.float32), normal(200, 5))  # noqa: E731
    yield Program("solve_triangular 200", partial(jax.scipy.linalg.solve_triangular, lower=True), lower)
    yield Program("cho_solve 200", lambda a, b: _cho_solve(a @ a.T, b), lower)
    yield Program("expm 33", jax.scipy.linalg.expm, lambda: (normal(33, 33, scale=0.1),))
    yield Program("matrix_power 77", lambda a: jnp.linalg.matrix_power(a, 9), lambda: (normal(77, 77, scale=0.1),))
    yield Program("pinv 50x30", jnp.linalg.pinv, lambda: (normal(50, 30),))
    yield Program("lstsq 300x21", lambda a, b: jnp.linalg.lstsq(a, b)[0], lambda: (normal(300, 21), normal(300)))
    yield Program("kron", jnp.kron, lambda: (normal(17, 19), normal(23, 29)))
    yield Program("cov", partial(jnp.cov, rowvar=False), lambda: (normal(5003, 21),))
    yield Program("corrcoef", jnp.corrcoef, lambda: (normal(77, 1003),))


def _slogdet_gradient(a: Any) -> Any:
    return jax.grad(lambda a: jnp.linalg.slogdet(a)[1].sum())(a)


def _cho_solve(a: Any, b: Any) -> Any:
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a, lower=True), b)


def _convolutions() -> Iterator[Program]:
    for c, out, size, k, stride in (
        (3, 17, 65, 3, 1),
        (5, 5, 50, 5, 2),
        (13, 31, 33, 3, 1),
        (100, 50, 20, 1, 1),
        (1, 8, 100, 7, 1),
        (24, 40, 37, 3, 2),
        (50, 50, 14, 3, 1),
    ):
        for layout, kernel in (("NHWC", "HWIO"), ("NCHW", "OIHW")):
            convolve = partial(
                lax.conv_general_dilated,
                window_strides=(stride, stride),
                padding="SAME",
                dimension_numbers=(layout, kernel, layout),
            )
            shape = (4, size, size, c) if layout == "NHWC" else (4, c, size, size)
            weights = (k, k, c, out) if layout == "NHWC" else (out, c, k, k)
            arguments: Callable[..., Any] = lambda s=shape, w=weights: (normal(*s), normal(*w, seed=1))  # noqa: E731
            name = f"{layout} {c} to {out}, {size}x{size}, {k}x{k} by {stride}"
            yield Program(f"convolution {name}", convolve, arguments)
            yield Program(
                f"its gradient {name}", jax.grad(lambda x, w, f=convolve: (f(x, w) ** 2).sum(), (0, 1)), arguments
            )
    for size, c, k in ((33, 30, 3), (56, 24, 5), (14, 200, 3)):
        depthwise = partial(
            lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=c,
        )
        arguments = lambda s=size, c=c, k=k: (normal(4, s, s, c), normal(k, k, 1, c, seed=1))  # noqa: E731
        yield Program(f"depthwise {size}x{size}x{c}, {k}x{k}", depthwise, arguments)
        yield Program(
            f"its gradient depthwise {size}x{size}x{c}",
            jax.grad(lambda x, w, f=depthwise: (f(x, w) ** 2).sum(), (0, 1)),
            arguments,
        )
    for length in (97, 1000, 4321):
        yield Program(
            f"convolve {length}",
            lambda x, w: jnp.convolve(x, w, "same"),
            lambda n=length: (normal(n), normal(51, seed=1)),
        )
    yield Program(
        "conv_transpose 20x20x13",
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        lambda: (normal(4, 20, 20, 13), normal(4, 4, 13, 9)),
    )
    yield Program(
        "convolution 3D 9x21x21x3",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
        lambda: (normal(2, 9, 21, 21, 3), normal(3, 3, 3, 3, 10)),
    )


def _windows() -> Iterator[Program]:
    for shape, window, stride in (
        ((4, 57, 57, 13), (3, 3), (2, 2)),
        ((6, 31, 31, 30), (2, 2), (2, 2)),
        ((2, 100, 90, 3), (5, 5), (1, 1)),
    ):
        name, arguments = f"{list(shape)}, {window[0]} by {stride[0]}", lambda s=shape: (normal(*s),)
        pool: Callable[..., Any] = partial(_pool, window=(1, *window, 1), stride=(1, *stride, 1))
        yield Program(f"max pool {name}", pool, arguments)
        yield Program(f"average pool {name}", partial(pool, start=0.0, combine=lax.add), arguments)
        mean: Callable[..., Any] = partial(pool, start=0.0, combine=lax.add)
        yield Program(f"its gradient average pool {name}", jax.grad(lambda x, f=mean: (f(x) ** 2).sum()), arguments)
        yield Program(f"its gradient max pool {name}", jax.grad(lambda x, f=pool: (f(x) ** 2).sum()), arguments)
    for method in ("nearest", "bilinear", "cubic"):
        for size in ((50, 70), (20, 31)):
            resize = lambda x, s=size, m=method: jax.image.resize(x, (4, *s, 3), m)  # noqa: E731
            yield Program(f"resize {method} to {size[0]}x{size[1]}", resize, lambda: (normal(4, 33, 47, 3),))


def _pool(x: Any, window: Any, stride: Any, start: float = -np.inf, combine: Any = lax.max) -> Any:
    return lax.reduce_window(x, start, combine, window, stride, "SAME")


def _einsum() -> Iterator[Program]:
    for spec, *shapes in (
        ("abc,cd->abd", (30, 50, 77), (77, 33)),
        ("ab,ac->bc", (10001, 13), (10001, 7)),
        ("bij,bj->bi", (1000, 17, 19), (1000, 19)),
        ("ijk,ijl->kl", (50, 60, 7), (50, 60, 9)),
        ("nchw,dc->ndhw", (4, 13, 33, 33), (29, 13)),
        ("bhqd,bhkd->bhqk", (3, 5, 77, 24), (3, 5, 77, 24)),
        ("bqhd,bkhd->bhqk", (3, 77, 5, 24), (3, 77, 5, 24)),
        ("i,j,k->ijk", (50,), (60,), (70,)),
        ("ij,ij->i", (1003, 301), (1003, 301)),
        ("ii->i", (701, 701)),
        ("ij->ji", (1003, 301)),
        ("ab,bc,cd->ad", (70, 301), (301, 90), (90, 33)),
        ("bi,bj,ijk->bk", (200, 13), (200, 17), (13, 17, 9)),
        ("zxy,xyw->zw", (30, 13, 50), (13, 50, 21)),
    ):
        arguments: Callable[..., Any] = lambda s=shapes: tuple(normal(*x, seed=i) for i, x in enumerate(s))  # noqa: E731
        yield Program(f"einsum {spec}", partial(jnp.einsum, spec), arguments)


def _transforms() -> Iterator[Program]:
    for n in (
        7,
        12,
        20,
        49,
        60,
        96,
        100,
        144,
        210,
        300,
        400,
        500,
        625,
        720,
        1000,
        1001,
        1500,
        2000,
        4410,
        10007,
        48000,
    ):
        count = max(1, 100_000 // n)
        yield Program(f"fft {count} of {n}", jnp.fft.fft, lambda c=count, n=n: (_complex(c, n),))
        yield Program(f"ifft {count} of {n}", jnp.fft.ifft, lambda c=count, n=n: (_complex(c, n),))
        yield Program(f"rfft {count} of {n}", jnp.fft.rfft, lambda c=count, n=n: (normal(c, n),))
        back = lambda z, n=n: jnp.fft.irfft(z, n)  # noqa: E731
        yield Program(f"irfft {count} of {n}", back, lambda c=count, n=n: (_complex(c, n // 2 + 1),))
    for shape in ((100, 100), (30, 50), (96, 96), (250, 300)):
        count = max(1, 100_000 // (shape[0] * shape[1]))
        yield Program(
            f"fft2 {count} of {shape[0]}x{shape[1]}", jnp.fft.fft2, lambda c=count, s=shape: (_complex(c, *s),)
        )
        yield Program(
            f"rfft2 {count} of {shape[0]}x{shape[1]}", jnp.fft.rfft2, lambda c=count, s=shape: (normal(c, *s),)
        )
    yield Program("fft along the first of 300x300", partial(jnp.fft.fft, axis=0), lambda: (_complex(300, 300),))
    yield Program("fftn 30x40x50", jnp.fft.fftn, lambda: (_complex(30, 40, 50),))
    yield Program("fftshift", jnp.fft.fftshift, lambda: (normal(301, 300),))


def _random() -> Iterator[Program]:
    for name, draw in (
        ("uniform", lambda k: jax.random.uniform(k, (301, 333))),
        ("normal", lambda k: jax.random.normal(k, (301, 333))),
        ("bits", lambda k: jax.random.bits(k, (301, 333))),
        ("bernoulli", lambda k: jax.random.bernoulli(k, 0.3, (301, 333))),
        ("randint", lambda k: jax.random.randint(k, (301, 333), 0, 1000)),
        ("categorical", lambda k: jax.random.categorical(k, jnp.zeros((300, 77)))),
        ("gumbel", lambda k: jax.random.gumbel(k, (301, 333))),
        ("exponential", lambda k: jax.random.exponential(k, (301, 333))),
        ("laplace", lambda k: jax.random.laplace(k, (301, 333))),
        ("truncated normal", lambda k: jax.random.truncated_normal(k, -2, 2, (301, 333))),
        ("gamma", lambda k: jax.random.gamma(k, 2.3, (3000,))),
        ("beta", lambda k: jax.random.beta(k, 2.3, 1.1, (1000,))),
        ("poisson", lambda k: jax.random.poisson(k, 5.0, (3000,))),
        ("dirichlet", lambda k: jax.random.dirichlet(k, jnp.ones(13), (100,))),
        ("choice", lambda k: jax.random.choice(k, 1000, (5000,))),
        ("choice without replacement", lambda k: jax.random.choice(k, 10007, (500,), replace=False)),
        ("permutation 1000", lambda k: jax.random.permutation(k, 1000)),
        ("permutation 77777", lambda k: jax.random.permutation(k, 77777)),
        ("split", lambda k: jax.random.split(k, 5000)),
        ("multivariate normal", lambda k: jax.random.multivariate_normal(k, jnp.zeros(13), jnp.eye(13), (500,))),
        ("orthogonal", lambda k: jax.random.orthogonal(k, 50)),
    ):
        # Where rounding decides a rejection or a place, two compilers need not agree.
        tolerance = 0 if name in ("gamma", "beta", "dirichlet", "poisson", "categorical", "orthogonal") else 1e-2
        yield Program(f"random {name}", draw, lambda: (np.array([0, 7], np.uint32),), tolerance)


def _complex(*shape: int) -> np.ndarray:
    return (normal(*shape) + 1j * normal(*shape, seed=1)).astype(np.complex64)
