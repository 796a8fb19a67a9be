"""Programs as the compiler writes them, loaded and run without PJRT: steps, slots, checks, and hostile bytes."""

from __future__ import annotations

import ctypes
import random
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest

import ferrule
from ferrule.ir.types import BY_NUMPY, Tensor
from ferrule.program import (
    ARENA,
    CONSTANT,
    OUTPUT,
    PARAM,
    Call,
    Case,
    Copy,
    Launch,
    Output,
    Param,
    Program,
    Slot,
    While,
)

LOOP = """
define void @NAME(ptr %p, i64 %begin, i64 %end) {
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %b = load ptr, ptr %p1
  br label %loop
loop:
  %i = phi i64 [%begin, %0], [%next, %loop]
  %from = getelementptr TYPE, ptr %a, i64 %i
  %x = load TYPE, ptr %from
  BODY
  %to = getelementptr OUT, ptr %b, i64 %i
  store OUT %y, ptr %to
  %next = add i64 %i, 1
  %done = icmp sge i64 %next, %end
  br i1 %done, label %exit, label %loop
exit:
  ret void
}
"""


def loop(name: str, body: str, type: str = "float", out: str = "") -> str:
    return LOOP.replace("NAME", name).replace("BODY", body).replace("TYPE", type).replace("OUT", out or type)


def tensor(shape: tuple[int, ...], dtype: type = np.float32) -> Tensor:
    return Tensor(shape, BY_NUMPY[np.dtype(dtype)])


@pytest.fixture(scope="module")
def kernels(assemble) -> bytes:
    return assemble(
        loop("double", "%y = fadd float %x, %x")
        + loop("increment", "%y = add i32 %x, 1", "i32")
        + loop("below", "%c = icmp slt i32 %x, 10\n  %y = zext i1 %c to i8", "i32", "i8")
        + loop("negate", "%y = fneg float %x")
    )


FUNCTIONS = [(0, "double"), (0, "increment"), (0, "below"), (0, "negate")]


def elementwise(kernels: bytes, n: int, grain: int = 1 << 40) -> Program:
    return Program(
        name="twice",
        params=[Param(tensor((n,)))],
        outputs=[Output(tensor((n,)))],
        objects=[kernels],
        functions=FUNCTIONS,
        slots=[Slot(PARAM, 0, 4 * n), Slot(OUTPUT, 0, 4 * n)],
        blocks=[[Launch(0, n, grain, (0, 1))]],
    )


@pytest.mark.parametrize("n", [0, 1, 7, 100_000])
@pytest.mark.parametrize("grain", [1, 1000, 1 << 40])
def test_launch(native, kernels, n, grain):
    x = np.arange(n, dtype=np.float32)
    loaded = native.load(elementwise(kernels, n, grain))
    (y,) = loaded.run([x], [np.zeros(n, np.float32)])
    np.testing.assert_array_equal(y, x + x)
    loaded.free()


def test_while_counts_to_ten(native, kernels):
    program = Program(
        name="loop",
        params=[Param(tensor((), np.int32))],
        outputs=[Output(tensor((), np.int32))],
        arena_bytes=128,
        objects=[kernels],
        functions=FUNCTIONS,
        slots=[Slot(PARAM, 0, 4), Slot(OUTPUT, 0, 4), Slot(ARENA, 0, 4), Slot(ARENA, 64, 1)],
        blocks=[
            [Copy(2, 0, 4), While(1, 3, 2), Copy(1, 2, 4)],
            [Launch(2, 1, 1, (2, 3))],
            [Launch(1, 1, 1, (2, 2))],
        ],
    )
    loaded = native.load(program)
    for start, end in ((0, 10), (9, 10), (10, 10), (50, 50)):
        (out,) = loaded.run([np.array(start, np.int32)], [np.zeros((), np.int32)])
        assert out == end
    loaded.free()


@pytest.mark.parametrize(("index", "expected"), [(0, 2.0), (1, -1.0), (2, 1.0), (3, 1.0), (-1, 1.0)])
def test_case_by_index(native, kernels, index, expected):
    program = Program(
        name="case",
        params=[Param(tensor((), np.int32)), Param(tensor(()))],
        outputs=[Output(tensor(()))],
        objects=[kernels],
        functions=FUNCTIONS,
        slots=[Slot(PARAM, 0, 4), Slot(PARAM, 1, 4), Slot(OUTPUT, 0, 4)],
        blocks=[
            [Case(0, False, (1, 2, 3))],
            [Launch(0, 1, 1, (1, 2))],
            [Launch(3, 1, 1, (1, 2))],
            [Copy(2, 1, 4)],
        ],
    )
    loaded = native.load(program)
    (out,) = loaded.run([np.array(index, np.int32), np.ones((), np.float32)], [np.zeros((), np.float32)])
    assert out == expected
    loaded.free()


@pytest.mark.parametrize("truth", [True, False])
def test_case_by_predicate(native, kernels, truth):
    program = Program(
        name="if",
        params=[Param(tensor((), np.bool_)), Param(tensor(()))],
        outputs=[Output(tensor(()))],
        objects=[kernels],
        functions=FUNCTIONS,
        slots=[Slot(PARAM, 0, 1), Slot(PARAM, 1, 4), Slot(OUTPUT, 0, 4)],
        blocks=[[Case(0, True, (1, 2))], [Launch(0, 1, 1, (1, 2))], [Launch(3, 1, 1, (1, 2))]],
    )
    loaded = native.load(program)
    (out,) = loaded.run([np.array(truth), np.ones((), np.float32)], [np.zeros((), np.float32)])
    assert out == (2.0 if truth else -1.0)
    loaded.free()


def test_constants_are_aligned(native, assemble):
    table = np.arange(8, dtype=np.float32)
    address = """
define void @where(ptr %p, i64 %b, i64 %e) {
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %o = load ptr, ptr %p1
  %n = ptrtoint ptr %a to i64
  store i64 %n, ptr %o
  ret void
}"""
    for pad in range(1, 20):  # moves the constants about in the serialized form
        program = Program(
            name="c" * pad,
            outputs=[Output(tensor((8,))), Output(tensor((), np.int64))],
            constants=table.tobytes(),
            objects=[assemble(address)],
            functions=[(0, "where")],
            slots=[Slot(CONSTANT, 0, 32), Slot(OUTPUT, 0, 32), Slot(OUTPUT, 1, 8)],
            blocks=[[Copy(1, 0, 32), Launch(0, 1, 1, (0, 2))]],
        )
        loaded = native.load(program)
        out, where = loaded.run([], [np.zeros(8, np.float32), np.zeros((), np.int64)])
        np.testing.assert_array_equal(out, table)
        assert where % 64 == 0
        loaded.free()


def test_many_slots_and_operands(native, kernels):
    count = 700
    program = Program(
        name="many",
        params=[Param(tensor((1,))) for _ in range(count)],
        outputs=[Output(tensor((1,))) for _ in range(count)],
        objects=[kernels],
        functions=FUNCTIONS,
        slots=[Slot(PARAM, i, 4) for i in range(count)] + [Slot(OUTPUT, i, 4) for i in range(count)],
        blocks=[[Launch(0, 1, 1, (i, count + i, *range(300))) for i in range(count)]],
    )
    loaded = native.load(program)
    outs = loaded.run(
        [np.full(1, i, np.float32) for i in range(count)], [np.zeros(1, np.float32) for _ in range(count)]
    )
    assert [float(o[0]) for o in outs] == [2.0 * i for i in range(count)]
    loaded.free()


def reseal(data: bytes) -> bytes:
    """The same bytes with a checksum that fits, so that the reader must find what is wrong."""
    return data[:12] + struct.pack("<I", zlib.crc32(data[16:])) + data[16:]


def test_refuses_what_does_not_fit(native, kernels):
    good = elementwise(kernels, 4)
    data = good.serialize()
    for damaged, reason in (
        (b"", "not a Ferrule program"),
        (data[:12], "cut off"),
        (b"X" + data[1:], "not a Ferrule program"),
        (data[:8] + struct.pack("<I", 99) + data[12:], "format 99"),
        (data[:-1] + b"?", "checksum"),
        (reseal(data + b"x"), "bytes after its end"),
        (reseal(data[:-4]), "cut off"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            native.load(damaged)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": "toaster"}, r"\[9\].*'toaster'"),
        ({"features": "sse2,no-such-feature,other"}, r"(?s)\[9\].*no-such-feature, other"),
        ({"functions": [(0, "missing")]}, "'missing'"),
        ({"functions": [(7, "double")]}, "object that does not exist"),
        ({"blocks": []}, "no steps"),
        ({"blocks": [[Launch(9, 1, 1, (0, 1))]]}, "function that does not exist"),
        ({"blocks": [[Launch(0, 1, 1, (0, 5))]]}, "slot that does not exist"),
        ({"blocks": [[Launch(0, -1, 1, (0, 1))]]}, "negative grid"),
        ({"blocks": [[Copy(1, 0, 17)]]}, "more bytes than its slot"),
        ({"blocks": [[Copy(1, 0, -1)]]}, "negative size"),
        ({"blocks": [[While(0, 0, 0)]]}, "contain themselves"),
        ({"blocks": [[While(1, 0, 2)], [], [Case(0, True, (0, 1))]]}, "contain themselves"),
        ({"blocks": [[Case(0, True, (1,))], []]}, "too few branches"),
        ({"blocks": [[While(5, 0, 0)]]}, "block that does not exist"),
        ({"blocks": [[Call("no.such.call", False, (), (), {})]]}, r"\[5\].*'no.such.call'"),
        ({"blocks": [[Call("no_such_ffi", True, (), (), {})]]}, r"\[5\].*'no_such_ffi'"),
        ({"blocks": [[Call("x", False, ((0, tensor((5,))),), (), {})]]}, "larger than its slot"),
        ({"slots": [Slot(PARAM, 0, 17), Slot(OUTPUT, 0, 16)]}, "outside of its memory"),
        ({"slots": [Slot(PARAM, 1, 4), Slot(OUTPUT, 0, 16)]}, "outside of its memory"),
        ({"slots": [Slot(ARENA, 1, 1), Slot(OUTPUT, 0, 16)]}, "outside of its memory"),
        ({"slots": [Slot(CONSTANT, -1, 1), Slot(OUTPUT, 0, 16)]}, "outside of its memory"),
        ({"arena_bytes": -1}, "arena"),
        ({"params": [Param(tensor((2**40, 2**40)))]}, "too large"),
        ({"params": [Param(tensor((4,)), alias=3)]}, "output that does not exist"),
    ],
)
def test_says_what_is_wrong(native, kernels, change, reason):
    program = elementwise(kernels, 4)
    for key, value in change.items():
        setattr(program, key, value)
    with pytest.raises(RuntimeError, match=reason):
        native.load(program)


def test_host_features_are_known(native, kernels):
    import llvmlite.binding as llvm

    program = elementwise(kernels, 4)
    program.features = ",".join(name for name, on in llvm.get_host_cpu_features().items() if on)
    native.load(program).free()


@pytest.fixture(scope="module")
def plain_call(native):
    """The name of an FFI handler that takes anything and is never run here."""
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda frame: None)
    address = ctypes.cast(handler, ctypes.c_void_p)
    native.check(native.lib.ferrule_ffi_register(b"test.plain", b"cpu", 1, 0, None, None, None, address))
    yield "test.plain"
    del handler


def test_hostile_bytes_never_crash(native, kernels, plain_call):
    """Damaged programs with a right checksum give an error or load; none is run."""
    program = elementwise(kernels, 4)
    program.constants = b"0123456789"
    program.arena_bytes = 64
    program.cost = {"flops": 1.0}
    program.text = b"text"
    program.blocks = [
        [Launch(0, 4, 1, (0, 1)), While(1, 0, 2), Case(0, False, (1, 2, 2)), Copy(1, 0, 16)],
        [Call(plain_call, True, ((0, tensor((4,))),), ((1, tensor((4,))),), {"id": 1, "name": "x"})],
        [],
    ]
    good = program.serialize()
    native.load(good).free()
    code_at = good.index(b"\x7fELF")
    elsewhere = [i for i in range(16, len(good)) if not code_at <= i < code_at + len(kernels)]
    rng = random.Random(2)
    loaded = 0
    for trial in range(6000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 3))):
            data[rng.choice(elsewhere)] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if trial % 5 == 0:
            del data[rng.choice(elsewhere) :]
        elif trial % 7 == 0:
            data[rng.choice(elsewhere) :] = rng.randbytes(50)
        try:
            native.load(reseal(bytes(data))).free()
            loaded += 1
        except RuntimeError:
            pass
    assert loaded > 0


def test_python_callback(native, tmp_path):
    """The bridge is a stand-in here: what matters is what it receives, and where its exceptions go."""
    (tmp_path / "ferrule").mkdir()
    (tmp_path / "ferrule" / "__init__.py").write_text("")
    (tmp_path / "ferrule" / "bridge.py").write_text(
        textwrap.dedent(
            """
            import numpy as np
            kept, counts = [], {}
            def retain_callback(id): counts[id] = counts.get(id, 0) + 1
            def release_callback(id): counts[id] -= 1
            def host_callback(id, operands, results):
                if id == 13:
                    raise KeyError("unlucky")
                (x, xt, xd), (e, et, ed) = operands
                (y, yt, yd), = results
                assert (xt, xd, et, ed, yt, yd) == (11, (2, 3), 11, (0,), 11, (3, 2))
                assert x.readonly and not y.readonly and len(e) == 0
                a = np.frombuffer(x, np.float32).reshape(xd)
                np.frombuffer(y, np.float32).reshape(yd)[:] = a.T * id
                kept.append(results[0][0])
            """
        )
    )
    script = textwrap.dedent(
        f"""
        import sys
        from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
        # An editable install has a finder of its own, which would come before the stand-in's folder.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
        sys.path.insert(0, {str(tmp_path)!r})
        import ferrule, ctypes, numpy as np, threading
        from ferrule import bridge
        ferrule.__path__.append({str(Path(ferrule.__file__).parent)!r})
        from ferrule.program import *
        from ferrule.ir.types import f32, Tensor
        lib = ctypes.CDLL({str(native.path)!r})
        lib.ferrule_last_error.restype = ctypes.c_char_p
        x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 2), np.float32)
        empty = np.zeros(0, np.float32)
        def run(id):
            t, e, r = Tensor((2, 3), f32), Tensor((0,), f32), Tensor((3, 2), f32)
            p = Program(name="cb", params=[Param(t), Param(e)], outputs=[Output(r)],
                slots=[Slot(PARAM, 0, 24), Slot(PARAM, 1, 0), Slot(OUTPUT, 0, 24)],
                blocks=[[Call("ferrule.python_callback", False, ((0, t), (1, e)), ((2, r),), {{"id": id}})]])
            data, h = p.serialize(), ctypes.c_void_p()
            assert lib.ferrule_program_load(data, ctypes.c_size_t(len(data)), ctypes.byref(h)) == 0
            ins = (ctypes.c_void_p * 2)(x.ctypes.data, 0)
            outs = (ctypes.c_void_p * 1)(y.ctypes.data)
            code = lib.ferrule_program_run(h, ins, outs)
            message = lib.ferrule_last_error().decode()
            lib.ferrule_program_free(h)
            return code, message
        assert run(3)[0] == 0, run(3)
        assert (y == x.T * 3).all()
        try:
            bytes(bridge.kept[0]); raise SystemExit("the view outlived the call")
        except ValueError:
            pass
        code, message = run(13)
        assert code == 13 and "KeyError: 'unlucky'" in message and "Traceback" in message, message
        t = threading.Thread(target=lambda: run(4)); t.start(); t.join()
        assert (y == x.T * 4).all()
        assert bridge.counts == {{3: 0, 13: 0, 4: 0}}, bridge.counts
        print("fine")
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stdout + done.stderr
