"""Python functions that compiled programs call: the runtime's library call `ferrule.python_callback`.

A front end registers a function and puts the handle's `id` into the program. The handle lives as long as the front
end's executable; a loaded program retains it too (`retain`), because a program may still run when its executable is
dropped.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from ferrule.errors import FerruleError, NotFound, Unsupported

# (operands) -> results, all NumPy arrays; the operands are copies that the function may keep.
Function = Callable[..., Sequence[np.ndarray]]

# The upper bits are random in each process: a program that was saved in one process and loaded in another must not
# meet a function that happens to have the same number.
_ids = itertools.count(secrets.randbits(30) << 32)
_lock = threading.Lock()
_handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()
_retained: dict[int, tuple[Handle, int]] = {}


class CallbackError(FerruleError):
    """A Python function that a program called has returned what the program cannot take."""

    code = "INTERNAL"


class Handle:
    """A registered function; it is forgotten when the last reference to its handle goes.

    An `in_place` function takes two lists instead, of the operands' and of the results' views, and returns nothing; the
    views are the program's memory and must not be used after it has returned.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, in_place: bool = False) -> None:
        self.function, self.name, self.in_place = function, name, in_place
        self.id = next(_ids)
        with _lock:
            _handles[self.id] = self

    def __call__(self, *operands: np.ndarray) -> Sequence[np.ndarray]:
        return self.function(*operands)

    def __reduce__(self) -> NoReturn:
        raise Unsupported(
            f"a program that calls the Python function {self.name} cannot be saved",
            why="the function exists in this process only",
            fix="save the program without its host callbacks",
        )

    def __repr__(self) -> str:
        return f"<host callback {self.id:#x} {self.name}>"


def find(id: int) -> Handle:
    """The handle with this number."""
    with _lock:
        handle = _handles.get(id)
    if handle is None:
        raise NotFound(
            f"the program calls the Python function number {id:#x}, which does not exist here",
            why="the program was compiled in another process, or its executable is gone",
            fix="compile the program in the process that runs it; programs with callbacks cannot be shipped",
        )
    return handle


def retain(id: int) -> None:
    """Keeps a function alive on behalf of a loaded program."""
    handle = find(id)
    with _lock:
        _retained[id] = (handle, _retained.get(id, (handle, 0))[1] + 1)


def release(id: int) -> None:
    """Undoes one `retain`."""
    with _lock:
        handle, count = _retained.pop(id, (None, 0))
        if handle is not None and count > 1:
            _retained[id] = (handle, count - 1)


def run(id: int, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    """Calls function `id` on views of the program's buffers and writes what it returns into the results' views.

    What the function raises goes to the runtime, which puts it, with its traceback, on the program's outputs.
    """
    handle = find(id)
    if handle.in_place:
        handle.function(operands, results)
        return
    # Copies: the buffers are reused as soon as the call is over, and the function may keep its arguments.
    copies = [np.array(operand) for operand in operands]
    for copy in copies:
        copy.flags.writeable = False
    values = handle.function(*copies)
    if len(values) != len(results):
        raise CallbackError(f"callback {handle.name} returned {len(values)} arrays, the program takes {len(results)}")
    for view, value in zip(results, values, strict=True):
        if value.shape != view.shape or value.dtype != view.dtype:
            raise CallbackError(
                f"callback {handle.name} returned {value.dtype}{list(value.shape)}, the program takes "
                f"{view.dtype}{list(view.shape)}"
            )
        view[...] = value
