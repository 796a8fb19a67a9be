"""oneDNN's products and convolutions through the driver, against NumPy."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from driver_binding import DriverError
from scipy.special import erf

from ferrule.native import library_path
from ferrule.targets import xpu

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, S8, U8, S32 = (np.dtype(t) for t in ("f2", "f4", "i1", "u1", "i4"))
PJRT = {S8: 2, S32: 4, U8: 6, F16: 10, F32: 11, np.dtype("f8"): 12, BF16: 13}


@pytest.fixture(autouse=True)
def _needs_dnnl():
    if not xpu.find(library_path()).dnnl:
        pytest.skip("the package onednn is not installed")


def random(shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return generator.integers(info.min, info.max + 1, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def run(device, target, operands, result_shape, result_type, attributes):
    def about(a):
        return PJRT[np.dtype(a.dtype)], a.shape

    call = device.prepare(target, [about(a) for a in operands], [(PJRT[result_type], result_shape)], attributes)
    data = [device.put(a) for a in operands]
    like = np.empty(result_shape, result_type)
    out = device.allocate(max(1, like.nbytes))
    events = [call.run(data, [out])]
    events.append(call.run(data, [out], events))  # a call is run often
    result = device.get(out, like, events)
    call.discard()
    for d in [*data, out]:
        device.free(d)
    return result


def close(result, expected, k=1):
    tolerance = {F32: 1e-6, F16: 1e-3, BF16: 8e-3}[np.dtype(result.dtype)]
    scale = np.abs(expected).max() + 1e-30
    np.testing.assert_allclose(
        result.astype("f8") / scale, expected / scale, rtol=tolerance, atol=tolerance * max(1, np.sqrt(k) / 4)
    )


# --- products ---------------------------------------------------------------------------------------------------
def product(a, b, batch, m, n, k, a_strides, b_strides):
    view = np.lib.stride_tricks.as_strided
    wide = np.int64 if a.dtype.kind in "iu" else np.float64
    a, b = (x.astype(wide).reshape(-1) for x in (a, b))
    left = view(a, (batch, m, k), [s * 8 for s in a_strides])
    right = view(b, (batch, k, n), [s * 8 for s in b_strides])
    return left @ right


def matmul(device, types, batch, m, n, k, transposed=(False, False), extra=(), **attributes):
    a_type, b_type, d_type = types
    a, b = random((batch, m, k), a_type, 1), random((batch, k, n), b_type, 2)
    a_strides, b_strides = (m * k, k, 1), (k * n, n, 1)
    if transposed[0]:
        a, a_strides = np.ascontiguousarray(a.swapaxes(1, 2)), (m * k, 1, m)
    if transposed[1]:
        b, b_strides = np.ascontiguousarray(b.swapaxes(1, 2)), (k * n, 1, k)
    described = dict(batch=batch, m=m, n=n, k=k, a_strides=a_strides, b_strides=b_strides, **attributes)
    result = run(device, "dnnl.matmul", [a, b, *extra], (batch, m, n), d_type, described)
    return result, product(a, b, batch, m, n, k, a_strides, b_strides)


@pytest.mark.parametrize("transposed", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("sizes", [(1, 17, 33, 65), (3, 16, 32, 64), (1, 1, 50, 20), (1, 50, 1, 20), (2, 5, 7, 1)])
def test_products(device, sizes, transposed):
    close(*matmul(device, (F32, F32, F32), *sizes, transposed), k=sizes[-1])


@pytest.mark.parametrize("types", [(BF16, BF16, BF16), (BF16, BF16, F32), (F16, F16, F16), (F16, F16, F32)])
def test_products_of_short_floats(device, types):
    result, expected = matmul(device, types, 2, 33, 47, 65)
    close(result, expected, k=65)


@pytest.mark.parametrize("types", [(S8, S8, S32), (U8, S8, S32)])
def test_products_of_8_bit_integers_are_exact(device, types):
    result, expected = matmul(device, types, 1, 33, 47, 129)
    np.testing.assert_array_equal(result, expected)


def test_sums_are_made_in_f32(device):
    """4096 ones and a large number: in bf16 or f16 the ones would be lost."""
    for type in (BF16, F16):
        a, b = np.ones((1, 1, 4097), type), np.ones((1, 4097, 1), type)
        a[0, 0, 0] = 4096
        attributes = dict(batch=1, m=1, n=1, k=4097, a_strides=(4097, 4097, 1), b_strides=(4097, 1, 1))
        assert run(device, "dnnl.matmul", [a, b], (1, 1, 1), F32, attributes) == 8192


@pytest.mark.parametrize("types", [(F32, F32, F32), (BF16, BF16, F32)])
@pytest.mark.parametrize("batch", [1, 3])
def test_epilogues(device, types, batch):
    m, n, k = 24, 40, 32
    bias, residual, scalar = random((n,), F32, 3), random((batch, m, n), F32, 4), np.full((), 0.5, F32)
    cases = {
        "add": ([bias], lambda x: x + bias),
        "add,relu": ([bias], lambda x: np.maximum(x + bias, 0)),
        "relu,add": ([residual], lambda x: np.maximum(x, 0) + residual),
        "add,add,tanh": ([bias, residual], lambda x: np.tanh(x + bias + residual)),
        "multiply,add,logistic": ([scalar, bias], lambda x: 1 / (1 + np.exp(-(x * scalar + bias)))),
        "subtract,maximum": ([bias, scalar], lambda x: np.maximum(x - bias, scalar)),
        "linear": ([], lambda x: x * 0.25 + 3),
        "add,gelu_erf": ([bias], lambda x: (x + bias) / 2 * (1 + erf((x + bias) / np.sqrt(2)))),
        "swish": ([], lambda x: x / (1 + np.exp(-x))),
        "abs,sqrt": ([], lambda x: np.sqrt(np.abs(x))),
    }
    for text, (extra, f) in cases.items():
        result, plain = matmul(device, types, batch, m, n, k, extra=extra, epilogue=text, alpha=0.25, beta=3.0)
        np.testing.assert_allclose(result, f(plain), rtol=1e-4, atol=1e-4, err_msg=text)


@pytest.mark.parametrize(
    "change, code, words",
    [
        ({"epilogue": "add"}, 3, "needs more operands"),
        ({"epilogue": "frobnicate"}, 3, "unknown operation 'frobnicate'"),
        ({"m": (1, 2)}, 3, "attribute m must be 1 integers"),
        ({"k": 0}, 12, "product of nothing"),
    ],
)
def test_products_that_are_refused(device, change, code, words):
    with pytest.raises(DriverError, match=words) as caught:
        described = dict(batch=1, m=4, n=4, k=4, a_strides=(16, 4, 1), b_strides=(16, 4, 1)) | change
        device.prepare("dnnl.matmul", [(11, (4, 4))] * 2, [(11, (4, 4))], described)
    assert caught.value.code == code and "preparing dnnl.matmul on" in caught.value.message


def test_element_types_that_onednn_lacks(device):
    described = dict(batch=1, m=4, n=4, k=4, a_strides=(16, 4, 1), b_strides=(16, 4, 1))
    for dtype in (12, 14):  # f64, c64
        with pytest.raises(DriverError) as caught:
            device.prepare("dnnl.matmul", [(dtype, (4, 4))] * 2, [(dtype, (4, 4))], described)
        assert caught.value.code == 12


def test_calls_that_the_driver_does_not_have(device):
    with pytest.raises(DriverError, match=r"dnnl\.nothing") as caught:
        device.prepare("dnnl.nothing", [], [], {})
    assert caught.value.code == 5


# --- convolutions -----------------------------------------------------------------------------------------------
def convolve(x, w, attributes):
    """StableHLO's convolution by its definition, for NHWC-like operands given with their dimension numbers."""
    rank = x.ndim - 2
    groups, batches = attributes["feature_group_count"], attributes["batch_group_count"]
    order = [attributes["input_batch_dimension"], attributes["input_feature_dimension"]]
    x = x.astype("f8").transpose(order + list(attributes["input_spatial_dimensions"]))
    order = [attributes["kernel_output_feature_dimension"], attributes["kernel_input_feature_dimension"]]
    w = w.astype("f8").transpose(order + list(attributes["kernel_spatial_dimensions"]))
    for d in range(rank):
        if attributes["window_reversal"][d]:
            w = np.flip(w, 2 + d)
        dilation = attributes["lhs_dilation"][d]
        shape = list(x.shape)
        shape[2 + d] = (shape[2 + d] - 1) * dilation + 1
        wide = np.zeros(shape)
        wide[(slice(None),) * (2 + d) + (slice(None, None, dilation),)] = x
        low, high = attributes["padding"][2 * d : 2 * d + 2]
        pads = [(0, 0)] * wide.ndim
        pads[2 + d] = (max(low, 0), max(high, 0))
        x = np.pad(wide, pads)
        keep = slice(max(-low, 0), x.shape[2 + d] - max(-high, 0))
        x = x[(slice(None),) * (2 + d) + (keep,)]
    steps, spread = attributes["window_strides"], attributes["rhs_dilation"]
    sizes = [(x.shape[2 + d] - (w.shape[2 + d] - 1) * spread[d] - 1) // steps[d] + 1 for d in range(rank)]
    outputs, inputs = w.shape[:2]
    out = np.zeros([x.shape[0] // batches, outputs, *sizes])
    for group in range(max(groups, batches)):
        o = slice(group * outputs // max(groups, batches), (group + 1) * outputs // max(groups, batches))
        part = x[:, group * inputs : (group + 1) * inputs] if groups > 1 else x
        if batches > 1:
            size = x.shape[0] // batches
            part = x[group * size : (group + 1) * size]
        for tap in itertools.product(*(range(s) for s in w.shape[2:])):
            at = tuple(
                slice(tap[d] * spread[d], tap[d] * spread[d] + (sizes[d] - 1) * steps[d] + 1, steps[d])
                for d in range(rank)
            )
            out[:, o] += np.einsum("bi...,oi->bo...", part[(slice(None), slice(None), *at)], w[(o, slice(None), *tap)])
    inverse = [0] * out.ndim
    for i, d in enumerate(
        [attributes["output_batch_dimension"], attributes["output_feature_dimension"]]
        + list(attributes["output_spatial_dimensions"])
    ):
        inverse[d] = i
    return out.transpose(inverse)


def numbers(rank, layout="last"):
    spatial = tuple(range(1, rank + 1)) if layout == "last" else tuple(range(2, rank + 2))
    feature = rank + 1 if layout == "last" else 1
    kernel = (rank, rank + 1, tuple(range(rank))) if layout == "last" else (1, 0, spatial)
    return {
        **{"input_batch_dimension": 0, "input_feature_dimension": feature, "input_spatial_dimensions": spatial},
        "kernel_input_feature_dimension": kernel[0],
        "kernel_output_feature_dimension": kernel[1],
        "kernel_spatial_dimensions": kernel[2],
        **{"output_batch_dimension": 0, "output_feature_dimension": feature, "output_spatial_dimensions": spatial},
    }


def conv(device, x_sizes, w_sizes, types=(F32, F32), layout="last", extra=(), f=lambda x: x, **changes):
    """`x_sizes`: batch, features, spatial; `w_sizes`: outputs, inputs, spatial."""
    rank = len(x_sizes) - 2
    attributes = {
        **{"window_strides": (1,) * rank, "padding": (0,) * 2 * rank, "lhs_dilation": (1,) * rank},
        **{"rhs_dilation": (1,) * rank, "window_reversal": (0,) * rank},
        **{"feature_group_count": 1, "batch_group_count": 1, **numbers(rank, layout), **changes},
    }

    def lay(sizes, first, second, spatial):
        shape = [0] * (rank + 2)
        for size, d in zip(sizes, [first, second, *spatial]):
            shape[d] = size
        return tuple(shape)

    a = attributes
    x_shape = lay(x_sizes, a["input_batch_dimension"], a["input_feature_dimension"], a["input_spatial_dimensions"])
    w_shape = lay(
        w_sizes,
        *(a["kernel_output_feature_dimension"], a["kernel_input_feature_dimension"], a["kernel_spatial_dimensions"]),
    )
    x, w = random(x_shape, types[0], 5), random(w_shape, types[0], 6)
    expected = f(convolve(x, w, attributes))
    result = run(device, "dnnl.conv", [x, w, *extra], expected.shape, types[1], attributes)
    close(result, expected, k=int(np.prod(w_sizes[1:])))


@pytest.mark.parametrize("layout", ["last", "first"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_forward(device, rank, layout):
    conv(
        device,
        *((2, 5, 9, 8, 7)[: rank + 2], (6, 5, 3, 2, 3)[: rank + 2]),
        layout=layout,
        window_strides=(2, 1, 1)[:rank],
        padding=(1, 1, 0, 1, 2, 1)[: 2 * rank],
        rhs_dilation=(1, 2, 1)[:rank],
    )


@pytest.mark.parametrize("types", [(BF16, BF16), (BF16, F32), (F16, F16)])
def test_convolutions_of_short_floats(device, types):
    conv(device, (2, 16, 8, 8), (32, 16, 3, 3), types, padding=(1, 1, 1, 1))


@pytest.mark.parametrize("groups, inputs", [(4, 2), (8, 1)])
def test_convolutions_in_groups(device, groups, inputs):
    conv(device, (2, 8, 6, 6), (16, inputs, 3, 3), feature_group_count=groups, padding=(1, 1, 1, 1))


@pytest.mark.parametrize("layout", ["last", "first"])
def test_transposed_convolutions(device, layout):
    conv(
        device,
        *((2, 5, 6, 6), (7, 5, 3, 3)),
        layout=layout,
        lhs_dilation=(2, 2),
        padding=(1, 2, 1, 2),
        window_reversal=(1, 1),
    )


def test_gradients_of_kernels(device):
    conv(device, (3, 4, 10, 10), (8, 4, 8, 8), padding=(1, 1, 1, 1))
    # as JAX writes it for a strided convolution: batch and features have changed places
    swapped = {
        **{"input_batch_dimension": 3, "input_feature_dimension": 0},
        **{"kernel_input_feature_dimension": 0, "kernel_output_feature_dimension": 3},
        **{"kernel_spatial_dimensions": (1, 2), "output_batch_dimension": 2, "output_feature_dimension": 3},
        "output_spatial_dimensions": (0, 1),
    }
    conv(device, (4, 2, 10, 10), (6, 2, 5, 5), rhs_dilation=(2, 2), padding=(1, 0, 1, 0), **swapped)


def test_gradients_of_kernels_in_groups(device):
    conv(device, (8, 3, 9, 9), (12, 3, 7, 7), batch_group_count=4, padding=(1, 0, 0, 1))


def test_epilogues_of_convolutions(device):
    bias, residual = random((6,), F32, 3), random((2, 8, 8, 6), F32, 4)
    for layout, shape, column in (("last", (2, 8, 8, 6), (6,)), ("first", (2, 6, 8, 8), (6, 1, 1))):
        added, shaped = bias.reshape(column), residual.reshape(shape)
        conv(
            device,
            *((2, 5, 8, 8), (6, 5, 3, 3)),
            layout=layout,
            padding=(1, 1, 1, 1),
            extra=[bias, shaped],
            f=lambda x, added=added, shaped=shaped: np.maximum(x + added + shaped, 0),
            epilogue="add,add,relu",
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"window_reversal": (1, 0)},
        {"lhs_dilation": (2, 2)},  # the kernel is not reversed
        {"lhs_dilation": (2, 2), "window_reversal": (1, 1), "window_strides": (2, 1)},
        {"padding": (-1, 0, 0, 0)},
    ],
)
def test_convolutions_that_onednn_does_not_have(device, changes):
    with pytest.raises(DriverError, match="oneDNN has no") as caught:
        conv(device, (2, 5, 8, 8), (6, 5, 3, 3), **changes)
    assert caught.value.code == 12


# --- order, queues, faults --------------------------------------------------------------------------------------
def test_calls_and_copies_wait_for_each_other(device):
    """x ← x·a, ten times, then back: each waits for the one before."""
    a = random((32, 32), F32, 7) / 6
    x = random((32, 32), F32, 8)
    described = dict(batch=1, m=32, n=32, k=32, a_strides=(1024, 32, 1), b_strides=(1024, 32, 1))
    call = device.prepare("dnnl.matmul", [(11, (32, 32))] * 2, [(11, (32, 32))], described)
    here, there, factor = device.put(x), device.put(x), device.put(a)
    events, expected = [], x.astype("f8")
    for _ in range(10):
        events = [call.run([here, factor], [there], events)]
        events = [device.copy(here, there, x.nbytes, events)]
        expected = expected @ a
    close(device.get(here, x, events), expected, 320)
    call.discard()


def test_several_devices_at_once(driver):
    described = dict(batch=1, m=64, n=64, k=64, a_strides=(4096, 64, 1), b_strides=(4096, 64, 1))
    a, b = random((64, 64), F32, 1), random((64, 64), F32, 2)
    devices = [driver.open(len(driver.devices()) - 1) for _ in range(3)]
    calls = [d.prepare("dnnl.matmul", [(11, (64, 64))] * 2, [(11, (64, 64))], described) for d in devices]
    outs = [d.allocate(a.nbytes) for d in devices]
    events = [c.run([d.put(a), d.put(b)], [o]) for c, d, o in zip(calls, devices, outs)]
    for device, out, event, call in zip(devices, outs, events, calls):
        close(device.get(out, a, [event]), a.astype("f8") @ b, 64)
        call.discard()
        device.close()


def test_without_the_library():
    """In a process of its own: the path is given once."""
    script = """
from driver_binding import Driver, DriverError
device = Driver(with_dnnl=False).open(0)
try:
    device.prepare("dnnl.matmul", [(11, (4, 4))] * 2, [(11, (4, 4))],
                   dict(batch=1, m=4, n=4, k=4, a_strides=(16, 4, 1), b_strides=(16, 4, 1)))
except DriverError as error:
    assert error.code == 5 and "not installed" in error.message and "pip install onednn" in error.message
else:
    raise AssertionError
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
