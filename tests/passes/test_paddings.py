"""Large paddings: only their edges are filled, and each element is written once."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from ferrule.ir import Block, Tensor, rewrite
from ferrule.ir.types import DTYPES
from ferrule.passes.expand import EDGES_FROM, expand
from ferrule.targets.reference import evaluate_block


def padding(shape, low, high, dtype="f32"):
    block = Block([Tensor(shape, DTYPES[dtype]), Tensor((), DTYPES[dtype])])
    whole = Tensor([a + n + b for a, n, b in zip(low, shape, high, strict=True)], DTYPES[dtype])
    attrs = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": (0,) * len(shape)}
    block.results = [block.add("pad", block.args, whole, attrs).result]
    return block


def with_anything(out, op, operands):
    """Memory that nobody wrote holds anything."""
    if op.name != "uninitialized":
        return None
    anything = np.full(op.result.shape, 77, op.result.dtype.numpy)
    return out.add("constant", [], op.result.type, {"value": anything}).results


CASES = {
    "images": ((4, 150, 150, 3), (0, 3, 2, 0), (0, 1, 5, 0)),
    "every side": ((60, 70, 70), (1, 2, 3), (4, 5, 6)),
    "one side": ((1 << 18,), (0,), (7,)),
    "nothing": ((1 << 18,), (0,), (0,)),
    "mostly edge": ((300, 300), (200, 0), (0, 300)),
    "small": ((60, 60), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i1"])
def test_padding(name, dtype):
    shape, low, high = CASES[name]
    block = padding(shape, low, high, dtype)
    x = np.random.RandomState(0).randn(*shape) > 0.5 if dtype == "i1" else np.random.RandomState(0).randn(*shape)
    x = x.astype(DTYPES[dtype].numpy)
    value = np.asarray(0 if dtype == "i1" else 1, DTYPES[dtype].numpy)
    expanded = rewrite(expand(block), with_anything)
    (want,) = evaluate_block(block, [x, value])
    (got,) = evaluate_block(expanded, [x, value])
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
    writes = [op for op in expanded.ops if op.name == "dynamic_update_slice"]
    written = sum(prod(op.operands[1].shape) for op in writes)
    whole = prod(block.results[0].shape)
    if whole >= EDGES_FROM and whole <= 2 * prod(shape):
        assert written == whole and "broadcast_in_dim" != expanded.ops[0].name
        assert len(writes) == 1 + sum(n > 0 for n in (*low, *high))
    else:
        assert written == prod(shape)
