"""Random programs over several devices, their arguments, results and some values between split at random."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, Table

sys.path.append(str(Path(__file__).parents[1] / "conformance" / "programs"))
from case import Case
from generate import generate
from verdict import judge

from ferrule.client import compile_options
from ferrule.debug import Trace
from ferrule.errors import Unsupported
from ferrule.ir import Block, Function, Module, Tensor, copy_ops
from ferrule.native import library_path
from ferrule.pipeline import USER_OPTIONS, compile_module
from ferrule.stablehlo.options import parse_options
from ferrule.stablehlo.sdy import Axis, DimSharding, Mesh, Sharding
from ferrule.stablehlo.tiling import Tiling, of_sharding
from ferrule.targets import find

DEVICES = 8


class Split:
    """A program's shardings: its mesh suits the sizes that it has, and few dimensions are left whole."""

    def __init__(self, case: Case, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        values = [*case.body.args, *(r for op in case.body.ops for r in op.results)]
        sizes = Counter(n for v in values if isinstance(v.type, Tensor) for n in v.shape if n > 1)
        first = max((2, 3, 5, 7), key=lambda n: (sum(c for s, c in sizes.items() if s % n == 0), rng.random()))
        sizes_of_axes = {2: [(2, 2), (4, 2), (2,), (2, 3), (8,)], 3: [(3, 2), (3,), (2, 3)]}.get(first, [(first,)])
        axes = rng.choice(sizes_of_axes)
        count = int(np.prod(axes))
        order = rng.sample(range(count), count) if rng.random() < 0.3 else ()
        self.mesh = Mesh(tuple(zip("xy", axes, strict=False)), tuple(order))
        self.meshes = {"m": self.mesh}

    def sharding(self, shape: Sequence[int], chance: float = 0.7, closed: bool = True) -> Sharding:
        left = dict(self.mesh.axes)
        dims: list[tuple[Axis, ...]] = [()] * len(shape)
        for d in self.rng.sample(range(len(shape)), len(shape)):
            for name, size in self.rng.sample(sorted(left.items()), len(left)):
                split = int(np.prod([dict(self.mesh.axes)[a.name] for a in dims[d]])) * size
                if shape[d] and shape[d] % split == 0 and self.rng.random() < chance:
                    dims[d] = (*dims[d], Axis(name))
                    del left[name]
        return Sharding("m", tuple(DimSharding(axes, closed) for axes in dims))

    def tiling(self, sharding: Sharding, rank: int) -> Tiling:
        return of_sharding(sharding, rank, self.meshes, self.mesh.size, "a value")

    def module(self, case: Case) -> tuple[Module, list[Sharding], list[Sharding]]:
        """The program with its shardings, and those of arguments and results."""
        env: dict[Any, Any] = {}
        body = Block(a.type for a in case.body.args)
        env.update(zip(case.body.args, body.args, strict=True))
        for op in case.body.ops:
            copy_ops(body, [op], env)
            for old in op.results:
                value = env[old]
                env[old] = value
                if isinstance(old.type, Tensor) and self.rng.random() < 0.15:
                    asked = {"sharding": self.sharding(old.shape, closed=self.rng.random() < 0.5)}
                    env[old] = body.add("sdy.sharding_constraint", [value], value.type, asked).result
        body.results = [env.get(v, v) for v in case.body.results]
        come = [self.sharding(a.shape) for a in body.args]
        go = [self.sharding(v.shape, 0.4) for v in body.results]
        main = Function("main", body, [{"sdy.sharding": s} for s in come], [{"sdy.sharding": s} for s in go])
        functions = {"main": main, **case.called()}
        attrs = {"mhlo.num_partitions": self.mesh.size, "mhlo.num_replicas": 1}
        return Module(functions, attrs, meshes=self.meshes), come, go


def read(case: Case) -> Case:
    """The case with calls named as the reader names them."""
    for block in (case.body, *case.functions.values()):
        for op in block.walk():
            op.name = "call" if op.name == "func.call" else op.name
    return case


def cut(array: np.ndarray, tiling: Tiling, device: int) -> np.ndarray:
    local = [n // c for n, c in zip(array.shape, tiling.counts, strict=True)]
    at = tiling.index[device]
    return np.array(array[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, local, strict=True))], order="C")


def compiled(module: Module, devices: int) -> bytes:
    settings = parse_options(compile_options(range(devices), 1, devices), USER_OPTIONS)
    return compile_module(module, settings, Trace(settings.user), find("cpu")).serialize()


def run(host: Host, code: bytes, rows: list[list[np.ndarray]], outputs: int) -> list[list[np.ndarray]]:
    executable = host.load(code)
    buffers = [[host.put(a, memory=host.memory(d)) for a in row] for d, row in enumerate(rows)]
    lists = host.execute(executable, *buffers, outputs=outputs)
    lists = lists if len(rows) > 1 else [lists]
    found = [[host.get(b) for b in row] for row in lists]
    host.destroy(*(b for row in [*buffers, *lists] for b in row))
    host("LoadedExecutable_Destroy", executable=executable)
    return found


def check(host: Host, seed: int, profile: str) -> str:
    """Runs the program of a seed on one device and on several; what is wrong, "" if nothing, or "unsupported"."""

    def case() -> Case:  # anew, as compiling takes a graph apart
        return read(generate(seed, profile))

    one = case()
    inputs, outputs = one.inputs, len(one.body.results)
    attrs = {"mhlo.num_partitions": 1, "mhlo.num_replicas": 1}
    try:
        alone = compiled(Module({"main": Function("main", one.body), **one.called()}, attrs), 1)
    except Unsupported:
        return "unsupported"
    (truth,) = run(host, alone, [inputs], outputs)
    two = case()
    split = Split(two, seed)
    module, come, go = split.module(two)
    count = split.mesh.size
    places = [split.tiling(s, a.ndim) for s, a in zip(come, inputs, strict=True)]
    rows = [[cut(a, t, d) for a, t in zip(inputs, places, strict=True)] for d in range(count)]
    found = run(host, compiled(module, count), rows, outputs)
    whole = [np.empty_like(t) for t in truth]
    for i, (array, sharding) in enumerate(zip(whole, go, strict=True)):
        tiling = split.tiling(sharding, array.ndim)
        for d in range(count):
            part = cut(array, tiling, d)
            if found[d][i].shape != part.shape:
                return f"result {i} of device {d} has shape {found[d][i].shape}, not {part.shape}"
            at = tuple(slice(k * n, (k + 1) * n) for k, n in zip(tiling.index[d], part.shape, strict=True))
            array[at] = found[d][i]
    return judge(generate(seed, profile), whole, truth).wrong


@pytest.mark.parametrize("profile", ["plain", "large", "places", "matrices"])
def test_random_programs_in_parts(profile: str) -> None:
    """In a process of its own: what is folded by the compiler keeps denormal numbers, so kernels have to as well."""
    environment = {**os.environ, "FERRULE_FLUSH_DENORMALS": "0", "FERRULE_LIBRARY": str(library_path())}
    command = [sys.executable, __file__, profile, "700000", "60"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.search(r"60 programs, (\d+) unsupported, 0 wrong", ran.stdout)
    assert found and int(found[1]) <= 3, ran.stdout


def main(profile: str, first: str, count: str) -> int:
    """Runs so many programs and prints what is wrong: `python tests/native/test_random_partitions.py plain 0 1000`."""
    np.seterr(all="ignore")
    sys.setrecursionlimit(20000)
    host, wrong, unsupported = Host(Table.load(str(library_path())), num_devices=DEVICES), 0, 0
    for seed in range(int(first), int(first) + int(count)):
        try:
            said = check(host, seed, profile)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if said == "unsupported":
            unsupported += 1
        elif said:
            wrong += 1
            print(f"{profile} {seed}: {said}", flush=True)
    print(f"{count} programs, {unsupported} unsupported, {wrong} wrong")
    host.close()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
