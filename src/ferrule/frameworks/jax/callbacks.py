"""Host callbacks: pure_callback, io_callback, jax.debug.print, jax.debug.callback as calls into this process' Python.

JAX's own rules refuse platforms that they do not know (`emit_python_callback`), so these are whole rules. Each emits
`stablehlo.custom_call @ferrule.python_callback {id}`; the runtime finds the function by its number (ferrule.callbacks).
Ordered effects thread a token through the calls.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ferrule import callbacks

logger = logging.getLogger("ferrule.jax")

TARGET = "ferrule.python_callback"


def register(name: str) -> None:
    """Registers the rules for a platform."""
    from jax._src.interpreters import mlir

    import jax

    try:
        from jax._src import callback, checkify, debugging

        # cacheable=False as in JAX: each use has its own function.
        rules: list[tuple[Any, Callable[..., Any]]] = [
            (callback.pure_callback_p, _pure_callback),
            (callback.io_callback_p, _io_callback),
            (debugging.debug_callback_p, _debug_callback),
            (checkify.check_p, _check),
        ]
        if hasattr(debugging, "debug_print_p"):  # before, debug.print was a debug.callback
            rules.append((debugging.debug_print_p, _debug_print))
        for primitive, rule in rules:
            mlir.register_lowering(primitive, rule, platform=name, cacheable=False)
        _serve_others(name)
    except (AttributeError, ImportError, TypeError) as error:
        logger.warning(
            "JAX %s has changed its host callbacks (%s): jax.pure_callback, io_callback and jax.debug.print "
            "do not work on platform %r",
            *(jax.__version__, error, name),
        )


# The platforms of this process for which `emit_python_callback` works.
_names: set[str] = set()


def _serve_others(name: str) -> None:
    """Lowering rules of other people's primitives call back through JAX's public function, which refuses us by name."""
    import jax.interpreters.mlir as public
    from jax._src import callback as jax_callback

    _names.add(name)
    original = jax_callback.emit_python_callback
    if hasattr(original, "_ferrule"):
        return

    @functools.wraps(original)
    def emit_python_callback(
        ctx: Any, callback: Any, token: Any, operands: Any, operand_avals: Any, result_avals: Any, **params: Any
    ) -> Any:
        platforms = ctx.module_context.platforms
        if len(platforms) != 1 or platforms[0] not in _names:
            return original(ctx, callback, token, operands, operand_avals, result_avals, **params)
        ctx = ctx.replace(avals_in=operand_avals, avals_out=result_avals)
        side_effect, place = params["has_side_effect"], params.get("sharding")
        results, token = _emit(
            ctx, name_of(callback), callback, operands, side_effect=side_effect, sharding=place, token=token
        )
        return results, token, None

    emit_python_callback._ferrule = True  # type: ignore[attr-defined]
    jax_callback.emit_python_callback = emit_python_callback
    if hasattr(public, "emit_python_callback"):
        public.emit_python_callback = emit_python_callback


def _pure_callback(ctx: Any, *args: Any, callback: Any, sharding: Any, result_avals: Any, **params: Any) -> Any:
    from jax._src import callback as jax_callback

    def run(*values: np.ndarray) -> Sequence[Any]:
        if _cpu_devices():
            return jax_callback.pure_callback_impl(
                *values, callback=callback, sharding=None, result_avals=result_avals, **params
            )
        return callback(*values)

    place = jax_callback._callback_op_sharding(ctx.module_context.axis_context, sharding, ctx.avals_out)
    return _emit(ctx, name_of(callback), run, args, side_effect=False, sharding=place)[0]


def _io_callback(
    ctx: Any, *args: Any, callback: Any, sharding: Any, ordered: bool, result_avals: Any, **params: Any
) -> Any:
    from jax._src import callback as jax_callback

    def run(*values: np.ndarray) -> Sequence[Any]:
        if _cpu_devices():
            return jax_callback.io_callback_impl(
                *values, callback=callback, sharding=None, ordered=ordered, result_avals=result_avals, **params
            )
        return callback(*values)

    place = jax_callback._callback_op_sharding(ctx.module_context.axis_context, sharding, ctx.avals_out)
    effect = jax_callback._OrderedIOEffect if ordered else None
    return _emit_effect(ctx, name_of(callback), run, args, effect, place)


def _debug_callback(ctx: Any, *args: Any, effect: Any, callback: Any, partitioned: bool = False, **params: Any) -> Any:
    from jax._src import debugging, effects
    from jax._src.interpreters import mlir

    axes = ctx.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None and set(mesh.axis_names) - set(axes.manual_axes):
        # Partly automatic shard_map: JAX gathers the values and calls back on one device.
        lower = partial(debugging._debug_callback_partial_auto, axes, effect=effect, callback=callback)
        return mlir.lower_fun(partial(lower, partitioned=partitioned, **params), multiple_results=True)(ctx, *args)

    def run(*values: np.ndarray) -> Sequence[Any]:
        if _cpu_devices():
            debugging.debug_callback_p.impl(
                *values, effect=effect, callback=callback, **({"partitioned": partitioned} | params)
            )
        else:
            callback(*values)
        return ()

    ordered = effect if effects.ordered_effects.contains(effect) else None
    place = None if ordered else _debug_sharding(ctx)
    return _emit_effect(ctx, name_of(callback), run, args, ordered, place)


def _debug_print(ctx: Any, *args: Any, **params: Any) -> Any:
    from jax._src import debugging

    effect = debugging.ordered_debug_effect if params["ordered"] else debugging.debug_effect
    show = partial(
        debugging._format_print_callback,
        *(params["fmt"], dict(params["np_printoptions"]), params["has_placeholders"], params["logging_record"]),
    )
    callback = debugging._make_flat_callback(params["in_tree"], show, params["static_args"])
    return _debug_callback(ctx, *args, effect=effect, callback=callback, partitioned=params["partitioned"])


def _check(ctx: Any, *args: Any, err_tree: Any, debug: bool) -> Any:
    """A check that checkify has not turned into values: JAX refuses it unless errors may come from running programs."""
    from jax._src import checkify, config

    if debug:
        return []
    if not config.xla_runtime_errors.value:
        raise checkify.functionalization_error
    return _emit_effect(ctx, "checkify.check", partial(checkify.python_err, err_tree), args, None, None)


def _debug_sharding(ctx: Any) -> Any:
    """Where a debug callback runs in a program over several devices: as a pure callback without results."""
    from jax._src import callback as jax_callback

    return jax_callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)


def _emit_effect(
    ctx: Any, name: str, run: Callable[..., Sequence[Any]], args: Sequence[Any], ordered: Any, sharding: Any
) -> Any:
    from jax._src.interpreters import mlir

    if ordered is None:
        return _emit(ctx, name, run, args, side_effect=True, sharding=sharding)[0]
    token = ctx.tokens_in.get(ordered)
    results, token = _emit(ctx, name, run, args, side_effect=True, sharding=sharding, token=token)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ordered: token})))
    return results


def _emit(
    ctx: Any,
    name: str,
    run: Callable[..., Sequence[Any]],
    args: Sequence[Any],
    *,
    side_effect: bool,
    sharding: Any,
    token: Any = None,
) -> tuple[Any, Any]:
    """A call of a function from arrays to arrays; returns (results, new token or None)."""
    handle = callbacks.Handle(_checked(run, tuple(ctx.avals_out)), name)
    return emit(ctx, handle, args, side_effect=side_effect, sharding=sharding, token=token)


def emit(
    ctx: Any,
    handle: callbacks.Handle,
    args: Sequence[Any],
    *,
    side_effect: bool,
    sharding: Any,
    token: Any = None,
    aliases: Mapping[int, int] | None = None,
) -> tuple[Any, Any]:
    """The custom call; returns (results, new token or None). `aliases`: operand → result that may share its memory."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    if len(ctx.module_context.platforms) > 1:
        raise NotImplementedError("host callbacks cannot be lowered for several platforms at once")
    # The executable holds the handle, and with it the function; and JAX does not put it into the persistent cache.
    ctx.module_context.add_host_callback(handle)
    types = [mlir.aval_to_ir_type(*_module_context(ctx), aval) for aval in ctx.avals_out]
    operands = list(args)
    if token is not None:
        types, operands = [hlo.TokenType.get(), *types], [token, *operands]
        if ctx.avals_out and hasattr(sharding, "shardings"):
            # Shardy wants one annotation per result, and one if there is none: the token of such a call takes that.
            first = sharding.shardings[0]
            place = type(first)(mesh_shape=(), dim_shardings=(), logical_device_ids=first.logical_device_ids)
            sharding = type(sharding)((place, *sharding.shardings))
    call = mlir.custom_call(
        TARGET,
        result_types=types,
        operands=operands,
        has_side_effect=side_effect,
        api_version=4,
        operand_output_aliases=dict(aliases) if aliases else None,
    )
    # Set here, because custom_call turns a dictionary into an attribute of the older API version.
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), handle.id)
    call.operation.attributes["backend_config"] = ir.DictAttr.get({"id": number})
    if sharding is not None:
        mlir.set_sharding(ctx.module_context, call, sharding)
    results = list(call.results)
    return (results, None) if token is None else (results[1:], results[0])


def _module_context(ctx: Any) -> tuple[Any, ...]:
    """jax 0.10 began to hand the module context to aval_to_ir_type."""
    import inspect

    from jax._src.interpreters import mlir

    return (ctx.module_context,) if len(inspect.signature(mlir.aval_to_ir_type).parameters) > 1 else ()


def _checked(run: Callable[..., Sequence[Any]], avals: tuple[Any, ...]) -> callbacks.Function:
    """Wraps a callback so that it returns arrays of the promised shapes and dtypes, with JAX's words if it does not."""
    from jax import dtypes

    def checked(*operands: np.ndarray) -> Sequence[np.ndarray]:
        values = run(*operands)
        if len(values) != len(avals):
            raise RuntimeError(
                f"Mismatched number of outputs from callback. Expected: {len(avals)}, Actual: {len(values)}"
            )
        arrays = []
        for number, (value, aval) in enumerate(zip(values, avals, strict=True)):
            array = np.asarray(value)
            if array.shape == aval.shape and array.dtype == aval.dtype:  # as nearly always
                arrays.append(array)
                continue
            array = array.astype(dtypes.canonicalize_dtype(array.dtype), copy=False)
            for what, actual, expected in (("shape", array.shape, aval.shape), ("dtype", array.dtype, aval.dtype)):
                if actual != expected:
                    raise RuntimeError(
                        f"Incorrect output {what} for return value #{number}: Expected: {expected}, Actual: {actual}"
                    )
            arrays.append(array)
        return arrays

    return checked


def _cpu_devices() -> bool:
    """True when JAX has its own cpu platform beside ours, on which callbacks get their arguments as JAX arrays.

    Without it (JAX_PLATFORMS=ferrule) callbacks get NumPy arrays: a JAX array would lie on the device that waits for
    the callback.
    """
    from jax._src import xla_bridge

    return "cpu" in xla_bridge.backends()


def name_of(callback: Any) -> str:
    function = getattr(callback, "callback_func", callback)
    return getattr(function, "__qualname__", None) or type(function).__name__
