"""XLA FFI handlers for Ferrule: jaxlib's LAPACK kernels, and what users register with jax.ffi.register_ffi_target.

Handlers that are registered for JAX's own cpu platform are ours too, because our arrays are in host memory as well: a
library of handlers for the cpu works with `jax.ffi.ffi_call` on both. One that is registered for us by name wins.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

from ferrule.errors import FerruleError, InvalidArgument, Unsupported
from ferrule.native import library

logger = logging.getLogger("ferrule.jax")

API_VERSION = 1  # XLA's typed FFI
SHARED = "xla_cpu"  # the runtime's name for what is registered for JAX's own cpu platform
STAGES = ("instantiate", "prepare", "initialize", "execute")


def register(name: str) -> None:
    """Gives the runtime jaxlib's LAPACK handlers, and JAX a function that registers handlers for the platform."""
    import jax

    try:
        from jaxlib import lapack, xla_client

        # jaxlib finds LAPACK itself (in SciPy) at the first lowering; a program loaded from a cache has none.
        lapack._lapack.initialize()
        for target, capsule, version in lapack.registrations()["cpu"]:
            if version == API_VERSION:
                register_handler(target, capsule)
        xla_client.register_custom_call_handler(name, _handler)
        _take_cpu_handlers(xla_client)
    except (AttributeError, ImportError, KeyError, TypeError, FerruleError) as error:
        logger.warning(
            "the custom calls of JAX %s cannot be used (%s): jax.numpy.linalg and jax.ffi do not work on platform %r",
            *(jax.__version__, error, name),
        )


def _take_cpu_handlers(xla_client: Any) -> None:
    """Those that are registered for the cpu already, and from now on each new one."""
    usual = xla_client.register_custom_call_target
    if hasattr(usual, "_ferrule"):
        return
    cpu = xla_client.xla_platform_names["cpu"]

    def take(target: str, handler: Any, traits: Any = 0) -> None:
        try:
            register_handler(target, handler, int(getattr(traits, "value", traits)), SHARED)
        except FerruleError as error:
            logger.info("the FFI handler %r of the cpu platform is not taken: %s", target, error)

    @functools.wraps(usual)
    def register_custom_call_target(
        name: str, fn: Any, platform: str = "cpu", api_version: int = 0, *rest: Any, **named: Any
    ) -> None:
        usual(name, fn, platform, api_version, *rest, **named)
        if api_version == API_VERSION and platform in ("cpu", cpu):
            take(name, fn, *rest, **named)

    for target, handler, version, traits in xla_client._custom_callback.get(cpu, ()):
        if version == API_VERSION:
            take(target, handler, traits)
    for target, handler in xla_client.custom_call_targets(cpu).items():
        # The others are of an older kind, or XLA's own way of calling back into Python.
        if isinstance(handler, dict) and handler.get("execute") and not target.startswith("xla_"):
            take(target, {stage: capsule for stage, capsule in handler.items() if capsule})
    register_custom_call_target._ferrule = True  # type: ignore[attr-defined]
    xla_client.register_custom_call_target = register_custom_call_target


def register_handler(target: str, handler: Any, traits: int = 0, platform: str = "cpu") -> None:
    """Registers an XLA FFI handler: a capsule, or a dict of capsules by stage ("execute" is compulsory)."""
    stages = handler if isinstance(handler, dict) else {"execute": handler}
    unknown = set(stages) - set(STAGES)
    if unknown or "execute" not in stages:
        raise InvalidArgument(
            f"the FFI handler {target!r} has the stages {sorted(stages)}",
            fix=f"give 'execute', and as needed {', '.join(STAGES[:3])}",
        )
    pointers = [_pointer(stages[s]) if s in stages else None for s in STAGES]
    native = library()
    function = native.ferrule_ffi_register
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 4]
    if function(target.encode(), platform.encode(), API_VERSION, traits, *pointers):
        native.ferrule_last_error.restype = ctypes.c_char_p
        raise InvalidArgument(
            f"the FFI handler {target!r} was refused", why=native.ferrule_last_error().decode(errors="replace")
        )


def _handler(target: str, handler: Any, platform: str, api_version: int, traits: Any = 0) -> None:
    """What jaxlib calls for each target that somebody registers for the platform."""
    if api_version != API_VERSION:
        raise Unsupported(
            f"the custom call {target!r} for platform {platform!r} has API version {api_version}",
            why="Ferrule calls typed FFI handlers only",
            fix="write it with XLA_FFI_DEFINE_HANDLER and register it with api_version=1",
        )
    register_handler(target, handler, int(getattr(traits, "value", traits)))


def _pointer(capsule: Any) -> int:
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
