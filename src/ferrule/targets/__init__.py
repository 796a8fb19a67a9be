"""What devices are, for the compiler: `find` gives the machine that a target text names."""

from __future__ import annotations

from ferrule.targets.machine import Machine


def find(target: str) -> Machine:
    """The machine of a target: "cpu" is this one, "xpu:…" a GPU by name or by its facts (targets/gpu.py)."""
    from ferrule.errors import Unsupported

    kind = target.partition(":")[0]
    if target == "cpu":
        from ferrule.targets.cpu import host

        return host()
    if kind == "xpu":
        from ferrule.targets import gpu

        return gpu.find(target)
    raise Unsupported(
        f"there is no target {target!r} in this version of Ferrule",
        fix="use 'cpu', or 'xpu:' with a device's name ('xpu:pvc') or facts",
    )
