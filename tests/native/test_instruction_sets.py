"""Files compiled for one instruction set: nothing in them may run, or be taken by the linker for all, on a processor
that lacks it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OBJECTS = ROOT / "build" / "Release" / "CMakeFiles" / "ferrule.dir" / "native"
NAMES = sorted(p.name for p in (ROOT / "native").glob("*_a[vm]x*.cc"))


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def unfit(path: Path) -> list[str]:
    """What of an object would be run when the library is loaded, or could be kept in place of another file's copy."""
    loaded = [line for line in output("readelf", "-SW", path).splitlines() if ".init_array" in line or ".ctors" in line]
    # A namespace of the set in a name makes it the set's own.
    shared = [
        s
        for s in output("nm", "-C", path).splitlines()
        if s[17:18] in ("W", "V", "u") and not re.search("::(avx|amx)", s)
    ]
    return loaded + shared


@pytest.mark.parametrize("name", NAMES)
def test_nothing_runs_unasked(name: str) -> None:
    path = OBJECTS / f"{name}.o"
    if not path.exists():
        pytest.skip("the library was not built here, so there are no objects to look at (`make setup` builds it)")
    assert unfit(path) == []


def test_files_are_found() -> None:
    assert len(NAMES) >= 18


@pytest.mark.skipif(not shutil.which("g++"), reason="makes an object with g++, which is not installed")
@pytest.mark.parametrize(
    "source", ["int f(); const int x = f();", "template <class T> T f(T t) { return t; } int x(int i) { return f(i); }"]
)
def test_the_check_sees_both(source: str, tmp_path: Path) -> None:
    (tmp_path / "x.cc").write_text(source)
    output("g++", "-std=c++20", "-c", tmp_path / "x.cc", "-o", tmp_path / "x.o")
    assert unfit(tmp_path / "x.o")
