"""Products of 8- and 16-bit integers, which the own loops add up in pairs, and of bf16, which they widen in panels."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import ALL_SETS

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from test_gemm_narrow import check
check()
"""


@pytest.mark.parametrize("isa", ALL_SETS)
def test_narrow(isa):
    """Also where oneDNN would take them, and in the loops of lesser processors."""
    environment = os.environ | {"FERRULE_ISA": isa, "FERRULE_GEMM": "own"}
    subprocess.run([sys.executable, "-c", CODE, str(Path(__file__).parent)], env=environment, check=True, timeout=240)


def check():
    from test_calls import bf16, close, gemm, laid_out, product, random, wide

    drawn = functools.lru_cache(20)(laid_out)

    @functools.lru_cache(20)
    def sides(shape, types, left, right):
        """Both sides and their product, made once for all types of results."""
        batch, m, n, k = shape
        a, b = drawn((batch, m, k), types[0], left), drawn((batch, k, n), types[1], right)
        return a, b, product(a, b)

    # Odd sizes; more than one block of rows (192), of columns (1024), along k (256 or 512) and of sums (512 rows).
    shapes = [(3, 7, 5, 3), (1, 6, 16, 2), (2, 200, 33, 515), (1, 65, 1100, 77), (1, 530, 40, 1027), (1, 1, 70, 1001)]
    shapes += [(1, 3, 4, 1), (1, 13, 18, 2306)]
    for shape, (left, right) in itertools.product(shapes, [(0, 0), (0, 1), (1, 0), (1, 1)]):
        k = shape[-1]
        for types in "bbi", "bBi", "Bbi", "BBI", "hhi", "hbi", "bbh", "bbb", "bbl", "HHI":
            a, b, want = sides(shape, tuple(types[:2]), left, right)
            close(gemm(a, b, types[2]), want.astype(types[2]), types[2])
        for types in (bf16, bf16, bf16), (bf16, bf16, "f"), (bf16, "f", "f"), ("f", bf16, bf16):
            a, b, want = sides(shape, types[:2], left, right)
            close(gemm(a, b, types[2]), want, types[2], k)
    # The largest magnitudes, where sums of two products in 16 bits would saturate, and one in 32 bits wraps.
    for left, right in "bb", "hh", "BB", "bB", "Bb":
        for extreme, other in itertools.product(["min", "max"], repeat=2):
            a = np.full((1, 9, 1026), getattr(np.iinfo(left), extreme), left)
            b = np.full((1, 1026, 40), getattr(np.iinfo(right), other), right)
            close(gemm(a, b, "i"), (wide(a) @ wide(b)).astype("i"), "i")
    # Long sums of a small result, which are formed in parts.
    for types in "bbi", "BBi", "hhi":
        a, b = random((1, 40, 20001), types[0]), random((1, 20001, 36), types[1])
        close(gemm(a, b, types[2]), (wide(a) @ wide(b)).astype(types[2]), types[2])
    # Neither side has adjacent elements.
    for dtype, out in ("b", "i"), (bf16, "f"):
        a, b = random((1, 40, 90), dtype), random((1, 45, 60), dtype)
        a, b = a[:, ::2, ::2], b[:, :, ::3]
        close(gemm(a, b, out), (wide(a) @ wide(b)).astype(out), out, 45)
    # A few vectors, which meet the matrix where it lies: odd ends, several parts of k and pieces of columns, a batch.
    # The last one's sums are too short for dot products.
    shapes = [(1, 1, 4100, 300), (1, 3, 1500, 1031), (2, 7, 130, 267), (1, 2, 9, 70), (1, 20, 70, 700)]
    shapes += [(3, 1, 65, 2100), (1, 20, 70, 140)]
    for (batch, m, n, k), (left, right), turned in itertools.product(shapes, [(0, 0), (0, 1), (1, 0)], [0, 1]):
        m, n, left, right = (n, m, 1 - right, 1 - left) if turned else (m, n, left, right)
        kinds = ["bbi", "bBI", "Bbi", "hhi", "bbh", (bf16, bf16, bf16)]
        for types in [*kinds, ("f", bf16, "f"), (bf16, "f", "f"), ("e", bf16, "e"), ("f", "b", "f"), (bf16, "B", bf16)]:
            a, b, want = sides((batch, m, n, k), tuple(types[:2]), left, right)
            close(gemm(a, b, types[2]), want.astype(types[2]) if types[2] in ("i", "I", "h") else want, types[2], k)
    # bf16 stays what it is: NaN, infinities, zeros of both signs, subnormals.
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-39, 3.0, -2.5], bf16)
    one = np.eye(8, dtype=bf16)[None]
    row = np.where(np.arange(8)[:, None] == np.arange(8), special[:, None], bf16.type(0))[None]
    got = gemm(row, one, bf16)[0].astype("f")
    want = row[0].astype("f") @ one[0].astype("f")
    np.testing.assert_array_equal(got, want)
