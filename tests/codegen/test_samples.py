"""Every op that has an element rule, as a kernel by itself, on its samples."""

from __future__ import annotations

import numpy as np
import pytest
from fused import Linked, evaluate

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Block
from ferrule.ops import OPS
from ferrule.targets.cpu import host

NAMES = sorted(name for name, op in OPS.items() if op.element is not None and op.samples is not None)


def close(got: np.ndarray, want: np.ndarray, ulps: float, spread: float) -> bool:
    if got.dtype.kind in "biu" or got.dtype.kind == "V" and "int" in got.dtype.name:
        return bool(np.array_equal(got, want))
    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = got.astype(kind), want.astype(kind)
    import ml_dtypes

    part = got.real.dtype if got.dtype.kind == "c" else got.dtype
    epsilon = float(ml_dtypes.finfo(part).eps)
    finite = np.abs(b[np.isfinite(b)])
    smallest = float(ml_dtypes.finfo(part).tiny)
    with np.errstate(all="ignore"):
        room = epsilon * (ulps * np.maximum(np.abs(b), smallest) + spread * finite.max(initial=0))
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= room)
    return bool(same.all())


def blocks(sample) -> list[Block]:  # type: ignore[no-untyped-def]
    """One block, or one per result where the results differ in shape: a kernel's have one."""
    block = sample.block()
    if len({r.shape for r in block.results}) <= 1:
        return [block]
    single = []
    for i in range(len(block.results)):
        single.append(sample.block())
        single[-1].results = [single[-1].results[i]]
    return single


@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str) -> None:
    made = OPS[name].samples
    assert made is not None
    # the arithmetic itself is tested by test_scalar.py: some of its samples are enough here
    chosen = list(made())[:: 6 if OPS[name].elementwise else 1]
    work = [(s, b) for s in chosen for b in blocks(s)]
    if not work:
        pytest.skip("no samples")
    kernels = [emit_kernel(b, f"k{i}", host()) for i, (_, b) in enumerate(work)]
    linked = Linked(kernels, host())
    wrong = []
    for (sample, block), kernel in zip(work, kernels, strict=True):
        args = [np.array(a, order="C", copy=True) for a in sample.arrays]
        with np.errstate(all="ignore"):
            expected = evaluate(block, [a.copy() for a in args])
        outs = [np.zeros(r.shape, r.dtype.numpy) for r in block.results]
        if name in ("dynamic_update_slice", "scatter"):
            outs = args[: len(outs)]
        linked.run(kernel, [*args, *outs], 2)
        for got, want in zip(outs, expected, strict=True):
            if not close(got, want, max(sample.ulps, 1) * 2, sample.spread * 4):
                bad = np.argwhere(~((got == want) | ((got != got) & (want != want))))
                at = tuple(bad[0]) if len(bad) else ()
                wrong.append(f"{sample}: {len(bad)} of {got.size} differ; at {at}: {got[at]} instead of {want[at]}")
    assert not wrong, "\n".join(wrong)
