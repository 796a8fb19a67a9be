"""Each op over its samples through `ferrule.compile`, on the CPU target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from judge import judge, some
from mlir_text import module_text

import ferrule
from ferrule.errors import NotFound
from ferrule.native import library_path
from ferrule.ops import OPS
from ferrule.ops.samples import Sample

NAMES = sorted(name for name, op in OPS.items() if op.samples is not None)


def run_ferrule(samples: Sequence[Sample]) -> list[list[np.ndarray]]:
    """The results of each sample; all are compiled as one program."""
    blocks = [s.block() for s in samples]
    program = ferrule.compile(module_text(blocks))
    found = program(*(a for s in samples for a in s.arrays))
    flat = iter(np.asarray(x) for x in (found if isinstance(found, list | tuple) else [found]))
    return [[next(flat) for _ in b.results] for b in blocks]


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    try:
        library_path()
    except NotFound as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", NAMES)
def test_cpu(name: str) -> None:
    chosen = some(name)
    wrong = []
    for sample, found in zip(chosen, run_ferrule(chosen), strict=True):
        try:
            judge(sample, found, flush=True)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} of {len(chosen)} samples\n" + "\n".join(wrong[:5])
