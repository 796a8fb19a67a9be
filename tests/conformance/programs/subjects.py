"""What runs programs: the library under test, XLA:CPU, and the reference interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from case import Case
from workers import Serve, Worker

# How a plugin says that it cannot do something, which is no mistake.
UNSUPPORTED = "UNIMPLEMENTED"


def library(path: str | Path, limit: float = 60.0, target: str = "") -> Worker:
    """A PJRT library: (portable artifact, inputs) → results. `target`: Ferrule's option of the client."""

    def start() -> Serve:
        from ferrule.client import Plugin

        client = Plugin(path).client(**({"target": target} if target else {}))

        def run(request: tuple[bytes, list[np.ndarray]]) -> list[np.ndarray]:
            code, inputs = request
            return client.compile(code)(*inputs)

        return run

    return Worker(start, limit)


def xla(limit: float = 60.0) -> Worker:
    """XLA:CPU by jaxlib: (portable artifact, inputs) → results."""

    def start() -> Serve:
        from jaxlib import _jax

        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        device = jax.devices("cpu")[0]

        def run(request: tuple[bytes, list[np.ndarray]]) -> list[np.ndarray]:
            code, inputs = request
            loaded = device.client.compile_and_load(code, _jax.DeviceList((device,)), _jax.CompileOptions())
            arrays = [jax.device_put(np.array(a), device) for a in inputs]
            return [np.asarray(x) for x in loaded.execute(arrays)]

        return run

    return Worker(start, limit)


def interpreter(limit: float = 30.0) -> Worker:
    """The reference interpreter: case → results."""

    def start() -> Serve:
        from reference_run import evaluate

        return lambda case: evaluate(case)

    return Worker(start, limit)


def preparer(limit: float = 30.0) -> Worker:
    """(Seed, profile) or case → (case, portable artifact, meaning)."""

    def start() -> Serve:
        from artifact import portable
        from condition import meaning
        from generate import generate

        def run(request: tuple[int, str] | Case) -> tuple[Any, ...]:
            case = request if isinstance(request, Case) else generate(*request)
            return case, portable(case.text()), meaning(case)

        return run

    return Worker(start, limit)
