"""Objects as LLVM writes them: relocations of every code model, externals, and bytes that are not objects."""

from __future__ import annotations

import ctypes
import random

import ml_dtypes
import numpy as np
import pytest

KERNEL = """
@table = internal constant [4 x double] [double 10.0, double 20.0, double 30.0, double 40.0]
@scale = global double 2.0
@zero = common global double 0.0
declare double @sin(double)
define internal double @twice(double %x) noinline {
  %s = load double, ptr @scale
  %y = fmul double %x, %s
  ret double %y
}
define void @kernel(ptr %p, i64 %begin, i64 %end) {
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %b = load ptr, ptr %p1
  br label %loop
loop:
  %i = phi i64 [%begin, %0], [%next, %loop]
  %from = getelementptr double, ptr %a, i64 %i
  %x = load double, ptr %from
  %s = call double @sin(double %x)
  %which = and i64 %i, 3
  %entry = getelementptr [4 x double], ptr @table, i64 0, i64 %which
  %t = load double, ptr %entry
  %z = load double, ptr @zero
  %m = fmul double %s, %t
  %w = call double @twice(double %x)
  %r = fadd double %m, %w
  %r2 = fadd double %r, %z
  %to = getelementptr double, ptr %b, i64 %i
  store double %r2, ptr %to
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %end
  br i1 %done, label %exit, label %loop
exit:
  ret void
}
"""

CONVERT = """
define void @convert(ptr %p, i64 %begin, i64 %end) {
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %b = load ptr, ptr %p1
  br label %loop
loop:
  %i = phi i64 [%begin, %0], [%next, %loop]
  %from = getelementptr SOURCE, ptr %a, i64 %i
  %x = load SOURCE, ptr %from
  %y = OP SOURCE %x to TARGET
  %to = getelementptr TARGET, ptr %b, i64 %i
  store TARGET %y, ptr %to
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %end
  br i1 %done, label %exit, label %loop
exit:
  ret void
}
"""


def call(native, handle, name: str, arrays: list[np.ndarray], begin: int, end: int) -> None:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        native.lib.ferrule_object_symbol(handle, name.encode())
    )
    function((ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)), begin, end)


@pytest.mark.parametrize("reloc", ["pic", "static"])
@pytest.mark.parametrize("codemodel", ["default", "small", "medium", "large"])
def test_code_models(native, assemble, reloc, codemodel):
    handle = native.link(assemble(KERNEL, reloc, codemodel))
    x = np.linspace(-3, 3, 50)
    y = np.zeros(50)
    call(native, handle, "kernel", [x, y], 0, 50)
    np.testing.assert_allclose(y, np.sin(x) * (np.arange(50) % 4 + 1) * 10 + 2 * x, rtol=1e-13)
    assert native.lib.ferrule_object_symbol(handle, b"nothing") is None
    native.lib.ferrule_object_free(handle)


@pytest.mark.parametrize(
    ("op", "source", "target", "from_type", "to_type"),
    [
        ("fptrunc", "float", "half", np.float32, np.float16),
        ("fptrunc", "double", "half", np.float64, np.float16),
        ("fpext", "half", "float", np.float16, np.float32),
        ("fptrunc", "float", "bfloat", np.float32, ml_dtypes.bfloat16),
        ("fpext", "bfloat", "float", ml_dtypes.bfloat16, np.float32),
    ],
)
def test_half_precision_helpers(native, assemble, op, source, target, from_type, to_type):
    text = CONVERT.replace("SOURCE", source).replace("TARGET", target).replace("OP", op)
    handle = native.link(assemble(text))
    if from_type in (np.float16, ml_dtypes.bfloat16):
        x = np.arange(65536, dtype=np.uint16).view(from_type)
    else:
        rng = np.random.default_rng(0)
        patterns = rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
        near = (rng.standard_normal(20000) * 10.0 ** rng.integers(-9, 6, 20000)).astype(np.float32)
        ties = (np.arange(-4000, 4000) * 0.5 * 2.0**-24).astype(np.float32)
        exact = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
        ulp = np.nextafter(exact, np.float32(np.inf))
        x = np.concatenate([patterns, near, ties, exact, ulp, [np.inf, -np.inf, np.nan, 65519.99, 65520]])
        x = x.astype(from_type)
    y = np.zeros(x.shape, to_type)
    call(native, handle, "convert", [x, y], 0, len(x))
    with np.errstate(all="ignore"):
        expected = x.astype(to_type)
    np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))
    finite = ~np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(y.astype(np.float64))[finite], np.signbit(expected)[finite])


def test_wide_integers(native, assemble):
    handle = native.link(
        assemble(
            """
define void @divide(ptr %p, i64 %b, i64 %e) {
  %a = load ptr, ptr %p
  %n = load i128, ptr %a, align 8
  %q = getelementptr i128, ptr %a, i64 1
  %d = load i128, ptr %q, align 8
  %x = sdiv i128 %n, %d
  %y = urem i128 %n, %d
  %o = getelementptr i128, ptr %a, i64 2
  store i128 %x, ptr %o, align 8
  %r = getelementptr i128, ptr %a, i64 3
  store i128 %y, ptr %r, align 8
  ret void
}"""
        )
    )
    n, d = -(2**100) - 12345, 2**70 + 99
    table = np.frombuffer(b"".join((v % 2**128).to_bytes(16, "little") for v in (n, d, 0, 0)), np.uint8).copy()
    call(native, handle, "divide", [table], 0, 1)
    quotient = int.from_bytes(table[32:48].tobytes(), "little", signed=True)
    assert quotient == -(-n // d)
    assert int.from_bytes(table[48:].tobytes(), "little") == (n % 2**128) % d


def test_unknown_function_is_named(native, assemble):
    body = "{\n  %y = call double @nope(double %x)\n  ret double %y\n}"
    text = f"declare double @nope(double)\ndefine double @f(double %x) {body}"
    with pytest.raises(RuntimeError, match="'nope'"):
        native.link(assemble(text))


def test_not_an_object(native):
    for data in (b"", b"\x7fELF", b"hello" * 100, bytes(64), b"\x7fELF\x02\x01\x01" + bytes(200)):
        with pytest.raises(RuntimeError):
            native.link(data)


def test_damaged_objects_never_crash(native, assemble):
    good = assemble(KERNEL)
    rng = random.Random(1)
    linked = 0
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 8))):
            where = rng.randrange(len(data))
            data[where] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        try:
            handle = native.link(bytes(data))
        except RuntimeError:
            continue
        linked += 1
        native.lib.ferrule_object_free(handle)
    assert linked > 0
