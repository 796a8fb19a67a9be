"""Every stage of the compiler leaves a well-formed graph: the verifier runs after each, over JAX's programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stablehlo"))

from programs import lower, programs

from ferrule.pipeline import compile_program

PROGRAMS = list(programs())


@pytest.mark.parametrize("name, f, args", PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_stages(name: str, f: Any, args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_VERIFY", "1")
    assert compile_program(lower(f, *args)).blocks
