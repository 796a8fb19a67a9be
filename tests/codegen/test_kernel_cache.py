"""Kernels are compiled once, whichever programs have them: in a process, and on disk for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule import cache
from ferrule.codegen import kernel_cache, object
from ferrule.codegen.kernel import Kernel
from ferrule.pipeline import compile_program
from ferrule.program import Program
from ferrule.targets.cpu import host
from jax import lax

# Two kernels: `%op` of the parameters, and the sum of each row.
TEXT = b"""func.func @main(%x: tensor<64x32xf32>, %y: tensor<64x32xf32>) -> (tensor<64x32xf32>, tensor<64xf32>) {
  %zero = stablehlo.constant dense<%start> : tensor<f32>
  %a = stablehlo.%op %x, %y : tensor<64x32xf32>
  %b = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
       : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
  return %a, %b : tensor<64x32xf32>, tensor<64xf32>
}"""


def text(op: str, start: str = "0.0") -> bytes:
    return TEXT.replace(b"%op", op.encode()).replace(b"%start", start.encode())


def names(program: Program) -> list[str]:
    return sorted(entry.symbol for entry in program.functions)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The functions that LLVM is given, in a process that knows no kernels and has a folder for them."""
    monkeypatch.setenv("FERRULE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FERRULE_CACHE", "1")
    for watching in ("FERRULE_VERIFY", "FERRULE_DUMP", "FERRULE_DEBUG"):  # other tests set these for a whole run
        monkeypatch.delenv(watching, raising=False)
    kernel_cache.forget()
    given: list[str] = []
    original = object.compile_module

    def watched(functions, *rest):
        given.extend(functions)
        return original(functions, *rest)

    monkeypatch.setattr(object, "compile_module", watched)
    yield given
    kernel_cache.forget()


def taken(generated: list[str], compile: Callable[[], Program]) -> tuple[int, Program]:
    """How many functions LLVM got, and the program."""
    before = len(generated)
    program = compile()
    return len(generated) - before, program


def test_shared_by_programs(generated):
    first, one = taken(generated, lambda: compile_program(text("add")))
    second, two = taken(generated, lambda: compile_program(text("multiply")))
    third, three = taken(
        generated, lambda: compile_program(text("add").replace(b"@main(%x", b"@main(%q").replace(b"%x", b"%q"))
    )
    assert (first, second, third) == (2, 1, 0)
    assert len(set(names(one)) & set(names(two))) == 1 and names(one) == names(three)
    assert len(two.objects) == 2 and len(three.objects) == 1
    assert one.fingerprint == three.fingerprint != two.fingerprint


def test_found_by_the_next_process(generated):
    """What is known about a kernel comes back, too; only what objects hold beside it may differ."""
    _, one = taken(generated, lambda: compile_program(text("add")))
    kernel_cache.forget()
    made, two = taken(generated, lambda: compile_program(text("add")))
    assert made == 0 and one.serialize() == two.serialize()


def test_what_a_kernel_depends_on(generated, monkeypatch):
    """A constant, the number of threads, the compiler: compiled again."""
    assert taken(generated, lambda: compile_program(text("add")))[0] == 2
    assert taken(generated, lambda: compile_program(text("add", "-0.0")))[0] == 1
    machine = kernel_cache.KernelCache(host())
    kernel_cache.forget()
    monkeypatch.setattr(kernel_cache, "compiler", lambda: b"another")
    assert taken(generated, lambda: compile_program(text("add")))[0] == 2
    keys = {c._name("k") for c in (machine, kernel_cache.KernelCache(host()))}
    keys |= {kernel_cache.KernelCache(replace(host(), threads=17))._name("k")}
    assert len(keys) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "swap"])
@pytest.mark.parametrize("which", ["object", "kernel"])
def test_damaged_entries_are_made_again(generated, monkeypatch, tmp_path, capfd, damage, which):
    _, one = taken(generated, lambda: compile_program(text("add")))
    kernel_cache.forget()
    files = sorted((tmp_path / "kernels").iterdir(), key=lambda f: f.stat().st_size)
    assert len(files) == 3
    bad, other = (files[2], files[0]) if which == "object" else (files[0], files[1])
    whole = bad.read_bytes()
    if damage == "gone":
        bad.unlink()
    else:
        bad.write_bytes({"cut": whole[:-1], "empty": b"", "swap": other.read_bytes()}[damage])
    monkeypatch.setenv("FERRULE_DEBUG", "1")
    made, two = taken(generated, lambda: compile_program(text("add")))
    assert made == (2 if which == "object" else 1) and two.fingerprint == one.fingerprint
    assert ("damaged" in capfd.readouterr().err) == (damage != "gone")
    kernel_cache.forget()
    assert taken(generated, lambda: compile_program(text("add")))[0] == 0


@pytest.mark.parametrize(
    "name, value", [("FERRULE_CACHE", "0"), ("FERRULE_CACHE", "binaries"), ("FERRULE_VERIFY", "1")]
)
def test_switched_off_or_watched(generated, monkeypatch, tmp_path, name, value):
    monkeypatch.setenv(name, value)
    assert [taken(generated, lambda: compile_program(text("add")))[0] for _ in range(2)] == [2, 2]
    assert not (tmp_path / "kernels").exists()


def test_a_dump_has_all_code(generated, monkeypatch, tmp_path):
    compile_program(text("add"))
    monkeypatch.setenv("FERRULE_DUMP", str(tmp_path / "dump"))
    compile_program(text("add"))
    (code,) = (tmp_path / "dump").rglob("kernels.ll")
    assert code.read_text().count("define void") == 2


def test_bounded_in_memory(generated, monkeypatch, tmp_path):
    monkeypatch.setenv("FERRULE_CACHE_DIR", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")  # nothing can be kept on disk
    known = kernel_cache.KernelCache(host(), limit=1000)
    for number in range(6):
        known.put([Kernel(f"k{number}", "", key=str(number), grid=number, code=bytes([number]) * 300)])
    found = [known.get(str(number)) for number in range(6)]
    assert [f and f.grid for f in found] == [None, None, None, 3, 4, 5]
    assert found[4] == Kernel("k4", "", key="4", grid=4, code=bytes([4]) * 300)
    assert known.bytes <= 1000 and len(known.kernels) == 3


def test_a_share_of_the_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("FERRULE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FERRULE_CACHE", "1")
    monkeypatch.setenv("FERRULE_CACHE_MB", "8")
    stores = [cache.open_store(what) for what in ("program", "kernel")]
    assert sum(s.limit for s in stores) == 8 << 20 and stores[0].folder != stores[1].folder
    for number in range(200):
        stores[1].put(f"{number:03}", bytes(50_000))
    left = sorted(f.stem for f in (tmp_path / "kernels").iterdir())
    assert "199" in left and "000" not in left and len(left) * 50_000 <= stores[1].limit


def together(x, y):
    return x * y + 1, jnp.sort(x + y, axis=0), (x / y).sum(0)


def apart(x, y):
    """Some kernels of `together`; one of them in a loop's function as well as outside of it."""
    z = x * y + 1
    return (
        lax.fori_loop(0, 9, lambda i, c: c * y + 1, z),
        (x / y).sum(0),
        lax.while_loop(lambda c: c.sum() < 1e6, lambda c: c * y + 1, z),
    )


def test_right_with_other_programs_kernels(generated):
    """Through the runtime: the objects of several programs are linked into one."""
    x, y = (np.random.default_rng(n).uniform(1, 2, (7, 13)).astype(np.float32) for n in range(2))
    there = jax.device_put((x, y), jax.devices("cpu")[0])
    want = [np.asarray(v) for f in (together, apart) for v in jax.jit(f)(*there)]
    for _ in range(2):
        got = [np.asarray(v) for f in (together, apart) for v in jax.jit(lambda *a, f=f: f(*a))(x, y)]
        for a, b in zip(want, got, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        kernel_cache.forget()


PROCESS = """
import sys
from ferrule.pipeline import compile_program
for op in sys.argv[1:]:
    print(compile_program(TEXT.replace(b"%op", op.encode())).fingerprint)
"""


def test_processes_at_once(generated, tmp_path):
    ops = ["add", "multiply", "subtract", "maximum"]
    script = f"TEXT = {text('%op')!r}\n{PROCESS}"
    environment = dict(os.environ, FERRULE_CACHE_DIR=str(tmp_path), FERRULE_CACHE="1", FERRULE_DEBUG="1")
    command = [sys.executable, "-c", script]
    running = [
        subprocess.Popen([*command, *order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for order in (ops, ops[::-1])
    ]
    (one, said), (two, also) = (process.communicate(timeout=100) for process in running)
    assert [p.returncode for p in running] == [0, 0], said + also
    assert "damaged" not in said + also and one.split() == two.split()[::-1] and len(one.split()) == 4
    assert not [f for f in (tmp_path / "kernels").iterdir() if f.name.startswith("draft")]
    made, program = taken(generated, lambda: compile_program(text("add")))
    assert made == 0 and program.fingerprint == one.split()[0]
