"""JAX functions on Ferrule beside XLA's CPU backend: one table, every family of ops that JAX emits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax

R = np.random.RandomState(7)


def f32(*shape, low=-2.0, high=2.0):
    return R.uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=-20, high=20, dtype=np.int32):
    return R.randint(low, high, shape).astype(dtype)


def c64(*shape):
    return (R.standard_normal(shape) + 1j * R.standard_normal(shape)).astype(np.complex64)


A, B, M, SQ = f32(5, 7), f32(5, 7), f32(3, 4, 5), f32(6, 6)
POS = f32(5, 7, low=0.1, high=4)
UNIT = f32(5, 7, low=-0.99, high=0.99)
SPD = (lambda x: (x @ x.T + 6 * np.eye(6)).astype(np.float32))(SQ)
INT, J = ints(5, 7), ints(5, 7, low=1, high=9)
KEY = np.array([3, 9], np.uint32)
IMG = f32(2, 9, 8, 3)

UNARY = {
    **{n: (getattr(jnp, n), A) for n in "sin cos tan tanh sinh cosh exp expm1 arctan arcsinh sign floor ceil".split()},
    **{n: (getattr(jnp, n), POS) for n in "log log1p sqrt cbrt log2 exp2 reciprocal".split()},
    **{n: (getattr(jnp, n), UNIT) for n in "arcsin arccos arctanh".split()},
    "arccosh": (jnp.arccosh, POS + 1),
    "round": (jnp.round, A * 3),
    "rint_ties": (jnp.rint, np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)),
    "rsqrt": (lax.rsqrt, POS),
    "logistic": (jax.nn.sigmoid, A * 10),
    "erf": (lax.erf, A * 2),
    "erfc": (lax.erfc, A * 2),
    "erf_inv": (lax.erf_inv, UNIT),
    "lgamma": (lax.lgamma, POS * 3),
    "digamma": (lax.digamma, POS * 3),
    "gelu": (jax.nn.gelu, A),
    "softplus": (jax.nn.softplus, A),
    "logsumexp": (jax.nn.logsumexp, A),
    "isfinite": (jnp.isfinite, np.array([1, np.inf, -np.inf, np.nan], np.float32)),
    "nan_to_num": (jnp.nan_to_num, np.array([1, np.inf, -np.inf, np.nan], np.float32)),
    "popcount": (lax.population_count, INT.astype(np.uint32)),
    "clz": (lax.clz, np.array([0, 1, 255, -1], np.int32)),
    "invert": (jnp.invert, INT),
    "i0e": (jax.scipy.special.i0e, A),
}
BINARY = {
    **{n: (getattr(jnp, n), A, B) for n in "add subtract multiply divide maximum minimum arctan2 hypot".split()},
    **{n: (getattr(jnp, n), INT, J) for n in "floor_divide remainder bitwise_and bitwise_or bitwise_xor fmod".split()},
    **{n: (getattr(jnp, n), A, B) for n in "less greater_equal equal not_equal".split()},
    "power": (jnp.power, POS, A),
    "integer_pow": (lambda x: x**5 + x**-2, POS),
    "int_power": (lambda x: x**3, INT),
    "left_shift": (jnp.left_shift, INT, J),
    "right_shift": (jnp.right_shift, INT, J),
    "right_shift_logical": (lax.shift_right_logical, INT, J),
    "rem": (lax.rem, A, B),
    "nextafter": (jnp.nextafter, A, B),
    "igamma": (lax.igamma, POS, POS[::-1].copy()),
    "betainc": (lambda x: lax.betainc(x + 1, x + 2, x / 5), POS),
    "clip": (lambda x: jnp.clip(x, -0.5, 0.5), A),
    "where": (lambda a, b: jnp.where(a > b, a, b * 2), A, B),
}
SHAPES = {
    "reshape": (lambda x: (x + 1).reshape(7, 5), A),
    "transpose": (lambda x: x.transpose(2, 0, 1) * 2, M),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (5, 3, 7)) + 1, A),
    "concatenate": (lambda a, b: jnp.concatenate([a, b, a * 2], 1), A, B),
    "stack": (lambda a, b: jnp.stack([a, b], 1), A, B),
    "big_concatenate": (lambda a: jnp.concatenate([a, a * 2]), f32(3000)),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), constant_values=7), A),
    "pad_interior": (lambda x: lax.pad(x, np.float32(2), ((1, -1, 2), (-2, 1, 1))), A),
    "slice": (lambda x: x[1:4, ::2], A),
    "reverse": (lambda x: x[::-1, ::-1], A),
    "roll": (lambda x: jnp.roll(x, 2, 1), A),
    "tile": (lambda x: jnp.tile(x, (2, 3)), A),
    "iota": (lambda x: x + jnp.arange(7) + jnp.arange(5)[:, None], A),
    "eye": (lambda x: x + jnp.eye(6), SQ),
    "tril": (jnp.tril, SQ),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i + 100), (2, 3)), A, np.int32(2)),
    "dynamic_update_slice": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 5)), A, f32(2, 3), np.int32(1)),
    "zero_size": (lambda x: (x[:0] * 2, jnp.concatenate([x[:0], x]), x[:0].sum(0)), A),
    "scalars": (lambda x: (x.sum() * 2).reshape(1, 1), A),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, np.int32), A),
    "bitcast_narrow": (lambda x: lax.bitcast_convert_type(x, np.uint8), A),
    "bitcast_wide": (lambda x: lax.bitcast_convert_type(x, np.uint32), ints(3, 4, low=0, high=255, dtype=np.uint8)),
}
REDUCTIONS = {
    **{n: (getattr(jnp, n), A) for n in "sum prod max min mean var std argmax argmin all any ptp median".split()},
    "sum0": (lambda x: x.sum(0), M),
    "sum1": (lambda x: x.sum(1), M),
    "sum_last": (lambda x: x.sum(-1), M),
    "sum02": (lambda x: x.sum((0, 2)), M),
    "big_sum": (jnp.sum, f32(300, 700)),
    "big_columns": (lambda x: x.sum(0), f32(3000, 70)),
    "big_rows": (lambda x: x.max(1), f32(70, 3000)),
    "argmax1": (lambda x: jnp.argmax(x, 1), A),
    "init": (lambda x: lax.reduce(x, np.float32(5), lax.add, (0,)), A),
    "big_init": (lambda x: lax.reduce(x, np.float32(5), lax.add, (0,)), f32(100_000)),
    # Associative, but False is not its identity: it must enter once.
    "flags_equal": (lambda x: lax.reduce(x > 0, np.bool_(False), lambda a, b: a == b, (0, 1)), f32(1000, 1001)),
    "custom": (lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b + a + b, (0,)), f32(5, 3, low=0, high=0.1)),
    "int_sum": (lambda x: (x.sum(), x.prod(0), x.max(1)), INT),
    "bool": (lambda x: ((x > 0).all(0), (x > 1).any(1), (x > 0).sum()), A),
    "nan_max": (jnp.max, np.array([1, np.nan, 3], np.float32)),
    "cumsum": (lambda x: jnp.cumsum(x, 1), A),
    "cumprod": (lambda x: jnp.cumprod(x, 0), A),
    "cummax": (lambda x: lax.cummax(x, 1), A),
    "cummin_reverse": (lambda x: lax.cummin(x, 0, reverse=True), A),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), A),
    "long_cumsum": (jnp.cumsum, f32(5000)),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x), f32(33, 2)),
    "softmax": (jax.nn.softmax, A),
    "layer_norm": (lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), A),
    "max_pool": (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME"), IMG),
    "avg_pool": (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"), IMG),
    "dilated_window": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), ((1, 0), (2, 1)), (2, 1), (1, 2)),
        A,
    ),
    "max_pool_gradient": (
        jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME") ** 2).sum()),
        IMG,
    ),
}
INDEXING = {
    "take": (lambda x, i: x[i], A, np.array([0, 4, 2, -1, 9], np.int32)),
    "take_columns": (lambda x, i: jnp.take(x, i, axis=1), A, np.array([[0, 4], [2, 6]], np.int32)),
    "gather_pairs": (lambda x, i, j: x[i, j], A, np.array([0, 4, 2], np.int32), np.array([1, 1, 6], np.int32)),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, 1), A, ints(5, 2, low=0, high=7)),
    "fill": (lambda x, i: jnp.take(x, i, mode="fill", axis=0), A, np.array([0, 9, -9], np.int32)),
    "scatter_set": (lambda x, i: x.at[i].set(7.0), A, np.array([0, 3], np.int32)),
    "scatter_add": (lambda x, i: x.at[i].add(x[:4]), A, np.array([0, 3, 3, 1], np.int32)),
    "scatter_mul": (lambda x, i: x.at[:, i].multiply(2.0), A, np.array([0, 3, 3], np.int32)),
    "scatter_min_max": (lambda x, i: (x.at[i].min(0.0), x.at[i].max(0.0)), A, np.array([1, 1, 4], np.int32)),
    "scatter_out_of_bounds": (lambda x, i: x.at[i].set(1.0, mode="drop"), A, np.array([0, 99, -99], np.int32)),
    "embedding_gradient": (jax.grad(lambda x, i: (x[i] ** 2).sum()), A, np.array([0, 4, 4, 2], np.int32)),
    "segment_sum": (lambda x, i: jax.ops.segment_sum(x, i, 4), A, np.array([0, 3, 3, 1, 0], np.int32)),
    "bincount": (lambda i: jnp.bincount(i, length=10), ints(50, low=0, high=10)),
    "searchsorted": (lambda x, y: jnp.searchsorted(jnp.sort(x), y), f32(20), f32(9)),
    "one_hot": (lambda i: jax.nn.one_hot(i, 5), ints(6, low=0, high=5)),
    "batched_gather": (jax.vmap(lambda x, i: x[i]), A, ints(5, 3, low=0, high=7)),
}
SORTS = {
    "sort": (lambda x: jnp.sort(x, 0), A),
    "sort_nan": (jnp.sort, np.array([3, np.nan, -1, np.inf, -0.0, 0.0, -np.inf], np.float32)),
    "sort_descending": (lambda x: jnp.sort(x, descending=True), A),
    "argsort": (jnp.argsort, ints(4, 30, low=0, high=5)),
    "sort_pairs": (lambda k, v: lax.sort((k, v), num_keys=1), ints(50, low=0, high=9), f32(50)),
    "sort_two_keys": (lambda k, v: lax.sort((k, v), num_keys=2), ints(50, low=0, high=4), f32(50)),
    "lexsort": (lambda a, b: jnp.lexsort((a, b)), ints(40, low=0, high=4), ints(40, low=0, high=4)),
    "top_k": (lambda x: lax.top_k(x, 3), A),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 3), f32(4, 50)),
    "unique": (lambda x: jnp.unique(x, size=12, fill_value=-1), ints(40, low=0, high=9)),
    "median": (lambda x: jnp.quantile(x, 0.3, axis=1), A),
    "big_sort": (jnp.sort, f32(20_000)),
    "bool_sort": (jnp.sort, R.rand(33) > 0.5),
    "u8_sort": (jnp.sort, ints(100, low=0, high=255, dtype=np.uint8)),
}
LINEAR = {
    "matmul": (jnp.matmul, f32(9, 5), A),
    "matvec": (jnp.matmul, A, f32(7)),
    "batched": (jnp.matmul, f32(3, 4, 5), f32(3, 5, 2)),
    "transposed": (lambda a, b: a.T @ b.T, f32(5, 9), f32(4, 5)),
    "einsum": (lambda a, b: jnp.einsum("bij,kbj->ikb", a, b), f32(3, 4, 5), f32(6, 3, 5)),
    "einsum_two": (lambda a, b: jnp.einsum("abcd,dcef->abfe", a, b), f32(2, 3, 4, 5), f32(5, 4, 2, 3)),
    "outer": (jnp.outer, f32(5), f32(6)),
    "int_matmul": (jnp.matmul, INT, INT.T.copy()),
    "i8_matmul": (
        lambda a, b: lax.dot(a, b, preferred_element_type=np.int32),
        ints(9, 20, low=-128, high=127, dtype=np.int8),
        ints(20, 6, low=-128, high=127, dtype=np.int8),
    ),
    "bf16_matmul": (lambda a: (a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16).T).astype(np.float32), A),
    "bf16_to_f32": (
        lambda a: jnp.matmul(a.astype(jnp.bfloat16), a.T.astype(jnp.bfloat16), preferred_element_type=np.float32),
        A,
    ),
    "complex_matmul": (jnp.matmul, c64(4, 5), c64(5, 3)),
    "conv": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), f32(2, 3, 8, 9), f32(4, 3, 3, 3)),
    "conv_nhwc": (
        lambda x, w: lax.conv_general_dilated(x, w, (2, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        IMG,
        f32(3, 2, 3, 5),
    ),
    "conv_dilated": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2), ((2, 1), (0, 3)), (2, 1), (1, 2)),
        f32(2, 3, 8, 9),
        f32(4, 3, 3, 2),
    ),
    "conv_grouped": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2),
        f32(2, 4, 7, 6),
        f32(6, 2, 3, 3),
    ),
    "conv_depthwise": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=4),
        f32(2, 4, 7, 6),
        f32(4, 1, 3, 3),
    ),
    "conv_batch_groups": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", batch_group_count=2),
        f32(4, 3, 7, 6),
        f32(6, 3, 3, 3),
    ),
    "conv_transpose": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), IMG, f32(3, 3, 3, 4)),
    "conv1d": (lambda x, w: lax.conv_general_dilated(x, w, (2,), "SAME"), f32(2, 3, 20), f32(5, 3, 4)),
    "conv3d": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1, 1), "SAME"), f32(1, 2, 4, 5, 6), f32(3, 2, 2, 3, 2)),
    "conv_gradients": (
        jax.grad(lambda x, w: (lax.conv_general_dilated(x, w, (2, 1), "SAME") ** 2).sum(), (0, 1)),
        f32(2, 3, 8, 9),
        f32(4, 3, 3, 3),
    ),
    "depthwise_gradients": (
        jax.grad(
            lambda x, w: (lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=3) ** 2).sum(), (0, 1)
        ),
        f32(2, 3, 8, 9),
        f32(6, 1, 3, 3),
    ),
    "fft": (jnp.fft.fft, c64(3, 17)),
    "ifft2": (jnp.fft.ifft2, c64(6, 10)),
    "rfft": (jnp.fft.rfft, f32(3, 20)),
    "irfft": (jnp.fft.irfft, c64(3, 11)),
    "fftn": (jnp.fft.fftn, c64(3, 4, 5)),
    "cholesky": (jnp.linalg.cholesky, SPD),
    "solve": (jnp.linalg.solve, SPD, f32(6, 2)),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True, transpose_a=True),
        SPD,
        f32(6, 2),
    ),
    "inverse": (jnp.linalg.inv, SPD),
    "determinant": (jnp.linalg.slogdet, SPD),
    "qr": (lambda a: (lambda q, r: (jnp.abs(q), jnp.abs(r)))(*jnp.linalg.qr(a)), SQ),
    "eigenvalues": (jnp.linalg.eigvalsh, SPD),
    "eigh": (lambda a: (lambda w, v: (v * w[None]) @ v.T)(*jnp.linalg.eigh(a)), SPD),
    "svd": (lambda a: jnp.linalg.svd(a, compute_uv=False), A),
    "svd_product": (lambda a: (lambda u, s, v: (u * s) @ v)(*jnp.linalg.svd(a, full_matrices=False)), A),
    "pinv": (jnp.linalg.pinv, A),
    "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], f32(9, 4), f32(9)),
    "eigvals": (lambda a: jnp.sort(jnp.abs(jnp.linalg.eigvals(a))), SQ),
    "expm": (jax.scipy.linalg.expm, SQ * 0.2),
    "lu": (jax.scipy.linalg.lu_factor, SPD),
    "schur": (lambda a: (lambda t, z: z @ t @ z.T)(*jax.scipy.linalg.schur(a)), SQ),
    "batched_cholesky": (jnp.linalg.cholesky, np.stack([SPD, 2 * SPD, 3 * SPD])),
    "norms": (lambda a: (jnp.linalg.norm(a), jnp.linalg.norm(a, 2), jnp.linalg.cond(a)), SPD),
    "matrix_power": (lambda a: jnp.linalg.matrix_power(a, 3), SQ),
}
CONTROL = {
    "cond": (lambda x: lax.cond(x[0, 0] > 0, lambda v: v * 2, lambda v: v - 1, x), A),
    "switch": (lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x), A, np.int32(1)),
    "switch_clamped": (lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x), A, np.int32(17)),
    "while": (lambda x: lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] * 0.9 + 1), (0, x)), A),
    "collatz": (
        lambda n: lax.while_loop(
            lambda s: s[0] != 1, lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1), (n, 0)
        ),
        np.int32(27),
    ),
    "fori_update": (lambda x: lax.fori_loop(0, 5, lambda i, c: c.at[i].add(c[4 - i].sum()), x), A),
    "scan": (lambda x: lax.scan(lambda c, v: (c * 0.5 + v, c.sum()), jnp.zeros(7), x), A),
    "scan_reverse": (lambda x: lax.scan(lambda c, v: (c + v, c), jnp.zeros(7), x, reverse=True), A),
    "scan_gradient": (jax.grad(lambda x: lax.scan(lambda c, v: (jnp.tanh(c + v), c), jnp.zeros(7), x)[0].sum()), A),
    "nested_scan": (
        lambda x: lax.scan(lambda c, v: lax.scan(lambda d, w: (d + w * c, d), 0.0, v), 1.0, x)[1],
        A,
    ),
    "map": (lambda x: lax.map(lambda r: (r * r).sum(), x), A),
    "vmap_cond": (jax.vmap(lambda x: lax.cond(x[0] > 0, lambda v: v * 2, lambda v: -v, x)), A),
    "vmap_while": (jax.vmap(lambda n: lax.while_loop(lambda v: v < 50, lambda v: v * 2, n)), np.arange(1, 6)),
    "custom_jvp": (jax.grad(lambda x: jax.nn.relu(x).sum()), A),
    "remat": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)).sum())), A),
    "hessian": (jax.hessian(lambda x: (jnp.sin(x) * x[::-1] ** 2).sum()), f32(4)),
    "barrier": (lambda x: lax.optimization_barrier((x + 1, x * 2)), A),
    "threefry_bits": (lambda k: jax.random.bits(k, (7, 3)), KEY),
    "normal": (lambda k: jax.random.normal(k, (100,)), KEY),
    "uniform_split": (lambda k: jax.vmap(lambda s: jax.random.uniform(s, (5,)))(jax.random.split(k, 4)), KEY),
    "randint": (lambda k: jax.random.randint(k, (50,), 3, 17), KEY),
    "permutation": (lambda k: jax.random.permutation(k, 30), KEY),
    "categorical": (lambda k: jax.random.categorical(k, jnp.log(jnp.array([0.1, 0.6, 0.3])), shape=(40,)), KEY),
    "gamma": (lambda k: jax.random.gamma(k, 2.0, (20,)), KEY),
    "rng_bit_generator": (lambda k: lax.rng_bit_generator(k, (9, 3)), np.array([1, 2, 3, 4], np.uint32)),
}
TYPES = {
    "int8_wrap": (lambda x: x * x + x, ints(9, low=-128, high=127, dtype=np.int8)),
    "uint8_subtract": (lambda x: x - x[::-1], ints(9, low=0, high=255, dtype=np.uint8)),
    "int16": (lambda x: x // 3, ints(9, dtype=np.int16)),
    "f16": (lambda x: jnp.sin(x.astype(np.float16)) * 3, A),
    "bf16": (lambda x: (jnp.exp(x.astype(jnp.bfloat16)) + 1).astype(np.float32), A),
    "bf16_sum": (lambda x: x.astype(jnp.bfloat16).sum(1).astype(np.float32), A),
    **{
        f"{name}": (lambda x, d=name: x.astype(d).astype(np.float32), A * 20)
        for name in ("float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz")
    },
    "int4": (lambda x: (x.astype(jnp.int4) + jnp.int4(1)).astype(np.int32), ints(9, low=-8, high=7)),
    "uint4": (lambda x: (x.astype(jnp.uint4) * jnp.uint4(3)).astype(np.int32), ints(9, low=0, high=15)),
    "float_to_int": (lambda x: (x.astype(np.int32), x.astype(np.uint8), x.astype(np.int8)), A * 100),
    "big_float_to_int": (lambda x: x.astype(np.int32), np.array([1e20, -1e20, np.inf, -np.inf, 3.7], np.float32)),
    "int_to_float": (lambda x: x.astype(np.float32), ints(9, low=-(2**31), high=2**31 - 1)),
    "bool_arithmetic": (lambda x: (x > 0) & (x < 1) | (x > 2), A),
    "integer_division": (lambda x, y: (lax.div(x, y), lax.rem(x, y)), INT, np.where(J == 3, 0, J).astype(np.int32)),
    "complex_arithmetic": (lambda x, y: (x * y, x / y, x + y, jnp.conj(x), jnp.abs(x), jnp.angle(y)), c64(9), c64(9)),
    "complex_functions": (lambda x: (jnp.exp(x), jnp.log(x), jnp.sqrt(x), jnp.sin(x), jnp.tanh(x), x**2.5), c64(9)),
    "complex_sum": (lambda x: (x.sum(), x.prod(), x.real.sum(), x.imag.max()), c64(9)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 3), A * 100),
    "denormals": (lambda x: x * np.float32(0.5), np.array([1e-38, 1e-40, 1e-45], np.float32)),
    "signed_zero": (lambda x: (1 / x, x + 0.0, jnp.maximum(x, 0.0)), np.array([0.0, -0.0], np.float32)),
}
CASES = {
    f"{family}/{name}": case
    for family, table in {
        **{"unary": UNARY, "binary": BINARY, "shape": SHAPES, "reduce": REDUCTIONS, "index": INDEXING},
        **{"sort": SORTS, "linear": LINEAR, "control": CONTROL, "type": TYPES},
    }.items()
    for name, case in table.items()
}


def run(platform: str, function, args):
    placed = jax.device_put(args, jax.devices(platform)[0])
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*placed))]


@pytest.mark.parametrize("name", CASES)
def test_same_as_xla(name, device):
    function, *args = CASES[name]
    want, have = run("cpu", function, args), run(device.platform, function, args)
    assert len(want) == len(have)
    loose = name.startswith(("linear", "reduce", "control", "unary/lgamma", "unary/digamma", "binary/igamma"))
    for w, h in zip(want, have, strict=True):
        assert w.dtype == h.dtype and w.shape == h.shape
        if w.dtype.kind in "fcV" or w.dtype.name.startswith(("bfloat", "float8")):
            kind = np.complex128 if w.dtype.kind == "c" else np.float64
            wide, got = w.astype(kind), h.astype(kind)
            narrow = w.dtype.itemsize == 2 or "bf16" in name
            scale = float(np.max(np.abs(wide[np.isfinite(wide)]), initial=1.0))
            atol = scale * (2e-5 if loose else 1e-6)
            np.testing.assert_allclose(got, wide, rtol=1e-2 if narrow else 2e-4 if loose else 4e-6, atol=atol)
        else:
            np.testing.assert_array_equal(h, w)


@pytest.mark.parametrize(
    "name", ["unary/sin", "binary/add", "reduce/sum", "linear/matmul", "sort/sort", "control/scan"]
)
def test_double_precision(name, device):
    function, *args = CASES[name]
    with jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) for a in args]
        for w, h in zip(run("cpu", function, wide), run(device.platform, function, wide), strict=True):
            assert h.dtype == w.dtype
            np.testing.assert_allclose(h, w, rtol=1e-13, atol=1e-13)
