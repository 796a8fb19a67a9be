"""A process that has used Ferrule forks: the child computes on, and fails only what the parent had not finished."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROLOGUE = """
import os, signal, sys
import numpy as np
from pjrt_host import Host, PjrtError, Table
from test_execute import F4, KERNELS, ONE
from ferrule.program import OUTPUT, PARAM, SMALL, Launch, Output, Param, Program, Slot
import llvmlite.binding as llvm

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic", codemodel="default")
code = machine.emit_object(llvm.parse_assembly(KERNELS))

def adder(kernel, flags=0):
    return Program(name="adder", params=[Param(F4), Param(F4)], outputs=[Output(F4)], flags=flags, objects=[code],
        functions=[(0, kernel)], slots=[Slot(PARAM, 0, 16), Slot(PARAM, 1, 16), Slot(OUTPUT, 0, 16)],
        blocks=[[Launch(0, 4, 4, (0, 1, 2))]]).serialize()

host = Host(Table.load(sys.argv[1]), num_devices=2)
queued, slow, small = host.load(adder("add")), host.load(adder("slow_add")), host.load(adder("add", SMALL))
one, big = host.put(ONE), host.put(np.arange(1 << 20, dtype=np.int32))

def compute():
    for program in (small, queued, slow):
        assert list(host.get(host.execute(program, [one, one])[0])) == [2, 2, 2, 2]
    copy = host("Buffer_CopyToMemory", buffer=big, dst_memory=host.memory(1)).dst_buffer
    assert host.get(copy)[-1] == (1 << 20) - 1

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang ends as a signal
        try:
            work()
            host.close()
            os._exit(7)
        except BaseException as error:
            print(type(error), error, file=sys.stderr, flush=True)
            os._exit(1)
    return child

def check(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 7, f"the child ended with {status}"  # less than 0: by that signal
"""


def run(native: Any, script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", PROLOGUE + script + "\nprint('fine')", str(native.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n" and done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", ["", "compute()"])
def test_the_child_computes(native: Any, before: str) -> None:
    run(native, f"{before}\nfor _ in range(3): check(in_child(compute))\ncompute()\nhost.close()")


def test_a_child_of_a_child_computes(native: Any) -> None:
    run(native, "compute()\ncheck(in_child(lambda: (compute(), check(in_child(compute)))))")


def test_what_was_not_finished_fails_in_the_child_only(native: Any) -> None:
    run(
        native,
        """
rows = [host.execute(slow, [one, one], complete=False)[0] for _ in range(3)]
second = host.execute(queued, [rows[-1], one], complete=False)[0]

def work():
    for buffer in (rows[1], rows[2], second):
        try:
            host.get(buffer)
        except PjrtError as error:
            assert error.code == "ABORTED" and "forked" in error.message, error
        else:
            raise AssertionError("it was there")
    compute()

child = in_child(work)
assert list(host.get(second)) == [3, 3, 3, 3]
check(child)
""",
    )
