"""jax.experimental.buffer_callback: a Python function that reads and writes the program's own buffers.

JAX's rule names a handler of XLA's and knows its platforms only. Ours calls back as the other host callbacks do, and
hands over views instead of copies. As with JAX, a buffer is valid only while the function runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule import callbacks
from ferrule.errors import FailedPrecondition

logger = logging.getLogger("ferrule.jax")


def register(name: str) -> None:
    """Registers the rule for a platform."""
    from jax._src.interpreters import mlir

    import jax

    try:
        from jax._src.buffer_callback import buffer_callback_p

        mlir.register_lowering(buffer_callback_p, _lower, platform=name, cacheable=False)
    except (AttributeError, ImportError, TypeError) as error:
        logger.info("JAX %s has no buffer_callback as Ferrule knows it: %s", jax.__version__, error)


def _lower(
    ctx: Any,
    *args: Any,
    callback: Any,
    in_tree: Any,
    out_tree: Any,
    has_side_effect: bool,
    input_output_aliases: Sequence[tuple[int, int]],
    **_: Any,
) -> Any:
    from ferrule.frameworks.jax.callbacks import emit, name_of
    from jax import tree_util

    aliases = dict(input_output_aliases)

    def run(operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        operands = list(operands)
        for i, k in aliases.items():
            # The runtime has let both share memory where nobody else needs the operand.
            if operands[i].ctypes.data != results[k].ctypes.data:
                results[k][...] = operands[i]
                operands[i] = results[k]
        for operand in operands:
            operand.flags.writeable = False
        inputs, outputs = [Buffer(x) for x in operands], [Buffer(x, True) for x in results]
        positional, named = tree_util.tree_unflatten(in_tree, inputs)
        try:
            if callback(Context(), tree_util.tree_unflatten(out_tree, outputs), *positional, **named) is not None:
                raise ValueError("buffer_callback callback must not return any values.")
        finally:
            for buffer in (*inputs, *outputs):
                buffer.close()

    handle = callbacks.Handle(run, name_of(callback), in_place=True)
    results, _ = emit(ctx, handle, args, side_effect=has_side_effect, sharding=None, aliases=aliases)
    return results


class Context:
    """What jax.experimental.buffer_callback.ExecutionContext is on other platforms."""

    @property
    def stage(self) -> Any:
        from jax.experimental import buffer_callback

        return buffer_callback.ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        import jax

        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: XLA FFI GPU context is not available: the device is a CPU")


class Buffer:
    """What jax.experimental.buffer_callback.Buffer is on other platforms."""

    def __init__(self, array: np.ndarray, writeable: bool = False) -> None:
        self._array: np.ndarray | None = array
        self.shape, self.dtype, self.ndim, self.writeable = array.shape, array.dtype, array.ndim, writeable

    def close(self) -> None:
        """The program goes on and reuses the memory."""
        self._array = None

    def _open(self) -> np.ndarray:
        if self._array is None:
            raise FailedPrecondition(
                "a buffer of a buffer_callback was used after the function had returned", fix="copy what you need later"
            )
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._open()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a buffer of {array.dtype} cannot be seen as {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        from ferrule.frameworks.jax import dlpack

        if stream is not None:
            raise BufferError(f"arrays in host memory have no streams; got stream={stream!r}")
        array = self._open()
        return dlpack.export(array.copy() if copy else array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU
