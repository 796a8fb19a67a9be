"""What runs in the worker process: jaxlib's MLIR bindings, which turn other inputs into portable artifacts.

MLIR ends the process when one of its own checks fails, so nothing of Ferrule imports this module but `worker.py`.
"""

from __future__ import annotations

from typing import Any

# The version that artifacts are written in; every op of it is known to `op_table.py`.
_TARGET = "1.17.0"

_STEPS = {
    # Shapes that are open in the types but follow from the arguments' shapes.
    "dynamic": (
        "inline,stablehlo-refine-shapes,func.func(stablehlo-check-shape-assertions),"
        "func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes,canonicalize,cse"
    ),
    "quantized": "func.func(stablehlo-legalize-quant-to-math)",
}


class Refused(Exception):
    """The input cannot be converted; the text says why."""


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
            for step in steps:
                if step == "dynamic":
                    # The functions' argument types are static already where JAX or TF gave the shapes.
                    PassManager.parse("builtin.module(inline,symbol-dce)").run(module.operation)
                PassManager.parse(f"builtin.module({_STEPS[step]})").run(module.operation)
            if not module.operation.verify():
                raise Refused("the module does not verify")
            return bytes(_jax.mlir.serialize_portable_artifact(module, _TARGET, True))
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise Refused(str(error)) from error
