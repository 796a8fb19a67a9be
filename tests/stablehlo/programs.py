"""JAX functions that together make JAX emit nearly every op, dtype and attribute that it can; as portable artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxlib import _jax  # type: ignore[attr-defined]

import jax
from jax import lax

Program = tuple[str, Callable[..., Any], tuple[Any, ...]]


def artifact(lowered: Any, version: str = "1.17.0") -> bytes:
    """What the PJRT C API client hands to a plugin's compiler."""
    return bytes(_jax.mlir.serialize_portable_artifact(lowered.compiler_ir("stablehlo"), version, True))


def lower(f: Callable[..., Any], *args: Any, **options: Any) -> bytes:
    return artifact(jax.jit(f, **options).lower(*args))


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def _conv(x: Any, w: Any) -> Any:
    dims = lax.conv_dimension_numbers(x.shape, w.shape, ("NHWC", "HWIO", "NCHW"))
    options: dict[str, Any] = {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "feature_group_count": 2}
    return lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 1)), dimension_numbers=dims, **options)


def _scan(c: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (c * 0.5 + x, jnp.sin(c)), c, xs)


def _control(x: Any, i: Any) -> Any:
    y = lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x)
    z = lax.cond(i > 1, lambda v: v * 2, lambda v: v - 1, y)
    return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] @ s[1]), (i, z))


def _arithmetic(x: Any, y: Any) -> Any:
    unary = (jnp.abs, jnp.ceil, jnp.floor, jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, jnp.cbrt)
    unary += (jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.sinh, jnp.cosh, jnp.arcsin, jnp.arccos, jnp.arctan, jnp.arcsinh)
    unary += (jnp.arccosh, jnp.arctanh, jnp.sign, jnp.isfinite, jnp.round, lax.erf, lax.erfc, lax.erf_inv, lax.lgamma)
    unary += (lax.digamma, jax.nn.sigmoid, jnp.isinf, jnp.negative)
    binary = (jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.power, jnp.maximum, jnp.minimum, jnp.arctan2)
    binary += (jnp.remainder, jnp.nextafter, jnp.hypot, lambda a, b: lax.clamp(jnp.zeros((), a.dtype), a, b))
    return [f(x) for f in unary], [f(x, y) for f in binary], lax.reduce_precision(x, 5, 10)


def _integers(x: Any, y: Any) -> Any:
    ops = (jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor, jnp.left_shift, jnp.right_shift)
    more = lax.shift_right_logical(x, y), lax.population_count(x), lax.clz(x), jnp.invert(x), x // y, x % y
    return [f(x, y) for f in ops], more, lax.bitcast_convert_type(x, np.float32), x.astype(np.int8)


def _shapes(x: Any) -> Any:
    padded = lax.pad(x, x[0, 0], ((1, 2, 0), (-1, 0, 1)))
    moved = jnp.transpose(x), x.reshape(2, -1), x[::-1], x[1:3, ::2], jnp.concatenate([x, x], 1), jnp.flip(x, 1)
    return padded, moved, jnp.broadcast_to(x[0], (3, x.shape[1])), lax.iota(np.uint8, 7), lax.broadcast(x, (2, 3))


def _indexing(x: Any, i: Any, u: Any) -> Any:
    y = x.at[i].add(u), x.at[i].set(u, unique_indices=True), x.at[i].max(u), x.at[i, :].mul(u, indices_are_sorted=True)
    sliced = lax.dynamic_slice(x, (i[0], i[1]), (2, 2)), lax.dynamic_update_slice(x, u[:1, :2], (i[0], i[1]))
    batched = jax.vmap(lambda a, j: a[j])(x[:2], i[:2]), jax.vmap(lambda a, j: a.at[j].set(0.0))(x[:2], i[:2])
    return y, sliced, batched, x[i], jnp.take(x, i, axis=1, mode="clip")


def _reductions(x: Any) -> Any:
    whole = jnp.sum(x), jnp.prod(x, 0), jnp.max(x, 1), jnp.argmax(x, 0), jnp.any(x > 0), jnp.cumsum(x, 0)
    windows = lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 2), "SAME"), jnp.cumprod(x, 1)
    pool = jax.grad(lambda v: lax.reduce_window(v, -np.inf, lax.max, (2, 2), (2, 2), "VALID").sum())(x)
    return whole, windows, pool, jnp.sort(x, 1), jnp.argsort(x, 0), lax.top_k(x, 2), jax.nn.softmax(x)


def _linalg(x: Any) -> Any:
    spd = x @ x.T + 4 * jnp.eye(x.shape[0])
    low = jnp.linalg.cholesky(spd)
    solved = jax.scipy.linalg.solve_triangular(low, x, lower=True, trans=1)
    return low, solved, jnp.linalg.qr(x), jnp.linalg.inv(spd), jnp.linalg.slogdet(spd), jnp.linalg.eigh(spd)


def _constants() -> Any:
    values = [1.5, -0.0, np.inf, 3.25]
    floats: list[Any] = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    floats += [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz]
    made = [jnp.asarray(np.array(values[:2] + values[3:], d)) for d in floats]
    ints: list[Any] = [np.int8, np.int16, np.int32, np.int64, ml_dtypes.int4]
    made += [jnp.asarray(np.array([-3, 0, 7], d)) for d in ints]
    made += [jnp.asarray(np.array([3, 0, 7], d)) for d in (np.uint8, np.uint16, np.uint32, np.uint64, ml_dtypes.uint4)]
    made += [jnp.asarray(np.arange(19) % 3 == 0), jnp.asarray(np.array([1 + 2j, -1j], np.complex64))]
    made += [
        jnp.full((3, 4), 2.0),
        jnp.full((20,), True),
        jnp.full((3,), True),
        jnp.zeros((2, 0)),
        jnp.zeros((9,), bool),
    ]
    made += [jnp.full((2, 2), 1 - 2j, np.complex64), jnp.asarray(np.array([1 + 2j, 0.5], np.complex128))]
    return made


def _random(key: Any) -> Any:
    k = jax.random.split(key, 3)
    bits = lax.rng_bit_generator(jnp.zeros(4, np.uint32), (3, 5))
    return jax.random.normal(k[0], (3,)), jax.random.uniform(k[1], (2, 2)), jax.random.permutation(k[2], 5), bits


def _spmd(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    y = lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))
    body = jax.shard_map(lambda v: lax.psum(v, "x") + lax.axis_index("x"), mesh=mesh, in_specs=spec, out_specs=spec)
    return body(y), y


def programs() -> Iterator[Program]:
    """(name, function, arguments)"""
    i32, u32 = np.ones((4,), np.int32), np.ones((4,), np.uint32)
    yield "arithmetic", _arithmetic, (f32(3, 4), f32(3, 4))
    yield "integers", _integers, (i32, i32)
    yield "unsigned", _integers, (u32, u32)
    yield "half", _arithmetic, (f32(5).astype(ml_dtypes.bfloat16), f32(5).astype(ml_dtypes.bfloat16))
    yield (
        "float8",
        lambda x: x.astype(np.float32).astype(ml_dtypes.float8_e5m2),
        (f32(5).astype(ml_dtypes.float8_e4m3fn),),
    )
    yield "int4", lambda x: (x + x).astype(np.int8), (np.ones(5, ml_dtypes.int4),)
    yield (
        "complex",
        lambda x: (x * x, jnp.real(x), jnp.imag(x), jnp.exp(x), lax.complex(x.real, x.imag)),
        (f32(3) + 1j,),
    )
    yield "shapes", _shapes, (f32(4, 6),)
    yield "indexing", _indexing, (f32(5, 4), np.array([1, 3, 2], np.int32), f32(3, 4))
    yield "reductions", _reductions, (f32(6, 8),)
    yield (
        "matmul",
        lambda x, y: (x @ y, jnp.einsum("abc,adc->bd", x, y, precision="highest")),
        (f32(2, 3, 3), f32(2, 3, 3)),
    )
    yield "conv", _conv, (f32(2, 5, 6, 4), f32(3, 2, 2, 6))
    yield "conv_grad", jax.grad(lambda x, w: _conv(x, w).sum(), (0, 1)), (f32(2, 5, 6, 4), f32(3, 2, 2, 6))
    yield "scan", _scan, (f32(3), f32(7, 3))
    yield "control", _control, (f32(3, 3), np.int32(1))
    yield "linalg", _linalg, (f32(4, 4),)
    yield "fft", lambda x: (jnp.fft.fft2(x), jnp.fft.rfft(x), jnp.fft.irfft(x + 0j)), (f32(4, 8),)
    yield "constants", _constants, ()
    yield "random", _random, (jax.random.key(0),)
    yield "spmd", _spmd, (f32(4),)
    yield "remat", jax.grad(lambda x: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)).sum())(x)), (f32(3),)
    yield "barrier", lambda x: lax.optimization_barrier((x, x + 1)), (f32(3),)
    yield "dot_algorithm", lambda x: lax.dot(x, x, precision=lax.DotAlgorithmPreset.BF16_BF16_F32), (f32(3, 3),)
    yield "accuracy", lambda x: lax.exp(x, accuracy=lax.Tolerance(1e-3, 1e-4, 2)), (f32(3),)
    yield "callback", lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((3,), np.float32), x), (f32(3),)
    yield "empty", lambda x: (x + 1, jnp.sum(x), jnp.zeros((0, 3))), (f32(0, 4),)
