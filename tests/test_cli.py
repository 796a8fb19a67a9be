"""The command `ferrule`."""

from __future__ import annotations

import numpy as np
import pytest

from ferrule.cli import main

PROGRAM = """
func.func @main(%a: tensor<3x4xf32>, %b: tensor<4x2xf32>) -> (tensor<3x2xf32>, tensor<i32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %1 = stablehlo.negate %0 : tensor<3x2xf32>
  %c = stablehlo.constant dense<7> : tensor<i32>
  return %1, %c : tensor<3x2xf32>, tensor<i32>
}
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


def test_devices(capsys):
    assert main(["devices"]) == 0
    assert "FerruleCpuDevice(id=0" in capsys.readouterr().out


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "Ferrule is ready." in out and "✓ libferrule.so" in out and "xpu" in out


def test_compile_shows_stages(program, capsys):
    assert main(["compile", str(program), "--show", "fuse,program"]) == 0
    out = capsys.readouterr().out
    assert "// --- fuse ---" in out and "// --- program ---" in out and "// --- read ---" not in out
    assert "negate" in out and "compiled main for cpu" in out


@pytest.mark.parametrize("saved", [False, True])
def test_run(program, tmp_path, capsys, saved):
    a, b = (np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate([(3, 4), (4, 2)]))
    np.save(tmp_path / "a.npy", a)
    target = program
    if saved:
        target = tmp_path / "program.ferrule"
        assert main(["compile", str(program), "-o", str(target)]) == 0
    assert main(["run", str(target), "-i", str(tmp_path / "a.npy"), "-i", "4x2xf32", "-o", str(tmp_path / "out")]) == 0
    assert "output 0: 3x2 float32" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(tmp_path / "out" / "output0.npy"), -(a @ b), rtol=1e-5)
    assert np.load(tmp_path / "out" / "output1.npy") == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile", "nothing.mlir"], "there is no file"),
        (["compile", "PROGRAM", "--show", "magic"], "there is no stage 'magic'"),
        (["compile", "PROGRAM", "--target", "quantum"], "there is no target 'quantum'"),
        (["run", "PROGRAM"], "takes 2 arguments"),
        (["run", "PROGRAM", "-i", "3x4xf99", "-i", "4x2xf32"], "neither a .npy file nor a shape"),
        (["run", "PROGRAM", "-i", "3x4xf32", "-i", "4x3xf32"], "ferrule: "),
        (["run", "GARBAGE"], "ferrule: "),
        (["run", "PROGRAM", "--target", "quantum"], "quantum"),
    ],
)
def test_errors_are_sentences(program, tmp_path, capsys, arguments, words):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"FERRULE\0\1\0")
    arguments = [str(program) if a == "PROGRAM" else str(garbage) if a == "GARBAGE" else a for a in arguments]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("ferrule: ") and words in err and "Traceback" not in err


def test_wrong_usage():
    with pytest.raises(SystemExit) as stop:
        main(["compile"])
    assert stop.value.code == 2


@pytest.mark.parametrize("spec", ["f32", "2x3xi1", "0x4xbf16", "5xui8", "2xcomplex<f32>", "3xi4", "2xf8E4M3FN"])
def test_input_shapes(spec):
    from ferrule.cli import _input
    from ferrule.ir.types import BY_NUMPY, Tensor

    array = _input(spec, 0)
    assert str(Tensor(array.shape, BY_NUMPY[array.dtype])) == f"tensor<{spec}>"
