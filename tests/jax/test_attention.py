"""Attention as one call: many forms, sizes, types and masks beside float64, and that the call is there or is not."""

from __future__ import annotations

from functools import partial

import denormals
import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.passes import attention, match_attention
from ferrule.pipeline import compile_program
from ferrule.program import Call

RNG = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for which the call would not pay are tested all the same."""
    if request.function is not test_small_ones_stay:
        monkeypatch.setattr(attention, "large_enough", lambda a: True)
        monkeypatch.setattr(match_attention, "worth_a_gradient", lambda a: True)


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(jnp.dtype(dtype))


def qkv(batch: int, heads: int, rows: int, keys: int, depth: int, width: int = 0, dtype: str = "float32"):
    shapes = ((rows, depth), (keys, depth), (keys, width or depth))
    return tuple(random(batch, heads, *shape, dtype=dtype) for shape in shapes)


def calls(function, *args) -> list[str]:
    """The attention calls among the steps of the program."""
    text = str(jax.jit(function).lower(*args).compiler_ir("stablehlo"))
    program = compile_program(text.encode())
    targets = [step.target for block in program.blocks for step in block if isinstance(step, Call)]
    return [t for t in targets if t.startswith("attention")]


def agree(function, *args, tolerance: float = 2e-5) -> None:
    """As near to float64 as roundings let it be; NaN where float64 has NaN."""
    with jax.default_device(jax.devices("ferrule")[0]):
        got = jax.tree.leaves(jax.jit(function)(*args))
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) if np.asarray(a).dtype.kind in "fV" else a for a in args]
        want = jax.tree.leaves(function(*wide))
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w)
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        scale = max(1.0, float(np.nanmax(np.abs(w), initial=0)))
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * scale)


def attend(q, k, v, mask=None, fill=-1e9, bias=None):
    """Batch × heads × sequence × features."""
    logits = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5)
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = jnp.where(mask, logits, fill)
    return jax.nn.softmax(logits) @ v


def causal(q, k, v, fill=-1e9, offset=0, mask=True):
    return attend(q, k, v, jnp.tril(jnp.ones((q.shape[-2], k.shape[-2]), bool), offset) & mask, fill)


def by_hand(q, k, v):
    """Positions compared, a maximum without jax.nn's guard, a scale by division, einsum."""
    logits = jnp.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(q.shape[-1])
    rows, keys = jnp.arange(q.shape[2]), jnp.arange(k.shape[2])
    logits = jnp.where(rows[:, None] + 2 < keys[None], -jnp.inf, logits)
    e = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    return jnp.einsum("bnts,bnsd->btnd", e / e.sum(-1, keepdims=True), v)


def flax(q, k, v, bias=None, mask=None):
    """As Flax has it: batch × sequence × heads × features, the queries scaled."""
    q = q / jnp.sqrt(q.shape[-1]).astype(q.dtype)
    logits = jnp.einsum("...qhd,...khd->...hqk", q, k)
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    weights = jax.nn.softmax(logits).astype(q.dtype)
    return jnp.einsum("...hqk,...khd->...qhd", weights, v)


def fused(q, k, v, heads=3):
    """One product for queries, keys and values, cut and rearranged, as models have it."""
    whole = jnp.concatenate([q, k, v], -1) * 1.5
    cut = (t.reshape(*t.shape[:2], heads, -1).transpose(0, 2, 1, 3) for t in jnp.split(whole, 3, -1))
    return causal(*cut).transpose(0, 2, 1, 3).reshape(q.shape)


SIZES = [(2, 3, 70, 90, 64, 64), (1, 1, 97, 64, 32, 48), (1, 2, 50, 51, 7, 5), (2, 1, 200, 130, 80, 72)]
FEW = [(2, 3, 1, 200, 64, 64), (1, 2, 3, 517, 20, 33), (3, 1, 4, 64, 128, 16), (1, 5, 1, 1000, 8, 8)]


@pytest.mark.parametrize("sizes", SIZES + FEW, ids=str)
@pytest.mark.parametrize("function", [attend, causal, by_hand], ids=lambda f: f.__name__)
def test_sizes(sizes, function) -> None:
    args = qkv(*sizes)
    assert calls(function, *args) == ["attention"]
    agree(function, *args)


def in_f32(q, k, v):
    """Narrow types with logits in f32."""
    logits = jnp.einsum("bnth,bnsh->bnts", q, k, preferred_element_type=jnp.float32) * 0.125
    return jnp.einsum("bnts,bnsd->bntd", jax.nn.softmax(logits).astype(v.dtype), v)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows", [2, 70])
def test_narrow(dtype: str, rows: int) -> None:
    args = qkv(2, 3, rows, 90, 64, dtype=dtype)
    assert calls(in_f32, *args) == ["attention"]
    agree(in_f32, *args, tolerance=2e-2 if dtype == "bfloat16" else 2e-3)


def test_jax_own_narrow() -> None:
    args = [t.swapaxes(1, 2) for t in qkv(2, 3, 70, 90, 64, dtype="bfloat16")]
    for function in (jax.nn.dot_product_attention, partial(jax.nn.dot_product_attention, is_causal=True)):
        assert calls(function, *args) == ["attention"]
        agree(function, *args, tolerance=2e-2)


@pytest.mark.parametrize("rows", [2, 8])  # few queries have loops of their own
def test_bf16_results_are_rounded_and_stay_nan(rows: int) -> None:
    """Equal logits of two keys give the mean of their values: of all that bf16 has, and of ties between them.

    The processor's tile registers (AMX) take subnormal numbers for zero, all loops do unless they are kept."""
    zeros = rows > 4 or denormals.flushed(jax.devices("ferrule")[0])
    values = np.arange(1 << 16, dtype=np.uint16).view(jnp.bfloat16).reshape(1, 1024, 1, 64)
    q, k = np.zeros((1, 1024, rows, 64), values.dtype), np.zeros((1, 1024, 2, 64), values.dtype)
    for other in (values, np.roll(values, 1, axis=-1)):
        v = np.concatenate([values, other], axis=2)
        assert calls(in_f32, q, k, v) == ["attention"]
        with jax.default_device(jax.devices("ferrule")[0]):
            got = np.asarray(jax.jit(in_f32)(q, k, v), np.float32)
        with np.errstate(all="ignore"):
            both = v.astype(np.float32).sum(axis=2, keepdims=True)
            mean = (both * np.float32(0.5)).astype(v.dtype).astype(np.float32)
        subnormal = np.abs(mean) <= np.finfo(np.float32).tiny
        got = np.where(subnormal & (got == 0) & zeros, mean, got)
        np.testing.assert_array_equal(got, np.broadcast_to(mean, got.shape))


@pytest.mark.parametrize("offset", [0, -3, -200, 5, 200])
@pytest.mark.parametrize("fill", [-np.inf, -1e30, -1e9, -5.0, 0.0, 4.0])
@pytest.mark.parametrize("rows", [150, 2])
def test_causal(fill: float, offset: int, rows: int) -> None:
    """Rows that see no key are NaN, or the mean of the values; what is masked by little counts."""
    args, function = qkv(1, 2, rows, 130, 16), partial(causal, fill=fill, offset=offset)
    if -rows < offset < 130 - 1:
        assert calls(function, *args) == ["attention"]
    agree(function, *args)


@pytest.mark.parametrize("shape", [(2, 1, 70, 90), (2, 3, 70, 90), (1, 1, 70, 90), (2, 1, 1, 90), (2, 1, 70, 1), (90,)])
def test_masks_and_biases(shape: tuple[int, ...]) -> None:
    args = qkv(2, 3, 70, 90, 32)
    masked = lambda q, k, v, m: attend(q, k, v, m)  # noqa: E731
    biased = lambda q, k, v, b: attend(q, k, v, None, 0, b)  # noqa: E731
    both = lambda q, k, v, b, m: attend(q, k, v, m & jnp.tril(jnp.ones((70, 90), bool)), -1e4, b)  # noqa: E731
    mask, bias = RNG.random(shape) < 0.6, random(*shape)
    for function, more in ((masked, [mask]), (biased, [bias]), (both, [bias, mask])):
        assert calls(function, *args, *more) == ["attention"]
        agree(function, *args, *more)
        few = [args[0][:, :, :1], *args[1:]]
        if shape[-2:-1] != (70,):
            agree(lambda q, k, v, *m: attend(q, k, v, *m), *few, mask)


def test_mask_from_a_table() -> None:
    """A constant that is a band needs no memory; another one is read."""
    args = qkv(1, 2, 60, 60, 16)
    table = np.tril(np.ones((60, 60), bool)) & ~np.tril(np.ones((60, 60), bool), -7)
    holes = RNG.random((60, 60)) < 0.5
    for mask in (table, holes):
        function = lambda q, k, v, mask=mask: attend(q, k, v, mask)  # noqa: E731
        assert calls(function, *args) == ["attention"]
        agree(function, *args)


def test_flax() -> None:
    args = [t.swapaxes(1, 2) for t in qkv(2, 3, 70, 90, 32)]
    for function, more in (
        (flax, []),
        (lambda q, k, v, b: flax(q, k, v, b), [random(1, 3, 70, 90)]),
        (lambda q, k, v, m: flax(q, k, v, None, m), [RNG.random((2, 1, 70, 90)) < 0.7]),
    ):
        assert calls(function, *args, *more) == ["attention"]
        agree(function, *args, *more)


def test_cut_from_one_product() -> None:
    args = [random(2, 70, 48) for _ in range(3)]
    assert calls(fused, *args) == ["attention"]
    agree(fused, *args)


@pytest.mark.parametrize("rows", [1, 80])
def test_grouped_heads(rows: int) -> None:
    """Several heads of queries share one of keys; lengths, a window, a bias and a mask together."""
    q, k, v = random(2, rows, 6, 16), random(2, 80, 2, 16), random(2, 80, 2, 16)
    assert calls(jax.nn.dot_product_attention, q, k, v) == ["attention"]
    agree(jax.nn.dot_product_attention, q, k, v)
    repeated = lambda q, k, v: flax(q, jnp.repeat(k, 3, 2), jnp.repeat(v, 3, 2))  # noqa: E731
    assert calls(repeated, q, k, v) == ["attention"]
    agree(repeated, q, k, v)
    if rows == 80:
        full = lambda q, k, v, b, m, n: jax.nn.dot_product_attention(  # noqa: E731
            q, k, v, b, m, is_causal=True, key_value_seq_lengths=n, query_seq_lengths=n, local_window_size=9
        )
        more = random(1, 6, 80, 80), RNG.random((2, 1, 80, 80)) < 0.9, np.array([80, 33], np.int32)
        assert calls(full, q, k, v, *more) == ["attention"]
        agree(full, q, k, v, *more)


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("rows", [100, 2])
def test_what_is_not_finite_spreads_as_in_the_formula(which: int, what: float, rows: int) -> None:
    """Also through keys that are masked: 0 times infinity is NaN."""
    args = qkv(1, 2, rows, 100, 16)
    args[which][0, 1, min(rows, 70) - 1, 3] = what
    for function in (attend, causal):
        with np.errstate(invalid="ignore"):
            agree(function, *args)


# --- gradients --------------------------------------------------------------------------------------------------
def squares(function, *args, count=3):
    """The gradient of a loss for which the result itself is needed."""
    return jax.grad(lambda *a: (function(*a).astype(jnp.float32) ** 2).sum(), tuple(range(count)))(*args)


@pytest.mark.parametrize("sizes", [(1, 2, 300, 300, 64), (2, 3, 280, 257, 40), (1, 1, 513, 300, 7, 20)], ids=str)
@pytest.mark.parametrize("function", [attend, causal, by_hand], ids=lambda f: f.__name__)
def test_gradients(sizes, function) -> None:
    args = qkv(*sizes)
    assert calls(partial(squares, function), *args) == ["attention", "attention_backward"]
    agree(partial(squares, function), *args, tolerance=1e-4)


@pytest.mark.parametrize("fill", [-np.inf, -5.0, -1e30])
@pytest.mark.parametrize("offset", [-3, 4])
def test_gradients_of_masked_rows(fill: float, offset: int) -> None:
    args, function = qkv(1, 2, 290, 270, 16), partial(causal, fill=fill, offset=offset)
    assert calls(partial(squares, function), *args) == ["attention", "attention_backward"]
    agree(partial(squares, function), *args, tolerance=1e-4)


@pytest.mark.parametrize("unseen", [0, 150])
def test_gradients_where_a_row_has_no_sum(unseen: int) -> None:
    """A row that sees no key is NaN for every key, those beyond its band too: so is the gradient of their values."""
    q, k, v = qkv(1, 2, 290, 270, 16)
    mask = np.arange(290)[:, None] != unseen

    def total(q, k, v, mask):
        return (causal(q, k, v, -np.inf, mask=mask) * jnp.arange(16)).sum()

    gradients = jax.value_and_grad(total, (0, 1, 2))
    assert calls(gradients, q, k, v, mask) == ["attention", "attention_backward"]
    agree(gradients, q, k, v, mask, tolerance=1e-4)


def test_gradients_with_masks_biases_and_groups() -> None:
    q, k, v = random(2, 270, 6, 16), random(2, 270, 2, 16), random(2, 270, 2, 16)
    mask, bias = RNG.random((2, 1, 270, 270)) < 0.7, random(1, 6, 270, 270)
    function = lambda q, k, v, b, m: jax.nn.dot_product_attention(q, k, v, b, m)  # noqa: E731
    assert calls(partial(squares, function), q, k, v, bias, mask) == ["attention", "attention_backward"]
    agree(partial(squares, function), q, k, v, bias, mask, tolerance=1e-4)


def test_gradients_narrow() -> None:
    args = [t.swapaxes(1, 2) for t in qkv(1, 2, 300, 300, 32, dtype="bfloat16")]
    function = partial(squares, partial(jax.nn.dot_product_attention, is_causal=True))
    assert calls(function, *args) == ["attention", "attention_backward"]
    agree(function, *args, tolerance=4e-2)


def in_bf16(q, k, v, mask=None, fill=-np.inf, bias=None):
    """Logits in f32, probabilities in bf16: what tile registers multiply, where the processor has them."""
    logits = jnp.einsum("bnth,bnsh->bnts", q, k, preferred_element_type=jnp.float32) / np.sqrt(q.shape[-1])
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = jnp.where(mask, logits, fill)
    return jnp.einsum("bnts,bnsd->bntd", jax.nn.softmax(logits).astype(v.dtype), v)


def band(rows: int, keys: int, low: int, high: int) -> np.ndarray:
    """Keys from `low` below to `high` above a row's own."""
    distance = np.arange(keys)[None] - np.arange(rows)[:, None]
    return (distance >= low) & (distance <= high)


NARROW = [(1, 2, 64, 128, 64), (2, 1, 97, 300, 32, 48), (1, 3, 257, 131, 33, 7), (1, 1, 5, 40, 80, 128)]


@pytest.mark.parametrize("sizes", NARROW, ids=str)
@pytest.mark.parametrize("masked", ["no", "band", "window", "table", "bias"])
def test_bf16_in_blocks(sizes, masked: str) -> None:
    q, k, v = qkv(*sizes, dtype="bfloat16")
    rows, keys = sizes[2:4]
    below = jnp.int32(0) if masked == "window" else None
    if masked == "table":
        more: dict[str, object] = {"mask": RNG.random((rows, keys)) < 0.8, "fill": -5.0}
    elif masked == "bias":
        more = {"bias": random(1, sizes[1], rows, keys)}
    else:
        more = {}

    def function(q, k, v):
        if masked in ("band", "window"):
            at, key = jnp.arange(rows)[:, None], jnp.arange(keys)[None]
            mask = key <= at + 3
            if below is not None:
                mask &= key >= at - 40
            return in_bf16(q, k, v, mask, -1e30)
        return in_bf16(q, k, v, **more)

    assert calls(function, q, k, v) == ["attention"]
    agree(function, q, k, v, tolerance=1.5e-2)


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_bf16_that_is_not_finite(which: int, what: float) -> None:
    args = qkv(1, 2, 100, 100, 16, dtype="bfloat16")
    args[which][0, 1, 70, 3] = what
    banded = lambda q, k, v, fill: in_bf16(q, k, v, jnp.tril(jnp.ones((100, 100), bool)), fill)  # noqa: E731
    for function in (in_bf16, partial(banded, fill=-1e9), partial(banded, fill=-np.inf)):
        assert calls(function, *args) == ["attention"]
        with np.errstate(invalid="ignore"):
            agree(function, *args, tolerance=1.5e-2)


def with_slopes(q, k, v, g, rounded=False, masked=False):
    """The gradients as three products of the gradient by the logits, or of that as bf16, and the result."""
    rows, keys = q.shape[2], k.shape[2]

    def mixed(logits, v):
        if masked:
            logits = jnp.where(jnp.arange(keys)[None] <= jnp.arange(rows)[:, None] + 9, logits, -jnp.inf)
        return jnp.einsum("bnts,bnsd->bntd", jax.nn.softmax(logits).astype(v.dtype), v)

    out, pull = jax.vjp(mixed, jnp.einsum("bnth,bnsh->bnts", q, k, preferred_element_type=jnp.float32), v)
    slopes, dv = pull(g)
    if rounded and out.dtype == jnp.bfloat16:  # `agree` asks in f64, too
        slopes = slopes.astype(jnp.bfloat16)
    q, k = q.astype(slopes.dtype), k.astype(slopes.dtype)
    dq = jnp.einsum("bnts,bnsh->bnth", slopes, k, preferred_element_type=jnp.float32)
    return dq, jnp.einsum("bnts,bnth->bnsh", slopes, q, preferred_element_type=jnp.float32), dv, out


@pytest.mark.parametrize("sizes", NARROW[:3], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_bf16_gradients_in_blocks(sizes, masked: bool, rounded: bool) -> None:
    q, k, v = qkv(*sizes, dtype="bfloat16")
    g = random(*q.shape[:3], v.shape[-1], dtype="bfloat16")
    function = partial(with_slopes, rounded=rounded, masked=masked)
    assert calls(function, q, k, v, g) == ["attention", "attention_backward"]
    agree(function, q, k, v, g, tolerance=2e-2)


def test_bf16_gradients_keep_slopes_that_are_not_rounded() -> None:
    """Equal logits, and values in pairs that cancel: all is exact but for a rounding of the gradient by the logits."""
    integers = lambda most, *shape: RNG.randint(-most, most + 1, shape).astype(jnp.bfloat16)  # noqa: E731
    half, q = integers(8, 1, 2, 32, 32), np.zeros((1, 2, 96, 32), jnp.bfloat16)
    args = q, integers(8, 1, 2, 64, 32), np.concatenate([half, -half], 2), integers(100, 1, 2, 96, 32)
    assert calls(with_slopes, *args) == ["attention", "attention_backward"]
    with jax.default_device(jax.devices("ferrule")[0]):
        got = np.asarray(jax.jit(with_slopes)(*args)[0], np.float64)
    _, k, v, g = (np.asarray(a, np.float64) for a in args)
    np.testing.assert_allclose(got, g @ v.swapaxes(2, 3) / 64 @ k, rtol=1e-6, atol=1e-3)


# --- what stays as it is ----------------------------------------------------------------------------------------
def test_small_ones_stay() -> None:
    assert calls(attend, *qkv(2, 2, 8, 8, 8)) == []
    assert calls(attend, *qkv(1, 4, 128, 128, 64)) == ["attention"]
    assert calls(attend, *qkv(1, 4, 1, 1024, 64)) == ["attention"]
    assert calls(partial(squares, attend), *qkv(1, 4, 128, 128, 64)) == []
    assert calls(partial(squares, causal), *qkv(1, 4, 512, 512, 64)) == ["attention", "attention_backward"]


def test_weights_that_somebody_reads_stay() -> None:
    def both(q, k, v):
        weights = jax.nn.softmax(q @ k.swapaxes(-1, -2))
        return weights @ v, weights

    args = qkv(1, 2, 80, 80, 16)
    assert calls(both, *args) == []
    agree(both, *args)
    biased = lambda q, k, v, b: attend(q, k, v, None, 0, b)  # noqa: E731
    args = (*qkv(1, 2, 300, 300, 16), random(1, 2, 300, 300))
    assert calls(partial(squares, biased, count=4), *args) == []  # the bias wants the gradient by the logits
    agree(partial(squares, biased, count=4), *args, tolerance=1e-4)


def test_other_softmaxes_stay() -> None:
    args = qkv(1, 2, 80, 80, 16)
    for function in (
        lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2), 1) @ v,  # over the heads
        lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2), -2) @ v,  # over the queries
        lambda q, k, v: jnp.tanh(jax.nn.softmax(q @ k.swapaxes(-1, -2))) @ v,
        lambda q, k, v: jax.nn.sigmoid(q @ k.swapaxes(-1, -2)) @ v,
    ):
        assert calls(function, *args) == []
        agree(function, *args)
    agree(lambda q, k, v: attend(q, k, v, jnp.zeros((80, 80), bool)), *args)


def test_memory() -> None:
    """No matrix of logits: 2 × 2048 × 2048 floats would be 32 MB."""
    args = qkv(1, 2, 2048, 2048, 16)
    with jax.default_device(jax.devices("ferrule")[0]):
        for function in (causal, partial(squares, causal)):
            taken = jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes
            assert taken < 4 << 20
