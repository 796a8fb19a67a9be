"""Fourier transforms that devices do in steps mean what `fft` means."""

from __future__ import annotations

import numpy as np
import pytest

from ferrule.ir import Block, Tensor
from ferrule.ir.types import BY_NUMPY
from ferrule.passes.match import match
from ferrule.targets.gpu import find
from ferrule.targets.reference import evaluate_block

GPU = find("xpu:kind=gpu,units=64")
R = np.random.default_rng(4)


def transform(x: np.ndarray, kind: str, lengths: tuple[int, ...]) -> tuple[Block, np.ndarray]:
    single = x.dtype in (np.float32, np.complex64)
    dtype = np.dtype(
        {"IRFFT": np.float32}.get(kind, np.complex64) if single else {"IRFFT": np.float64}.get(kind, complex)
    )
    shape = list(x.shape)
    if kind == "RFFT":
        shape[-1] = lengths[-1] // 2 + 1
    if kind == "IRFFT":
        shape[-1] = lengths[-1]
    block = Block([Tensor(x.shape, BY_NUMPY[x.dtype])])
    attrs = {"fft_type": kind, "fft_length": lengths}
    block.results = block.add("fft", block.args, Tensor(tuple(shape), BY_NUMPY[dtype]), attrs).results
    matched = match(block, GPU)
    return matched, evaluate_block(matched, [x])[0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12, 16, 17, 30, 61, 64, 100, 128, 210, 1000, 1024, 37 * 8])
@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_lengths(kind, n):
    numpy = {"FFT": np.fft.fft, "IFFT": np.fft.ifft, "RFFT": np.fft.rfft, "IRFFT": np.fft.irfft}[kind]
    size = n // 2 + 1 if kind == "IRFFT" else n
    x = R.standard_normal((3, size)) if kind == "RFFT" else R.standard_normal((3, size, 2)).view(complex)[..., 0]
    block, found = transform(x, kind, (n,))
    assert "library" not in {op.name for op in block.walk()}
    np.testing.assert_allclose(found, numpy(x, n), rtol=1e-11, atol=1e-11 * n)


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_dimensions_in_single_precision(kind):
    lengths = (6, 4, 10)
    x = R.standard_normal((2, 6, 4, 6 if kind == "IRFFT" else 10, 2)).astype(np.float32).view(np.complex64)[..., 0]
    if kind == "RFFT":
        x = x.real.copy()
    numpy = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}[kind]
    _, found = transform(x, kind, lengths)
    np.testing.assert_allclose(found, numpy(x.astype(complex) if kind != "RFFT" else x, lengths, (1, 2, 3)), atol=2e-4)


@pytest.mark.parametrize("n", [67, 2 * 71, 1 << 19])
def test_what_is_left_to_the_host(n):
    block = Block([Tensor((n,), BY_NUMPY[np.dtype(np.complex64)])])
    attrs = {"fft_type": "FFT", "fft_length": (n,)}
    block.results = block.add("fft", block.args, block.args[0].type, attrs).results
    assert "library" in {op.name for op in match(block, GPU).walk()}
