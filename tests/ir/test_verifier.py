"""The verifier names the stage, the op and the reason."""

from __future__ import annotations

import pytest

from ferrule.errors import Internal
from ferrule.ir import Block, Tensor, Value
from ferrule.ir.types import f32, i32
from ferrule.ir.verifier import verify

V = Tensor((3,), f32)


def good() -> Block:
    block = Block([V, V])
    total = block.add("add", block.args, V).result
    block.results = [block.add("negate", [total], V).result]
    return block


def test_good() -> None:
    verify(good(), "simplify")


def test_use_before_definition() -> None:
    block = good()
    block.ops.reverse()
    with pytest.raises(Internal, match=r"after stage 'fuse': operand 0 .* used before its definition"):
        verify(block, "fuse")


def test_unknown_result() -> None:
    block = good()
    block.results = [Value(V)]
    with pytest.raises(Internal, match="not defined in it or around it"):
        verify(block, "fuse")


def test_wrong_type() -> None:
    block = Block([V, V])
    block.results = [block.add("add", block.args, Tensor((3,), i32)).result]
    with pytest.raises(Internal, match=r"not \(tensor<3xf32>\)"):
        verify(block, "simplify")


def test_operands_that_do_not_fit() -> None:
    block = Block([V, Tensor((4,), f32)])
    block.add("add", block.args, V)
    with pytest.raises(Internal, match="operands 0 and 1 differ"):
        verify(block, "simplify")


def test_defined_twice() -> None:
    block = good()
    block.ops.append(block.ops[0])
    with pytest.raises(Internal, match="defined twice"):
        verify(block, "simplify")


def test_region_may_use_outer_values_but_a_kernel_may_not() -> None:
    for name, fails in (("case", False), ("fusion", True)):
        block = Block([V, Tensor((), i32)])
        inner = Block()
        inner.results = [inner.add("negate", [block.args[0]], V).result]
        operands = [block.args[1]] if name == "case" else []
        block.results = [block.add(name, operands, V, {}, [inner]).result]
        if fails:
            with pytest.raises(Internal, match="used before its definition"):
                verify(block, "fuse")
        else:
            verify(block, "fuse")
