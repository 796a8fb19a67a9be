"""Products whose operands and results end where the memory does: nothing behind them is read or written."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import OneCall, tensor
from test_calls import under

PAGE = mmap.PAGESIZE


def at_the_end(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array behind which a page begins that nobody may touch."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = mmap.mmap(-1, -(-size // PAGE) * PAGE + PAGE)
    view = np.frombuffer(room, np.uint8)
    guard = view.ctypes.data + len(view) - PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0
    return view[len(view) - PAGE - size : len(view) - PAGE].view(dtype).reshape(shape)


def check() -> None:
    random = np.random.default_rng(0)
    # 16 rows and more, so that all begin at a multiple of 64 bytes; one and several panels, rows on lines of their own,
    # short and long sums.
    sizes = itertools.product([16, 48], [1, 15, 16, 31, 33, 48, 61, 64], [16, 48, 272])
    for (m, n, k), (dtype, out), turned in itertools.product(sizes, ["ff", "dd", "ii", "bi"], [0, 1]):
        a, b, d = at_the_end((m, k), dtype), at_the_end((n, k) if turned else (k, n), dtype), at_the_end((m, n), out)
        a[...], b[...] = random.integers(-9, 9, a.shape), random.integers(-9, 9, b.shape)
        attrs = dict(
            batch=1, m=m, n=n, k=k, a_strides=(m * k, k, 1), b_strides=(k * n, *((1, k) if turned else (n, 1)))
        )
        OneCall("gemm", [tensor(a.shape, dtype), tensor(b.shape, dtype)], [tensor((1, m, n), out)], attrs).run(
            [a, b], [d]
        )
        np.testing.assert_array_equal(d, a.astype(out) @ (b.T if turned else b).astype(out))


@pytest.mark.parametrize("isa", ALL_SETS)
def test_bounds(isa):
    under(isa, "from test_gemm_bounds import check; check()")


def touch() -> None:
    a = at_the_end((16,), "f")
    ctypes.string_at(a.ctypes.data + a.nbytes, 1)


def test_the_guard_works():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from test_gemm_bounds import touch; touch()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode < 0 or b"AddressSanitizer" in done.stderr
