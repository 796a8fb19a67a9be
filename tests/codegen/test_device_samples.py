"""Every op that has an element rule, as a device kernel by itself, on its samples: on the SYCL CPU device."""

from __future__ import annotations

import numpy as np
import pytest
from fused import evaluate
from on_device import LinkedDevice, machine, queue
from test_samples import NAMES, blocks, close

from ferrule.codegen.kernel import emit_kernel
from ferrule.ops import OPS


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    queue()


@pytest.mark.parametrize("name", NAMES)
def test_device_samples(name: str) -> None:
    made = OPS[name].samples
    assert made is not None
    chosen = list(made())[:: 6 if OPS[name].elementwise else 1]
    work = [(s, b) for s in chosen for b in blocks(s)]
    if not work:
        pytest.skip("no samples")
    kernels = [emit_kernel(b, f"k{i}", machine()) for i, (_, b) in enumerate(work)]
    linked = LinkedDevice(kernels, machine())
    wrong = []
    for (sample, block), kernel in zip(work, kernels, strict=True):
        args = [np.array(a, order="C", copy=True) for a in sample.arrays]
        with np.errstate(all="ignore"):
            expected = evaluate(block, [a.copy() for a in args])
        outs = [np.zeros(r.shape, r.dtype.numpy) for r in block.results]
        if name in ("dynamic_update_slice", "scatter"):
            outs = args[: len(outs)]
        linked.run(kernel, [*args, *outs])
        for got, want in zip(outs, expected, strict=True):
            if not close(got, want, max(sample.ulps, 1) * 2, sample.spread * 4):
                bad = np.argwhere(~((got == want) | ((got != got) & (want != want))))
                at = tuple(bad[0]) if len(bad) else ()
                wrong.append(f"{sample}: {len(bad)} of {got.size} differ; at {at}: {got[at]} instead of {want[at]}")
    assert not wrong, "\n".join(wrong)
