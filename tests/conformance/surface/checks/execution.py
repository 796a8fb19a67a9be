"""LoadedExecutable_Execute: order, arguments, donation, errors, several devices, threads."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import programs
from context import ONE, ZERO_COPY, Context, aligned, array_of
from registry import Unsupported, group

from ferrule.client import Buffer, PjrtError

check = group("execute")
bad = group("bad_input")
donation_check = group("donation")
thread_check = group("threads")
life_check = group("lifetimes")


@check(required=True)
def every_device_gets_a_completion_event(c: Context) -> None:
    """If the caller asks, each device gives an event that is ready when the execution is over."""
    a = c.put(ONE)
    (outputs,), events = c.launch(c.compile(programs.ADD), [a, a])
    assert len(events) == 1
    events[0].wait()
    assert c.get(outputs[0]).tolist() == [2, 2, 2, 2]


@check(required=True)
def completion_events_are_optional(c: Context) -> None:
    """A null device_complete_events means that the caller wants none."""
    a = c.put(ONE)
    (outputs,), _ = c.launch(c.compile(programs.ADD), [a, a], events=False)
    assert c.get(outputs[0]).tolist() == [2, 2, 2, 2]


@check(required=True)
def a_program_runs_many_times(c: Context) -> None:
    """Each launch gives new buffers of the caller's; earlier results stay as they are."""
    add, a = c.compile(programs.ADD), c.put(ONE)
    results = [c.launch(add, [a, c.put(n * ONE)], events=False)[0][0][0] for n in range(20)]
    assert [c.get(r)[0] for r in results] == [n + 1 for n in range(20)]
    assert len({r.handle for r in results}) == 20


@check
def it_returns_before_the_work_is_done(c: Context) -> str:
    """Execute returns as soon as the work is queued; reading the result waits for it."""
    count = c.compile(programs.COUNT)
    n, data = c.put(c.slow(count, 0.4)), c.put(np.zeros(4, np.int32))
    for _ in range(5):  # a busy machine may stop the caller for longer than the program takes
        started = time.perf_counter()
        (outputs,), (event,) = c.launch(count, [n, data])
        called = time.perf_counter() - started
        assert c.get(outputs[0]).tolist() == [int(c.get(n))] * 4
        whole = time.perf_counter() - started
        event.wait()
        if called < whole / 2:
            break
    else:
        raise Unsupported(f"the caller waits: Execute took {called * 1e3:.0f} ms of {whole * 1e3:.0f} ms")
    return f"{called * 1e3:.2f} ms of {whole * 1e3:.0f} ms"


@check(required=True)
def inputs_need_not_be_ready(c: Context) -> None:
    """Programs chain on results that are not there yet, without the caller waiting."""
    count, data = c.compile(programs.COUNT), c.put(np.zeros(4, np.int32))
    n = c.put(c.slow(count, 0.1))
    chain = data
    for _ in range(3):
        (outputs,), _ = c.launch(count, [n, chain], events=False)
        chain = outputs[0]
    assert c.get(chain).tolist() == [3 * int(c.get(n))] * 4


@check(required=True)
def results_have_a_ready_state(c: Context) -> None:
    """Each result has a ready event of its own, and it is ready after the completion event."""
    (outputs,), (event,) = c.launch(c.compile(programs.THREE_RESULTS), [c.put(np.zeros((2, 3), np.float32))])
    event.wait()
    for buffer in outputs:
        c.ready_event(buffer).wait()


@check(required=True)
def arguments_may_go_while_it_runs(c: Context) -> None:
    """A running program holds what it needs: its arguments may be deleted and destroyed meanwhile."""
    count = c.compile(programs.COUNT)
    n, data = c.put(c.slow(count, 0.2)), c.put(np.arange(4, dtype=np.int32))
    expected = (np.arange(4) + int(c.get(n))).tolist()
    (outputs,), _ = c.launch(count, [n, data], events=False)
    data.delete()
    del n, data
    fill = [c.put(np.full(4, 99, np.int32)) for _ in range(20)]
    assert c.get(outputs[0]).tolist() == expected
    del fill


@check(required=True)
def a_result_that_is_an_argument(c: Context) -> None:
    """A program that returns its argument gives a buffer of its own: deleting one does not affect the other."""
    a = c.put(ONE)
    b = c.compile(programs.IDENTITY).execute([a])[0]
    a.delete()
    assert c.get(b).tolist() == [1, 1, 1, 1]
    first, second = c.compile(programs.TWICE).execute([b])
    first.delete()
    assert c.get(second).tolist() == [1, 1, 1, 1] and c.get(b).tolist() == [1, 1, 1, 1]


@check(required=True)
def results_are_where_the_program_ran(c: Context) -> None:
    """Results lie in the default memory of the device that ran the program."""
    a = c.put(ONE)
    out = c.compile(programs.ADD).execute([a, a])[0]
    assert c.call("Buffer_Device", buffer=out.handle).device == c.device.handle
    assert c.call("Buffer_Memory", buffer=out.handle).memory == c.memory()


def refused(c: Context, row: list[Buffer], what: str, *more: list[Buffer]) -> PjrtError:
    add = c.compile(programs.ADD)
    error = c.error_of(lambda: add.execute(row) if not more else c.launch(add, row, *more), what=what)
    a = c.put(ONE)
    assert c.get(add.execute([a, a])[0]).tolist() == [2, 2, 2, 2], "the next run is wrong"
    return error


@bad
def too_few_arguments_are_refused(c: Context) -> str:
    """A wrong number of arguments is an error."""
    return refused(c, [c.put(ONE)], "one argument for two").code


@bad
def too_many_arguments_are_refused(c: Context) -> str:
    """A wrong number of arguments is an error."""
    return refused(c, [c.put(ONE)] * 3, "three arguments for two").code


@bad
def an_argument_of_another_size_is_refused(c: Context) -> str:
    """An argument with another number of bytes than the program's parameter is an error."""
    return refused(c, [c.put(ONE), c.put(np.ones(5, np.float32))], "five floats for four").code


@bad
def an_argument_of_another_shape_is_refused(c: Context) -> str:
    """An argument with other dimensions than the program's parameter is an error, even if the bytes would do."""
    return refused(c, [c.put(ONE), c.put(ONE.reshape(2, 2))], "2x2 floats for four").code


@bad
def an_argument_of_another_type_is_refused(c: Context) -> str:
    """An argument of another element type is an error, even if the bytes would do."""
    return refused(c, [c.put(ONE.astype(np.int32)), c.put(ONE)], "integers for floats").code


@check(required=True)
def a_deleted_argument_is_refused(c: Context) -> str:
    """A deleted argument is an error: frameworks do not look before they call."""
    gone = c.put(ONE)
    gone.delete()
    return refused(c, [gone, c.put(ONE)], "a deleted argument").code


@bad
def an_argument_on_another_device_is_refused(c: Context) -> str:
    """An argument that lies on another device is an error."""
    _, second = c.device_pair()
    return refused(c, [c.put(ONE), c.put(ONE, memory=c.memory(second))], "an argument on another device").code


@bad
def more_rows_than_devices_are_refused(c: Context) -> str:
    """Argument lists for more devices than the program runs on are an error."""
    a = c.put(ONE)
    return refused(c, [a, a], "two rows for one device", [a, a]).code


@check
def launch_options_are_accepted(c: Context) -> None:
    """A launch id, a call location, and the tasks of a job may be given; they change nothing in the result."""
    a = c.put(ONE)
    (outputs,), _ = c.launch(c.compile(programs.ADD), [a, a], launch_id=7, call_location="model.py:12", num_tasks=0)
    assert c.get(outputs[0]).tolist() == [2, 2, 2, 2]


@check
def an_execute_context_is_accepted(c: Context) -> None:
    """An execute context may be made, given to a launch and destroyed afterwards."""
    c.since(64)
    context = c.call("ExecuteContext_Create").context
    a = c.put(ONE)
    (outputs,), (event,) = c.launch(c.compile(programs.ADD), [a, a], context=context)
    event.wait()
    c.call("ExecuteContext_Destroy", context=context)
    assert c.get(outputs[0]).tolist() == [2, 2, 2, 2]


@check
def two_replicas_run_on_two_devices(c: Context) -> None:
    """A program of two replicas takes a row of arguments per device and gives a row of results per device."""
    pair = c.device_pair()
    program = c.compile(programs.TWO_REPLICAS, devices=[d.id for d in pair], num_replicas=2)
    assert c.call("Executable_NumReplicas", executable=program.executable).num_replicas == 2
    args = c.call("LoadedExecutable_AddressableDevices", executable=program.handle)
    assert array_of(args.addressable_devices, args.num_addressable_devices) == [d.handle for d in pair]
    rows = [[c.put(ONE * (n + 1), memory=c.memory(d))] for n, d in enumerate(pair)]
    outputs, events = c.launch(program, *rows)
    for event in events:
        event.wait()
    assert [c.get(row[0])[0] for row in outputs] == [2, 4]
    assert [c.call("Buffer_Device", buffer=row[0].handle).device for row in outputs] == [d.handle for d in pair]


@check
def every_argument_of_a_hundred(c: Context) -> None:
    """A program with a hundred arguments and results keeps their order."""
    count = 100
    arguments = ", ".join(f"%a{n}: tensor<2xi32>" for n in range(count))
    body = [f"%r{n} = stablehlo.add %a{n}, %a{(n + 1) % count} : tensor<2xi32>" for n in range(count)]
    returned = ", ".join(f"%r{n}" for n in range(count))
    types = ", ".join(["tensor<2xi32>"] * count)
    body.append(f"return {returned} : {types}")
    program = c.compile(programs.main(arguments, types, "\n".join(body)))
    results = program(*(np.full(2, n * n, np.int32) for n in range(count)))
    assert [int(r[0]) for r in results] == [n * n + ((n + 1) % count) ** 2 for n in range(count)]


# --- donation


@donation_check
def a_donated_argument_is_gone(c: Context) -> str:
    """An argument marked tf.aliasing_output is deleted when Execute returns; the others are not."""
    a, b = c.put(ONE), c.put(2 * ONE)
    (outputs,), _ = c.launch(c.compile(programs.DONATE), [a, b], events=False)
    assert a.is_deleted and not b.is_deleted
    assert c.get(outputs[0]).tolist() == [3, 3, 3, 3]
    c.error_of(lambda: c.get(a), what="reading a donated buffer")
    return "gone"


@donation_check
def a_donor_without_a_taker(c: Context) -> str:
    """An argument marked jax.buffer_donor may be used up: its memory is free, with or without a taker."""
    a, b = c.put(ONE), c.put(ONE)
    assert c.get(c.compile(programs.GIVE).execute([a, b])[0]) == 8
    assert not b.is_deleted
    return "used up" if a.is_deleted else "kept"


@donation_check
def a_donated_argument_cannot_be_used_again(c: Context) -> None:
    """Executing with an argument that was donated before is an error."""
    program, a, b = c.compile(programs.DONATE), c.put(ONE), c.put(ONE)
    program.execute([a, b])
    c.error_of(lambda: program.execute([a, b]), what="using a donated argument")


@donation_check
def the_memory_is_used_again(c: Context) -> str:
    """The result takes the donated argument's memory (where the host can see it)."""
    a, b = c.put(ONE), c.put(ONE)
    address = c.pointer(a)
    out = c.compile(programs.DONATE).execute([a, b])[0]
    assert c.get(out).tolist() == [2, 2, 2, 2]
    return "in place" if c.pointer(out) == address else "copied"


@donation_check
def a_launch_can_keep_an_argument(c: Context) -> None:
    """Arguments in non_donatable_input_indices are not donated in that launch."""
    program, a, b = c.compile(programs.DONATE), c.put(ONE), c.put(ONE)
    assert c.get(program.execute([a, b], keep=[0])[0]).tolist() == [2, 2, 2, 2]
    assert not a.is_deleted and c.get(a).tolist() == [1, 1, 1, 1]


@donation_check
def the_same_buffer_twice_is_refused(c: Context) -> str:
    """One buffer given twice, once donated, is an error and leaves the buffer as it was; with the donation refused it
    is none."""
    program, a = c.compile(programs.DONATE), c.put(ONE)
    error = c.error_of(lambda: program.execute([a, a]), what="f(x, x) with x donated")
    assert not a.is_deleted and c.get(a).tolist() == [1, 1, 1, 1]
    assert c.get(program.execute([a, a], keep=[0])[0]).tolist() == [2, 2, 2, 2]
    return error.code


@donation_check
def a_refused_launch_leaves_its_arguments(c: Context) -> None:
    """When Execute fails, its arguments are as they were: nothing was donated."""
    program, a, wrong = c.compile(programs.DONATE), c.put(ONE), c.put(np.ones(7, np.float32))
    c.error_of(lambda: program.execute([a, wrong]), what="a wrong second argument")
    assert not a.is_deleted and c.get(a).tolist() == [1, 1, 1, 1]


@donation_check
def memory_in_use_outside_is_not_overwritten(c: Context) -> None:
    """A donated buffer with external references is copied or refused, never overwritten."""
    a, b = c.put(ONE), c.put(ONE)
    address = c.pointer(a)
    c.call("Buffer_IncreaseExternalReferenceCount", buffer=a.handle)
    try:
        out = c.compile(programs.DONATE).execute([a, b])[0]
        assert c.get(out).tolist() == [2, 2, 2, 2]
    except PjrtError as error:
        assert error.code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), error
    assert array_of(address, 4, ctypes.c_float) == [1, 1, 1, 1], "memory in use was overwritten"
    c.call("Buffer_DecreaseExternalReferenceCount", buffer=a.handle)


@donation_check
def a_donation_chain(c: Context) -> None:
    """A state that is donated step by step, without waiting, ends up right."""
    program, x, b = c.compile(programs.DONATE), c.put(ONE), c.put(ONE)
    for _ in range(200):
        (outputs,), _ = c.launch(program, [x, b], events=False)
        x = outputs[0]
    assert c.get(x).tolist() == [201] * 4


@donation_check
def a_reader_before_the_donation_sees_the_old_contents(c: Context) -> None:
    """What was queued before a donation reads the contents of before."""
    count, add = c.compile(programs.COUNT), c.compile(programs.ADD)
    n = c.put(c.slow(count, 0.1))
    c.launch(count, [n, c.put(np.zeros(4, np.int32))], events=False)
    x, b = c.put(ONE), c.put(ONE)
    (before,), _ = c.launch(add, [x, b], events=False)
    (after,), _ = c.launch(c.compile(programs.DONATE), [x, b], events=False)
    (last,), _ = c.launch(c.compile(programs.DONATE), [after[0], b], events=False)
    assert c.get(before[0]).tolist() == [2, 2, 2, 2] and c.get(last[0]).tolist() == [3, 3, 3, 3]


# --- threads


@thread_check(required=True)
def executing_in_several_threads(c: Context) -> None:
    """One program may be executed by several threads at once."""
    add = c.compile(programs.ADD)

    def work(number: int) -> None:
        x, one = c.put(ONE * number), c.put(ONE)
        for _ in range(100):
            (outputs,), _ = c.launch(add, [x, one], events=False)
            x = outputs[0]
        assert c.get(x).tolist() == [number + 100.0] * 4

    c.in_threads(4, work)


@thread_check(required=True)
def donating_in_several_threads(c: Context) -> None:
    """Of several threads that donate the same buffer, exactly one succeeds."""
    program, b = c.compile(programs.DONATE), c.put(ONE)
    for _ in range(20):
        x, won = c.put(ONE), []

        def work(number: int, x: Buffer = x, won: list[Buffer] = won) -> None:
            try:
                won.append(program.execute([x, b])[0])
            except PjrtError:
                pass

        c.in_threads(4, work)
        assert len(won) == 1, f"{len(won)} of four donations of one buffer succeeded"
        assert c.get(won[0]).tolist() == [2, 2, 2, 2]


@thread_check(required=True)
def making_and_deleting_in_several_threads(c: Context) -> None:
    """Buffers are made, read, copied and deleted by several threads at once."""
    target = c.memories()[-1]

    def work(number: int) -> None:
        for step in range(50):
            array = np.full(100 + step, number, np.int32)
            buffer = c.put(array)
            copy = Buffer(c.client, c.call("Buffer_CopyToMemory", buffer=buffer.handle, dst_memory=target).dst_buffer)
            buffer.delete()
            np.testing.assert_array_equal(c.get(copy), array)

    c.in_threads(4, work)


@thread_check(required=True)
def one_thread_deletes_what_another_reads(c: Context) -> None:
    """A read that races with Delete gives the contents or an error, never garbage."""
    for _ in range(50):
        array = np.arange(5000, dtype=np.int64)
        buffer = c.put(array)

        def work(number: int, buffer: Buffer = buffer, array: np.ndarray = array) -> None:
            if number == 0:
                buffer.delete()
            else:
                try:
                    np.testing.assert_array_equal(c.get(buffer), array)
                except PjrtError:
                    pass

        c.in_threads(3, work)


# --- what outlives what


@life_check(required=True)
def results_outlive_their_program(c: Context) -> None:
    """A result stays when the program that made it is destroyed, also while it is being computed."""
    count = c.client.compile(programs.COUNT)
    n, data = c.put(c.slow(count, 0.1)), c.put(np.zeros(4, np.int32))
    (outputs,), events = c.launch(count, [n, data])
    del count
    assert c.get(outputs[0]).tolist() == [int(c.get(n))] * 4
    for event in events:
        event.wait()


@life_check(required=True)
def a_result_may_go_before_it_is_there(c: Context) -> None:
    """Results that nobody waits for may be destroyed while they are computed."""
    count = c.compile(programs.COUNT)
    n, data = c.put(c.slow(count, 0.1)), c.put(np.zeros(4, np.int32))
    for _ in range(3):
        (outputs,), (event,) = c.launch(count, [n, data])
        outputs[0].delete()
        del outputs
    event.wait()


@life_check(required=True)
def memory_does_not_leak(c: Context) -> str:
    """A thousand rounds of buffers and runs, failed ones among them, leave no memory behind."""
    from pathlib import Path

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    add, big = c.compile(programs.ADD), np.zeros(1 << 16, np.float32)

    def rounds(count: int) -> None:
        for _ in range(count):
            a, wrong = c.put(ONE), c.put(big)
            add.execute([a, a])
            try:
                add.execute([a, wrong])
            except PjrtError:
                pass
            c.kept.clear()

    rounds(100)
    before = resident()
    rounds(1000)
    grown = resident() - before
    assert grown < 64 << 20, f"{grown >> 20} MiB more after a thousand rounds"
    return f"{grown >> 10} KiB more"


@life_check(required=True)
def zero_copy_and_destroy(c: Context) -> None:
    """A buffer over host memory may be destroyed while a program reads it; the program sees the contents."""
    count = c.compile(programs.COUNT)
    array = aligned(np.arange(4, dtype=np.int32))
    buffer, done = c.put_with_event(array, ZERO_COPY)
    n = c.put(c.slow(count, 0.1))
    (outputs,), _ = c.launch(count, [n, buffer], events=False)
    del buffer
    assert c.get(outputs[0]).tolist() == (np.arange(4) + int(c.get(n))).tolist()
    done.wait()
