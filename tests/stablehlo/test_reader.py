"""The reader against jaxlib's MLIR bindings, op by op, and on bytes that are damaged."""

from __future__ import annotations

import random
import time

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from programs import artifact, f32, lower, programs

import jax
from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Tensor
from ferrule.stablehlo import load, read
from ferrule.stablehlo.reader import read_bytecode
from ferrule.stablehlo.tables import Foreign

PROGRAMS = {name: (f, args) for name, f, args in programs()}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_bindings(name: str, x64: bool) -> None:
    f, args = PROGRAMS[name]
    with jax.enable_x64(x64):
        code = lower(f, *args)
    assert oracle.compare(read(code), code) > 0


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.5.0", "1.8.0", "1.9.0", "1.13.0"])
@pytest.mark.parametrize("name", ["indexing", "matmul", "linalg", "reductions", "random"])
def test_older_versions_read_the_same(name: str, version: str) -> None:
    f, args = PROGRAMS[name]
    lowered = jax.jit(f).lower(*args)
    code = artifact(lowered, version)
    assert oracle.compare(read(code), code) > 0


VALUES = [1.5, -0.0, np.inf, -2.0]
CONSTANTS = [
    *(np.array(VALUES, d) for d in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)),
    *(np.array([1.5, -0.0, 2.0], d) for d in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)),
    *(np.array([1.5, 2.0], d) for d in (ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fnuz)),
    *(np.array([1.5, 2.0], d) for d in (ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3)),
    *(np.array([1.5, 2.0], d) for d in (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)),
    *(np.array([-8, 7, 0], d) for d in (ml_dtypes.int4, np.int8, np.int16, np.int32, np.int64)),
    *(np.array([15, 7, 0], d) for d in (ml_dtypes.uint4, np.uint8, np.uint16, np.uint32, np.uint64)),
    *(np.array([1, -2], ml_dtypes.int2), np.array([3, 0], ml_dtypes.uint2)),
    *(np.array([1 + 2j, -1j], d) for d in (np.complex64, np.complex128)),
    *(np.arange(n) % 3 == 0 for n in (1, 2, 7, 8, 9, 16, 100)),
    *(np.full(n, b) for n in (1, 3, 8, 9, 70) for b in (True, False)),
    *(np.full((2, 3), v, d) for v, d in ((2.5, np.float32), (1 - 2j, np.complex64), (-3, ml_dtypes.int4))),
    *(np.array(7.0, np.float32), np.zeros((0, 3), np.float32), np.array(True), np.zeros((0,), bool)),
]


@pytest.mark.parametrize("value", CONSTANTS, ids=lambda v: f"{v.dtype}{list(v.shape)}{v.reshape(-1)[:1]}")
def test_constants(value: np.ndarray) -> None:
    with jax.enable_x64(True):
        module = read(lower(lambda: jnp.asarray(value)))
    (op,) = [op for op in module.main.body.walk() if op.name == "constant"][-1:]
    found = op.attrs["value"]
    if found.shape != value.shape:  # JAX writes splats as a broadcast of a scalar
        found = np.broadcast_to(found, value.shape)
    assert found.dtype == value.dtype and not found.flags.writeable
    assert found.tobytes() == value.tobytes()


def test_splats_are_views() -> None:
    text = b"func.func @main() -> tensor<1000x1000xf32> { %0 = stablehlo.constant dense<2.5> : tensor<1000x1000xf32> "
    (op,) = read(text + b"return %0 : tensor<1000x1000xf32> }").main.body.ops
    assert op.attrs["value"].strides == (0, 0) and op.attrs["value"][3, 4] == 2.5


def test_locations() -> None:
    def inner(x):
        return jnp.tanh(x) * 3

    def outer(x):
        return jax.jit(inner)(x) + inner(x)

    line = inner.__code__.co_firstlineno
    main = load(lower(outer, f32(3))).main
    tanhs = [op.loc for op in main.body.walk() if op.name == "tanh"]
    assert len(tanhs) == 2
    assert all(loc.file == __file__ for loc in tanhs)
    assert tanhs[1].line == line + 1
    assert all("tanh" in loc.name and "outer" in loc.name for loc in tanhs)


def test_argument_and_result_attributes() -> None:
    lowered = jax.jit(lambda x, y: {"a": x + 1, "b": y}, donate_argnums=0).lower(f32(3), f32(2))
    main = load(artifact(lowered)).main
    assert main.arg_attrs[0] in ({"tf.aliasing_output": 0}, {"jax.buffer_donor": True})
    assert [r["jax.result_info"] for r in main.result_attrs] == ["result['a']", "result['b']"]


def test_speed() -> None:
    """A few thousand ops take a few milliseconds per thousand; the limit is wide, the machine may be busy."""

    def f(x):
        for i in range(1500):
            x = x * (1.0 + i) + x
        return x

    code = lower(f, f32(3))
    start = time.perf_counter()
    module = load(code)
    seconds = time.perf_counter() - start
    assert len(module.main.body.ops) >= 3000
    assert seconds < 1.5


# Bad input.


def _refused(code: bytes) -> bool:
    try:
        read_bytecode(code)
    except (InvalidArgument, Unsupported, Foreign):
        return True
    return False


def test_truncations_are_refused() -> None:
    code = lower(*[PROGRAMS["reductions"][0]], *PROGRAMS["reductions"][1])
    for end in range(4, len(code) - 1, 37):
        assert _refused(code[:end]), end


@pytest.mark.parametrize("name", ["indexing", "control", "spmd", "linalg"])
def test_damaged_bytes_raise_invalid_argument_or_nothing_else(name: str) -> None:
    code = lower(PROGRAMS[name][0], *PROGRAMS[name][1])
    rng = random.Random(name)
    start = time.perf_counter()
    refused = 0
    for _ in range(300):
        bad = bytearray(code)
        for _ in range(rng.choice((1, 1, 2, 8))):
            bad[rng.randrange(4, len(bad))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        refused += _refused(bytes(bad))
    assert refused > 50
    assert time.perf_counter() - start < 30


def test_error_names_byte_and_reason() -> None:
    code = lower(lambda x: x + 1, f32(3))
    with pytest.raises(InvalidArgument, match=r"byte \d+") as error:
        read_bytecode(code[:300])
    assert error.value.why


def test_huge_counts_are_refused_fast() -> None:
    with pytest.raises(InvalidArgument):
        read_bytecode(b"ML\xefR\x0dStableHLO\x00" + b"\x00" + b"\x00" + b"\xff" * 8)


def test_empty_and_foreign_input() -> None:
    for code in (b"", b"ML\xefR", b"\x00\x01\x02", b"\x7fELF", b"module {", b"func.func @f()"):
        with pytest.raises(InvalidArgument):
            read(code)
    with pytest.raises(InvalidArgument, match="format"):
        read(b"", "protobuf")


def test_tensor_types_are_shared() -> None:
    module = read(lower(lambda x: jnp.sin(x) + jnp.cos(x), f32(3)))
    types = {id(r.type) for op in module.main.body.ops for r in op.results if isinstance(r.type, Tensor)}
    assert len(types) == 1
