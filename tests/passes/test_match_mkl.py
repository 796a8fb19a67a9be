"""What goes to oneMKL, and that what is put around its calls leaves the meaning as it is."""

from __future__ import annotations

import numpy as np
import pytest

from ferrule.ir import Block, Tensor
from ferrule.ir import types as t
from ferrule.ir.types import BY_NUMPY
from ferrule.passes import match_mkl
from ferrule.passes.match import match
from ferrule.passes.match_mkl import Builder
from ferrule.targets.gpu import find
from ferrule.targets.reference import evaluate_block

WITH, WITHOUT = find("xpu:kind=gpu,units=64,mkl=1"), find("xpu:kind=gpu,units=64")
R = np.random.default_rng(3)
SQUARE = Tensor((2, 5, 5), t.f32)
SOLVE = {"left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "NO_TRANSPOSE"}


def targets(block: Block) -> list[str]:
    return [op.attrs["target"] for op in block.walk() if op.name == "library"]


def one(name: str, operands: list[Tensor], results: list[Tensor], **attrs: object) -> Block:
    block = Block(operands)
    block.results = block.add(name, block.args, results, attrs).results
    return block


def lapack(routine: str, operands: list[Tensor], results: list[Tensor], **config: int) -> Block:
    attrs = {"call_target_name": f"lapack_{routine}_ffi", "api_version": 4, "backend_config": config}
    return one("custom_call", operands, results, **attrs)


CALLS = {
    "mkl.dft": lambda: one("fft", [Tensor((8,), t.c64)], [Tensor((8,), t.c64)], fft_type="FFT", fft_length=(8,)),
    "mkl.trsm": lambda: one("triangular_solve", [SQUARE, SQUARE], [SQUARE], **SOLVE),
    "mkl.potrf": lambda: one("cholesky", [SQUARE], [SQUARE], lower=True),
    "mkl.getrf": lambda: lapack("sgetrf", [SQUARE], [SQUARE, Tensor((2, 5), t.i32), Tensor((2,), t.i32)]),
    "mkl.geqrf": lambda: lapack("sgeqrf", [SQUARE], [SQUARE, Tensor((2, 5), t.f32)]),
    "mkl.orgqr": lambda: lapack("sorgqr", [SQUARE, Tensor((2, 5), t.f32)], [SQUARE]),
    "mkl.syevd": lambda: lapack(
        "ssyevd", [SQUARE], [SQUARE, Tensor((2, 5), t.f32), Tensor((2,), t.i32)], mode=ord("V"), uplo=ord("L")
    ),
    "mkl.gesvd": lambda: lapack(
        *("sgesdd", [SQUARE], [SQUARE, Tensor((2, 5), t.f32), SQUARE, SQUARE, Tensor((2,), t.i32)]), mode=ord("A")
    ),
}


@pytest.mark.parametrize("target", CALLS)
def test_calls(target):
    assert targets(match(CALLS[target](), WITH)) == [target]
    assert not any(name.startswith("mkl.") for name in targets(match(CALLS[target](), WITHOUT)))


@pytest.mark.parametrize("shape, dtype", [((0, 5, 5), t.f32), ((2, 0, 0), t.f32), ((2, 5, 5), t.f16)])
def test_what_the_library_has_not(shape, dtype):
    """Nothing to do, and short floats: as without the library."""
    block = one("cholesky", [Tensor(shape, dtype)], [Tensor(shape, dtype)], lower=True)
    assert targets(match(block, WITH)) == ["cholesky"]
    unknown = lapack("sgehrd", [SQUARE], [SQUARE, Tensor((2, 4), t.f32), Tensor((2,), t.i32)])
    assert targets(match(unknown, WITH)) == ["lapack_sgehrd_ffi"]


def test_a_device_without_f64():
    for dtype, target in ((t.f32, "mkl.potrf"), (t.f64, "cholesky")):
        block = one("cholesky", [Tensor((5, 5), dtype)], [Tensor((5, 5), dtype)], lower=True)
        assert targets(match(block, find("xpu:kind=gpu,f64=0,mkl=1"))) == [target]


@pytest.mark.parametrize("length", [(1,), (2,), (7,), (8,), (3, 5), (4, 6), (1, 4), (2, 2), (3, 4, 5), (4, 1, 6)])
def test_any_spectrum_is_made_one_of_a_real_signal(length):
    """NumPy's inverse transform of it is the same, and its columns that stand for themselves are symmetric."""
    shape = (2, *length[:-1], length[-1] // 2 + 1)
    x = R.standard_normal((*shape, 2)).view(complex)[..., 0]
    block = Block([Tensor(shape, BY_NUMPY[x.dtype])])
    op = block.add("fft", block.args, Tensor((2, *length), t.f64), {"fft_type": "IRFFT", "fft_length": length})
    block.results = [match_mkl._symmetric(Builder(block, op), block.args[0], length)]
    (made,) = evaluate_block(block, [x])
    axes = tuple(range(-len(length), 0))
    expected = np.fft.irfftn(x, length, axes)
    np.testing.assert_allclose(np.fft.irfftn(made, length, axes), expected, atol=1e-14)
    np.testing.assert_allclose(np.fft.rfftn(expected, length, axes), made, atol=1e-13)
