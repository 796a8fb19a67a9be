"""Runs the tests of one file of JAX's suite and reports each as a line of JSON on the pipe `--report`.

A process of its own, because a test may crash or hang: the parent (runner.py) then knows which test it was, writes that
down, and starts another worker for those that are left.
"""

import argparse
import faulthandler
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
import unittest
import zlib
from pathlib import Path


def load(path: Path):
    """The test module, as if it were run from its folder."""
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    sys.path.insert(1, str(path.parent.parent))  # a few files say `from tests import …`
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    from absl import flags

    if not flags.FLAGS.is_parsed():  # absltest's temporary folders ask for flags
        flags.FLAGS.mark_as_parsed()
    return module


def flatten(suite) -> list[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [test for part in suite for test in flatten(part)]


def name(test) -> str:
    """`LaxTest.testConv0`; a failed class or module fixture is no test and reads `setUpClass (m.LaxTest)`.

    Not `test.id()`: absl appends the parameters to it, and addresses of functions among them change with the process.
    """
    return f"{type(test).__name__}.{test._testMethodName}" if isinstance(test, unittest.TestCase) else str(test)


class Reporter(unittest.TestResult):
    def __init__(self, pipe) -> None:
        super().__init__()
        self.pipe = pipe
        self.began = 0.0
        self.outcome: tuple[str, str] | None = None
        self.fixtures: dict[str, tuple[str, str]] = {}
        self.reported: set[str] = set()

    def send(self, **line) -> None:
        self.pipe.write(json.dumps(line) + "\n")
        self.pipe.flush()

    def startTest(self, test) -> None:
        self.send(start=name(test))
        self.began, self.outcome = time.monotonic(), None
        super().startTest(test)

    def stopTest(self, test) -> None:
        outcome, why = self.outcome or ("pass", "")
        self.send(test=name(test), outcome=outcome, seconds=round(time.monotonic() - self.began, 3), why=why)
        self.reported.add(name(test))
        super().stopTest(test)

    def never_began(self, test) -> None:
        """A class whose fixture failed or was skipped: unittest does not even start its tests."""
        of = next((said for fixture, said in self.fixtures.items() if type(test).__name__ in fixture), None)
        outcome, why = of or ("fail", "unittest did not start it")
        self.send(test=name(test), outcome=outcome, seconds=0, why=why)

    def _failed(self, test, error) -> None:
        kind, value, trace = error
        last = "".join(traceback.format_tb(trace)[-3:])
        why = f"{kind.__name__}: {str(value)[:1500]}\n{last[-1500:]}"
        if not isinstance(test, unittest.TestCase):  # a class fixture: no startTest came before
            self.fixtures[name(test)] = ("fail", f"{name(test)}: {why}")
        elif self.outcome is None or self.outcome[0] != "fail":
            self.outcome = ("fail", why)

    def addFailure(self, test, error) -> None:
        self._failed(test, error)

    def addError(self, test, error) -> None:
        self._failed(test, error)

    def addSubTest(self, test, subtest, error) -> None:
        if error is not None:
            self._failed(test, error)

    def addSkip(self, test, reason) -> None:
        if not isinstance(test, unittest.TestCase):
            self.fixtures[name(test)] = ("skip", reason[:300])
        elif self.outcome is None:
            self.outcome = ("skip", reason[:300])

    def addUnexpectedSuccess(self, test) -> None:
        self.outcome = ("fail", "passes although the test expects a failure")


def resident() -> int:
    """Bytes in memory now. Not getrusage's maximum, which a process inherits from a parent that was large."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--report", type=int, required=True, help="file descriptor")
    parser.add_argument("--at-most", type=int, default=1500, help="tests before the process is exchanged")
    parser.add_argument("--gigabytes", type=float, default=3, help="memory before the process is exchanged")
    parser.add_argument("--treat-as", default="", help="what the tests take the device for")
    parser.add_argument("--one-device", action="store_true")
    parser.add_argument("--one-in", type=int, default=1, help="a sample: the tests whose name's checksum this divides")
    options = parser.parse_args()
    faulthandler.enable()
    done = set(json.load(sys.stdin))
    reporter = Reporter(os.fdopen(options.report, "w"))

    import jax._src.test_util as jtu

    import jax

    # Before the tests are loaded: decorators ask it. It is a flag of absl's, which no environment variable sets.
    jax.config.update("jax_test_dut", options.treat_as)
    if options.one_device:
        # A plugin has the devices that it has; without this, jaxlib's CPU runs tests that no other platform can.
        jtu.request_cpu_devices = lambda count: None
    try:
        module = load(options.file)
        tests = flatten(unittest.defaultTestLoader.loadTestsFromModule(module))
    except unittest.SkipTest as reason:
        reporter.send(test="(module)", outcome="skip", seconds=0, why=str(reason)[:300])
        reporter.send(tests=["(module)"])
        return
    except BaseException:
        reporter.send(test="(module)", outcome="fail", seconds=0, why=traceback.format_exc()[-3000:])
        reporter.send(tests=["(module)"])
        return
    tests = [test for test in tests if zlib.crc32(name(test).encode()) % options.one_in == 0]
    reporter.send(tests=[name(test) for test in tests])
    left = [test for test in tests if name(test) not in done]
    for start in range(0, min(len(left), options.at_most), 50):
        if resident() > options.gigabytes * 2**30:
            break
        some = left[start : min(start + 50, options.at_most)]
        unittest.TestSuite(some).run(reporter)
        for test in some:
            if name(test) not in reporter.reported:
                reporter.never_began(test)


if __name__ == "__main__":
    main()
    # What JAX and its plugins do at exit is none of the tests' business, and some files leave threads behind.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
