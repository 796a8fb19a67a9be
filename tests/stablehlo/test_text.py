"""Inputs that are not portable artifacts, and the worker process that converts them."""

from __future__ import annotations

import io
import os
import signal
import threading

import jax.export
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from programs import f32, lower

import jax
from ferrule.errors import FailedPrecondition, InvalidArgument, Unsupported
from ferrule.stablehlo import load, read, worker
from ferrule.stablehlo.worker import WORKER, Worker, python_executable

ADD = b"""func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.add %a, %a : tensor<3xf32> return %0 : tensor<3xf32> }"""


def names(code: bytes, format: str = "mlir") -> list[str]:
    return [op.name for op in load(code, format).main.body.walk()]


def test_text() -> None:
    assert names(ADD) == ["add"]
    assert names(b"module {" + ADD + b"}") == ["add"]


def test_text_with_locations() -> None:
    code = ADD.replace(b" return", b' loc("stack"("model.py":12:4)) return')
    (op,) = load(code).main.body.ops
    assert (op.loc.file, op.loc.line, op.loc.col, op.loc.name) == ("model.py", 12, 4, "stack")


def test_portable_text() -> None:
    vhlo = b"vhlo.func_v1 @main(%a: !vhlo.tensor_v1<3x!vhlo.f32_v1>) -> !vhlo.tensor_v1<3x!vhlo.f32_v1> { "
    vhlo += b'%0 = "vhlo.add_v1"(%a, %a) : (!vhlo.tensor_v1<3x!vhlo.f32_v1>, !vhlo.tensor_v1<3x!vhlo.f32_v1>) -> '
    vhlo += b'!vhlo.tensor_v1<3x!vhlo.f32_v1> "vhlo.return_v1"(%0) : (!vhlo.tensor_v1<3x!vhlo.f32_v1>) -> () } '
    try:
        assert names(vhlo) == ["add"]
    except InvalidArgument as error:  # the text form of VHLO is MLIR's affair; what counts is that it says why
        assert "vhlo" in str(error)


def test_chlo_text() -> None:
    code = b"""func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
      %0 = chlo.lgamma %a : tensor<3xf32> -> tensor<3xf32> return %0 : tensor<3xf32> }"""
    assert "chlo.lgamma" not in names(code)


def test_plain_bytecode() -> None:
    module = jax.jit(lambda x: jnp.sin(x) + 1).lower(f32(3)).compiler_ir("stablehlo")
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    assert "sine" in names(stream.getvalue())


def test_text_equals_bytecode() -> None:
    code = lower(lambda x: jax.nn.softmax(x @ x), f32(3, 3))
    text = str(oracle.module_of(code)).encode()
    assert [op.name for op in read(text).main.body.walk()] == [op.name for op in read(code).main.body.walk()]


def test_hlo() -> None:
    lowered = jax.jit(lambda x: jnp.cos(x) * 2).lower(f32(3))
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    assert "cosine" in names(proto, "hlo")
    size = len(proto)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    assert "cosine" in names(b"\x0a" + length + proto, "hlo_with_config")


def test_syntax_error_names_the_place() -> None:
    with pytest.raises(InvalidArgument, match="1:"):
        read(b"func.func @main(")


def test_dynamic_program_with_known_sizes() -> None:
    code = b"""func.func @main(%a: tensor<2x3xf32>) -> tensor<?xf32> {
      %s = stablehlo.constant dense<[6]> : tensor<1xi32>
      %0 = stablehlo.dynamic_reshape %a, %s : (tensor<2x3xf32>, tensor<1xi32>) -> tensor<?xf32>
      %1 = stablehlo.add %0, %0 : tensor<?xf32>
      return %1 : tensor<?xf32> }"""
    main = load(code).main.body
    assert [op.name for op in main.ops] == ["reshape", "add"] and main.results[0].shape == (6,)


def test_exported_program_of_any_size() -> None:
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 4"), np.float32)
    exported = jax.export.export(jax.jit(lambda x: (jnp.cumsum(x, 0) @ x.T, x.reshape(-1))))(shape)
    main = load(lower(exported.call, f32(3, 4))).main.body
    assert [v.shape for v in main.results] == [(3, 3), (12,)]
    with pytest.raises(Unsupported, match="fixed shapes"):
        load(exported.mlir_module_serialized)


def test_dynamic_program_that_stays_dynamic() -> None:
    code = (
        b'func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { %0 = stablehlo.sine %a : tensor<?xf32> loc("m.py":3:1)'
    )
    with pytest.raises(Unsupported, match=r"sine[\s\S]*m.py:3:1"):
        load(code + b" return %0 : tensor<?xf32> }")


def test_quantized_program() -> None:
    quant = "tensor<3x!quant.uniform<i8:f32, 0.5:3>>"
    code = "func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> { "
    code += f"%0 = stablehlo.uniform_quantize %a : (tensor<3xf32>) -> {quant} "
    code += f"%1 = stablehlo.uniform_dequantize %0 : ({quant}) -> tensor<3xf32> return %1 : tensor<3xf32> }}"
    found = names(code.encode())
    assert "uniform_quantize" not in found and "round_nearest_even" in found


def test_worker_survives_a_crash() -> None:
    assert names(ADD) == ["add"]
    process = WORKER._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert names(ADD) == ["add"]


def test_a_crash_during_a_request_is_an_error() -> None:
    mine = Worker()
    mine.convert(ADD, "mlir", [])
    assert mine._process is not None
    os.kill(mine._process.pid, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (mine._process.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(InvalidArgument, match="ended its process"):
        mine.convert(ADD, "mlir", [])
    assert mine.convert(ADD, "mlir", [])
    mine.stop()


def test_a_hanging_worker_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Worker()
    mine.convert(ADD, "mlir", [])
    assert mine._process is not None
    os.kill(mine._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(worker, "TIME_LIMIT", 0.2)
    with pytest.raises(Exception, match="did not answer"):
        mine.convert(ADD, "mlir", [])
    monkeypatch.undo()
    assert mine.convert(ADD, "mlir", [])
    mine.stop()


def test_missing_jaxlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Worker()
    monkeypatch.setattr(mine, "_request", lambda *_: ({"error": "no jaxlib", "why": "No module named 'jaxlib'"}, b""))
    with pytest.raises(FailedPrecondition, match="pip install jaxlib"):
        mine.convert(ADD, "mlir", [])


def test_python_executable_in_an_embedding_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/usr/bin/true")
    monkeypatch.setattr("sys._base_executable", "", raising=False)
    assert os.path.basename(python_executable()).startswith("python")


def test_many_threads() -> None:
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(names(ADD))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [["add"]] * 8


def test_constants_of_text() -> None:
    code = b"""func.func @main() -> tensor<2xcomplex<f32>> {
      %0 = stablehlo.constant dense<[(1.0,2.0),(0.5,-1.0)]> : tensor<2xcomplex<f32>>
      return %0 : tensor<2xcomplex<f32>> }"""
    (op,) = load(code).main.body.ops
    np.testing.assert_array_equal(op.attrs["value"], np.array([1 + 2j, 0.5 - 1j], np.complex64))
