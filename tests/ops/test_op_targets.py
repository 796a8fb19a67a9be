"""Each op over its samples through `ferrule.compile`: on the cpu target, and on xpu (a GPU, or a CPU by SYCL)."""

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
from ferrule.stablehlo.legalize import NATIVE

NAMES = sorted(name for name, op in OPS.items() if op.samples is not None and not op.internal)


def run_ferrule(samples: Sequence[Sample], target: str = "cpu") -> list[list[np.ndarray]]:
    """The results of each sample; all are compiled as one program."""
    blocks = [s.block() for s in samples]
    program = ferrule.compile(module_text(blocks, NATIVE), target)
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
    compare(name, "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_xpu(name: str, xpu: None) -> None:
    compare(name, "xpu", 15)


def compare(name: str, target: str, limit: int = 30) -> None:
    chosen = some(name, limit)
    wrong = []
    for sample, found in zip(chosen, run_ferrule(chosen, target), strict=True):
        try:
            judge(sample, found, flush=True)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} of {len(chosen)} samples\n" + "\n".join(wrong[:5])


def test_comparators_that_differ_in_a_constant() -> None:
    """Equal code is compiled once; a constant inside a comparator is part of what must be equal."""
    x = np.arange(8, dtype=np.float32)
    sorts = "".join(
        f"""
        %s{n} = "stablehlo.sort"(%x) ({{
        ^bb0(%a{n}: tensor<f32>, %b{n}: tensor<f32>):
          %c{n} = stablehlo.constant dense<{c}> : tensor<f32>
          %d{n} = stablehlo.subtract %a{n}, %c{n} : tensor<f32>
          %e{n} = stablehlo.subtract %b{n}, %c{n} : tensor<f32>
          %f{n} = stablehlo.abs %d{n} : tensor<f32>
          %g{n} = stablehlo.abs %e{n} : tensor<f32>
          %h{n} = stablehlo.compare LT, %f{n}, %g{n} : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %h{n} : tensor<i1>
        }}) {{dimension = 0 : i64, is_stable = true}} : (tensor<8xf32>) -> tensor<8xf32>"""
        for n, c in enumerate((1.0, 5.0))
    )
    pair = "tensor<8xf32>, tensor<8xf32>"
    program = f"module {{ func.func @main(%x: tensor<8xf32>) -> ({pair}) {{{sorts}\n return %s0, %s1 : {pair}\n}} }}"
    first, second = ferrule.compile(program)(x)
    assert np.array_equal(first, sorted(x, key=lambda v: abs(v - 1)))
    assert np.array_equal(second, sorted(x, key=lambda v: abs(v - 5)))
