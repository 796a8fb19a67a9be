"""The benchmark harness: it runs a case on two engines, and a wrong result is reported as wrong, not as a time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from harness import check, report
from harness.case import load, select
from harness.limits import Limits, LimitsEngine
from harness.turns import Engine, Figure, Plan, measure

import ferrule

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PLAN = Plan(rounds=2, seconds=0.001, limit=60)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Workers of Ferrule, XLA and the reference, started once."""
    log = tmp_path_factory.mktemp("workers") / "log"
    found = {n: Engine(n, log) for n in ("ferrule", "xla", "reference")}
    if not any(e.value == "ferrule.frameworks.jax" for e in entry_points(group="jax_plugins")):
        found["ferrule"].environment["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"ferrule:{ferrule.library_path()}"
        found["ferrule"].environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    yield found
    for engine in found.values():
        engine.stop()


def case(word):
    return select(load([word.split("/")[0]]), [word])[0]


def test_two_engines_take_turns(engines, tmp_path):
    both = [engines["ferrule"], engines["xla"]]
    # A slow case has fewer rounds: on a busy machine even this one may take some milliseconds.
    plan = Plan(rounds=2, seconds=0.1, limit=60)
    figures, said, _ = measure(case("dispatch/x + 1"), both, engines["reference"], tmp_path, plan)
    assert not said
    for engine in both:
        figure = figures[engine.name]
        assert not engine.missing and not figure.said
        assert figure.error == 0 and figure.seconds > 0 and figure.first > figure.compile > 0
        assert len(figure.rounds) == plan.rounds


@pytest.mark.parametrize("key", ["random/normal, 1 M", "random/dropout", "layout/normalized bytes"])
def test_reference_is_wide(engines, tmp_path, key):
    """Of functions that name f32 themselves, too: errors are those of the engines, not the reference's own."""
    engines["reference"].ask(60, "reference", case(key).key, str(tmp_path))
    assert np.load(tmp_path / "0.npy").dtype == np.float64
    engines["ferrule"].ask(60, "prepare", case(key).key)
    assert 1e-9 < engines["ferrule"].ask(60, "check", case(key).key, str(tmp_path)) < 1.2e-7


def test_wrong_result(engines, tmp_path):
    """What the reference computed is changed by one in one place."""
    engine, tiny = engines["xla"], case("dispatch/x + 1")
    engines["reference"].ask(60, "reference", tiny.key, str(tmp_path))
    reference = np.load(tmp_path / "0.npy")
    np.save(tmp_path / "0.npy", reference + np.eye(4)[2])
    engine.ask(60, "prepare", tiny.key)
    assert engine.ask(60, "check", tiny.key, str(tmp_path)) == pytest.approx(1 / 4)

    class Wrong(Engine):
        """An engine whose results are off."""

        def ask(self, limit, request, *arguments):
            return 0.25 if request == "check" else engine.ask(limit, request, *arguments)

    wrong = Wrong("xla", engine.log)
    figures, *_ = measure(tiny, [wrong], engines["reference"], tmp_path, PLAN)
    figure = figures["xla"]
    assert figure.wrong and not figure.seconds and not figure.rounds
    row = {"area": "a", "name": "n", "figures": {**figures, "ferrule": Figure(seconds=1)}, "said": "", "limit": None}
    assert "**wrong**" in report.table([row], ["ferrule", "xla"])
    assert report.ratio(row["figures"], "xla") is None
    assert "wrong result" in report.remarks([row])[0]


def test_result_of_a_second_call(engines, tmp_path):
    """An engine that writes into an argument that was not donated is right once."""
    engine = engines["xla"]

    class Overwrites(Engine):
        def ask(self, limit, request, *arguments):
            found = engine.ask(limit, request, *arguments)
            return 0.5 if request == "check" and arguments[2] else found

    figures, *_ = measure(case("dispatch/x + 1"), [Overwrites("xla", engine.log)], engines["reference"], tmp_path, PLAN)
    figure = figures["xla"]
    assert figure.wrong and figure.error == 0.5 and not figure.rounds
    assert figure.said == "wrong result when called again with the same arguments: error 0.5 of the largest magnitude"


def test_missing_engine(tmp_path):
    """An engine that is not there says so and does not end the run."""
    engine = Engine("xla", tmp_path / "log", {"JAX_PLATFORMS": "nowhere"})
    assert not engine.start()
    assert "nowhere" in engine.missing


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ([1.0, -4.0, 2.0], 0.0),
        ([1.0, -4.0, 3.0], 0.25),
        ([1.0, np.nan, 2.0], np.inf),
        ([1.0, -4.0], np.inf),
    ],
)
def test_error(result, error, tmp_path):
    check.save([np.array([1.0, -4.0, 2.0])], tmp_path)
    assert check.error([np.array(result, np.float32)], tmp_path) == error


def test_every_area_has_cases():
    """Names are unique, and no area is empty."""
    keys = [c.key for c in load()]
    assert len(keys) == len(set(keys))
    assert {k.split("/")[0] for k in keys} == {p.stem for p in (BENCHMARKS / "cases").glob("*.py")} - {"__init__"}


def test_limits():
    limits = Limits({1 << 10: 400.0, 1 << 12: 100.0}, {1 << 10: 50.0}, {"f32": 10.0})
    assert [limits.bandwidth(n) for n in (1, 1 << 10, 1 << 11, 1 << 20)] == pytest.approx([400, 400, 200, 100])
    assert limits.better(Limits({1 << 10: 1.0, 1 << 12: 300.0}, {1 << 10: 60.0}, {"f32": 9.0})) == Limits(
        {1 << 10: 400.0, 1 << 12: 300.0}, {1 << 10: 60.0}, {"f32": 10.0}
    )
    copy = replace(case("layout/reverse, 16 M"), bytes=1000.0, flops=20.0)
    assert limits.moves(copy) and not limits.moves(replace(copy, flops=40.0))
    assert (limits.seconds(copy), limits.seconds(copy, rate=800.0)) == (2.5, 2.0)


def test_memory_is_measured_between_the_rounds(tmp_path):
    """Where memory is the limit: what it moves in a second changes with the others on the machine."""
    memory = Engine("limits", tmp_path / "log")
    try:
        *_, rate = measure(case("dispatch/x + 1"), [], None, tmp_path, Plan(2, 0.02, 60), memory)
    finally:
        memory.stop()
    assert rate == 0  # threads do not share so few bytes
    engine = LimitsEngine()
    for size, read_only in ((1 << 20, False), (1 << 27, True)):
        assert 1e8 < engine.rate(size, read_only, 0.01, 1) < 1e13


def test_unknown_engine():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", "--against", "tvm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "no engine is called tvm" in done.stderr
