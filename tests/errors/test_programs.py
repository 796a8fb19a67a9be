"""Programs that cannot be compiled: the code says whose fault it is, the text says what, where, why and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule.client import Client, compile_options

ADD = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{\n  {}\n  return %0 : tensor<4xf32>\n}}"
GOOD = ADD.format("%0 = stablehlo.add %a, %a : tensor<4xf32>")
LINE = ' loc("model.py":12:3)'
Refused = Callable[..., Any]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"", ("the program is empty", "why:", "fix: send a module with a function @main")),
        (b"\x00\x01\x02garbage\xff", ("cannot be read", "line 1", "why:", "fix: send StableHLO")),
        (b"\x7fELF" + os.urandom(64), ("cannot be read", "why:", "fix:")),
        (b"ML\xefR", ("byte", "why:")),
        (b"ML\xefR" + b"\x99" * 40, ("cannot be read", "bytecode version", "fix:")),
        (b"func.func @main(", ("cannot be read", "line 1, column", "why:", "fix:")),
        (
            ADD.format("%0 = stablehlo.add %a, %c : tensor<4xf32>").encode(),
            ("where: line 2", "undeclared SSA value", "fix:"),
        ),
        (
            ADD.format("%0 = stablehlo.add %a, %a : tensor<5xf32>").encode(),
            ("where: line 2", "'tensor<5xf32>' vs 'tensor<4xf32>'", "fix:"),
        ),
        (
            ADD.format(
                f'%0 = "stablehlo.concatenate"(%a, %a) {{dimension = 0 : i64}} : (tensor<4xf32>, tensor<4xf32>)'
                f" -> tensor<4xf32>{LINE}"
            ).encode(),
            ("where: model.py:12:3", "concatenate", "fix:"),
        ),
        (b"module {}", ("the program has no function", "fix: send a module with a function @main")),
        (GOOD.replace("@main", "@other").encode(), ("no function @main", "why: it has @other", "fix: name the entry")),
    ],
    ids=["empty", "garbage", "elf", "magic", "bytecode", "cut", "value", "type", "shape", "module", "main"],
)
def test_malformed(client: Client, refused: Refused, code: bytes, words: tuple[str, ...]) -> None:
    with refused("INVALID_ARGUMENT", *words):
        client.compile(code)


def test_names_that_are_no_text(client: Client, refused: Refused) -> None:
    program = client.compile(f'module @"a\\80b" {{ {GOOD} }}'.encode())
    assert program.name == "a?b"
    np.testing.assert_array_equal(client.load(program.serialize())(np.ones(4, np.float32))[0], [2, 2, 2, 2])
    with refused("INVALID_ARGUMENT", "why: it has @a?b"):
        client.compile(GOOD.replace("@main", '@"a\\80b"').encode())


def test_damaged_artifact_bytes(client: Client, refused: Refused) -> None:
    from ferrule.stablehlo.text import to_portable

    good = to_portable(GOOD.encode(), "mlir")
    for at in range(8, len(good), 29):
        with refused("INVALID_ARGUMENT", "byte"):
            client.compile(good[:at])
    np.testing.assert_array_equal(client.compile(good)(np.ones(4, np.float32))[0], [2, 2, 2, 2])


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (
            f"%0 = stablehlo.custom_call @nobody_knows(%a) : (tensor<4xf32>) -> tensor<4xf32>{LINE}",
            ("custom call 'nobody_knows'", "where: model.py:12:3", "why: Ferrule calls XLA FFI", "fix: register"),
        ),
        (
            f'%0 = "stablehlo.frobnicate"(%a) : (tensor<4xf32>) -> tensor<4xf32>{LINE}',
            ("an op that is not known", "where: model.py:12:3", "'stablehlo.frobnicate'", "fix: use ops of StableHLO"),
        ),
        (
            '%0 = "other.op"(%a) : (tensor<4xf32>) -> tensor<4xf32>',
            ("an op that is not known", "where: line 2", "unregistered dialect", "fix: use ops of StableHLO"),
        ),
    ],
    ids=["custom_call", "op", "dialect"],
)
def test_unsupported_op(client: Client, refused: Refused, op: str, words: tuple[str, ...]) -> None:
    with refused("UNIMPLEMENTED", *words):
        client.compile(ADD.format(op).encode())


def test_a_collective_between_devices_that_the_program_has_not(client: Client, refused: Refused) -> None:
    op = (
        f'%0 = "stablehlo.all_reduce"(%a) ({{\n  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n'
        f"    %s = stablehlo.add %x, %y : tensor<f32>\n    stablehlo.return %s : tensor<f32>\n  }})"
        f" {{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}} : (tensor<4xf32>) -> tensor<4xf32>{LINE}"
    )
    with refused("INVALID_ARGUMENT", "all_reduce", "where: model.py:12:3", "why: the program is for 1", "fix:"):
        client.compile(ADD.format(op).encode())


def test_unsupported_dtype(client: Client, refused: Refused) -> None:
    same = "func.func @main(%a: tensor<4xtf32>) -> tensor<4xtf32> { return %a : tensor<4xtf32> }"
    with refused("UNIMPLEMENTED", "the type tf32 is not supported", "why:", "fix: compute in another type"):
        client.compile(same.encode())


def test_unsupported_type_inside(client: Client, refused: Refused) -> None:
    ops = "%1 = stablehlo.custom_call @CreateBuffer() : () -> memref<4xf32>" + LINE
    ops += "\n  %0 = stablehlo.custom_call @Unpin(%1) : (memref<4xf32>) -> tensor<4xf32>"
    with refused("UNIMPLEMENTED", "a buffer type", "where: model.py:12:3", "why:", "fix: compute in another type"):
        client.compile(ADD.format(ops).encode())


def test_open_shape(client: Client, refused: Refused) -> None:
    with refused("UNIMPLEMENTED", "where:", "tensor<?xf32>", "fix: compile for fixed shapes"):
        client.compile(GOOD.replace("4xf32", "?xf32").encode())


@pytest.mark.parametrize("shape", ["9999999999999", "9999999999999x99999999999", "0x9999999999999x99999999999"])
def test_array_too_large(client: Client, refused: Refused, shape: str) -> None:
    with refused("RESOURCE_EXHAUSTED", f"tensor<{shape}xf32>", "where:", "why:", "fix:"):
        client.compile(GOOD.replace("4xf32", shape + "xf32").encode())


def test_deep_programs(client: Client) -> None:
    """No stack overflows: neither a long chain nor deep nesting; what is too deep is an error."""
    chain = "\n".join(f"%{i + 1} = stablehlo.negate %{i} : tensor<4xf32>" for i in range(6000))
    text = "func.func @main(%arg: tensor<4xf32>) -> tensor<4xf32> {\n%0 = stablehlo.negate %arg : tensor<4xf32>\n"
    result = client.compile((text + chain + "\nreturn %6000 : tensor<4xf32>\n}").encode())(np.ones(4, np.float32))
    np.testing.assert_array_equal(result[0], -np.ones(4))


def nested(depth: int) -> str:
    """`depth` conditionals, one in the other."""
    opening = '%r{0} = "stablehlo.if"(%p) ({{\n'
    closing = (
        "stablehlo.return %r{1} : tensor<4xf32>\n}}, {{\nstablehlo.return %a : tensor<4xf32>\n}})"
        " : (tensor<i1>) -> tensor<4xf32>\n"
    )
    body = "".join(opening.format(i) for i in range(depth))
    body += f"%r{depth} = stablehlo.add %a, %a : tensor<4xf32>\n"
    body += "".join(closing.format(i, i + 1) for i in reversed(range(depth)))
    head = "func.func @main(%p: tensor<i1>, %a: tensor<4xf32>) -> tensor<4xf32> {\n"
    return head + body + "return %r0 : tensor<4xf32>\n}"


def test_deep_nesting(client: Client) -> None:
    result = client.compile(nested(190).encode())(np.bool_(True), np.ones(4, np.float32))
    np.testing.assert_array_equal(result[0], [2, 2, 2, 2])


def test_too_deep_nesting(client: Client, refused: Refused) -> None:
    with refused("UNIMPLEMENTED", "nested", "fix:"):
        client.compile(nested(1500).encode())


def test_recursion(client: Client, refused: Refused) -> None:
    again = GOOD.replace(
        "stablehlo.add %a, %a : tensor<4xf32>", "func.call @main(%a) : (tensor<4xf32>) -> tensor<4xf32>"
    )
    with refused("UNIMPLEMENTED", "recursive calls", "where:", "why: the calls are @main → @main", "fix: write"):
        client.compile(again.encode())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ferrule_dbug": 1}, ("No such compile option: 'ferrule_dbug'", "fix: did you mean 'ferrule_debug'?")),
        ({"xla_gpu_x": 1}, ("No such compile option: 'xla_gpu_x'", "fix: known options: ferrule_debug")),
        ({"ferrule_debug": "many"}, ("'ferrule_debug' has the value 'many'", "why: 'many' is not a valid int value")),
        ({"xla_dump_hlo_as_text": "maybe"}, ("'xla_dump_hlo_as_text'", "why: 'maybe' is not a valid bool value.")),
    ],
)
def test_compile_options(client: Client, refused: Refused, options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused("INVALID_ARGUMENT", *words):
        client.compile(GOOD.encode(), options=compile_options([0], user=options))
    with refused("INVALID_ARGUMENT", *words):
        ferrule.compile(GOOD, **options)


def test_damaged_options(client: Client, refused: Refused) -> None:
    with refused("INVALID_ARGUMENT", "CompileOptionsProto"):
        client.compile(GOOD.encode(), options=b"\x1a\xff\xff")


def test_format(client: Client, refused: Refused) -> None:
    with refused("INVALID_ARGUMENT", "program format 'protobuf' is not known", "fix: use one of mlir"):
        client.compile(GOOD.encode(), format="protobuf")
