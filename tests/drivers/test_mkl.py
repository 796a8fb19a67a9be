"""oneMKL's calls through the driver, against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from driver_binding import DriverError

from ferrule.native import library_path
from ferrule.targets import xpu

PJRT = {"f4": 11, "f8": 12, "c8": 14, "c16": 15, "i4": 4}


@pytest.fixture(autouse=True)
def _needs_mkl():
    if not xpu.find(library_path()).mkl:
        pytest.skip("oneMKL is not installed, or Ferrule was built without it")


def random(shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return values.astype(dtype)


def about(a):
    return PJRT[a.dtype.str[1:]], a.shape


def run(device, target, operands, results, **attributes):
    """The results; `results` are arrays like them."""
    call = device.prepare(target, [about(a) for a in operands], [about(a) for a in results], attributes)
    data = [device.put(a) for a in operands]
    out = [device.allocate(max(1, a.nbytes)) for a in results]
    events = [call.run(data, out)]
    events.append(call.run(data, out, events))  # a call is run often
    arrays = [device.get(d, like, events) for d, like in zip(out, results, strict=True)]
    for d, a in zip(data, operands, strict=True):
        np.testing.assert_array_equal(device.get(d, a, events), a, "an operand was written")
    call.discard()
    for d in [*data, *out]:
        device.free(d)
    return arrays


def close(result, expected, k=1):
    tolerance = (2e-6 if result.dtype.str[1:] in ("f4", "c8") else 4e-15) * max(1, np.log2(k))
    scale = np.abs(expected).max() + 1e-300
    np.testing.assert_allclose(result / scale, expected / scale, rtol=0, atol=tolerance)


# --- transforms -------------------------------------------------------------------------------------------------
LENGTHS = [(1,), (2,), (7,), (16,), (97,), (1000,), (1, 5), (6, 7), (5, 1), (3, 4, 5), (4, 3, 6)]
KINDS = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}


def transform(device, x, kind, length):
    axes = tuple(range(-len(length), 0))
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    expected = KINDS[kind](wide, length, axes)
    single = x.dtype.str[1:] in ("f4", "c8")
    dtype = ("f4" if single else "f8") if kind == "IRFFT" else ("c8" if single else "c16")
    (result,) = run(device, "mkl.dft", [x], [np.empty(expected.shape, dtype)], type=kind, length=length)
    return result, expected


@pytest.mark.parametrize("wide", [False, True], ids=["single", "double"])
@pytest.mark.parametrize(
    "length", [(1,), (2,), (7,), (16,), (97,), (1000,), (1, 5), (6, 7), (5, 1), (3, 4, 5), (4, 3, 6)]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_transform(device, batch, kind, length, wide):
    dtype = {False: ("f4", "c8"), True: ("f8", "c16")}[wide][kind != "RFFT"]
    x = random((*batch, *length), dtype)
    if kind == "IRFFT":  # the call takes spectra of real signals
        x = np.fft.rfftn(random((*batch, *length), "f8"), length, tuple(range(-len(length), 0))).astype(dtype)
    result, expected = transform(device, x, kind, length)
    close(result, expected, np.prod(length))


def test_transform_of_what_is_not_a_number(device):
    x = random((3, 64), "c8")
    x[1, 5] = np.nan
    result, expected = transform(device, x, "FFT", (64,))
    assert np.isnan(result[1]).all()
    close(result[[0, 2]], expected[[0, 2]], 64)


@pytest.mark.parametrize(
    "operand, result, attributes, why",
    [
        ((14, (4, 8)), (14, (4, 8)), {"type": "FFT", "length": (8, 8)}, "do not fit"),
        ((14, (8,)), (15, (8,)), {"type": "FFT", "length": (8,)}, "do not fit"),
        ((14, (8,)), (14, (8,)), {"type": "DCT", "length": (8,)}, "DCT"),
        ((14, (0, 8)), (14, (0, 8)), {"type": "FFT", "length": (8,)}, "nothing"),
        ((14, (8,)), (14, (8,)), {"type": "FFT", "length": ()}, "0 dimensions"),
    ],
)
def test_refused_transforms(device, operand, result, attributes, why):
    with pytest.raises(DriverError, match=why):
        device.prepare("mkl.dft", [operand], [result], attributes)


def test_unknown_calls_are_named(device):
    with pytest.raises(DriverError, match=r"there is mkl\.dft"):
        device.prepare("mkl.nothing", [], [], {})
