"""Convolutions and products of every geometry on xpu when the library gets all that it takes, however small."""

from __future__ import annotations

import numpy as np
import pytest
from judge import judge
from mlir_text import module_text

import ferrule
from ferrule.ops import OPS
from ferrule.passes import match_device
from ferrule.stablehlo.legalize import NATIVE
from ferrule.targets import xpu as xpu_files


@pytest.mark.parametrize("name, least", [("convolution", 10), ("dot_general", 10)])
def test_the_library_on_all_samples(name, least, xpu, monkeypatch):
    if not xpu_files.onednn_path():
        pytest.skip("the package onednn is not installed")
    monkeypatch.setattr(match_device, "LIBRARY_FROM", 0)
    calls, wrong = 0, []
    for sample in OPS[name].samples(name):
        program = ferrule.compile(module_text([sample.block()], NATIVE), "xpu")
        calls += b"dnnl." in program.serialize()
        found = program(*sample.arrays)
        try:
            judge(sample, [np.asarray(x) for x in (found if isinstance(found, list | tuple) else [found])], flush=True)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong[:5])
    assert calls >= least
