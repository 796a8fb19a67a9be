"""Run by test_faults.py in a process of its own, with the faulty driver: what JAX's user sees of each fault.

Prints one JSON object a line: the scenario's name and what was seen in it. An exception is seen as its text.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax

DRIVER = ctypes.CDLL(os.environ["FERRULE_DRIVER"])
DRIVER.faulty_driver_count.restype = ctypes.c_int64
X = np.arange(4096, dtype=np.float32).reshape(64, 64) / 4096
SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {}


def faults(text: str = "") -> None:
    DRIVER.faulty_driver_set(text.encode())


def scenario(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    SCENARIOS[function.__name__] = function
    return function


def seen(do: Callable[[], Any]) -> str:
    """The text of the exception, or the numbers' sum."""
    try:
        return f"sum {np.asarray(do(), np.float64).sum():.3f}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def program(shift: float) -> Callable[..., Any]:
    """Several kernels: sums cannot be fused into what follows. Each `shift` is a program of its own."""
    return jax.jit(lambda x: (x + shift) / jnp.sum(x * 2, axis=1, keepdims=True) + jnp.max(x + shift, axis=0))


def fresh(shift: float) -> tuple[Callable[..., Any], Any, str]:
    """A program that has run once, its operand and its result."""
    faults()
    f, x = program(shift), jax.device_put(X)
    return f, x, seen(lambda: f(x))


@scenario
def no_memory() -> dict[str, Any]:
    faults("allocate:1+:8:no device memory left (injected)")
    big = np.zeros((512, 1024, 1024 // 4), np.float32)  # more than what is cached
    first = seen(lambda: jax.device_put(big).block_until_ready())
    faults()
    return {"first": first, "then": seen(lambda: jax.device_put(X))}


@scenario
def a_copy_fails() -> dict[str, Any]:
    faults("copy:1:13:copy engine stuck (injected)")
    first = seen(lambda: jax.device_put(X + 1))
    faults()
    return {"first": first, "then": seen(lambda: jax.device_put(X))}


@scenario
def a_copy_fails_later() -> dict[str, Any]:
    faults("event.copy:1:13:copy engine stuck (injected)")
    first = seen(lambda: jax.device_put(X + 1))
    faults()
    return {"first": first, "then": seen(lambda: jax.device_put(X))}


@scenario
def the_compiler_rejects_a_kernel() -> dict[str, Any]:
    x = jax.device_put(X)
    faults("load:1:13:the device's compiler rejects the module, its log: undefined symbol (injected)")
    f = program(21)
    return {"first": seen(lambda: f(x)), "again": seen(lambda: f(x)), "other": seen(lambda: program(22)(x))}


@scenario
def a_launch_fails() -> dict[str, Any]:
    f, x, before = fresh(1)
    faults("launch:2:13:launch refused (injected)")
    return {"before": before, "failed": seen(lambda: f(x)), "operand": seen(lambda: x), "after": seen(lambda: f(x))}


@scenario
def a_kernel_fails() -> dict[str, Any]:
    f, x, before = fresh(2)
    kernels = "event.launch:2:13:page fault in a kernel (injected)"
    faults(kernels)
    failing = f(x)  # starting it is no error
    following = failing * 2
    other = x + 3
    return {
        **{"before": before, "failing": seen(lambda: failing), "following": seen(lambda: following)},
        **{"other": seen(lambda: other), "operand": seen(lambda: x), "after": seen(lambda: f(x))},
    }


@scenario
def a_library_call_fails() -> dict[str, Any]:
    f, x = jax.jit(lambda x: x @ x + 1), jax.device_put(X)
    before = seen(lambda: f(x))
    faults("event.call:1:13:the library failed (injected)")
    return {"before": before, "failed": seen(lambda: f(x)), "after": seen(lambda: f(x))}


@scenario
def a_library_is_missing() -> dict[str, Any]:
    x = jax.device_put(X)
    faults("prepare:1+:5:oneDNN for SYCL is not installed (injected)")
    return {"failed": seen(lambda: jax.jit(lambda x: x @ x + 2)(x))}


@scenario
def a_loop_fails() -> dict[str, Any]:
    f = jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1]) @ c[1]), (0, x)))
    x = jax.device_put(X)
    before = seen(lambda: f(x)[1])
    faults("event.call:3:13:third round (injected)")
    failed = seen(lambda: f(x)[1])
    faults()
    return {"before": before, "failed": failed, "after": seen(lambda: f(x)[1])}


@scenario
def memory_comes_back() -> dict[str, Any]:
    device = jax.local_devices()[0]
    f, x, _ = fresh(4)
    used = device.memory_stats()["bytes_in_use"]
    for fault in ("launch:2", "event.launch:2", "event.launch:1", "join:1", "wait:1"):
        for _ in range(3):
            faults(f"{fault}:13:again (injected)")
            seen(lambda: f(x))
    faults()
    seen(lambda: f(x))
    return {"before": used, "after": device.memory_stats()["bytes_in_use"]}


@scenario
def a_device_is_lost() -> dict[str, Any]:
    """The last: device 0 does nothing any more after it."""
    f, x, before = fresh(5)
    other = jax.local_devices()[1]
    y = jax.device_put(X, other)
    faults("event.launch:1:14:UR_RESULT_ERROR_DEVICE_LOST (injected)")
    failed = seen(lambda: f(x))
    faults()
    again = seen(lambda: f(x))
    put = seen(lambda: jax.device_put(X + 2, jax.local_devices()[0]).block_until_ready() * 2)
    return {"before": before, "failed": failed, "again": again, "put": put, "other": seen(lambda: program(5)(y))}


if __name__ == "__main__":
    for name, run in SCENARIOS.items():
        try:
            found = run()
        except Exception as error:
            found = {"raised": repr(error)}
        faults()
        print(json.dumps({"name": name, **found}), flush=True)
