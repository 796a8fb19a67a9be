"""The runtime of a driver's devices, on the CPU device that stands in for a GPU: programs written by hand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, PjrtError, Table
from spirv_kernels import add_both, spirv, work

from ferrule.ir.types import BY_NUMPY, Tensor
from ferrule.program import ARENA, OUTPUT, PARAM, Call, Case, Copy, Entry, Launch, Output, Param, Program, Slot, While

I32 = BY_NUMPY[np.dtype(np.int32)]


@pytest.fixture(scope="module")
def table(native: Any, xpu: None) -> Table:
    return Table.load(str(native.path))


@pytest.fixture(params=["host access", "no host access"])
def host(table: Table, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Two logical devices; in the second round their memory is treated as a GPU's."""
    monkeypatch.setenv("FERRULE_XPU_DEVICE", "cpu")
    if request.param == "no host access":
        monkeypatch.setenv("FERRULE_HOST_ACCESS", "0")
    host = Host(table, target="xpu", num_devices=2)
    yield host
    host.close()


def vector(count: int) -> Tensor:
    return Tensor((count,), I32)


def copies(count: int, arena: int, moves: list[tuple[int, int, int]], alias: int = -1) -> Program:
    """A program of copies between ranges of the arena: (to, from, length) in elements; then all of it is the output.

    The parameter fills the arena at first. Every step but the first and the last may run beside others.
    """
    slots = [Slot(PARAM, 0, 4 * count), Slot(OUTPUT, 0, 4 * count), Slot(ARENA, 0, 4 * arena)]
    steps = [Copy(2, 0, 4 * count)]
    for to, source, length in moves:
        slots += [Slot(ARENA, 4 * to, 4 * length), Slot(ARENA, 4 * source, 4 * length)]
        steps.append(Copy(len(slots) - 2, len(slots) - 1, 4 * length))
    steps.append(Copy(1, 2, 4 * count))
    return Program(
        name="copies",
        target="xpu",
        params=[Param(vector(count), alias)],
        outputs=[Output(vector(count))],
        arena_bytes=4 * arena,
        slots=slots,
        blocks=[steps],
        fingerprint="abc",
    )


def run(host: Host, program: Program, *arrays: np.ndarray) -> list[np.ndarray]:
    executable = host.load(program.serialize())
    inputs = [host.put(a) for a in arrays]
    outs = host.execute(executable, inputs, outputs=len(program.outputs))
    found = [host.get(o) for o in outs]
    host.destroy(*inputs, *outs)
    host("LoadedExecutable_Destroy", executable=executable)
    return found


def test_steps_keep_the_order_of_their_data(host: Host) -> None:
    """Random copies within one arena, large enough to be under way when the next one is started."""
    random = np.random.default_rng(5)
    count = 1 << 16
    for _ in range(6):
        moves = []
        for _ in range(40):
            length = int(random.integers(1, count // 4))
            to, source = (int(v) for v in random.integers(0, count - length, 2))
            if abs(to - source) >= length:  # a copy's own ranges do not overlap
                moves.append((to, source, length))
        data = random.integers(0, 1 << 30, count).astype(np.int32)
        expected = data.copy()
        for to, source, length in moves:
            expected[to : to + length] = expected[source : source + length]
        (found,) = run(host, copies(count, count, moves), data)
        np.testing.assert_array_equal(found, expected)


def test_runs_follow_each_other_without_the_host(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of runs is started before the first has ended; each donates what the one before made."""
    monkeypatch.setenv("FERRULE_XPU_DEVICE", "cpu")
    host = Host(table, target="xpu", memory_limit_bytes=16 << 20)
    count = 1 << 18
    program = copies(count, count, [(0, count // 2, count // 4), (count // 2, 1, count // 4)], alias=0)
    executable = host.load(program.serialize())
    data = np.arange(count, dtype=np.int32)
    expected = data.copy()
    buffer = host.put(data)
    for _ in range(50):
        (after,) = host.execute(executable, [buffer], complete=False)
        host.destroy(buffer)
        buffer = after
        expected[0 : count // 4] = expected[count // 2 : count // 2 + count // 4]
        expected[count // 2 : count // 2 + count // 4] = expected[1 : 1 + count // 4]
    np.testing.assert_array_equal(host.get(buffer), expected)
    # One array, and the temporaries of a quarter of the limit and one run more: outputs took the donated memory.
    assert host.stats().peak_bytes_in_use <= (1 + 4 + 1) << 20
    host.destroy(buffer)
    host("LoadedExecutable_Destroy", executable=executable)
    assert host.stats().bytes_in_use == 0
    host.close()


def loop(count: int) -> Program:
    """`while flag: shift the vector by one, first element lost`; the flag is the vector's first element's low byte."""
    size = 4 * count
    slots = [
        *[Slot(PARAM, 0, size), Slot(OUTPUT, 0, size), Slot(ARENA, 0, size), Slot(ARENA, 0, 1)],
        *[Slot(ARENA, size, size), Slot(ARENA, 4, size - 4), Slot(ARENA, size, size - 4), Slot(ARENA, 0, size - 4)],
    ]
    return Program(
        name="loop",
        target="xpu",
        params=[Param(vector(count))],
        outputs=[Output(vector(count))],
        arena_bytes=2 * size,
        slots=slots,
        blocks=[[Copy(2, 0, size), While(1, 3, 2), Copy(1, 2, size)], [], [Copy(6, 5, size - 4), Copy(7, 6, size - 4)]],
        fingerprint="abc",
    )


def test_while_reads_its_predicate(host: Host) -> None:
    data = np.array([3, 2, 1, 1, 0, 7, 8], np.int32)
    (found,) = run(host, loop(7), data)
    np.testing.assert_array_equal(found[:3], [0, 7, 8])


@pytest.mark.parametrize(("index", "chosen"), [(0, 10), (1, 20), (2, 30), (-1, 30), (9, 30)])
def test_case_takes_the_last_branch_out_of_range(host: Host, index: int, chosen: int) -> None:
    slots = [Slot(PARAM, 0, 4), Slot(OUTPUT, 0, 4), *(Slot(PARAM, 1 + k, 4) for k in range(3))]
    program = Program(
        name="case",
        target="xpu",
        params=[Param(vector(1))] * 4,
        outputs=[Output(vector(1))],
        slots=slots,
        blocks=[[Case(0, False, (1, 2, 3))], *([Copy(1, 2 + k, 4)] for k in range(3))],
        fingerprint="abc",
    )
    (found,) = run(host, program, *(np.array([v], np.int32) for v in (index, 10, 20, 30)))
    assert found[0] == chosen


def test_copies_between_devices_and_layouts(host: Host) -> None:
    data = np.arange(24, dtype=np.int32).reshape(4, 6)
    first = host.put(data.T)  # strided: gathered on the way
    second = host("Buffer_CopyToMemory", buffer=first, dst_memory=host.memory(1)).dst_buffer
    on_host = host("Buffer_CopyToMemory", buffer=second, dst_memory=host.memories(host.devices()[1])[1]).dst_buffer
    for buffer in (first, second, on_host):
        np.testing.assert_array_equal(host.get(buffer), data.T)
    assert not host("Buffer_IsOnCpu", buffer=first).is_on_cpu
    host.destroy(first, second, on_host)


def test_what_the_device_lacks_is_said_at_load(host: Host) -> None:
    program = copies(4, 4, [])
    program.features = "f64,group=100000000,sub_group=7"
    with pytest.raises(PjrtError, match=r"lacks: group=100000000, sub_group=7\n  fix: compile it for this device"):
        host.load(program.serialize())


def test_memory_is_limited_and_counted(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_XPU_DEVICE", "cpu")
    host = Host(table, target="xpu", memory_limit_bytes=1 << 20)
    buffer = host.put(np.zeros(1 << 17, np.int32))
    assert host.stats().bytes_in_use == 1 << 19
    with pytest.raises(PjrtError, match="IntelXpuDevice.*is out of memory") as error:
        host.put(np.zeros(1 << 18, np.int32))
    assert error.value.code == "RESOURCE_EXHAUSTED"
    assert "FERRULE_MEMORY_LIMIT" in str(error.value)
    host.destroy(buffer)
    assert host.stats().bytes_in_use == 0
    host.close()


def test_programs_for_other_targets_are_refused(table: Table, host: Host) -> None:
    program = copies(4, 4, [])
    program.target = "cpu"
    with pytest.raises(PjrtError, match="compiled for the target `cpu`, this client runs `xpu`"):
        host.load(program.serialize())
    cpu = Host(table)
    program.target = "xpu"
    with pytest.raises(PjrtError, match="compiled for the target `xpu`, this client runs `cpu`"):
        cpu.load(program.serialize())
    cpu.close()


@dataclass(frozen=True)
class Traced:
    """A line of a trace: the step, when it ran (us), and the lines whose end it was told to wait for."""

    name: str
    begin: float
    end: float
    after: list[int]


def traced(text: str) -> tuple[list[Traced], int]:
    """The last run in what FERRULE_DEBUG=2 says, and how often the host waited in it."""
    head = re.search(r"ferrule: run of .*, times in us; the host waited (\d+) times inside\n", text)
    assert head, text
    lines = []
    for line in re.findall(r"^ +([\d.-]+) \.\. +([\d.-]+)  (\S+) #(\d+)(?: after (.*))?$", text[head.end() :], re.M):
        begin, end, name, number, after = line
        assert int(number) == len(lines)
        lines.append(Traced(name, float(begin), float(end), [int(word[1:]) for word in after.split()]))
    return lines, int(head[1])


def test_independent_kernels_overlap(
    table: Table, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two chains on different memory run at the same time; what joins them waits for both, the host for neither."""
    monkeypatch.setenv("FERRULE_XPU_DEVICE", "cpu")
    monkeypatch.setenv("FERRULE_DEBUG", "2")
    host = Host(table, target="xpu")
    size, links = 64, 3
    f32 = Tensor((16,), BY_NUMPY[np.dtype(np.float32)])
    slots = [Slot(PARAM, 0, size), Slot(OUTPUT, 0, size), *(Slot(ARENA, size * k, size) for k in range(2))]
    chains = [Launch(0, 1, 16, (2 + k % 2,)) for k in range(2 * links)]  # one group each: they leave a core free
    program = Program(
        name="overlap",
        target="xpu",
        params=[Param(f32)],
        outputs=[Output(f32)],
        arena_bytes=2 * size,
        objects=[spirv(work("slow", 1_000_000), add_both("join"))],
        functions=[Entry(0, "slow"), Entry(0, "join")],
        slots=slots,
        blocks=[[Copy(2, 0, size), Copy(3, 0, size), *chains, Launch(1, 1, 16, (2, 3, 1))]],
        fingerprint="abc",
    )
    # The two copies, then the chains in turn: a step waits for the one before it in its chain, the last for both ends.
    waits = [[], [], *([k] for k in range(2 * links)), [2 * links, 2 * links + 1]]
    executable = host.load(program.serialize())
    buffer = host.put(np.ones(16, np.float32))
    overlapped = 0
    for _ in range(5):  # a busy machine may not have a second core to spare
        capfd.readouterr()
        (out,) = host.execute(executable, [buffer])
        np.testing.assert_allclose(host.get(out), np.full(16, 2 * 0.357403), rtol=1e-5)  # each chain's value
        host.destroy(out)
        lines, host_waits = traced(capfd.readouterr().err)
        assert [line.name for line in lines] == ["copy", "copy", *["slow"] * (2 * links), "join"]
        assert [line.after for line in lines] == waits
        assert host_waits == 0
        for line in lines:
            assert all(line.begin >= lines[k].end - 1 for k in line.after), f"{line} did not wait: {lines}"
        pairs = itertools.product(lines[2:-1:2], lines[3:-1:2])
        overlapped += any(max(a.begin, b.begin) < min(a.end, b.end) for a, b in pairs)
    assert overlapped
    host.destroy(buffer)
    host("LoadedExecutable_Destroy", executable=executable)
    host.close()


def test_a_trace_counts_when_the_host_waits(
    table: Table, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once for each time that a loop's condition was read, and then nothing waits for what had ended."""
    monkeypatch.setenv("FERRULE_XPU_DEVICE", "cpu")
    monkeypatch.setenv("FERRULE_DEBUG", "2")
    host = Host(table, target="xpu")
    run(host, loop(7), np.array([3, 2, 1, 1, 0, 7, 8], np.int32))
    lines, host_waits = traced(capfd.readouterr().err)
    assert host_waits == 5
    # The copy in; two copies in each of four iterations, the first of which waits for nothing; the copy out.
    assert [line.after for line in lines] == [[], *(after for k in range(4) for after in ([], [2 * k + 1])), []]
    host.close()


said: list[int] = []


def test_calls_of_the_host_are_said(host: Host, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """What is not a kernel runs on the host, on memory that it can touch; the log says so, once."""
    monkeypatch.setenv("FERRULE_DEBUG", "1")
    c64 = Tensor((8,), BY_NUMPY[np.dtype(np.complex64)])
    program = Program(
        name="transform",
        target="xpu",
        params=[Param(c64)],
        outputs=[Output(c64)],
        slots=[Slot(PARAM, 0, 64), Slot(OUTPUT, 0, 64)],
        blocks=[[Call("fft", False, ((0, c64),), ((1, c64),), {"type": "FFT", "length": (8,)})]],
        fingerprint="abc",
    )
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32).view(np.complex64)
    capfd.readouterr()
    for _ in range(2):
        (found,) = run(host, program, x)
        np.testing.assert_allclose(found, np.fft.fft(x), rtol=1e-5, atol=1e-5)
    said.append(capfd.readouterr().err.count("'fft' (first in `transform`) is not a kernel"))
    assert sum(said) == 1  # in all rounds of this test together
