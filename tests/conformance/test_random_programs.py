"""A sample of random programs, the reducer, and that the judge sees what is wrong."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "programs"
sys.path.append(str(FOLDER))

from artifact import parse  # noqa: E402
from case import Case, load  # noqa: E402
from condition import Endless, meaning  # noqa: E402
from generate import generate  # noqa: E402
from shrink import shrink  # noqa: E402
from verdict import judge  # noqa: E402

from ferrule.ir import Block, DotDims, Tensor  # noqa: E402
from ferrule.ir.types import f32  # noqa: E402
from ferrule.native import library_path  # noqa: E402
from ferrule.ops import OPS  # noqa: E402


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it forks, which a process with threads had better not."""
    line = [sys.executable, str(FOLDER / "run.py"), *arguments]
    environment = {**os.environ, "FERRULE_LIBRARY": library_path()}
    return subprocess.run(line, capture_output=True, text=True, timeout=600, env=environment, check=False)


def test_sample(tmp_path: Path) -> None:
    """Programs of every kind run and are right."""
    summary = tmp_path / "summary.json"
    ran = _command("--count", "300", "--seed", "1000000", "--jobs", "2", "--json", str(summary))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(summary.read_text())
    assert result["programs"] == 300
    assert result["states"]["ok"] >= 297, result["unsupported"]
    assert result["by_truth"]["interpreter"] > 200
    assert result["share_of_open_elements"] < 0.05


def test_sample_on_xpu(tmp_path: Path, xpu: None) -> None:
    summary = tmp_path / "summary.json"
    ran = _command("--count", "60", "--seed", "1000", "--jobs", "2", "--target", "xpu", "--json", str(summary))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(summary.read_text())["states"]["ok"] >= 59


@pytest.mark.parametrize("profile", ["large", "odd", "places", "matrices"])
def test_sample_of_others(profile: str) -> None:
    ran = _command("--count", "24", "--seed", "1000000", "--profile", profile)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_found_before() -> None:
    """What random programs once found stays right."""
    files = sorted((FOLDER / "found").glob("*.mlir"))
    ran = _command("--file", *map(str, files))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(": ok (truth: ") == len(files) > 3, ran.stdout


def test_same_seed_same_program(tmp_path: Path) -> None:
    for seed in range(40):
        first, second = generate(seed), generate(seed)
        assert first.text() == second.text()
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first.inputs, second.inputs, strict=True))
    assert len({generate(seed).text() for seed in range(40)}) > 38
    first.save(tmp_path / "case.mlir", "a note")
    again = load(tmp_path / "case.mlir")
    assert [x.tobytes() for x in again.inputs] == [x.tobytes() for x in first.inputs]


# ---- the judge's teeth ---------------------------------------------------------------------------------------------

Evaluate = Callable[..., Any]


def _other(name: str) -> Callable[[Evaluate], Evaluate]:
    return lambda right: OPS[name].evaluate  # type: ignore[return-value]


def _after(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Evaluate], Evaluate]:
    """The right results, changed."""

    def wrong(right: Evaluate) -> Evaluate:
        return lambda op, xs, run: [change(np.array(x)) for x in right(op, xs, run)]

    return wrong


def _scaled(ulps: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(x: np.ndarray) -> np.ndarray:
        if x.dtype not in (np.float32, np.float64):
            return x
        with np.errstate(all="ignore"):
            return (x * (1 + ulps * np.finfo(x.dtype).eps)).astype(x.dtype)

    return change


def _last_wrong(x: np.ndarray) -> np.ndarray:
    """The last element has the value of the first, as with a tail that is not handled."""
    flat = np.array(x).reshape(-1)
    if flat.size > 1:
        flat[-1] = flat[0]
    return flat.reshape(x.shape)


def _no_tail(right: Evaluate) -> Evaluate:
    """A reduction that misses the last element of what it reduces."""

    def wrong(op: Any, xs: Any, run: Any) -> Any:
        half = len(xs) // 2
        cut = [np.array(x) for x in xs[:half]]
        for x, init in zip(cut, xs[half:], strict=True):
            if x.size:
                x[(-1,) * x.ndim] = init
        return right(op, [*cut, *xs[half:]], run)

    return wrong


def _shifted(right: Evaluate) -> Evaluate:
    """Indices are one too large."""
    return lambda op, xs, run: right(op, [xs[0], *(np.asarray(x) + np.ones((), x.dtype) for x in xs[1:])], run)


def _swapped(right: Evaluate) -> Evaluate:
    return lambda op, xs, run: right(op, [xs[1], xs[0]], run)


WRONG: dict[str, tuple[str, Callable[[Evaluate], Evaluate], float]] = {
    "add is subtract": ("add", _other("subtract"), 0.5),
    "subtract backwards": ("subtract", _swapped, 0.5),
    "floor is ceil": ("floor", _other("ceil"), 0.3),
    "maximum is minimum": ("maximum", _other("minimum"), 0.3),
    "minimum forgets NaN": ("minimum", lambda _: lambda op, xs, run: [np.fmin(*xs).astype(xs[0].dtype)], 0.02),
    "multiply one ulp off": ("multiply", _after(_scaled(1.0)), 0.05),
    "exponential 30 ulps off": ("exponential", _after(_scaled(30.0)), 0.15),
    "tanh 1000 ulps off": ("tanh", _after(_scaled(1000.0)), 0.15),
    "division 4 ulps off": ("divide", _after(_scaled(4.0)), 0.05),
    "products 50 ulps off": ("dot_general", _after(_scaled(50.0)), 0.1),
    "convolutions 50 ulps off": ("convolution", _after(_scaled(50.0)), 0.1),
    "the last element of select": ("select", _after(_last_wrong), 0.2),
    "the last element of transpose": ("transpose", _after(_last_wrong), 0.3),
    "the last element of convert": ("convert", _after(_last_wrong), 0.2),
    "reductions without their last": ("reduce", _no_tail, 0.3),
    "windows without their last": ("reduce_window", _no_tail, 0.2),
    "slices one further": ("dynamic_slice", _shifted, 0.2),
    "the last element of gather": ("gather", _after(_last_wrong), 0.2),
    "the last element of scatter": ("scatter", _after(_last_wrong), 0.2),
    "sorted the other way": ("sort", _after(lambda x: x[::-1] if x.ndim == 1 else x[:, ::-1]), 0.2),
    "shifts by bits": ("shift_left", _other("shift_right_logical"), 0.2),
}


_drawn = cache(generate)


def _programs_with(name: str, count: int, loops: bool = False) -> list[Case]:
    found: list[Case] = []
    for seed in range(600):
        case = _drawn(seed)
        if name in case.ops() and (loops or "while" not in case.ops()):  # with wrong ops a loop may not end
            found.append(case)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("label", WRONG)
def test_judge_sees_a_wrong_meaning(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One op computed wrongly: many of the programs that have it are judged wrong, and each is right without."""
    name, change, share = WRONG[label]
    cases = _programs_with(name, 12)
    right = [meaning(case) for case in cases]
    assert all(judge(c, r, r, r).good for c, r in zip(cases, right, strict=True))
    evaluate = OPS[name].evaluate
    assert evaluate is not None
    wrong = change(evaluate)
    caught = 0
    for case, truth in zip(cases, right, strict=True):
        monkeypatch.setattr(OPS[name], "evaluate", wrong)
        found = meaning(case)
        monkeypatch.setattr(OPS[name], "evaluate", evaluate)
        caught += not judge(case, found, truth, truth).good
    assert caught >= share * len(cases), f"{caught} of {len(cases)} programs with {name} were judged wrong"


@pytest.mark.parametrize("kind", ["product", "sum", "dot_general"])
def test_judge_knows_that_parts_overflow(kind: str) -> None:
    """Part of a fold may be infinite where the whole, in order, is not; what is finite is judged as ever."""
    top = np.finfo(np.float32).max
    x = np.full(24, 1.5, np.float32)
    x[-2:] = (2.0**-23, top) if kind == "product" else (-top, top)
    x[0] = x[0] if kind == "product" else top / 2
    vector, scalar = Tensor((24,), f32), Tensor((), f32)
    body = Block([vector, vector])
    if kind == "dot_general":
        ones, numbers = np.ones(24, np.float32), DotDims((), (), (0,), (0,))
        op = body.add(kind, body.args, scalar, {"dot_dimension_numbers": numbers})
    else:
        fold = Block([scalar, scalar])
        fold.results = [fold.add("multiply" if kind == "product" else "add", fold.args, scalar).result]
        ones = np.zeros(24, np.float32)
        init = body.add("constant", [], scalar, {"value": np.float32(kind == "product").reshape(())}).result
        op = body.add("reduce", [body.args[0], init], [scalar], {"dimensions": (0,)}, [fold])
    body.results = list(op.results)
    case = Case(body, [x, ones])
    truth = meaning(case)
    assert np.isfinite(truth[0])
    assert judge(case, [np.array(np.inf, np.float32)], truth).good
    small = Case(body, [np.where(np.abs(x) > 2, 0.5, x).astype(np.float32), ones])
    truth = meaning(small)
    assert not judge(small, [np.array(np.inf, np.float32)], truth).good
    assert not judge(small, [np.float32(2) * truth[0]], truth).good


# ---- the reducer ---------------------------------------------------------------------------------------------------


@dataclass
class _Found:
    state: str
    cause: str = ""
    detail: str = ""


class _Broken:
    """A stand-in for the bench whose library fails on an op."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, case: Case) -> tuple[_Found, Case]:
        try:
            meaning(case)
        except Endless:
            return _Found("ok"), case
        return _Found("crash" if self.name in case.ops() else "ok"), case


@pytest.mark.parametrize("name", ["floor", "gather", "reduce", "while", "dynamic_update_slice"])
def test_shrink(name: str) -> None:
    """A large program becomes the op that fails, with operands of few elements."""
    case = max(_programs_with(name, 6, loops=True), key=lambda c: len(c.ops()))
    before = copy.deepcopy(case)
    small, record = shrink(case, _Found("crash"), _Broken(name), seconds=60)
    assert record.state == "crash"
    assert name in small.ops()
    parse(small.text())
    outside = [op.name for op in small.body.ops if op.name != "constant"]
    assert len(outside) <= 2, small.text()
    assert case.text() == before.text()
    assert len(small.inputs) == len(small.body.args)
    meaning(small)
