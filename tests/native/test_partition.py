"""Partitioned programs in forms that JAX seldom writes: parts of axes, other orders of devices, copies, loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, PjrtError, Table

from ferrule.client import compile_options
from ferrule.errors import FerruleError, InvalidArgument, Unsupported
from ferrule.pipeline import compile_program

DEVICES = 8
A = np.arange(64, dtype=np.float32).reshape(8, 8)
MESHES = {
    "plain": '<["x"=4, "y"=2]>',
    "turned": '<["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>',
    "mixed": '<["x"=4, "y"=2], device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>',
}
# What each device holds of each dimension, by its x and y.
SHARDINGS: dict[str, Any] = {
    '[{"x"}, {"y"}]': ((4, 2), lambda x, y: (x, y)),
    '[{"y"}, {"x"}]': ((2, 4), lambda x, y: (y, x)),
    '[{"x", "y"}, {}]': ((8, 1), lambda x, y: (2 * x + y, 0)),
    '[{}, {"y", "x"}]': ((1, 8), lambda x, y: (0, 4 * y + x)),
    '[{"x":(1)2}, {"x":(2)2}]': ((2, 2), lambda x, y: (x // 2, x % 2)),
    '[{"x":(2)2, "y"}, {}]': ((4, 1), lambda x, y: (x % 2 * 2 + y, 0)),
    '[{"y", "x":(1)2}, {"x":(2)2}]': ((4, 2), lambda x, y: (y * 2 + x // 2, x % 2)),
    '[{}, {"x"}], replicated={"y"}': ((1, 4), lambda x, y: (0, x)),
    "[{}, {}]": ((1, 1), lambda x, y: (0, 0)),
}


@pytest.fixture(scope="module")
def host(native: Any) -> Iterator[Host]:
    host = Host(Table.load(str(native.path)), num_devices=DEVICES)
    yield host
    host.close()


def compiled(module: str) -> bytes:
    return compile_program(module.encode(), options=compile_options(range(DEVICES), 1, DEVICES)).serialize()


def run(host: Host, code: bytes, *arguments: list[np.ndarray]) -> list[np.ndarray]:
    executable = host.load(code)
    rows = [[host.put(a[d], memory=host.memory(d)) for a in arguments] for d in range(DEVICES)]
    return [host.get(row[0]) for row in host.execute(executable, *rows)]


def place(mesh: str, device: int) -> tuple[int, int]:
    order = MESHES[mesh].partition("device_ids=[")[2].rstrip("]>")
    at = [int(n) for n in order.split(",")].index(device) if order else device
    return at // 2, at % 2


def parts(mesh: str, sharding: str, array: np.ndarray = A) -> list[np.ndarray]:
    counts, tile = SHARDINGS[sharding]
    size = [n // c for n, c in zip(array.shape, counts, strict=True)]
    tiles = [tile(*place(mesh, d)) for d in range(DEVICES)]
    return [array[i * size[0] : (i + 1) * size[0], j * size[1] : (j + 1) * size[1]].copy() for i, j in tiles]


def module(mesh: str, body: str, come: str, go: str, more: str = "") -> str:
    return f"""module attributes {{mhlo.num_partitions = 8 : i32}} {{ sdy.mesh @m = {MESHES[mesh]} {more}
      func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@m, {come}>}})
          -> (tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@m, {go}>}}) {{ {body} return %r : tensor<8x8xf32> }} }}"""


PAIR = "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"
TURN = "%r = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>"


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("come", SHARDINGS)
def test_shardings(host: Host, mesh: str, come: str) -> None:
    names = list(SHARDINGS)
    go = names[(names.index(come) + 3) % len(names)]
    results = run(host, compiled(module(mesh, TURN, come, go)), parts(mesh, come))
    for result, expected in zip(results, parts(mesh, go, A.T), strict=True):
        np.testing.assert_array_equal(result, expected)


MANUAL = """{name} = sdy.manual_computation({value}) in_shardings=[<@m, [{{"x"}}, {{}}]>]
  out_shardings=[<@m, [{{"x"}}, {{}}]>] manual_axes={{"x"}} (%b: tensor<2x8xf32>) {{
    %s = "stablehlo.all_reduce"(%b) <{{replica_groups = dense<{groups}> : tensor<2x4xi64>, channel_handle =
      #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}}> ({{
      ^bb0(%x: tensor<f32>, %y: tensor<f32>): %t = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %t : tensor<f32> }}) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    sdy.return %s : tensor<2x8xf32> }} : (tensor<8x8xf32>) -> tensor<8x8xf32>"""


def test_manual_computations_in_functions_and_loops(host: Host) -> None:
    """A function with a manual computation, called in a while loop: three times the sum along x."""
    groups = "[[0,2,4,6],[1,3,5,7]]"
    more = "func.func private @sum(%v: tensor<8x8xf32>) -> tensor<8x8xf32> { "
    more += MANUAL.format(name="%q", value="%v", groups=groups) + " return %q : tensor<8x8xf32> }"
    body = """%z = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32> %end = stablehlo.constant dense<3> : tensor<i32>
      %w:2 = stablehlo.while(%i = %z, %v = %a) : tensor<i32>, tensor<8x8xf32>
        cond { %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
               stablehlo.return %c : tensor<i1> }
        do { %k = stablehlo.add %i, %one : tensor<i32>
             %u = func.call @sum(%v) : (tensor<8x8xf32>) -> tensor<8x8xf32>
             stablehlo.return %k, %u : tensor<i32>, tensor<8x8xf32> }
      %r = stablehlo.negate %w#1 : tensor<8x8xf32>"""
    go = '[{"x"}, {"y"}]'
    results = run(host, compiled(module("plain", body, go, go, more)), parts("plain", go))
    expected = A
    for _ in range(3):
        expected = np.tile(expected.reshape(4, 2, 8).sum(0), (4, 1))
    for result, wanted in zip(results, parts("plain", go, -expected), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_sums_left_to_do(host: Host) -> None:
    """An argument that is a sum of what the devices along y hold; a result left the same way."""
    go = '[{"x"}, {}], unreduced={"y"}'
    rows = [A.reshape(4, 2, 8)[place("plain", d)[0]] + 100 * place("plain", d)[1] for d in range(DEVICES)]
    whole = 2 * A + 100
    SHARDINGS[go] = ((4, 1), lambda x, y: (x, 0))
    results = run(host, compiled(module("plain", "%r = stablehlo.abs %a : tensor<8x8xf32>", go, "[{}, {}]")), rows)
    for result in results:
        np.testing.assert_array_equal(result, whole)
    results = run(host, compiled(module("plain", "%r = stablehlo.abs %a : tensor<8x8xf32>", "[{}, {}]", go)), [A] * 8)
    for x in range(4):
        np.testing.assert_array_equal(results[2 * x] + results[2 * x + 1], A[2 * x : 2 * x + 2])


def test_parts_that_become_terms(host: Host) -> None:
    """Rows along x are left unreduced along x: every device has its own among zeros; y copies them."""
    go = '[{}, {}], unreduced={"x"}'
    code = compiled(module("plain", "%r = stablehlo.abs %a : tensor<8x8xf32>", '[{"x"}, {}]', go))
    rows = [A[2 * place("plain", d)[0] :][:2] for d in range(DEVICES)]
    for device, result in enumerate(run(host, code, rows)):
        expected = np.zeros_like(A)
        first = 2 * place("plain", device)[0]
        expected[first : first + 2] = A[first : first + 2]
        np.testing.assert_array_equal(result, expected)


def test_products_that_are_left_unreduced(host: Host) -> None:
    """Each device's product of its columns and its rows is its term; sums of two such products are added as terms."""
    go = '[{}, {}], unreduced={"x"}'
    body = f"""%t = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
      %p = stablehlo.dot_general %t, %a, contracting_dims = [1] x [0] : {PAIR}
      %q = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] : {PAIR}
      %r = stablehlo.add %p, %q : tensor<8x8xf32>"""
    rows = [A[2 * place("plain", d)[0] :][:2] for d in range(DEVICES)]
    for mine, result in zip(rows, run(host, compiled(module("plain", body, '[{"x"}, {}]', go)), rows), strict=True):
        np.testing.assert_array_equal(result, 2 * mine.T @ mine)


@pytest.mark.parametrize(
    "body, come, error, words",
    [
        (TURN, '[{"z"}, {}]', FerruleError, "z"),
        ("%r = stablehlo.abs %a : tensor<8x8xf32>", '[{"x"}]', FerruleError, "sharding"),
    ],
)
def test_what_does_not_fit(body: str, come: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compiled(module("plain", body, come, "[{}, {}]"))


def test_dimensions_that_do_not_divide() -> None:
    text = module("plain", TURN, '[{"x"}, {}]', "[{}, {}]").replace("8x8", "6x6")
    with pytest.raises((Unsupported, InvalidArgument), match="divi"):
        compiled(text)


def test_a_device_whose_input_failed(host: Host) -> None:
    """The others, which wait for it in the sum, are told what happened there."""
    come = "[{}, {}]"
    body = MANUAL.format(name="%r", value="%a", groups="[[0,2,4,6],[1,3,5,7]]")
    executable = host.load(compiled(module("plain", body, come, come)))
    rows = [[host.put(A, memory=host.memory(d))] for d in range(DEVICES)]
    failed = host(
        "Client_CreateErrorBuffer",
        client=host.client,
        error_code=15,
        error_message="the disk is full",
        error_message_size=16,
        shape_dims=[8, 8],
        shape_num_dims=2,
        shape_element_type=11,
        memory=host.memory(3),
    )
    rows[3] = [failed.buffer]
    results = host.execute(executable, *rows, complete=False)
    for d, (result,) in enumerate(results):
        if d % 2 == 0:
            continue  # of another group, which may have met before
        with pytest.raises(PjrtError, match="the disk is full") as error:
            host.get(result)
        assert d == 3 or (error.value.code == "ABORTED" and "failed on device 3" in str(error.value)), d
