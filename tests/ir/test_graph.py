"""Copies of a graph, and what becomes of one that nobody needs any more."""

from __future__ import annotations

import gc
import weakref

import pytest

from ferrule.ir import Block, Tensor, dismantle, rewrite
from ferrule.ir.types import f32
from ferrule.ir.verifier import verify

TYPE = Tensor((3,), f32)


def graph() -> Block:
    block = Block([TYPE])
    value = block.args[0]
    inner = Block([TYPE])
    inner.results = [inner.add("negate", inner.args, TYPE).result]
    for name in ("sine", "cosine", "sine"):
        value = block.add(name, [value], TYPE).result
    block.add("while", [value], [TYPE], regions=[Block([TYPE]), inner])
    block.results = [value]
    return block


@pytest.mark.parametrize("ours", [False, True])
def test_rewrite(ours):
    block = graph()
    before = list(block.ops)

    def rule(out, op, operands):
        return out.add("tanh", operands, TYPE).results if op.name in ("cosine", "negate") else None

    new = rewrite(block, rule, ours=ours)
    assert [op.name for op in new.walk()] == ["sine", "tanh", "sine", "while", "tanh"]
    assert new.ops[1].operands == new.ops[0].results and new.ops[2].operands == new.ops[1].results
    assert new.ops[3].regions[1].results == new.ops[3].regions[1].ops[0].results
    assert [a is b for a, b in zip(before, new.ops, strict=True)] == [ours, False, ours, ours]
    assert bool(block.ops) != ours
    if not ours:
        assert [op.name for op in block.walk()] == ["sine", "cosine", "sine", "while", "negate"]
        verify_without_loop(block)
    verify_without_loop(new)


def verify_without_loop(block: Block) -> None:
    block.ops.pop()
    verify(block, "test")


def test_dismantled():
    enabled = gc.isenabled()
    gc.disable()
    try:
        block = graph()
        ops = [weakref.ref(op) for op in block.walk()]
        assert all(op() for op in ops)
        dismantle(block)
        del block
        assert not any(op() for op in ops)
    finally:
        if enabled:
            gc.enable()
