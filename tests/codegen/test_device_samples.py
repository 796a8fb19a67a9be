"""Every op that has an element rule, as a device kernel by itself, on its samples: on the SYCL CPU device."""

from __future__ import annotations

import numpy as np
import pytest
from fused import Graph, evaluate
from on_device import LACKING, NARROW, LinkedDevice, machine, queue
from test_samples import NAMES, blocks, close

from ferrule.codegen.kernel import emit_kernel
from ferrule.errors import Unsupported
from ferrule.ir import Block, Tensor, tensor
from ferrule.ir.types import DTYPES
from ferrule.ops import OPS
from ferrule.targets.gpu import find


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    queue()


def wide(block: Block) -> bool:
    """Does the block have f64 in it, or complex numbers, some of whose functions are computed in f64?"""
    types = [tensor(v).dtype for op in block.ops for v in (*op.operands, *op.results)]
    return any(t.is_complex or (t.is_float and t.bits == 64) for t in types)


def test_f64_where_there_is_none() -> None:
    g = Graph(Tensor((8,), DTYPES["f64"]))
    block = g.done(g("sine", *g.args))
    with pytest.raises(Unsupported, match=r"op 'sine' needs f64, which the device 'dg2' does not have"):
        emit_kernel(block, "k", find("xpu:dg2"))


@pytest.mark.parametrize("name", NAMES)
def test_device_without_f64_and_f16(name: str) -> None:
    """f16 is emulated, formulas that go through f64 elsewhere have others."""
    check_samples(name, LACKING, 8)


@pytest.mark.parametrize("name", NAMES)
def test_device_samples(name: str) -> None:
    check_samples(name, NARROW, 2)


def check_samples(name: str, target: str, more: float) -> None:
    made = OPS[name].samples
    assert made is not None
    chosen = list(made())[:: 6 if OPS[name].elementwise else 1]
    work = [(s, b) for s in chosen for b in blocks(s) if target != LACKING or not wide(b)]
    if not work:
        pytest.skip("no samples")
    kernels = [emit_kernel(b, f"k{i}", machine(target)) for i, (_, b) in enumerate(work)]
    if target == LACKING:
        assert not any("half" in k.text or "double" in k.text for k in kernels)
    linked = LinkedDevice(kernels, machine(target))
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
            if not close(got, want, max(sample.ulps, 1) * more, sample.spread * 2 * more):
                bad = np.argwhere(~((got == want) | ((got != got) & (want != want))))
                at = tuple(bad[0]) if len(bad) else ()
                wrong.append(f"{sample}: {len(bad)} of {got.size} differ; at {at}: {got[at]} instead of {want[at]}")
    assert not wrong, "\n".join(wrong)
