"""XLA FFI handlers of jaxlib (LAPACK), and ones compiled here against XLA's header, as CALL steps of a program."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ferrule.ir.types import BY_NUMPY, Tensor
from ferrule.libraries import hand_over, openblas_path
from ferrule.program import OUTPUT, PARAM, Call, Output, Param, Program, Slot

jaxlib = pytest.importorskip("jaxlib")


def tensor(a: np.ndarray) -> Tensor:
    return Tensor(a.shape, BY_NUMPY[a.dtype])


def program(target: str, ins: list[np.ndarray], outs: list[np.ndarray], attrs: dict) -> Program:
    slots = [Slot(PARAM, i, a.nbytes) for i, a in enumerate(ins)]
    slots += [Slot(OUTPUT, i, a.nbytes) for i, a in enumerate(outs)]
    operands = tuple((i, tensor(a)) for i, a in enumerate(ins))
    results = tuple((len(ins) + i, tensor(a)) for i, a in enumerate(outs))
    return Program(
        name="ffi",
        params=[Param(tensor(a)) for a in ins],
        outputs=[Output(tensor(a)) for a in outs],
        slots=slots,
        blocks=[[Call(target, True, operands, results, attrs)]],
    )


def call(native, target: str, ins: list[np.ndarray], outs: list[np.ndarray], attrs: dict) -> list[np.ndarray]:
    loaded = native.load(program(target, ins, outs, attrs))
    try:
        return loaded.run(ins, outs)
    finally:
        loaded.free()


def capsule_pointer(capsule: object) -> int:
    get_name, get = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, get_name(capsule))


@pytest.fixture(scope="module")
def lapack(native):
    from jaxlib.cpu import _lapack

    hand_over(native.lib)
    _lapack.initialize()
    for name, handler in _lapack.registrations().items():
        if name.endswith("_ffi"):
            stages = dict(handler) if isinstance(handler, dict) else {"execute": handler}
            pointers = [capsule_pointer(stages[s]) if stages.get(s) else None for s in STAGES]
            native.check(native.lib.ferrule_ffi_register(name.encode(), b"cpu", 1, 0, *pointers))
    return native


STAGES = ("instantiate", "prepare", "initialize", "execute")


def test_cholesky(lapack):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 4)).astype(np.float32)
    spd = x @ x.transpose(0, 2, 1) + 4 * np.eye(4, dtype=np.float32)
    columns = np.ascontiguousarray(spd.transpose(0, 2, 1))
    out, info = call(
        lapack,
        "lapack_spotrf_ffi",
        [columns],
        [np.zeros_like(spd), np.ones(3, np.int32)],
        {"uplo": np.array(ord("L"), np.uint8)},
    )
    assert not info.any()
    np.testing.assert_allclose(np.tril(out.transpose(0, 2, 1)), np.linalg.cholesky(spd), rtol=1e-5, atol=1e-5)


def test_eigenvalues(lapack):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 5))
    symmetric = x + x.T
    vectors, values, info = call(
        lapack,
        "lapack_dsyevd_ffi",
        [symmetric],
        [np.zeros((5, 5)), np.zeros(5), np.ones((), np.int32)],
        {"uplo": np.array(ord("L"), np.uint8), "mode": np.array(ord("V"), np.uint8)},
    )
    assert info == 0
    np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric), rtol=1e-10)
    np.testing.assert_allclose(symmetric @ vectors.T, vectors.T * values, atol=1e-9)


def test_lapack_runs_on_its_callers_thread(lapack):
    path = openblas_path()
    if path is None:
        pytest.skip("SciPy's OpenBLAS is not installed")
    blas = ctypes.CDLL(str(path))
    before = blas.scipy_openblas_get_num_threads()
    blas.scipy_openblas_set_num_threads(2)
    ended, seen = threading.Event(), set()

    def watch():
        while not ended.is_set():
            seen.add(blas.scipy_openblas_get_num_threads())

    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        results = [np.zeros((300, 300)), np.zeros(300), np.ones((), np.int32)]
        attrs = {"uplo": np.array(ord("L"), np.uint8), "mode": np.array(ord("V"), np.uint8)}
        deadline = time.monotonic() + 60  # on a busy machine nobody may be watching during a call or two
        while 1 not in seen and time.monotonic() < deadline:
            call(lapack, "lapack_dsyevd_ffi", [np.diag(np.arange(300.0)) + 1], results, attrs)
        ended.set()
        watcher.join()
        assert 1 in seen
        assert blas.scipy_openblas_get_num_threads() == 2  # as its user had set it
    finally:
        ended.set()
        blas.scipy_openblas_set_num_threads(before)


def test_qr(lapack):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 3))
    columns = x.T.copy().reshape(4, 3)  # LAPACK's order in memory, under the matrix's own shape
    out, _tau = call(lapack, "lapack_dgeqrf_ffi", [columns], [np.zeros((4, 3)), np.zeros(3)], {})
    r = np.triu(out.reshape(3, 4).T[:3])
    np.testing.assert_allclose(np.abs(r), np.abs(np.linalg.qr(x)[1]), rtol=1e-10)


@pytest.mark.parametrize(("batch", "size"), [(257, 32), (3, 128), (2, 129)])
def test_a_batch_is_factored_in_parts(lapack, batch, size):
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((batch, size, size))
    x[1] = 0  # singular: its number in the batch keeps its own answer
    columns = np.ascontiguousarray(x.transpose(0, 2, 1))
    pivots, info = np.zeros((batch, size), np.int32), np.full(batch, -1, np.int32)
    out, pivots, info = call(lapack, "lapack_dgetrf_ffi", [columns], [np.zeros_like(x), pivots, info], {})
    assert info[1] == 1 and not np.delete(info, 1).any()
    factors = out.transpose(0, 2, 1)
    product = (np.tril(factors, -1) + np.eye(size)) @ np.triu(factors)
    for one, rows, pivot in zip(product, x, pivots, strict=True):
        rows = rows.copy()
        for at, other in enumerate(pivot - 1):
            rows[[at, other]] = rows[[other, at]]
        np.testing.assert_allclose(one, rows, atol=1e-11)


def test_wrong_attributes_give_the_handlers_message(lapack):
    x = np.eye(2, dtype=np.float32)
    with pytest.raises(RuntimeError, match=r"(?s)lapack_spotrf_ffi.*attributes"):
        call(lapack, "lapack_spotrf_ffi", [x], [x.copy(), np.zeros((), np.int32)], {"a": 1, "b": 2})
    with pytest.raises(RuntimeError, match=r"(?s)lapack_spotrf_ffi.*Wrong number of arguments"):
        uplo = {"uplo": np.array(ord("L"), np.uint8)}
        call(lapack, "lapack_spotrf_ffi", [x, x], [x.copy(), np.zeros((), np.int32)], uplo)


def test_unknown_handler_names_similar_ones(lapack):
    with pytest.raises(RuntimeError, match=r"(?s)\[5\].*'lapack_spotr_ffi'.*lapack_spotrf_ffi"):
        lapack.load(program("lapack_spotr_ffi", [], [], {}))


def test_second_registration(lapack):
    from jaxlib.cpu import _lapack

    table = _lapack.registrations()
    one, two = (capsule_pointer(table[n]) for n in ("lapack_spotrf_ffi", "lapack_dpotrf_ffi"))
    register = lapack.lib.ferrule_ffi_register
    assert register(b"lapack_spotrf_ffi", b"Host", 1, 0, None, None, None, one) == 0
    assert register(b"lapack_spotrf_ffi", b"cpu", 1, 0, None, None, None, two) == 6
    assert register(b"old", b"cpu", 0, 0, None, None, None, one) == 12
    assert register(b"none", b"cpu", 1, 0, None, None, None, None) == 3


HANDLERS = r"""
#include <numeric>
#include <thread>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

struct Counter { static ffi::TypeId id; int64_t start; int64_t calls = 0; };
ffi::TypeId Counter::id = {};
extern "C" int register_type(int (*add)(const char*, int64_t*, void (*)(void*))) {
  return add("test.Counter", &Counter::id.type_id, [](void* p) { delete static_cast<Counter*>(p); });
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(CounterMake, [](int64_t start) -> ffi::ErrorOr<std::unique_ptr<Counter>> {
  if (start < 0) return ffi::Unexpected(ffi::Error::InvalidArgument("start is negative"));
  return std::make_unique<Counter>(Counter{start});
}, ffi::Ffi::BindInstantiate().Attr<int64_t>("start"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(CounterRun, [](Counter* counter, int64_t, ffi::Result<ffi::BufferR0<ffi::S64>> out) {
  *out->typed_data() = counter->start + counter->calls++;
  return ffi::Error::Success();
}, ffi::Ffi::Bind().Ctx<ffi::State<Counter>>().Attr<int64_t>("start").Ret<ffi::BufferR0<ffi::S64>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(Everything, [](ffi::ThreadPool pool, ffi::ScratchAllocator scratch, int32_t ordinal,
    ffi::RunId run, ffi::AnyBuffer in, ffi::Result<ffi::AnyBuffer> out, ffi::Dictionary attrs) {
  if (pool.num_threads() < 1 || ordinal != 0 || run.run_id < 1) return ffi::Error::Internal("context");
  auto memory = scratch.Allocate(1000, 64);
  if (!memory || reinterpret_cast<uintptr_t>(*memory) % 64) return ffi::Error::Internal("scratch");
  auto flag = attrs.get<bool>("flag");
  auto text = attrs.get<std::string_view>("text");
  auto ints = attrs.get<ffi::Span<const int64_t>>("ints");
  auto reals = attrs.get<ffi::Span<const double>>("reals");
  auto small = attrs.get<int32_t>("small");
  auto halves = attrs.get<ffi::Span<const float>>("floats");
  auto inner = attrs.get<ffi::Dictionary>("inner");
  if (!flag || !*flag || !text || *text != "hello" || !ints || ints->size() != 3 || (*ints)[2] != 3 || !reals ||
      (*reals)[0] != 0.5 || !small || *small != 7 || !halves || (*halves)[1] != 2.5f || !inner ||
      *inner->get<int64_t>("deep") != 42)
    return ffi::Error::InvalidArgument("attributes");
  if (in.dimensions().size() != 2 || in.dimensions()[1] != 3 || in.element_type() != ffi::F32)
    return ffi::Error::InvalidArgument("buffer");
  for (size_t i = 0; i < in.element_count(); ++i) out->typed_data<float>()[i] = in.typed_data<float>()[i] * 2;
  return ffi::Error::Success();
}, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Ctx<ffi::ScratchAllocator>().Ctx<ffi::DeviceOrdinal>().Ctx<ffi::RunId>()
    .Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(Later, [](ffi::ThreadPool pool, bool fail, ffi::Result<ffi::BufferR0<ffi::S64>> out) {
  ffi::Promise promise;
  ffi::Future future(promise);
  pool.Schedule([promise = std::move(promise), fail, to = out->typed_data()]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    *to = 99;
    if (fail) promise.SetError(ffi::Error::InvalidArgument("late failure"));
    else promise.SetAvailable();
  });
  return future;
}, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Attr<bool>("fail").Ret<ffi::BufferR0<ffi::S64>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(NeedsStream, [](void* stream) { return ffi::Error::Success(); },
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>());
"""


@pytest.fixture(scope="module")
def handlers(native, tmp_path_factory):
    compiler = shutil.which("g++")
    include = Path(jaxlib.__file__).parent / "include"
    if not compiler or not include.exists():
        pytest.skip("no C++ compiler, or no FFI header in jaxlib")
    folder = tmp_path_factory.mktemp("ffi")
    (folder / "handlers.cc").write_text(HANDLERS)
    library = folder / "handlers.so"
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([compiler, *flags, folder / "handlers.cc", "-o", library], check=True)
    lib = ctypes.CDLL(str(library))

    def pointer(name: str) -> int | None:
        return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value if name else None

    add = native.lib.ferrule_ffi_register_type
    assert lib.register_type(ctypes.cast(add, ctypes.c_void_p)) == 0
    for name, instantiate, execute in (
        ("test.counter", "CounterMake", "CounterRun"),
        ("test.everything", "", "Everything"),
        ("test.later", "", "Later"),
        ("test.stream", "", "NeedsStream"),
    ):
        stages = (pointer(instantiate), None, None, pointer(execute))
        native.check(native.lib.ferrule_ffi_register(name.encode(), b"cpu", 1, 0, *stages))
    return native


def test_state_belongs_to_the_call(handlers):
    out = np.zeros((), np.int64)
    loaded = [handlers.load(program("test.counter", [], [out], {"start": start})) for start in (10, 20)]
    seen = [int(one.run([], [out])[0]) for one in (loaded[0], loaded[0], loaded[1], loaded[0])]
    assert seen == [10, 11, 20, 12]
    for one in loaded:
        one.free()
    with pytest.raises(RuntimeError, match="start is negative"):
        handlers.load(program("test.counter", [], [out], {"start": -1}))


def test_contexts_attributes_and_buffers(handlers):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    attrs = {
        "flag": True,
        "text": "hello",
        "ints": (1, 2, 3),
        "reals": (0.5, 1.5),
        "small": np.array(7, np.int32),
        "floats": np.array([1.5, 2.5], np.float32),
        "inner": {"deep": 42},
    }
    (y,) = call(handlers, "test.everything", [x], [np.zeros_like(x)], attrs)
    np.testing.assert_array_equal(y, 2 * x)


def test_asynchronous_handlers_are_awaited(handlers):
    out = np.zeros((), np.int64)
    assert call(handlers, "test.later", [], [out], {"fail": False})[0] == 99
    with pytest.raises(RuntimeError, match=r"\[3\].*late failure"):
        call(handlers, "test.later", [], [out], {"fail": True})


def test_cpu_has_no_stream(handlers):
    with pytest.raises(RuntimeError, match="no stream"):
        call(handlers, "test.stream", [], [], {})
