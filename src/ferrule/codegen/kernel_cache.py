"""Compiled kernels, for other programs that have the same ones: the steps of training and of evaluation, say.

A kernel's code follows from the graph of its block, the machine, and the compiler (Ferrule, LLVM), so its key is a hash
of these, and its name has nothing of the program in it. Kernels are looked up before anything is generated for them.
Those that were compiled together are one object. The objects of this process are in memory; on disk (ferrule.cache says
where, and what switches it off) each has an entry, and each kernel one that names its object.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from ferrule.cache import compiler, is_on, open_store
from ferrule.codegen.kernel import Kernel
from ferrule.targets.machine import Machine

# The bytes of object code that a process keeps for its next programs.
IN_MEMORY = 64 << 20


@dataclass
class _Object:
    code: bytes
    kernels: set[str] = field(default_factory=set)  # the names of those that are known to be in it


class KernelCache:
    """The kernels that were compiled for a machine."""

    def __init__(self, machine: Machine, limit: int = IN_MEMORY) -> None:
        self.start = hashlib.sha256(compiler() + repr(machine).encode())
        self.limit, self.bytes = limit, 0
        self.lock = threading.Lock()
        self.objects: OrderedDict[str, _Object] = OrderedDict()  # the least recently used first
        self.kernels: dict[str, tuple[str, str]] = {}  # what is known of a kernel, and the name of its object

    def get(self, key: str) -> Kernel | None:
        """The kernel, without its text; `key` is a hash of what it computes."""
        name = self._name(key)
        with self.lock:
            found = self.kernels.get(name)
        if found is None:
            store = open_store("kernel")
            entry = store.get(name) if store else None
            if entry is None:
                return None
            inside, about = entry.decode().split("\n")
        else:
            about, inside = found
        code = self._object(inside)
        if code is None:
            return None
        self._remember(name, about, inside, code)
        return Kernel(**json.loads(about), text="", key=key, code=code)

    def put(self, kernels: Sequence[Kernel]) -> None:
        """Keeps kernels that were compiled into one object."""
        store = open_store("kernel")
        code = kernels[0].code
        inside = hashlib.sha256(code).hexdigest()
        if store:
            store.put(inside, code)
        for kernel in kernels:
            about = json.dumps(
                {
                    **{"symbol": kernel.symbol, "grid": kernel.grid, "grain": kernel.grain},
                    **{"flops": kernel.flops, "bytes": kernel.bytes},
                }
            )
            name = self._name(kernel.key)
            self._remember(name, about, inside, code)
            if store:
                store.put(name, f"{inside}\n{about}".encode())

    def _name(self, key: str) -> str:
        digest = self.start.copy()
        digest.update(key.encode())
        return digest.hexdigest()

    def _object(self, inside: str) -> bytes | None:
        with self.lock:
            if (found := self.objects.get(inside)) is not None:
                self.objects.move_to_end(inside)
                return found.code
        store = open_store("kernel")
        return store.get(inside) if store else None

    def _remember(self, name: str, about: str, inside: str, code: bytes) -> None:
        with self.lock:
            if inside not in self.objects:
                self.objects[inside] = _Object(code)
                self.bytes += len(code)
            self.objects[inside].kernels.add(name)
            self.kernels[name] = about, inside
            while self.bytes > self.limit:
                _, gone = self.objects.popitem(last=False)
                self.bytes -= len(gone.code)
                for old in gone.kernels:
                    self.kernels.pop(old, None)


_of = cache(KernelCache)


def kernel_cache(machine: Machine) -> KernelCache | None:
    """The process's cache; None where the environment wants none, and for devices, whose drivers take one module."""
    return _of(machine) if is_on() and not machine.grouped else None


def forget() -> None:
    """What this process knows is forgotten; what is on disk stays."""
    _of.cache_clear()
