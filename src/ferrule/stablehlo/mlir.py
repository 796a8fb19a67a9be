"""What runs in the worker process: jaxlib's MLIR bindings, which turn other inputs into portable artifacts.

MLIR ends the process when one of its own checks fails, so nothing of Ferrule imports this module but `worker.py`.
"""

from __future__ import annotations

import io
from typing import Any

# The version that artifacts are written in; every op of it is known to `op_table.py`.
_TARGET = "1.17.0"

# Sizes that follow from the arguments' shapes, and a last pass over what JAX's own refinement leaves.
_SHAPES = (
    "inline,symbol-dce,stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes,"
    "func.func(stablehlo-check-shape-assertions),canonicalize,cse"
)
_QUANTIZED = "func.func(stablehlo-legalize-quant-to-math)"


class Refused(Exception):
    """The input cannot be converted; the text says why."""


class OpenShape(Refused):
    """Shapes of the arguments are not known, so nothing can be derived from them."""


def _context() -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo
    from jaxlib.mlir.passmanager import PassManager

    context = ir.Context()
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    stablehlo.register_stablehlo_passes()
    with context, ir.Location.unknown():
        # A side effect of this pass is that it loads the quant dialect, which has no binding of its own.
        PassManager.parse("builtin.module(vhlo-legalize-to-stablehlo)").run(ir.Module.create().operation)
    try:
        # Without these `inline` silently does nothing.
        from jaxlib.mlir._mlir_libs import _mosaic_gpu_ext

        _mosaic_gpu_ext.register_inliner_extensions(context)
    except (ImportError, AttributeError):
        pass
    return context


def _parse(code: bytes, context: Any) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    if code[:4] == b"ML\xefR":
        try:
            return stablehlo.deserialize_portable_artifact(context, code)
        except Exception:
            return ir.Module.parse(code, context)
    return ir.Module.parse(code, context)


def _refine(module: Any, context: Any) -> Any:
    """Makes shapes static that follow from the shapes of main's arguments."""
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    for function in module.body.operations:
        if function.operation.name == "func.func" and function.name.value == "main":
            for number, type in enumerate(function.type.inputs):
                if isinstance(type, ir.RankedTensorType) and not type.has_static_shape:
                    raise OpenShape(f"argument {number} of @main has the type {type}")
    PassManager.parse(f"builtin.module({_SHAPES})").run(module.operation)
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    # JAX's refinement knows a few more ops, such as windowed reductions. It fails if a shape stays open.
    refined = _jax.mlir.refine_polymorphic_shapes(stream.getvalue(), True, False, True)
    return _parse(refined, context)


def _serialize(module: Any) -> bytes:
    from jaxlib import _jax  # type: ignore[attr-defined]
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager

    try:
        # As the PJRT client does it: CHLO ops become composites or core ops.
        return bytes(_jax.mlir.serialize_portable_artifact(module, _TARGET, True))
    except (ValueError, RuntimeError):
        # It refuses some legal ops, such as rng with sizes of index type.
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
        return bytes(stablehlo.serialize_portable_artifact(module, _TARGET, True))


def convert(code: bytes, format: str, steps: list[str]) -> bytes:
    """Returns a portable artifact of the program after the named steps."""
    from jaxlib import _jax  # type: ignore[attr-defined]
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    if format == "hlo":
        code = _jax.mlir.hlo_to_stablehlo(code)
    context = _context()
    try:
        with context, ir.Location.unknown():
            module = _parse(code, context)
            if "dynamic" in steps:
                module = _refine(module, context)
            if "quantized" in steps:
                PassManager.parse(f"builtin.module({_QUANTIZED})").run(module.operation)
            if not module.operation.verify():
                raise Refused("the module does not verify")
            return _serialize(module)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise Refused(str(error)) from error
