"""The cases of test_kernels.py on the device: what is true of kernels for processors is true of those for GPUs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import test_kernels
from fused import Case, case, difference, evaluate, guarded, monoid
from on_device import GPU, NARROW, LinkedDevice, machine, queue

from ferrule.codegen.kernel import emit_kernel
from ferrule.targets.machine import Machine

# Those that look at the processor's code itself.
ELSEWHERE = {"test_other_machines"}
TESTS = {
    name: function
    for name, function in inspect.getmembers(test_kernels, inspect.isfunction)
    if name.startswith("test_") and "check" in function.__code__.co_names and name not in ELSEWHERE
}


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    queue()


def check(cases: Sequence[Case], _: Machine | None = None) -> None:
    for target in (NARROW, GPU):
        check_on(target, cases)


def check_on(target: str, cases: Sequence[Case]) -> None:
    kernels = [emit_kernel(c.block, f"k{i}", machine(target)) for i, c in enumerate(cases)]
    linked = LinkedDevice(kernels, machine(target))
    wrong = []
    for c, kernel in zip(cases, kernels, strict=True):
        expected = evaluate(c.block, c.args)
        args = [guarded(a) for a in c.args]
        outs = [np.ones(r.shape, r.dtype.numpy) for r in c.block.results]
        for i in range(c.inplace):
            outs[i] = args[i]
        linked.run(kernel, [*args, *outs])
        for got, want, value in zip(outs, expected, c.block.results, strict=True):
            if message := difference(got, want, value.dtype, c.tolerance):
                wrong.append(f"{c.name}: {message}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(TESTS))
def test_on_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_kernels, "check", check)
    function: Callable[[], None] = TESTS[name]
    marks = [m for m in getattr(function, "pytestmark", []) if m.name == "parametrize"]
    if not marks:
        function()
    for values in marks[0].args[1] if marks else []:
        function(*(values if "," in marks[0].args[0] else [values]))


def spread(g, x, shape: tuple[int, ...], *dimensions: int):  # type: ignore[no-untyped-def]
    """x over the dimensions of a larger array."""
    places = tuple(d % len(shape) for d in dimensions)
    return test_kernels.broadcast(shape, places)(g, x)


@pytest.mark.parametrize("shape", [(33, 65), (100, 40), (3, 70, 50), (64, 64), (16, 300), (2, 2, 31, 96)])
def test_transposes(shape: tuple[int, ...]) -> None:
    """Squares through shared memory or vectors, with edges, and other operands that lie along, or across."""
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    turned = tuple(shape[d] for d in order)
    check(
        [
            case("turn", [(shape, d)], lambda g, x: g("transpose", x, permutation=order))
            for d in ("f32", "f64", "bf16", "i8", "i64", "ui32", "complex<f32>", "i1")
        ]
        + [
            case(
                "turn two",
                [(shape, "f32"), (shape, "f32"), (shape[-1:], "f32"), (shape[-2:-1], "f32")],
                lambda g, x, y, v, w: g(
                    "multiply",
                    g("transpose", g("add", x, g("multiply", y, spread(g, v, shape, -1))), permutation=order),
                    spread(g, w, turned, -1),
                ),
            ),
            case(
                "turn a part",
                [(shape[-2:], "f32")],
                lambda g, x: g("transpose", spread(g, x, shape, -2, -1), permutation=order),
            ),
            case(
                "turn and add",
                [(shape, "f32"), (turned, "f32")],
                lambda g, x, y: g("add", g("transpose", x, permutation=order), y),
            ),
        ]
    )


@pytest.mark.parametrize("rows", [1, 3, 40, 300])
@pytest.mark.parametrize("columns", [16, 31, 64, 100, 1000, 5000])
def test_teams(rows: int, columns: int) -> None:
    """Reductions by teams of every size, with rows and elements left over."""

    def total(name: str, dtype: str, start: float):  # type: ignore[no-untyped-def]
        return lambda g, x: g("reduce", x, g.const(start, dtype), regions=[monoid(name, dtype)], dimensions=(1,))

    check(
        [
            case("sum", [((rows, columns), "f32")], total("add", "f32", 0.0), tolerance=1e-4),
            case("bf16", [((rows, columns), "bf16")], total("add", "bf16", 0.0), tolerance=2e-2),
            case("max", [((rows, columns), "i32")], total("maximum", "i32", -(1 << 31))),
            case("and", [((rows, columns), "i1")], total("and", "i1", 1)),
            case("complex", [((rows, columns), "complex<f32>")], total("add", "complex<f32>", 0.0), tolerance=1e-4),
        ]
    )
