"""Many kernels are compiled as several modules at a time."""

from __future__ import annotations

import threading

import pytest

from ferrule.codegen import object
from ferrule.codegen.kernel import Kernel
from ferrule.errors import Internal
from ferrule.targets.cpu import host


def kernels(count: int) -> list[Kernel]:
    return [Kernel(f"k{i}_", f"define void @k{i}_(ptr %a0) {{\n  ret void\n}}", key=str(i)) for i in range(count)]


@pytest.mark.parametrize(("threads", "count", "modules"), [("1", 40, 1), ("2", 40, 2), ("2", 8, 1), ("3", 100, 3)])
def test_modules(monkeypatch, threads, count, modules):
    monkeypatch.setenv("FERRULE_NUM_THREADS", threads)
    made = kernels(count)
    object.compile_kernels(made, host(), None, 48)
    assert len({kernel.code for kernel in made}) == modules
    assert all(kernel.symbol.encode() in kernel.code for kernel in made)


def test_few_large_ones(monkeypatch):
    """Threads share the work, however few kernels it is in."""
    monkeypatch.setenv("FERRULE_NUM_THREADS", "3")
    made = kernels(2)
    for kernel in made:
        kernel.text = "; what LLVM reads for a while\n" * 1000 + kernel.text
    object.compile_kernels(made, host(), None, 48)
    assert len({kernel.code for kernel in made}) == 2


def test_at_the_same_time(monkeypatch):
    monkeypatch.setenv("FERRULE_NUM_THREADS", "2")
    met = threading.Barrier(2)

    def compile_module(functions, *_):
        met.wait(60)  # until the other one is here, too
        return functions[0].encode()

    monkeypatch.setattr(object, "compile_module", compile_module)
    made = kernels(40)
    object.compile_kernels(made, host(), None, 48)
    assert all(kernel.code for kernel in made)


def test_an_error_in_one_module(monkeypatch, tmp_path):
    monkeypatch.setenv("FERRULE_NUM_THREADS", "2")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("FERRULE_DUMP", raising=False)
    made = kernels(40)
    made[7].text = made[7].text.replace("ret void", "ret i32 nothing")
    usual = threading.stack_size()
    with pytest.raises(Internal, match="LLVM rejects"):
        object.compile_kernels(made, host(), None, 48)
    assert threading.stack_size() == usual
    assert not any(thread.name.startswith("ferrule: code") for thread in threading.enumerate())
