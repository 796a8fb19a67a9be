"""PJRT_Error: code, message, payloads, who frees what."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from context import CODES, Context
from registry import group

from ferrule.pjrt import abi, ctypes_abi
from ferrule.pjrt.ctypes_abi import make

check = group("errors")


@contextmanager
def an_error(c: Context, id: int = 123456) -> Iterator[int]:
    """An error as the plugin returns it: there is no device of that id."""
    args = make("PJRT_Client_LookupDevice_Args", client=c.client.handle, id=id)
    error = c.plugin.table.function("PJRT_Client_LookupDevice")(ctypes.addressof(args))
    assert error, "a device that does not exist was found"
    yield error
    args = make("PJRT_Error_Destroy_Args", error=error)
    c.plugin.table.function("PJRT_Error_Destroy")(ctypes.addressof(args))


def message(c: Context, error: int) -> str:
    args = make("PJRT_Error_Message_Args", error=error)
    c.plugin.table.function("PJRT_Error_Message")(ctypes.addressof(args))
    return ctypes_abi.text(args.message, args.message_size)


@check(required=True)
def an_error_has_a_code(c: Context) -> str:
    """GetCode gives one of the known codes and never OK; an unknown device is INVALID_ARGUMENT or NOT_FOUND."""
    with an_error(c) as error:
        code = c.call("Error_GetCode", error=error).code
    assert code in (CODES["INVALID_ARGUMENT"], CODES["NOT_FOUND"]), f"code {code}"
    return next(name for name, number in CODES.items() if number == code)


@check(required=True)
def an_error_has_a_message(c: Context) -> str:
    """Message gives a text that is not empty and stays the same as long as the error lives."""
    with an_error(c) as error, an_error(c, 4321) as other:
        text = message(c, error)
        assert text, "the message is empty"
        assert message(c, other) and message(c, error) == text
    return text[:80]


@check(required=True)
def destroying_no_error_is_allowed(c: Context) -> None:
    """Error_Destroy accepts a null error: callers do that after each successful call that may give one."""
    args = make("PJRT_Error_Destroy_Args")
    c.plugin.table.function("PJRT_Error_Destroy")(ctypes.addressof(args))


@check(required=True)
def payloads_are_visited(c: Context) -> str:
    """ForEachPayload visits each payload with a key, and nothing when there is none; callers call it on every error."""
    c.since(99)
    found: list[bytes] = []

    @ctypes_abi.callback("PJRT_Error_PayloadVisitor")
    def visit(key: int, key_size: int, value: int, value_size: int, _: int) -> None:
        found.append(ctypes.string_at(key, key_size))

    with an_error(c) as error:
        c.call("Error_ForEachPayload", error=error, visitor=visit)
    assert all(found)
    return f"{len(found)} payloads"


@check(required=True)
def the_error_carries_its_own_functions(c: Context) -> None:
    """Since 0.107 an error begins with a pointer to a table of its functions (56 bytes), which say the same as the
    plugin's table."""
    c.since(107)
    with an_error(c) as error:
        table = ctypes.c_void_p.from_address(error).value
        assert table, "the pointer is null"
        functions = ctypes_abi.struct("PJRT_Error_FunctionTable").from_address(table)
        assert functions.struct_size >= abi.STRUCTS_BY_NAME["PJRT_Error_FunctionTable"].size, functions.struct_size
        code = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(functions.get_code)(error)
        assert code == c.call("Error_GetCode", error=error).code
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(functions.message)(
            error, ctypes.addressof(data), ctypes.addressof(size)
        )
        assert ctypes_abi.text(data.value, size.value) == message(c, error)


@check(required=True)
def errors_are_independent(c: Context) -> None:
    """An error stays valid while others are made and destroyed, on any thread."""
    with an_error(c) as error:
        before = message(c, error)

        def others(number: int) -> None:
            for step in range(50):
                with an_error(c, 1000 + number + step) as other:
                    assert message(c, other)

        c.in_threads(4, others)
        assert message(c, error) == before
