"""Client_Compile: program formats, options, wrong programs."""

from __future__ import annotations

import ctypes

import numpy as np
import programs
from context import ONE, Context
from registry import Unsupported, group

from ferrule.client import LoadedExecutable, compile_options
from ferrule.ir.types import DTYPES
from ferrule.pjrt.ctypes_abi import make

check = group("compile")


def compile_raw(c: Context, code: bytes, format: str = "mlir", options: bytes | None = None) -> LoadedExecutable:
    return c.client.compile(code, format=format, options=options)


@check(required=True)
def stablehlo_text(c: Context) -> None:
    """A program may be StableHLO in MLIR's text form."""
    assert c.compile(programs.ADD)(ONE, 2 * ONE)[0].tolist() == [3, 3, 3, 3]


@check(required=True)
def a_portable_artifact(c: Context) -> None:
    """A program may be a StableHLO portable artifact (versioned bytecode), the form in which frameworks send it."""
    assert c.compile(programs.ADD_ARTIFACT)(ONE, 2 * ONE)[0].tolist() == [3, 3, 3, 3]


@check(required=True)
def program_and_options_are_borrowed(c: Context) -> None:
    """The plugin reads program and options during the call only: they may be overwritten afterwards."""
    code, options = (ctypes.create_string_buffer(b) for b in (programs.MULTIPLY, compile_options([c.device.id])))
    format = ctypes.create_string_buffer(b"mlir")
    program = make("PJRT_Program", code=code, code_size=len(programs.MULTIPLY), format=format, format_size=4)
    args = c.call(
        "Client_Compile",
        client=c.client.handle,
        program=program,
        compile_options=options,
        compile_options_size=len(options) - 1,
    )
    for each in (code, options, format):
        ctypes.memset(each, 0x5A, len(each))
    loaded = LoadedExecutable(c.client, args.executable)
    assert loaded(3 * ONE, 2 * ONE)[0].tolist() == [6, 6, 6, 6]
    assert loaded.serialize()


@check(required=True)
def strings_need_no_terminator(c: Context) -> None:
    """Strings are pointer and length: what follows the last byte does not matter."""
    code = ctypes.create_string_buffer(programs.ADD + b"%% this is not MLIR")
    format = ctypes.create_string_buffer(b"mlirmlir")
    options = compile_options([c.device.id])
    dirty = ctypes.create_string_buffer(options + b"\xff" * 20)
    program = make("PJRT_Program", code=code, code_size=len(programs.ADD), format=format, format_size=4)
    args = c.call(
        "Client_Compile",
        client=c.client.handle,
        program=program,
        compile_options=dirty,
        compile_options_size=len(options),
    )
    assert LoadedExecutable(c.client, args.executable)(ONE, ONE)[0].tolist() == [2, 2, 2, 2]


@check(required=True)
def a_program_without_results(c: Context) -> None:
    """A program may have no results."""
    program = c.compile(programs.NO_RESULTS)
    assert program.num_outputs == 0 and program.execute([c.put(ONE)]) == []


@check(required=True)
def a_program_without_arguments(c: Context) -> None:
    """A program may have no arguments."""
    assert c.compile(programs.NO_ARGUMENTS)()[0].tolist() == [0, 1, 2]


@check(required=True)
def several_results(c: Context) -> None:
    """Results come in the program's order, each with its own shape and type."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    negated, turned, less = c.compile(programs.THREE_RESULTS)(a)
    np.testing.assert_array_equal(negated, -a)
    np.testing.assert_array_equal(turned, a.T)
    np.testing.assert_array_equal(less, a < -a)


@check(required=True)
def arrays_without_elements(c: Context) -> None:
    """Arguments and results may have no elements."""
    assert c.compile(programs.EMPTY_ARRAY)(np.zeros((0, 3), np.float32))[0].shape == (0, 3)


@check
def a_matrix_product(c: Context) -> None:
    """A matrix product is right up to rounding."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((8, 16), np.float32), rng.standard_normal((16, 4), np.float32)
    np.testing.assert_allclose(c.compile(programs.DOT)(a, b)[0], a @ b, rtol=1e-4, atol=1e-4)


@check(required=True)
def an_invalid_program_is_refused(c: Context) -> str:
    """What is not a program gives an error with a reason, in text and in bytecode."""
    error = c.error_of(lambda: compile_raw(c, b"this is no program"), what="compiling nonsense")
    c.error_of(lambda: compile_raw(c, b""), what="compiling nothing")
    damaged = programs.ADD_ARTIFACT[:-40]
    c.error_of(lambda: compile_raw(c, damaged), what="compiling damaged bytecode")
    return error.code


@check(required=True)
def wrong_types_are_refused(c: Context) -> str:
    """A program whose types do not fit is an error, not a crash."""
    return c.error_of(lambda: compile_raw(c, programs.WRONG_TYPES), what="compiling wrong types").code


@check(required=True)
def a_program_without_main_is_refused(c: Context) -> str:
    """A module without a public function @main is an error."""
    code = programs.ADD.replace(b"@main", b"@other")
    return c.error_of(lambda: compile_raw(c, code), what="compiling a module without @main").code


@check(required=True)
def an_unknown_format_is_refused(c: Context) -> str:
    """A program format that the plugin does not read is an error."""
    error = c.error_of(
        lambda: compile_raw(c, programs.ADD, format="punched cards"), "INVALID_ARGUMENT", "UNIMPLEMENTED"
    )
    return error.code


@check(required=True)
def damaged_options_are_refused(c: Context) -> str:
    """Compile options that are no CompileOptionsProto are an error."""
    return c.error_of(lambda: compile_raw(c, programs.ADD, options=b"\x1a\xff\xff"), what="damaged options").code


@check(required=True)
def a_device_that_does_not_exist_is_refused(c: Context) -> str:
    """A device assignment with an unknown id is an error."""
    return c.error_of(lambda: c.compile(programs.ADD, devices=[4096]), what="compiling for device 4096").code


@check
def more_devices_than_there_are_is_refused(c: Context) -> str:
    """More replicas than devices is an error."""
    many = len(c.client.devices) + 1
    code = programs.TWO_REPLICAS.replace(b"num_replicas = 2", f"num_replicas = {many}".encode())
    return c.error_of(lambda: c.compile(code, devices=list(range(many)), num_replicas=many)).code


@check
def an_unknown_option_of_the_user_is_refused(c: Context) -> str:
    """Compiler options of the user arrive unchecked: unknown names are an error and not ignored."""
    return c.error_of(
        lambda: c.compile(programs.ADD, devices=[c.device.id], user={"no_such_option": True}),
        what="an unknown compiler option",
    ).code


@check
def each_device_gets_its_program(c: Context) -> None:
    """A program runs on the device that its assignment names."""
    _, second = c.device_pair()
    program = c.compile(programs.ADD, devices=[second.id])
    a = c.put(ONE, memory=c.memory(second))
    (out,) = program.execute([a, a])
    assert c.call("Buffer_Device", buffer=out.handle).device == second.handle
    assert c.get(out).tolist() == [2, 2, 2, 2]


@check(required=True)
def compiling_in_several_threads(c: Context) -> None:
    """Programs may be compiled in several threads at once."""
    codes = [programs.ADD, programs.MULTIPLY, programs.DOT, programs.ADD]

    def work(number: int) -> None:
        program = c.client.compile(codes[number].replace(b"@main(", b"@main("))
        if number != 2:
            assert program(3 * ONE, ONE)[0].tolist() == ([3.0] * 4 if number == 1 else [4.0] * 4)

    c.in_threads(4, work)


@check
def compiling_on_a_small_stack(c: Context) -> None:
    """Frameworks compile on threads with 2 MiB of stack: a program of a thousand steps in a row fits."""
    import threading

    lines = ["%0 = stablehlo.add %a, %a : tensor<4xf32>"]
    lines += [f"%{n} = stablehlo.subtract %{n - 1}, %a : tensor<4xf32>" for n in range(1, 1000)]
    body = "\n".join([*lines, "return %999 : tensor<4xf32>"])
    code = programs.main("%a: tensor<4xf32>", "tensor<4xf32>", body)
    results: list[list[float]] = []
    size = threading.stack_size(2 << 20)
    try:
        thread = threading.Thread(target=lambda: results.append(c.client.compile(code)(ONE)[0].tolist()))
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join()
    assert results == [[2.0 - 999] * 4], results


def _one_type(name: str) -> None:
    dtype = DTYPES[name]

    def run(c: Context) -> None:
        values = np.array([0, 1, 1, 0]).astype(dtype.numpy)
        (out,) = c.compile(programs.element_wise(name))(values)
        with np.errstate(all="ignore"):
            expected = values | values if name == "i1" else (values.astype(np.float64) * 2).astype(dtype.numpy)
            if dtype.is_complex:
                expected = values + values
            if dtype.is_int:
                expected = np.array([0, 2, 2, 0]).astype(dtype.numpy)
        assert out.dtype == expected.dtype and out.tobytes() == expected.tobytes(), f"{out} for {expected}"

    run.__name__ = "arithmetic_in_" + "".join(ch if ch.isalnum() else "_" for ch in name).strip("_")
    run.__doc__ = f"A program computes with elements of type {name}; the result has the same type."
    check(run)


for _name in DTYPES:
    _one_type(_name)


@check
def the_options_can_be_read_back(c: Context) -> str:
    """GetCompileOptions gives the serialized options that the program was compiled with, and a deleter."""
    c.since(87)
    program = c.client.compile(programs.ADD, options=compile_options([c.device.id]))
    args = c.call("Executable_GetCompileOptions", executable=program.executable)
    data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
    assert data and args.serialized_compile_options_deleter
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_compile_options_deleter)(args.serialized_compile_options)
    again = c.client.compile(programs.ADD, options=data)
    if again(ONE, ONE)[0].tolist() != [2, 2, 2, 2]:
        raise Unsupported("the options do not compile the program again")
    return f"{len(data)} bytes"
