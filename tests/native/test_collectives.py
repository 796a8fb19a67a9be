"""Collectives between four devices: every element type and reduction, groups by each of StableHLO's rules, faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, PjrtError, Table

from ferrule.client import compile_options
from ferrule.ir.types import DTYPES
from ferrule.pipeline import compile_program

DEVICES = 4
ADD = "stablehlo.add %x, %y"


@pytest.fixture(scope="module")
def host(native: Any) -> Iterator[Host]:
    host = Host(Table.load(str(native.path)), num_devices=DEVICES)
    yield host
    host.close()


def program(body: str, result: str, operand: str, replicas: int = DEVICES, partitions: int = 1) -> bytes:
    """`body` computes %r from %a."""
    module = f"module attributes {{mhlo.num_replicas = {replicas} : i32, mhlo.num_partitions = {partitions} : i32}} {{ "
    module += f"func.func @main(%a: {operand}) -> {result} {{ {body} return %r : {result} }} }}"
    return compile_program(module.encode(), options=compile_options(range(DEVICES), replicas, partitions)).serialize()


def run(host: Host, code: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
    executable = host.load(code)
    rows = [[host.put(array, memory=host.memory(d))] for d, array in enumerate(arrays)]
    return [host.get(row[0]) for row in host.execute(executable, *rows)]


def reduction(op: str, groups: str, kind: str, scalar: str, more: str = "", computation: str = ADD) -> str:
    return (
        f'%r = "stablehlo.{op}"(%a) <{{replica_groups = dense<{groups}> : tensor<{shape_of(groups)}xi64>{more}}}> '
        f"({{ ^bb0(%x: {scalar}, %y: {scalar}): %s = {computation} : {scalar} stablehlo.return %s : {scalar} }}) "
        f": {kind} "
    )


def shape_of(groups: str) -> str:
    rows = eval(groups)
    return f"{len(rows)}x{len(rows[0])}"


def tensor(dtype: str, *shape: int) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


FOLDS = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def fits(dtype: str, op: str) -> bool:
    kind = DTYPES[dtype].kind
    if op in ("and", "or", "xor"):
        return kind in ("bool", "int", "uint")
    return not (kind == "complex" and op in ("minimum", "maximum")) and dtype != "f8E8M0FNU"


@pytest.mark.parametrize("dtype, op", [(d, op) for d in DTYPES for op in FOLDS if fits(d, op)])
def test_all_reduce(host: Host, dtype: str, op: str) -> None:
    kind = DTYPES[dtype].numpy
    draw = np.random.default_rng(7)
    # Small numbers, of which every type holds sums and products.
    arrays = [draw.integers(0, 2, (3, 37)).astype(kind) for _ in range(DEVICES)]
    whole = tensor(dtype, 3, 37)
    body = reduction("all_reduce", "[[0,1,2,3]]", f"({whole}) -> {whole}", tensor(dtype), "", f"stablehlo.{op} %x, %y")
    if DTYPES[dtype].kind == "bool":
        fold = {"add": np.logical_or, "multiply": np.logical_and}.get(op, FOLDS[op])
        wide = arrays
    else:
        fold = FOLDS[op]
        wide = [a.astype(np.complex128 if "complex" in dtype else np.int64) for a in arrays]
    expected = wide[0]
    for array in wide[1:]:
        expected = fold(expected, array)
    if DTYPES[dtype].kind in ("int", "uint") and DTYPES[dtype].bits < 8:
        bits = DTYPES[dtype].bits
        expected = expected & (1 << bits) - 1
        expected = expected - ((expected >> bits - 1) << bits) if DTYPES[dtype].kind == "int" else expected
    for result in run(host, program(body, whole, whole), arrays):
        np.testing.assert_array_equal(result.astype(expected.dtype), expected)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize(
    "op, expected", [("minimum", ["nan", "nan", "-0.0", "-inf"]), ("maximum", ["nan", "nan", "0.0", "inf"])]
)
def test_extremes_of_odd_numbers(host: Host, dtype: str, op: str, expected: list[str]) -> None:
    kind = DTYPES[dtype].numpy
    rows = [["nan", "1", "0.0", "inf"], ["1", "2", "-0.0", "1"], ["2", "nan", "0.0", "-inf"], ["3", "0", "-0.0", "0"]]
    arrays = [np.array([float(x) for x in row]).astype(kind) for row in rows]
    whole = tensor(dtype, 4)
    body = reduction("all_reduce", "[[0,1,2,3]]", f"({whole}) -> {whole}", tensor(dtype), "", f"stablehlo.{op} %x, %y")
    for result in run(host, program(body, whole, whole), arrays):
        assert [str(float(x)) for x in result] == expected


def test_sums_have_the_same_bits_everywhere(host: Host) -> None:
    draw = np.random.default_rng(3)
    arrays = [
        draw.standard_normal(5000).astype(np.float32) * 10.0 ** draw.integers(-6, 6, 5000) for _ in range(DEVICES)
    ]
    arrays = [a.astype(np.float32) for a in arrays]
    whole = tensor("f32", 5000)
    body = reduction("all_reduce", "[[0,1,2,3]]", f"({whole}) -> {whole}", tensor("f32"))
    expected = ((arrays[0] + arrays[1]) + arrays[2]) + arrays[3]
    for result in run(host, program(body, whole, whole), arrays):
        np.testing.assert_array_equal(result, expected)


def test_integers_wrap(host: Host) -> None:
    arrays = [np.full(70, 65535, np.uint16)] * DEVICES
    whole = tensor("ui16", 70)
    for op, expected in (("add", 65532), ("multiply", 1)):
        computation = f"stablehlo.{op} %x, %y"
        body = reduction("all_reduce", "[[0,1,2,3]]", f"({whole}) -> {whole}", tensor("ui16"), "", computation)
        assert all((r == expected).all() for r in run(host, program(body, whole, whole), arrays))


CHANNEL = ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
GLOBAL = CHANNEL + ", use_global_device_ids"
# 2 replicas x 2 partitions; device = 2 * replica + partition. Which devices' values are summed on each device:
RULES = {
    "cross_replica": ("[[0,1]]", "", [[0, 2], [1, 3], [0, 2], [1, 3]]),
    "cross_replica, one each": ("[[0],[1]]", "", [[0], [1], [2], [3]]),
    "cross_replica_and_partition": ("[[0],[1]]", CHANNEL, [[0, 1], [0, 1], [2, 3], [2, 3]]),
    "flattened_ids": ("[[3,0],[1,2]]", GLOBAL, [[0, 3], [1, 2], [1, 2], [0, 3]]),
    "unequal": ("[[0,1,2],[3,-1,-1]]", GLOBAL, [[0, 1, 2], [0, 1, 2], [0, 1, 2], [3]]),
}


@pytest.mark.parametrize("rule", RULES)
def test_groups(host: Host, rule: str) -> None:
    groups, channel, expected = RULES[rule]
    scalar = tensor("i32")
    body = reduction("all_reduce", groups, f"({scalar}) -> {scalar}", scalar, channel)
    arrays = [np.array(10**d, np.int32) for d in range(DEVICES)]
    results = run(host, program(body, scalar, scalar, 2, 2), arrays)
    assert [int(r) for r in results] == [sum(10**d for d in row) for row in expected]


COMPUTATION = """%r = "stablehlo.{op}"(%a) <{{replica_groups = dense<[[2,0,3,1]]> : tensor<1x4xi64>{more}}}> ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %two = stablehlo.constant dense<2.0> : tensor<f32>
    %d = stablehlo.multiply %x, %two : tensor<f32>
    %s = stablehlo.subtract %d, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) : ({operand}) -> {result} """


def test_any_computation_in_the_order_of_the_group(host: Host) -> None:
    arrays = [np.arange(8, dtype=np.float32).reshape(2, 4) + 100 * d for d in range(DEVICES)]
    expected = arrays[2]
    for d in (0, 3, 1):
        expected = 2 * expected - arrays[d]
    whole, part = tensor("f32", 2, 4), tensor("f32", 2, 1)
    body = COMPUTATION.format(op="all_reduce", more="", operand=whole, result=whole)
    for result in run(host, program(body, whole, whole), arrays):
        np.testing.assert_array_equal(result, expected)
    body = COMPUTATION.format(op="reduce_scatter", more=", scatter_dimension = 1 : i64", operand=whole, result=part)
    results = run(host, program(body, part, whole), arrays)
    for place, d in enumerate((2, 0, 3, 1)):
        np.testing.assert_array_equal(results[d], expected[:, place : place + 1])


ARRAYS = [np.arange(48, dtype=np.float32).reshape(2, 4, 6) + 1000 * d for d in range(DEVICES)]
GROUPS = [[0, 1], [3, 2]]


def partner(d: int) -> tuple[list[int], int]:
    group = next(g for g in GROUPS if d in g)
    return group, group.index(d)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_reduce_scatter(host: Host, dim: int) -> None:
    shape = [2, 4, 6]
    shape[dim] //= 2
    whole, part = tensor("f32", 2, 4, 6), tensor("f32", *shape)
    more = f", scatter_dimension = {dim} : i64"
    body = reduction("reduce_scatter", str(GROUPS), f"({whole}) -> {part}", tensor("f32"), more)
    for d, result in enumerate(run(host, program(body, part, whole), ARRAYS)):
        group, place = partner(d)
        np.testing.assert_array_equal(result, np.split(sum(ARRAYS[g] for g in group), 2, dim)[place])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather(host: Host, dim: int) -> None:
    shape = [2, 4, 6]
    shape[dim] *= 2
    one, whole = tensor("f32", 2, 4, 6), tensor("f32", *shape)
    body = '%r = "stablehlo.all_gather"(%a) <{replica_groups = dense<[[0,1],[3,2]]> : tensor<2x2xi64>, '
    body += f"all_gather_dim = {dim} : i64}}> : ({one}) -> {whole} "
    for d, result in enumerate(run(host, program(body, whole, one), ARRAYS)):
        np.testing.assert_array_equal(result, np.concatenate([ARRAYS[g] for g in partner(d)[0]], dim))


@pytest.mark.parametrize("split, concat", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)])
@pytest.mark.parametrize("channel", ["", CHANNEL])
def test_all_to_all(host: Host, split: int, concat: int, channel: str) -> None:
    shape = [2, 4, 6]
    shape[split] //= 2
    shape[concat] *= 2
    one, other = tensor("f32", 2, 4, 6), tensor("f32", *shape)
    body = f'%r = "stablehlo.all_to_all"(%a) <{{replica_groups = dense<{GROUPS}> : tensor<2x2xi64>, split_dimension = '
    body += f"{split} : i64, concat_dimension = {concat} : i64, split_count = 2 : i64{channel}}}> : ({one}) -> {other} "
    counts = (1, DEVICES) if channel else (DEVICES, 1)
    for d, result in enumerate(run(host, program(body, other, one, *counts), ARRAYS)):
        group, place = partner(d)
        expected = np.concatenate([np.split(ARRAYS[g], 2, split)[place] for g in group], concat)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("pairs", [[[0, 1], [1, 2], [2, 3], [3, 0]], [[0, 2]], [[3, 3], [1, 0]]])
def test_collective_permute(host: Host, pairs: list[list[int]]) -> None:
    kind = tensor("f32", 2, 4, 6)
    body = f'%r = "stablehlo.collective_permute"(%a) <{{source_target_pairs = dense<{pairs}> : '
    body += f"tensor<{len(pairs)}x2xi64>}}> : ({kind}) -> {kind} "
    sources = {target: source for source, target in pairs}
    for d, result in enumerate(run(host, program(body, kind, kind), ARRAYS)):
        # A device that nobody sends to gets zeros.
        np.testing.assert_array_equal(result, ARRAYS[sources[d]] if d in sources else 0 * ARRAYS[0])


def test_collective_broadcast(host: Host) -> None:
    kind = tensor("f32", 2, 4, 6)
    body = '%r = "stablehlo.collective_broadcast"(%a) <{replica_groups = dense<[[2,0,1]]> : tensor<1x3xi64>}> : '
    for d, result in enumerate(run(host, program(f"{body}({kind}) -> {kind} ", kind, kind), ARRAYS)):
        np.testing.assert_array_equal(result, ARRAYS[2] if d < 3 else 0 * ARRAYS[0])


def test_several_operands(host: Host) -> None:
    pair = "tensor<5xf32>, tensor<2xi32>"
    body = "%i = stablehlo.constant dense<[1, 2]> : tensor<2xi32> %q:2 = "
    body += '"stablehlo.all_gather"(%a, %i) <{replica_groups = dense<[[0,1,2,3]]> : tensor<1x4xi64>, all_gather_dim = '
    body += f"0 : i64}}> : ({pair}) -> (tensor<20xf32>, tensor<8xi32>) "
    body += "%f = stablehlo.convert %q#1 : (tensor<8xi32>) -> tensor<8xf32> "
    body += "%r = stablehlo.concatenate %q#0, %f, dim = 0 : (tensor<20xf32>, tensor<8xf32>) -> tensor<28xf32> "
    arrays = [np.full(5, d, np.float32) for d in range(DEVICES)]
    for result in run(host, program(body, tensor("f32", 28), tensor("f32", 5)), arrays):
        np.testing.assert_array_equal(result, np.concatenate([*arrays, [1, 2] * 4]))


@pytest.mark.parametrize("counts", [(4, 1), (2, 2), (1, 4)])
def test_every_device_knows_its_numbers(host: Host, counts: tuple[int, int]) -> None:
    body = "%p = stablehlo.partition_id : tensor<ui32> %q = stablehlo.replica_id : tensor<ui32> "
    body += "%c = stablehlo.constant dense<10> : tensor<ui32> %m = stablehlo.multiply %q, %c : tensor<ui32> "
    body += "%r = stablehlo.add %m, %p : tensor<ui32> "
    results = run(host, program(body, tensor("ui32"), tensor("f32"), *counts), [np.array(0, np.float32)] * DEVICES)
    assert [int(r) for r in results] == [10 * r + p for r in range(counts[0]) for p in range(counts[1])]


# The devices whose number is in `who` sum, the others do not.
UNEVEN = """%p = stablehlo.replica_id : tensor<ui32> %c = stablehlo.constant dense<{limit}> : tensor<ui32>
  %t = stablehlo.compare LT, %p, %c, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %r = "stablehlo.if"(%t) ({{ {sum} stablehlo.return %r1 : tensor<f32> }}, {{ {other} stablehlo.return %r2 : tensor<f32>
  }}) : (tensor<i1>) -> tensor<f32> """


@pytest.mark.parametrize("other", ["", "all_reduce"])
def test_devices_that_wait_for_each_other_for_ever_are_told(host: Host, other: str) -> None:
    kind = tensor("f32")
    sums = reduction("all_reduce", "[[0,1,2,3]]", f"({kind}) -> {kind}", kind)
    waits = sums.replace("%r =", "%r2 =") if other else "%r2 = stablehlo.negate %a : tensor<f32>"
    body = UNEVEN.format(limit=3, sum=sums.replace("%r =", "%r1 ="), other=waits)
    executable = host.load(program(body, kind, kind))
    rows = [[host.put(np.array(d, np.float32), memory=host.memory(d))] for d in range(DEVICES)]
    results = host.execute(executable, *rows, complete=False)
    for d, (result,) in enumerate(results):
        if d == 3 and not other:
            assert float(host.get(result)) == -3
            continue
        with pytest.raises(PjrtError, match=r"wait for each other for ever[\s\S]*in all_reduce") as error:
            host.get(result)
        assert error.value.code == "ABORTED"
    # The devices go on.
    body = reduction("all_reduce", "[[0,1,2,3]]", f"({kind}) -> {kind}", kind)
    assert [float(r) for r in run(host, program(body, kind, kind), [np.array(1, np.float32)] * DEVICES)] == [
        4
    ] * DEVICES


def test_runs_of_two_threads_do_not_wait_for_each_other(host: Host) -> None:
    kind = tensor("f32", 1000)
    executable = host.load(
        program(reduction("all_reduce", "[[0,1,2,3]]", f"({kind}) -> {kind}", tensor("f32")), kind, kind)
    )
    wrong: list[object] = []

    def work(seed: int) -> None:
        arrays = [np.full(1000, seed + d, np.float32) for d in range(DEVICES)]
        rows = [[host.put(array, memory=host.memory(d))] for d, array in enumerate(arrays)]
        for _ in range(100):
            results = host.execute(executable, *rows, complete=False)
            wrong.extend(r for (r,) in results if host.get(r)[7] != 4 * seed + 6)
            host.destroy(*(r for (r,) in results))

    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads) and not wrong
