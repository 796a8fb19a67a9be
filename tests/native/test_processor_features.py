"""What the runtime knows of processors: all that the compiler may ask for."""

import re
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from ferrule.targets.cpu import APX, host

SOURCE = Path(__file__).parents[2] / "native" / "cpu_features.cc"


@pytest.mark.skipif(not llvm.get_process_triple().startswith("x86_64"), reason="the table is of x86-64 processors")
def test_the_runtime_knows_what_llvm_finds() -> None:
    """A program asks for everything that LLVM found where it was compiled. With a name that the runtime does not know
    it would not even be loaded there (avx10.1, on the first processor with it)."""
    known = set(re.findall(r'^ +\{"([^"]+)", \w+, \w+, kE', SOURCE.read_text(), re.M)) | {"avx10.2"}
    assert len(known) > 80
    assert set(llvm.get_host_cpu_features()) <= known


def test_registers_that_the_system_may_not_save_are_not_used() -> None:
    assert set(APX).isdisjoint(f[1:] for f in host().features.split(",") if f.startswith("+"))
