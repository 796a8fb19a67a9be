"""The reference target: calls, captured values, arguments that do not fit, single-device collectives."""

from __future__ import annotations

import numpy as np
import pytest

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, Function, Loc, Module, Tensor
from ferrule.ir.types import f32, i1, i32
from ferrule.targets.reference import evaluate_block, evaluate_module

V, S = Tensor((3,), f32), Tensor((), f32)
X = np.array([1, 2, 3], np.float32)


def calling() -> Module:
    double = Block([V])
    double.results = [double.add("add", [double.args[0]] * 2, V).result]
    main = Block([V])
    first = main.add("call", main.args, V, {"callee": "double"}).result
    main.results = [main.add("call", [first], V, {"callee": "double"}).result]
    return Module({"main": Function("main", main), "double": Function("double", double)})


def test_calls() -> None:
    (found,) = evaluate_module(calling(), [X])
    assert np.array_equal(found, 4 * X)


def test_unknown_function() -> None:
    module = calling()
    del module.functions["double"]
    with pytest.raises(InvalidArgument, match="'double', which does not exist"):
        evaluate_module(module, [X])


@pytest.mark.parametrize("args", [[], [X, X], [X[:2]], [X.astype(np.float64)]])
def test_arguments(args: list[np.ndarray]) -> None:
    with pytest.raises(InvalidArgument, match="the program takes|takes 1 arguments"):
        evaluate_module(calling(), args)


def test_branches_use_outer_values() -> None:
    block = Block([Tensor((), i1), V])
    yes, no = Block(), Block()
    yes.results = [block.args[1]]
    no.results = [no.add("negate", [block.args[1]], V).result]
    block.results = [block.add("if", [block.args[0]], V, {}, [yes, no]).result]
    assert np.array_equal(evaluate_block(block, [np.array(True), X])[0], X)
    assert np.array_equal(evaluate_block(block, [np.array(False), X])[0], -X)


def test_outer_values_of_a_block() -> None:
    outer = Block([V])
    inner = Block([V])
    inner.results = [inner.add("add", [inner.args[0], outer.args[0]], V).result]
    (found,) = evaluate_block(inner, [X], outer={outer.args[0]: 10 * X})
    assert np.array_equal(found, 11 * X)


def test_collectives_of_one_device() -> None:
    for name, attrs in (
        ("all_reduce", {"replica_groups": np.array([[0]])}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": np.array([[0]])}),
        ("reduce_scatter", {"scatter_dimension": 0, "replica_groups": np.array([[0]])}),
        ("all_to_all", {"split_dimension": 0, "concat_dimension": 0, "split_count": 1}),
        ("collective_permute", {"source_target_pairs": np.array([[0, 0]])}),
        ("collective_broadcast", {"replica_groups": np.array([[0]])}),
    ):
        block = Block([V])
        block.results = [block.add(name, block.args, V, attrs).result]
        assert np.array_equal(evaluate_block(block, [X])[0], X), name
    block = Block([V])
    block.results = [block.add("collective_permute", block.args, V, {"source_target_pairs": ()}).result]
    assert not evaluate_block(block, [X])[0].any()


def test_collectives_of_more_devices() -> None:
    block = Block([V])
    loc = Loc("psum", "train.py", 7, 1)
    block.add("all_reduce", block.args, V, {"replica_groups": np.array([[0, 1]])}, (), loc)
    with pytest.raises(Unsupported, match=r"over 2 devices(.|\n)*train.py:7:1"):
        evaluate_block(block, [X])


def test_custom_call() -> None:
    block = Block([V])
    block.add("custom_call", block.args, V, {"call_target_name": "mystery"})
    with pytest.raises(Unsupported, match="'mystery' has no meaning in NumPy"):
        evaluate_block(block, [X])


def test_captured_value_in_a_body() -> None:
    """A reduction body that reads a value from outside goes the general way."""
    block = Block([V, S, S])
    body = Block([S, S])
    total = body.add("add", body.args, S).result
    body.results = [body.add("add", [total, block.args[2]], S).result]
    block.results = [block.add("reduce", block.args[:2], S, {"dimensions": (0,)}, [body]).result]
    (found,) = evaluate_block(block, [X, np.float32(0) * X[0], np.array(0, np.float32)])
    assert found == 6


def test_rng_draws_from_its_distribution() -> None:
    shape = np.array([1000], np.int32)
    for name, low, high, dtype in (("UNIFORM", -1, 3, f32), ("NORMAL", 1, 0.5, f32), ("UNIFORM", -5, 5, i32)):
        scalar = Tensor((), dtype)
        block = Block([scalar, scalar, Tensor((1,), i32)])
        out = Tensor((1000,), dtype)
        block.results = [block.add("rng", block.args, out, {"rng_distribution": name}).result]
        args = [np.array(low, dtype.numpy), np.array(high, dtype.numpy), shape]
        (found,) = evaluate_block(block, args, check=True)
        middle = low if name == "NORMAL" else (low + high - dtype.is_int) / 2
        assert abs(float(found.mean()) - middle) < 0.5
        if name == "UNIFORM":
            assert found.min() >= low and found.max() < high
