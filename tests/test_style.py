"""Style and types: ruff's linter and formatter, mypy, clang-format. The same checks as `make lint`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = sorted(str(p) for p in (ROOT / "native").rglob("*.[ch]*"))
CHECKS = {
    "ruff": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "clang-format": ["clang-format", "--dry-run", "--Werror", *NATIVE],
}


@pytest.mark.parametrize("name", CHECKS)
def test_clean(name):
    tool, *arguments = CHECKS[name]
    # The tools of the environment that runs the tests, whatever is in PATH.
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"


def test_files_are_small():
    """One idea per file: none has more than 900 lines."""
    files = [p for folder in ("src", "native", "tests", "benchmarks", "examples") for p in (ROOT / folder).rglob("*")]
    long = {str(p.relative_to(ROOT)): n for p in files if p.suffix in (".py", ".cc", ".h") and (n := _lines(p)) > 900}
    assert not long


def _lines(path: Path) -> int:
    return path.read_text().count("\n")
