"""Each op over its samples as a whole program of the xpu target, run by tests/codegen/on_device.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from judge import judge, some
from mlir_text import module_text

from ferrule.ops import OPS
from ferrule.pipeline import compile_program
from ferrule.program import Call
from ferrule.stablehlo.legalize import NATIVE

sys.path.insert(0, str(Path(__file__).parent.parent / "codegen"))
from on_device import NARROW, Runner, queue

NAMES = sorted(name for name, op in OPS.items() if op.samples is not None and not op.internal)


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    queue()


@pytest.mark.parametrize("name", NAMES)
def test_xpu(name: str) -> None:
    chosen = some(name)
    blocks = [s.block() for s in chosen]
    program = compile_program(module_text(blocks, NATIVE).encode(), target=NARROW)
    assert program.target == "xpu"
    if calls := sorted({s.target for steps in program.blocks for s in steps if isinstance(s, Call)}):
        pytest.skip(f"the runtime calls {', '.join(calls)} on the host")
    flat = iter(Runner(program)(*(a for s in chosen for a in s.arrays)))
    wrong = []
    for sample, block in zip(chosen, blocks, strict=True):
        try:
            judge(sample, [next(flat) for _ in block.results], flush=True)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} of {len(chosen)} samples\n" + "\n".join(wrong[:5])
