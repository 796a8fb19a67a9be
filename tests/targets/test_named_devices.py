"""`ferrule compile --target xpu:…` for devices that are not here: valid SPIR-V, by the judgement of spirv-val."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ferrule.cli import main
from ferrule.program import Program
from ferrule.targets.gpu import NAMED

EXAMPLE = Path(__file__).parents[2] / "examples" / "row_scale.mlir"
MAGIC = 0x07230203


@pytest.mark.parametrize("device", sorted(NAMED))
def test_compile_for(device, tmp_path, capsys):
    kernels, saved = tmp_path / "kernels.spv", tmp_path / "program.ferrule"
    assert (
        main(["compile", str(EXAMPLE), "--target", f"xpu:{device}", "--kernels", str(kernels), "-o", str(saved)]) == 0
    )
    assert f"ferrule run {saved} --target xpu" in capsys.readouterr().out
    program = Program.deserialize(saved.read_bytes())
    assert program.target == "xpu" and program.objects[0] == kernels.read_bytes()
    assert int.from_bytes(kernels.read_bytes()[:4], "little") == MAGIC
    if judge := shutil.which("spirv-val"):
        done = subprocess.run([judge, kernels], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_unknown_device(capsys):
    assert main(["compile", str(EXAMPLE), "--target", "xpu:voodoo"]) == 1
    said = capsys.readouterr().err
    assert "no device 'voodoo'" in said and "pvc" in said


def test_a_device_that_lacks_f64(tmp_path, capsys):
    """An error that names what is missing; nothing is computed in another format silently."""
    program = tmp_path / "f64.mlir"
    program.write_text(
        "module @m { func.func public @main(%x: tensor<8xf64>) -> tensor<8xf64> {\n"
        "  %y = stablehlo.add %x, %x : tensor<8xf64>\n  return %y : tensor<8xf64>\n} }\n"
    )
    assert main(["compile", str(program), "--target", "xpu:pvc"]) == 0
    capsys.readouterr()
    assert main(["compile", str(program), "--target", "xpu:dg2"]) == 1
    said = capsys.readouterr().err
    assert "f64" in said and "Traceback" not in said
