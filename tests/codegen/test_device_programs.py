"""Whole programs on the device: control flow without the host, and rows in one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from on_device import GPU, NARROW, Runner, queue

from ferrule.pipeline import compile_program
from ferrule.program import Case, While
from ferrule.stablehlo.reader import read
from ferrule.targets.reference import evaluate_module


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    queue()


def run(text: str, *args: np.ndarray) -> Runner:
    """Runs a program and compares its results with their meaning."""
    wanted = evaluate_module(read(text.encode(), "mlir"), args)
    for target in (NARROW, GPU):
        program = compile_program(text.encode(), target=target)
        runner = Runner(program)
        for got, want in zip(runner(*args), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    runner.hosted = [s for steps in program.blocks for s in steps if isinstance(s, While | Case)]  # type: ignore[attr-defined]
    return runner


def collatz(kind: str, more: str = "") -> str:
    """Steps until 1; `kind` is a scalar's type, or an array's whose elements also move along."""
    return f"""
    func.func @main(%n: tensor<i32>, %x: {kind}) -> (tensor<i32>, {kind}) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:3 = stablehlo.while(%a = %n, %steps = %zero, %y = %x) : tensor<i32>, tensor<i32>, {kind}
       cond {{
        %one = stablehlo.constant dense<1> : tensor<i32>
        %more = stablehlo.compare NE, %a, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %one = stablehlo.constant dense<1> : tensor<i32>
        %two = stablehlo.constant dense<2> : tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<i32>
        %half = stablehlo.divide %a, %two : tensor<i32>
        %odd = stablehlo.remainder %a, %two : tensor<i32>
        %is = stablehlo.compare EQ, %odd, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %t = stablehlo.multiply %a, %three : tensor<i32>
        %up = stablehlo.add %t, %one : tensor<i32>
        %next = stablehlo.select %is, %up, %half : tensor<i1>, tensor<i32>
        %s = stablehlo.add %steps, %one : tensor<i32>
        {more}
        stablehlo.return %next, %s, %z : tensor<i32>, tensor<i32>, {kind}
      }}
      return %r#1, %r#2 : tensor<i32>, {kind}
    }}"""


def test_a_loop_over_scalars_is_one_kernel() -> None:
    text = collatz(
        "tensor<f32>",
        "%c = stablehlo.convert %a : (tensor<i32>) -> tensor<f32> %z = stablehlo.add %y, %c : tensor<f32>",
    )
    runner = run(text, np.int32(27), np.float32(0))
    assert not runner.hosted and runner.launches <= 2  # type: ignore[attr-defined]


def test_a_loop_over_elements_is_one_kernel() -> None:
    more = """
        %c = stablehlo.convert %a : (tensor<i32>) -> tensor<f32>
        %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<3x100xf32>
        %q = stablehlo.sine %b : tensor<3x100xf32>
        %z = stablehlo.add %y, %q : tensor<3x100xf32>"""
    runner = run(collatz("tensor<3x100xf32>", more), np.int32(27), np.random.rand(3, 100).astype(np.float32))
    assert not runner.hosted and runner.launches <= 2  # type: ignore[attr-defined]


def test_a_loop_that_mixes_elements_stays_a_loop() -> None:
    more = """
        %b = stablehlo.reverse %y, dims = [0] : tensor<5xf32>
        %z = stablehlo.add %y, %b : tensor<5xf32>"""
    runner = run(collatz("tensor<5xf32>", more), np.int32(6), np.arange(5, dtype=np.float32))
    assert len(runner.hosted) == 1  # type: ignore[attr-defined]


def test_short_loops_are_written_out() -> None:
    text = """
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<64xf32>
       cond {
        %end = stablehlo.constant dense<5> : tensor<i32>
        %more = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %i, %one : tensor<i32>
        %b = stablehlo.reverse %y, dims = [0] : tensor<64xf32>
        %z = stablehlo.subtract %y, %b : tensor<64xf32>
        stablehlo.return %next, %z : tensor<i32>, tensor<64xf32>
      }
      return %r#1 : tensor<64xf32>
    }"""
    assert not run(text, np.random.rand(64).astype(np.float32)).hosted  # type: ignore[attr-defined]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3])
def test_cheap_branches_are_both_computed(index: int) -> None:
    text = """
    func.func @main(%i: tensor<i32>, %x: tensor<9xf32>) -> (tensor<9xf32>, tensor<i32>) {
      %r:2 = "stablehlo.case"(%i) ({
        %y = stablehlo.sine %x : tensor<9xf32>
        stablehlo.return %y, %i : tensor<9xf32>, tensor<i32>
      }, {
        %c = stablehlo.constant dense<7> : tensor<i32>
        stablehlo.return %x, %c : tensor<9xf32>, tensor<i32>
      }, {
        %y = stablehlo.reverse %x, dims = [0] : tensor<9xf32>
        %c = stablehlo.add %i, %i : tensor<i32>
        stablehlo.return %y, %c : tensor<9xf32>, tensor<i32>
      }) : (tensor<i32>) -> (tensor<9xf32>, tensor<i32>)
      return %r#0, %r#1 : tensor<9xf32>, tensor<i32>
    }"""
    assert not run(text, np.int32(index), np.random.rand(9).astype(np.float32)).hosted  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(5, 40), (3, 7, 100), (1, 1000), (260, 33)])
@pytest.mark.parametrize("keep", [True, False])
def test_rows_are_one_kernel(shape: tuple[int, ...], keep: bool) -> None:
    """A layer norm: two reductions along the rows, the second of what the first gives."""
    whole, row = ("x".join(map(str, s)) for s in (shape, shape[:-1]))
    column = "x".join(map(str, (*shape[:-1], 1)))
    last, dims = len(shape) - 1, list(range(len(shape)))

    def spread(name: str) -> str:
        """The value of each row in all its places, directly or through a dimension of one."""
        if not keep:
            return f"""%{name}s = stablehlo.broadcast_in_dim %{name}, dims = {dims[:-1]}
          : (tensor<{row}xf32>) -> tensor<{whole}xf32>"""
        return f"""%{name}k = stablehlo.reshape %{name} : (tensor<{row}xf32>) -> tensor<{column}xf32>
        %{name}s = stablehlo.broadcast_in_dim %{name}k, dims = {dims} : (tensor<{column}xf32>) -> tensor<{whole}xf32>"""

    text = f"""
    func.func @main(%x: tensor<{whole}xf32>) -> tensor<{whole}xf32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %n = stablehlo.constant dense<{shape[-1]}.0> : tensor<{row}xf32>
      %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [{last}]
        : (tensor<{whole}xf32>, tensor<f32>) -> tensor<{row}xf32>
      %mean = stablehlo.divide %sum, %n : tensor<{row}xf32>
      {spread("mean")}
      %d = stablehlo.subtract %x, %means : tensor<{whole}xf32>
      %dd = stablehlo.multiply %d, %d : tensor<{whole}xf32>
      %var = stablehlo.reduce(%dd init: %zero) applies stablehlo.add across dimensions = [{last}]
        : (tensor<{whole}xf32>, tensor<f32>) -> tensor<{row}xf32>
      %r = stablehlo.rsqrt %var : tensor<{row}xf32>
      {spread("r")}
      %y = stablehlo.multiply %d, %rs : tensor<{whole}xf32>
      return %y : tensor<{whole}xf32>
    }}"""
    assert run(text, np.random.rand(*shape).astype(np.float32)).launches == 1


def test_long_lines_are_sorted_and_added_up_in_parts() -> None:
    """Lines long enough that a GPU, too, sorts by digits, with parts left over; running totals from both ends."""
    n = 65_601
    text = f"""
    func.func @main(%x: tensor<{n}xf32>, %k: tensor<{n}xi32>) ->
        (tensor<{n}xf32>, tensor<{n}xi32>, tensor<{n}xi32>, tensor<{n}xi32>) {{
      %i = stablehlo.iota dim = 0 : tensor<{n}xi32>
      %s:2 = "stablehlo.sort"(%x, %i) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
        %p = stablehlo.compare GT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }}) {{dimension = 0 : i64, is_stable = true}} :
        (tensor<{n}xf32>, tensor<{n}xi32>) -> (tensor<{n}xf32>, tensor<{n}xi32>)
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %up = "stablehlo.reduce_window"(%k, %zero) ({{
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %q = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %q : tensor<i32>
      }}) {{window_dimensions = array<i64: {n}>, padding = dense<[[{n - 1}, 0]]> : tensor<1x2xi64>}} :
        (tensor<{n}xi32>, tensor<i32>) -> tensor<{n}xi32>
      %down = "stablehlo.reduce_window"(%k, %zero) ({{
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %q = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %q : tensor<i32>
      }}) {{window_dimensions = array<i64: {n}>, padding = dense<[[0, {n - 1}]]> : tensor<1x2xi64>}} :
        (tensor<{n}xi32>, tensor<i32>) -> tensor<{n}xi32>
      return %s#0, %s#1, %up, %down : tensor<{n}xf32>, tensor<{n}xi32>, tensor<{n}xi32>, tensor<{n}xi32>
    }}"""
    random = np.random.default_rng(5)
    x = random.integers(-500, 500, n).astype(np.float32)
    x[::1000], x[1::1000], x[2::1000], x[3::1000] = np.nan, -np.nan, -0.0, np.inf
    k = random.integers(-9, 9, n).astype(np.int32)
    bits = x.view(np.int32)
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)
    order = np.argsort(-keys, kind="stable")
    for target in (NARROW, GPU):
        program = compile_program(text.encode(), target=target)
        values, places, up, down = Runner(program)(x, k)
        assert any("digit_scatter" in f.symbol for f in program.functions)
        np.testing.assert_array_equal(places, order)
        assert values.tobytes() == x[order].tobytes()
        np.testing.assert_array_equal(up, np.cumsum(k))
        np.testing.assert_array_equal(down, np.cumsum(k[::-1])[::-1])
