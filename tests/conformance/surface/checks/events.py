"""PJRT_Event: readiness, errors, callbacks. Each callback fires once."""

from __future__ import annotations

import threading
import time

import numpy as np
import programs
from context import CODES, ONE, Context, Event
from registry import group

from ferrule.client import PjrtError

check = group("events")
bad = group("bad_input")


def made(c: Context) -> Event:
    """An event of our own."""
    c.since(89)
    return Event(c, c.call("Event_Create").event)


def set_(c: Context, event: Event, code: str = "OK", message: str = "") -> None:
    c.call(
        "Event_Set",
        event=event.handle,
        error_code=CODES[code],
        error_message=message,
        error_message_size=len(message.encode()),
    )


@check
def an_event_is_ready_once_set(c: Context) -> None:
    """An event made by Event_Create is not ready before Event_Set and ready after it; Await then returns at once."""
    event = made(c)
    assert not event.ready
    set_(c, event)
    assert event.ready
    event.wait()
    c.call("Event_Error", event=event.handle)


@check
def a_failed_event_is_ready_and_keeps_its_error(c: Context) -> None:
    """IsReady is true after a failure; Error and Await give code and message each time, a new error object per call."""
    event = made(c)
    set_(c, event, "RESOURCE_EXHAUSTED", "full up")
    assert event.ready
    for _ in range(2):
        for function in ("Event_Error", "Event_Await"):
            error = c.fails(function, "RESOURCE_EXHAUSTED", event=event.handle)
            assert "full up" in error.message, error.message


@check
def every_code_passes_through(c: Context) -> None:
    """All sixteen error codes come out of an event as they were set."""
    for code in CODES:
        if code != "OK":
            event = made(c)
            set_(c, event, code, "a reason")
            error = event.failure()
            assert error is not None and error.code == code, f"{code} became {error and error.code}"


@check
def callbacks_fire_once_when_set(c: Context) -> None:
    """OnReady calls each callback exactly once, when the event becomes ready, not before."""
    event, fired = made(c), []
    for number in range(3):
        event.on_ready(lambda error, n=number: fired.append((n, error)))
    assert not fired
    set_(c, event)
    assert sorted(fired) == [(0, None), (1, None), (2, None)], fired
    assert event.ready
    event.destroy()
    assert len(fired) == 3


@check
def a_callback_gets_the_error(c: Context) -> None:
    """A callback of a failed event gets an error of its own, which it destroys."""
    event, fired = made(c), []
    event.on_ready(fired.append)
    event.on_ready(fired.append)
    set_(c, event, "DATA_LOSS", "gone")
    event.on_ready(fired.append)
    assert [e and e.code for e in fired] == ["DATA_LOSS"] * 3, fired


@check(required=True)
def a_callback_on_a_ready_event_fires_at_once(c: Context) -> None:
    """OnReady on an event that is ready already calls back before it returns, on the caller's thread."""
    event = c.ready_event(c.put(ONE))
    event.wait()
    threads: list[int] = []
    event.on_ready(lambda _: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


@check
def an_event_may_be_destroyed_inside_its_callback(c: Context) -> None:
    """Callers destroy an event inside its callback, while the plugin is still setting it."""
    event, fired = made(c), []

    def callback(_: PjrtError | None) -> None:
        fired.append(1)
        event.destroy()

    event.on_ready(callback)
    handle = event.handle
    c.call("Event_Set", event=handle, error_code=0, error_message="", error_message_size=0)
    assert fired == [1]


@check
def a_callback_may_call_the_plugin(c: Context) -> None:
    """No lock is held while callbacks run: they may make buffers, run programs and wait."""
    program, event, results = c.compile(programs.ADD), made(c), []

    def callback(_: PjrtError | None) -> None:
        a = c.put(ONE)
        results.append(c.get(program.execute([a, a])[0]).tolist())

    event.on_ready(callback)
    set_(c, event)
    assert results == [[2, 2, 2, 2]]


@check
def a_callback_of_a_computation_may_call_the_plugin(c: Context) -> None:
    """The same on the thread that completes a computation: the callback may start the next one and wait for it."""
    count, program, done, results = c.compile(programs.COUNT), c.compile(programs.ADD), threading.Event(), []
    n, data, a = c.put(c.slow(count, 0.1)), c.put(np.zeros(4, np.int32)), c.put(ONE)
    (outputs,), (event,) = c.launch(count, [n, data])

    def callback(_: PjrtError | None) -> None:
        try:
            (rows,), _events = c.launch(program, [a, a])
            results.append(rows[0])
        finally:
            done.set()

    event.on_ready(callback)
    assert done.wait(30), "the callback did not come back"
    assert c.get(results[0]).tolist() == [2, 2, 2, 2]
    del outputs


@check
def await_blocks_until_set(c: Context) -> None:
    """Await returns when another thread sets the event, in every thread that waits."""
    event, order = made(c), []

    def work(number: int) -> None:
        if number == 0:
            time.sleep(0.05)
            order.append("set")
            set_(c, event)
        else:
            event.wait()
            order.append("woken")

    c.in_threads(4, work)
    assert order[0] == "set" and len(order) == 4, order


@check(required=True)
def destroying_no_event_is_allowed(c: Context) -> None:
    """Event_Destroy accepts null."""
    c.call("Event_Destroy", event=None)


@bad
def an_event_is_set_once(c: Context) -> None:
    """Setting an event twice is refused; the first outcome stays."""
    event = made(c)
    set_(c, event)
    c.error_of(lambda: set_(c, event, "INTERNAL", "late"), what="the second Event_Set")
    event.wait()


@check(required=True)
def an_event_outlives_its_buffer(c: Context) -> None:
    """A ready event that the caller has stays valid after its buffer is destroyed."""
    buffer = c.put(np.arange(1000))
    event = c.ready_event(buffer)
    del buffer
    event.wait()
    assert event.ready


@check
def destroying_an_event_early_does_no_harm(c: Context) -> None:
    """Events of a running computation may be destroyed before it ends; its result is not affected."""
    count = c.compile(programs.COUNT)
    n, data = c.put(c.slow(count, 0.1)), c.put(np.zeros(4, np.int32))
    (outputs,), events = c.launch(count, [n, data])
    for event in events:
        event.destroy()
    c.ready_event(outputs[0]).destroy()
    assert c.get(outputs[0]).tolist() == [c.get(n)] * 4
