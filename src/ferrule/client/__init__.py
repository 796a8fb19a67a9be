"""The framework side of PJRT in Python, for any plugin: `Plugin(path).client().compile(code)(*arrays)`."""

from ferrule.client.options import compile_options
from ferrule.client.plugin import Buffer, Client, Device, LoadedExecutable, PjrtError, Plugin

__all__ = ["Buffer", "Client", "Device", "LoadedExecutable", "PjrtError", "Plugin", "compile_options"]
