"""JAX's lists of known platforms that no public registration reaches, each with the reason to be on it.

Every gate is tested for before it is touched: with a JAX release that has moved one, the rest works, and a warning
says what does not.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("ferrule.jax")

# The platforms of this process whose gates are open.
_names: set[str] = set()


def open_gates(name: str) -> None:
    """Puts the platform on JAX's lists."""
    _names.add(name)
    for gate, consequence in (
        (_donation, "jax.jit(..., donate_argnums=...) copies instead of reusing memory"),
        (_compilation_cache, "the persistent compilation cache is not used"),
        (_dlpack, "DLPack exchange is not available; use numpy.asarray and jax.device_put"),
    ):
        _try(gate, name, consequence)


def no_experimental_warning(name: str) -> None:
    """JAX warns that a plugin is experimental at each start unless its name is on this list."""

    def gate(name: str) -> None:
        from jax._src import xla_bridge

        xla_bridge._nonexperimental_plugins.add(name)

    _try(gate, name, "JAX warns that the platform is experimental")


def _try(gate: Callable[[str], None], name: str, consequence: str) -> None:
    try:
        gate(name)
    except (AttributeError, ImportError, TypeError) as error:
        import jax

        logger.warning("JAX %s has changed (%s): on platform %r %s", jax.__version__, error, name, consequence)


def _donation(name: str) -> None:
    """JAX marks donated arguments in a program only for these platforms; Ferrule reuses the memory of each."""
    from jax._src.interpreters import mlir

    if name not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(name)


def _compilation_cache(name: str) -> None:
    """The list of platforms with a persistent cache is a local variable of `is_cache_used`: the function is wrapped.

    Ferrule's executables serialize, and its platform_version names the build and the compiler's sources, so that an
    entry of another Ferrule is never taken.
    """
    from jax._src import compilation_cache as cache

    if hasattr(cache.is_cache_used, "_ferrule"):
        return
    original = cache.is_cache_used

    @functools.wraps(original)
    def is_cache_used(backend: Any) -> bool:
        return original(_Cached() if backend.platform in _names else backend)

    is_cache_used._ferrule = True  # type: ignore[attr-defined]
    cache.is_cache_used = is_cache_used


class _Cached:
    """What `is_cache_used` reads of a backend, for one whose executables go into the cache."""

    platform = "cpu"
    supports_executable_serialization = True


def _dlpack(name: str) -> None:
    """`Array.__dlpack__` and `__dlpack_device__` accept cpu and gpu only; Ferrule's cpu arrays are host memory."""
    from ferrule.frameworks.jax import dlpack

    dlpack.patch(_names)
