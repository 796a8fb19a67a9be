"""Ferrule in JAX: registers the platform and what JAX asks of a platform beyond the PJRT C API.

JAX finds Ferrule in one of three ways, and each ends in `attach`:

* the entry point `jax_plugins` of the installed package calls `initialize()`;
* `PJRT_NAMES_AND_LIBRARY_PATHS='name:/path/libferrule.so'` loads the library, which calls `attach_listed`;
* `ferrule.register_jax(...)` in the user's program.
"""

from __future__ import annotations

import logging
import os
from functools import cache, partial
from typing import Any

from ferrule.errors import FailedPrecondition, FerruleError
from ferrule.native import library_path

logger = logging.getLogger("ferrule.jax")

# JAX picks the platform with the highest priority unless JAX_PLATFORMS says which (built in: cpu 0, tpu 300, cuda 500).
# Installed only: below XLA's own CPU backend. Ferrule's only target is the CPU for now, and installing a package must
# not change silently what existing programs run on; JAX_PLATFORMS=ferrule chooses it.
INSTALLED_PRIORITY = -10
# Asked for in the program: above cpu, below other accelerators' plugins.
CHOSEN_PRIORITY = 200

# Platforms that this process has given to JAX, and those whose rules are registered.
_registered: set[str] = set()
_attached: set[str] = set()


def initialize() -> None:
    """Called by JAX when it looks for plugins: registers `ferrule`, and `xpu` for Intel devices."""
    try:
        path = library_path()
    except FerruleError as error:
        # Other platforms must keep working without this one.
        logger.warning("JAX runs without the platform 'ferrule': %s", error)
        return
    # JAX registers what the environment lists by itself, after its entry points; a name given twice is an error.
    listed = _listed()
    if "ferrule" not in _registered and "ferrule" not in listed:
        _register("ferrule", path, INSTALLED_PRIORITY, {})
    if "xpu" not in _registered and "xpu" not in listed:
        _offer_xpu(path)


def register_jax(
    name: str = "ferrule",
    *,
    target: str | None = None,
    num_devices: int | None = None,
    memory_limit_bytes: int | None = None,
    library: str | None = None,
    priority: int = CHOSEN_PRIORITY,
) -> None:
    """Gives JAX the platform `name`, before JAX's first use of a device.

    target: the kind of device, "cpu" or "xpu"; by default what FERRULE_TARGET says, else what the name says, else cpu.
        With "xpu" a CPU stands in where SYCL finds no GPU.
    num_devices: how many devices the platform shows (nothing is divided: each one uses all of the hardware).
    memory_limit_bytes: what one device may allocate; by default the machine's memory.
    library: the path of libferrule.so, when it is not the installed one.
    priority: JAX's default device is of the platform with the highest priority (cpu has 0).

    Raises FailedPrecondition when JAX has already started its platforms.
    """
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise FailedPrecondition(
            f"the platform {name!r} cannot be registered any more",
            why="JAX has started its platforms already",
            fix="call ferrule.register_jax() before the first use of an array or of jax.devices()",
        )
    options: dict[str, Any] = {
        "target": target,
        "num_devices": num_devices,
        "memory_limit_bytes": memory_limit_bytes,
    }
    if name in _listed():
        raise FailedPrecondition(
            f"the platform {name!r} is registered already",
            why="PJRT_NAMES_AND_LIBRARY_PATHS lists it",
            fix="unset PJRT_NAMES_AND_LIBRARY_PATHS, or choose another name",
        )
    path = os.path.realpath(library) if library else library_path()
    _register(name, path, priority, {k: v for k, v in options.items() if v is not None})


def attach_listed(path: str) -> None:
    """Attaches every platform name under which PJRT_NAMES_AND_LIBRARY_PATHS lists the library at `path`.

    Names that JAX does not know yet are left: somebody else loaded the library before JAX looked for its platforms. JAX
    will load it, too, and this is called again.
    """
    from jax._src import xla_bridge

    for name, file in _listed().items():
        if not xla_bridge.is_known_platform(name):
            continue
        if file.endswith(".json"):
            file = xla_bridge._get_pjrt_plugin_config(file)[0]
        if os.path.realpath(file) == os.path.realpath(path):
            attach(name)


def _listed() -> dict[str, str]:
    """The platforms that PJRT_NAMES_AND_LIBRARY_PATHS names, with their libraries."""
    from jax._src import xla_bridge

    return xla_bridge._get_pjrt_plugin_names_and_library_paths(os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", ""))


def attach(name: str) -> None:
    """Registers everything that JAX needs for the platform `name` besides the plugin itself; once per name."""
    if name in _attached:
        return
    _attached.add(name)
    from ferrule.frameworks.jax import buffer_callback, callbacks, ffi, gates, rules

    gates.open_gates(name)
    rules.register(name)
    callbacks.register(name)
    buffer_callback.register(name)
    ffi.register(name)


def _register(name: str, path: str, priority: int, options: dict[str, Any]) -> None:
    from jax._src import xla_bridge

    from ferrule.frameworks.jax import gates

    gates.no_experimental_warning(name)
    options = {"platform_name": name, **options}
    xla_bridge.register_plugin(name, priority=priority, library_path=path, options=options)
    _registered.add(name)
    attach(name)


def _offer_xpu(path: str) -> None:
    """The platform `xpu`, without a word in programs that do not ask for it on machines without an Intel GPU.

    A GPU that can be used becomes JAX's default, as other vendors' do: that is what somebody installs the SYCL runtime
    for. The CPU device that stands in for one never does.
    """
    from jax._src import xla_bridge

    from ferrule.targets import xpu

    if xla_bridge.is_known_platform("xpu"):
        return  # somebody else's plugin for Intel devices
    # fail_quietly: JAX starts every platform it knows unless JAX_PLATFORMS names some; only then is a failure an error.
    xla_bridge.register_backend_factory(
        "xpu",
        partial(_make_xpu, path),
        priority=CHOSEN_PRIORITY if xpu.usable_gpu(path) else INSTALLED_PRIORITY - 1,
        fail_quietly=True,
        make_topology=partial(_make_xpu_topology, path),
    )


def _make_xpu(path: str) -> Any:
    from jax._src import xla_bridge

    import jax
    from ferrule.targets import xpu

    asked = "xpu" in (jax.config.jax_platforms or "").split(",")
    if not asked and not xpu.usable_gpu(path):
        # Nothing is started: this is every JAX program on a machine without an Intel GPU.
        raise FailedPrecondition("there is no Intel GPU that Ferrule can use", why=_WHY, fix=_FIX)
    _xpu_plugin(path)
    client = xla_bridge.make_pjrt_c_api_client("xpu", {"platform_name": "xpu"})
    if not asked and any(getattr(device, "stand_in", False) for device in client.local_devices()):
        raise FailedPrecondition("SYCL shows no Intel GPU", why=_WHY, fix=_FIX)
    attach("xpu")
    return client


_WHY = "the SYCL CPU device stands in for a GPU only in programs that ask for it"
_FIX = "export JAX_PLATFORMS=xpu,cpu; `ferrule doctor` says what a GPU lacks"


@cache
def _xpu_plugin(path: str) -> Any:
    """JAX's record of the library under the name `xpu`; JAX takes it once."""
    from jaxlib import xla_client

    return xla_client.load_pjrt_plugin_dynamically("xpu", path)


def _make_xpu_topology(path: str, *args: Any, **options: Any) -> Any:
    """For compiles without a device (jax.experimental.topologies)."""
    from jaxlib import xla_client

    attach("xpu")
    return xla_client.make_c_api_device_topology(_xpu_plugin(path), *args, **{"platform_name": "xpu", **options})
