"""Program text → the bytes that a framework hands to a PJRT plugin, through jaxlib's MLIR bindings."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def context() -> Any:
    """One MLIR context per process."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir.dialects import stablehlo

    found = jax_mlir.make_ir_context()
    found.enable_multithreading(False)
    stablehlo.register_stablehlo_passes()
    stablehlo.register_interpreter_dialect(found)
    return found


def warm() -> None:
    """Loads what processes forked from this one will need, so that each starts in milliseconds."""
    import generate  # noqa: F401
    from jaxlib import _jax  # noqa: F401
    from jaxlib.mlir import passmanager  # noqa: F401

    import ferrule.pipeline  # noqa: F401
    import jax  # noqa: F401

    context()


def parse(text: str) -> Any:
    """The verified module; a ValueError if the text is no valid program."""
    from jaxlib.mlir import ir

    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        if not module.operation.verify():
            raise ValueError("the program does not verify")
    return module


def portable(text: str) -> bytes:
    """The portable artifact of the program. As frameworks do it: CHLO ops become composites or core ops."""
    from jaxlib import _jax
    from jaxlib.mlir.dialects import stablehlo

    module = parse(text)
    with context():
        return bytes(_jax.mlir.serialize_portable_artifact(module, stablehlo.get_current_version(), True))
