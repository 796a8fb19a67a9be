"""The runner of JAX's tests on a suite with every sort of end, the manifest's rules, and samples of the real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import manifest  # noqa: E402
import two_targets  # noqa: E402
from jax_suite import runner, source  # noqa: E402

SUITE = """
    import os, sys, time, unittest
    from absl.testing import parameterized

    class Ends(parameterized.TestCase):
        def test_passes(self): pass
        def test_fails(self): self.assertEqual(1, 2)
        def test_is_skipped(self): self.skipTest("not here")
        def test_crashes(self): os.abort()
        def test_leaves(self): os._exit(3)
        def test_hangs(self): time.sleep(60)
        @unittest.expectedFailure
        def test_fails_as_expected(self): self.fail()
        @unittest.expectedFailure
        def test_passes_unexpectedly(self): pass
        def test_zero_parts(self):
            with self.subTest("a"): self.fail("in a part")
            with self.subTest("b"): pass
        @parameterized.parameters(lambda: 1, lambda: 2)
        def test_with_parameters(self, function): function()

    class Fixture(unittest.TestCase):
        @classmethod
        def setUpClass(cls): raise unittest.SkipTest("no such hardware")
        def test_never_begins(self): pass

    class Broken(unittest.TestCase):
        @classmethod
        def setUpClass(cls): raise RuntimeError("bad fixture")
        def test_never_begins(self): pass
"""
EXPECTED = {
    "Ends.test_passes": "pass",
    "Ends.test_fails": "fail",
    "Ends.test_is_skipped": "skip",
    "Ends.test_crashes": "crash",
    "Ends.test_leaves": "crash",
    "Ends.test_hangs": "timeout",
    "Ends.test_fails_as_expected": "pass",
    "Ends.test_passes_unexpectedly": "fail",
    "Ends.test_zero_parts": "fail",
    "Ends.test_with_parameters0": "pass",
    "Ends.test_with_parameters1": "pass",
    "Fixture.test_never_begins": "skip",
    "Broken.test_never_begins": "fail",
}


def outcomes(path: Path) -> dict[str, str]:
    return {test: line["outcome"] for (_, test), line in runner.read(path).outcomes.items()}


def test_every_sort_of_end(tmp_path: Path) -> None:
    """Each test has one result, whatever the others did to the process; a second run repeats only what it is told."""
    file = tmp_path / "ends_test.py"
    file.write_text(textwrap.dedent(SUITE))
    setup = runner.Setup("cpu", seconds=3)
    path = tmp_path / "results.jsonl"
    results = runner.Results.open(path, setup.header())
    runner.run([file], setup, results)
    assert outcomes(path) == EXPECTED
    whys = {test: line["why"] for (_, test), line in results.outcomes.items()}
    assert whys["Ends.test_crashes"] == "killed by SIGABRT"
    assert "1 != 2" in whys["Ends.test_fails"] and "bad fixture" in whys["Broken.test_never_begins"]

    # Cut off in the middle of a line, then taken up again: only what is missing runs.
    lines = path.read_text().splitlines()
    kept = [line for line in lines if "test_fails" not in line and "finished" not in line]
    path.write_text("\n".join(kept) + '\n{"file": "ends_t')
    again = runner.Results.open(path, setup.header())
    runner.run([file], setup, again)
    assert outcomes(path) == EXPECTED
    # Mended: the failures alone run again.
    file.write_text(file.read_text().replace("assertEqual(1, 2)", "assertEqual(1, 1)").replace("os.abort()", "pass"))
    runner.run([file], setup, runner.Results.open(path, setup.header()), again=("fail", "crash"))
    mended = {"Ends.test_fails": "pass", "Ends.test_crashes": "pass"}
    assert outcomes(path) == EXPECTED | mended
    with pytest.raises(ValueError, match="another setup"):
        runner.Results.open(path, runner.Setup("cpu", cases=3).header())


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    file = tmp_path / "broken_test.py"
    file.write_text("import no_such_module")
    setup = runner.Setup("cpu")
    results = runner.Results.open(tmp_path / "results.jsonl", setup.header())
    runner.run([file], setup, results)
    (line,) = results.outcomes.values()
    assert (line["test"], line["outcome"]) == ("(module)", "fail") and "no_such_module" in line["why"]


def test_the_manifest_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text('[[failure]]\ntests = ["a_test.A.*"]\nreason = "not yet"\nwhy = "no f6"\nmodes = ["x64"]\n')
    entries = manifest.load(path)
    run = {"a_test.A.one": "fail", "a_test.A.two": "skip", "b_test.B.one": "pass"}
    assert manifest.faults(entries, run, "x64") == []
    assert "does not know" in manifest.faults(entries, run, "default")[0]
    assert "says that it fails" in manifest.faults(entries, run | {"a_test.A.two": "pass"}, "x64")[0]
    path.write_text('[[failure]]\ntests = ["a"]\nreason = "whatever"\nwhy = "x"\n')
    with pytest.raises(ValueError, match="failure 1"):
        manifest.load(path)


def test_the_manifest_is_well_formed() -> None:
    patterns = [pattern for entry in manifest.load() for pattern in entry.tests]
    assert len(patterns) == len(set(patterns))
    assert all(pattern.split(".")[0].endswith("_test") for pattern in patterns), patterns


def test_the_page_compares_the_targets(tmp_path: Path) -> None:
    """Only what both ran counts; each difference stands with its reason, or as not explained."""
    outcomes = {
        "ferrule": {"A.one": "pass", "A.two": "pass", "A.three": "fail", "A.four": "pass", "A.alone": "pass"},
        "xpu": {"A.one": "pass", "A.two": "timeout", "A.three": "fail", "A.four": "fail"},
    }
    for platform, tests in outcomes.items():
        for kind, setup in (("one-in-10", {"one_in": 10}), ("8-devices", {"devices": 8})):
            header = runner.Setup(platform, **setup).header()
            results = runner.Results.open(tmp_path / f"jax-{platform}-{kind}.jsonl", header)
            for test, outcome in tests.items():
                results.add(dict(file="pmap_test", test=test, outcome=outcome, seconds=1, why=""))
    known = [
        manifest.Entry(("pmap_test.A.two",), "will not", "slow compiler", platforms=("xpu",)),
        manifest.Entry(("pmap_test.A.three",), "upstream bug", "of JAX"),
    ]
    page = two_targets.text(tmp_path, known)
    assert "**75.00 %** of 4 pass on `cpu` and\n**25.00 %** of 4 on `xpu`" in page
    assert "- will not: slow compiler (1): `pmap_test.A.two` (cpu pass, xpu fails)" in page
    assert "- not explained (1): `pmap_test.A.four` (cpu pass, xpu fails)" in page
    assert "What fails on both:\n\n- upstream bug: of JAX (1): `pmap_test.A.three`" in page
    assert "| pmap_test † | cpu | 4 | 1 | 0 | 0 | 0 |\n| pmap_test † | xpu | 1 | 2 | 0 | 1 | 0 |" in page
    assert "alone" not in page and "Not run on both: lax_test, " in page


def run(*arguments: str, results: Path) -> dict[str, str]:
    """A suite on Ferrule as a user runs it; its outcomes by test."""
    command = [sys.executable, str(HERE / "run.py"), *arguments, "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {f"{file}.{test}": line["outcome"] for (file, test), line in runner.read(results).outcomes.items()}


def judge(found: dict[str, str], at_least: int, results: Path, platform: str) -> None:
    whys = {f"{file}.{test}": line["why"] for (file, test), line in runner.read(results).outcomes.items()}
    faults = manifest.faults(manifest.load(), found, "default", platform)
    assert not faults, "\n".join(f"{fault}\n{whys.get(fault.split(':')[0], '')}" for fault in faults)
    passed = sum(outcome == "pass" for outcome in found.values())
    assert passed >= at_least, f"{passed} of {len(found)} passed"


@pytest.fixture(params=["ferrule", "xpu"])
def platform(request: pytest.FixtureRequest) -> str:
    if request.param == "xpu":
        request.getfixturevalue("xpu")
    return request.param


def test_a_sample_of_jax_primitives(tmp_path: Path, platform: str) -> None:
    """On xpu a smaller one: each program is compiled twice, by Ferrule and by the device."""
    results, part, at_least = tmp_path / "primitives.jsonl", *(("100", 45) if platform == "ferrule" else ("50", 90))
    judge(run("primitives", "--platform", platform, "--one-in", part, results=results), at_least, results, platform)


def test_a_sample_of_jax_own_tests(tmp_path: Path, platform: str) -> None:
    """About one in a hundred of JAX's tests; they are not in any package, so a machine may have no copy."""
    import importlib.metadata

    try:
        source.find(fetch=os.environ.get("FERRULE_FETCH_JAX_TESTS") == "1")
    except source.NoTests as reason:
        pytest.skip(str(reason))
    if importlib.metadata.version("jax") != "0.10.2":
        pytest.skip("the known failures are those of JAX 0.10.2")
    results = tmp_path / "jax.jsonl"
    names = ["lax_test", "lax_numpy_test", "lax_control_flow_test", "lax_numpy_indexing_test", "nn_test", "linalg_test"]
    found = run("jax", "--platform", platform, "--one-in", "100", "--files", *names, results=results)
    judge(found, 60, results, platform)


def test_results_say_how_they_were_made(tmp_path: Path) -> None:
    header = json.loads(json.dumps(runner.Setup("cpu", x64=True).header()))
    assert header["x64"] is True and header["jax"] and header["jaxlib"] and header["cases"] == 10
