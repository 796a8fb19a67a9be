"""Compiles a formula on lanes to a function over NumPy arrays, by LLVM's in-process compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ferrule.codegen.dialect import Dialect, dialect_of
from ferrule.codegen.llvm import Builder, V, i64
from ferrule.codegen.scalar import Lane, Scalars
from ferrule.ir import Op, Tensor, Value
from ferrule.ir.types import DType
from ferrule.ops.definition import OPS
from ferrule.targets.cpu import host

Formula = Callable[..., Lane]
_engines: list[Any] = []


def compile_lanes(
    formula: Formula,
    inputs: Sequence[DType],
    output: DType,
    width: int,
    f16: bool = True,
    dialect: Dialect | None = None,
) -> Callable:
    """`formula(s, *operands)` as a function of arrays; the arrays' size must be a multiple of the width."""
    b = Builder("kernel", "void", ["ptr"] * (len(inputs) + 1) + ["i64"], dialect=dialect or dialect_of(host()))
    s = Scalars(b, width, f16 and host().converts_f16)

    def body(i: V, carried: list[V]) -> list[V]:
        def at(n: int, d: DType) -> V:
            return b.offset(b.args[n], f"[{d.itemsize} x i8]", i)

        operands = [s.load(d, at(n, d), d.part.itemsize) for n, d in enumerate(inputs, 1)]
        s.store(output, formula(s, *operands), at(0, output), output.part.itemsize)
        return []

    b.loop(i64(0), b.args[-1], width, [], body)
    text = b.finish()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join([*b.globals.values(), *b.declares.values(), text]))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=host().cpu, features=host().features, opt=1, jit=True
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    address = engine.get_function_address("kernel")
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(inputs) + 1), ctypes.c_int64)(address)

    def run(*arrays: np.ndarray) -> np.ndarray:
        arrays = tuple(np.ascontiguousarray(a) for a in arrays)
        out = np.zeros(arrays[0].shape, output.numpy)
        assert out.size % width == 0
        call(out.ctypes.data, *(a.ctypes.data for a in arrays), out.size)
        return out

    run.text = text  # type: ignore[attr-defined]
    run.assembly = machine.emit_assembly(module)  # type: ignore[attr-defined]
    return run


def op_of(name: str, inputs: Sequence[DType], output: DType, attrs: dict[str, Any] | None = None) -> Op:
    """An op on scalars."""
    return Op(name, [Value(Tensor((), d)) for d in inputs], [Tensor((), output)], attrs)


def compile_op(op: Op, width: int, f16: bool = True, dialect: Dialect | None = None) -> Callable:
    """The element rule of an op as a function of arrays."""
    rule = OPS[op.name].element
    assert rule is not None
    inputs = [v.dtype for v in op.operands]
    return compile_lanes(lambda s, *xs: rule(s, op, *xs), inputs, op.result.dtype, width, f16, dialect)


def evaluate(op: Op, *arrays: np.ndarray) -> np.ndarray:
    """The op's NumPy meaning."""
    meaning = OPS[op.name].evaluate
    assert meaning is not None
    (result,) = meaning(op, arrays, None)
    return result
