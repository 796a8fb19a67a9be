"""A program whose callers wait for it runs on their threads (native/awaited.h)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, PjrtError, Table

from ferrule.ir.types import BY_NUMPY, Tensor
from ferrule.program import OUTPUT, PARAM, TIMED, UNKNOWN, Launch, Output, Param, Program, Slot

# out[i] = a[i] + 1, after so many steps of nothing.
KERNEL = """
define void @add_NAME(ptr %p, i64 %begin, i64 %end) {
  br label %wait
wait:
  %n = phi i64 [0, %0], [%m, %wait]
  %m = add i64 %n, 1
  %ignored = load volatile i64, ptr %p
  %enough = icmp eq i64 %m, STEPS
  br i1 %enough, label %go, label %wait
go:
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %o = load ptr, ptr %p1
  br label %loop
loop:
  %i = phi i64 [%begin, %go], [%next, %loop]
  %pa = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %pa
  %z = fadd float %x, 1.0
  %po = getelementptr float, ptr %o, i64 %i
  store float %z, ptr %po
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %end
  br i1 %done, label %exit, label %loop
exit:
  ret void
}
"""
STEPS = {"quick": 300_000, "slow": 60_000_000}  # a tenth of a millisecond and tens of them
F4 = Tensor((4,), next(d for d in BY_NUMPY.values() if d.numpy == np.float32))
ONE = np.ones(4, np.float32)
ENOUGH = 12  # runs after which a habit counts, or is forgotten


@pytest.fixture(scope="session")
def code(assemble: Callable[..., bytes]) -> bytes:
    return assemble("".join(KERNEL.replace("NAME", n).replace("STEPS", str(s)) for n, s in STEPS.items()))


class Caller:
    """A host with little memory: only a run on the caller's thread fails for want of it within the call."""

    def __init__(self, table: Table, code: bytes) -> None:
        self.host = Host(table, memory_limit_bytes=1 << 20)
        self.code = code

    def load(self, kernel: str = "quick", alias: int = -1, flags: int = 0) -> int:
        return self.host.load(
            Program(
                name="add",
                params=[Param(F4, alias)],
                outputs=[Output(F4)],
                flags=flags,
                objects=[self.code],
                functions=[(0, f"add_{kernel}")],
                slots=[Slot(PARAM, 0, 16), Slot(OUTPUT, 0, 16)],
                blocks=[[Launch(0, 4, 4, (0, 1))]],
                fingerprint="abc",
                arena_bytes=1 << 19,
            ).serialize()
        )

    def run(self, executable: int, x: int, rest: float | None = 0) -> int:
        """One run, whose caller waits for it after so many seconds, or not at all."""
        (out,) = self.host.execute(executable, [x], complete=False)
        if rest is not None:
            if rest > 0:
                time.sleep(rest)
            self.host.wait(self.host("Buffer_ReadyEvent", buffer=out).event)
        return out

    def runs(self, executable: int, rest: float | None = 0) -> None:
        x = self.host.put(ONE)
        outs = [self.run(executable, x, rest) for _ in range(ENOUGH)]
        assert all(list(self.host.get(out)) == [2, 2, 2, 2] for out in outs)
        self.host.destroy(x, *outs)

    def on_its_thread(self, executable: int) -> bool:
        x, block = self.host.put(ONE), self.host.put(np.ones(3 << 16, np.float32))
        try:
            (out,) = self.host.execute(executable, [x], complete=False)
            with pytest.raises(PjrtError, match="out of memory"):
                self.host.get(out)
            self.host.destroy(out)
            return False
        except PjrtError:
            return True
        finally:
            self.host.destroy(x, block)

    def comes_to_run(self, executable: int) -> bool:
        """On its thread, at one time: on a busy machine a caller may be late now and then."""
        for _ in range(20):
            self.runs(executable)
            if self.on_its_thread(executable):
                return True
        return False


@pytest.fixture
def caller(native: Any, code: bytes) -> Iterator[Caller]:
    made = Caller(Table.load(str(native.path)), code)
    yield made
    made.host.close()


@pytest.mark.parametrize("flags", [0, TIMED])
def test_an_awaited_program_runs_on_its_callers_thread(caller: Caller, flags: int) -> None:
    program = caller.load(flags=flags)
    caller.runs(program, rest=None)
    assert not caller.on_its_thread(program)
    assert caller.comes_to_run(program)
    caller.runs(program, rest=None)  # the habit changes
    assert not caller.on_its_thread(program)


def test_not_where_callers_have_other_work(caller: Caller) -> None:
    program = caller.load()
    caller.runs(program, rest=0.002)
    assert not caller.on_its_thread(program)


def test_not_where_it_takes_long(caller: Caller) -> None:
    program = caller.load("slow")
    caller.runs(program)
    assert not caller.on_its_thread(program)


def test_not_where_nothing_ends_a_long_loop(caller: Caller) -> None:
    program = caller.load(flags=UNKNOWN)
    caller.runs(program)
    assert not caller.on_its_thread(program)
    timed = caller.load(alias=0, flags=TIMED)  # what it read is gone: it could not start anew
    for _ in range(ENOUGH):
        x = caller.host.put(ONE)
        out = caller.run(timed, x)
        assert list(caller.host.get(out)) == [2, 2, 2, 2]
        caller.host.destroy(x, out)
    assert not caller.on_its_thread(timed)


def test_each_program_has_its_own_habit(caller: Caller) -> None:
    one, other = caller.load(), caller.load("slow")
    assert caller.comes_to_run(one)
    assert not caller.on_its_thread(other)


def test_donated_arguments(caller: Caller) -> None:
    program = caller.load(alias=0)
    x = caller.host.put(ONE)
    for n in range(3 * ENOUGH):
        before, x = x, caller.run(program, x)
        assert caller.host.deleted(before)
        assert list(caller.host.get(x)) == [n + 2] * 4
        caller.host.destroy(before)
    caller.host.destroy(x)


def test_what_is_under_way_is_waited_for(caller: Caller) -> None:
    program, slow = caller.load(), caller.load("slow")
    assert caller.comes_to_run(program)
    x = caller.host.put(ONE)
    first = caller.run(slow, x, rest=None)
    second = caller.run(program, first, rest=None)
    assert list(caller.host.get(second)) == [3, 3, 3, 3]
    caller.host.destroy(x, first, second)
