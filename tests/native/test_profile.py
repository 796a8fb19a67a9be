"""FERRULE_DEBUG=2 at run time: a table of what each run did, with times and rates; nothing without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np, ferrule
text = '''
func.func @main(%a: tensor<256x256xf32>, %i: tensor<i32>) -> tensor<256x256xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %r:2 = stablehlo.while(%n = %zero, %x = %a) : tensor<i32>, tensor<256x256xf32>
    cond {
      %p = stablehlo.compare LT, %n, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %m = stablehlo.add %n, %one : tensor<i32>
      %y = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
        : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
      %z = stablehlo.tanh %y : tensor<256x256xf32>
      stablehlo.return %m, %z : tensor<i32>, tensor<256x256xf32>
    }
  return %r#1 : tensor<256x256xf32>
}
'''
program = ferrule.compile(text)
for run in range(2):
    program(np.full((256, 256), 1 / 256, np.float32), np.int32(0))
print("done")
"""
TABLE = re.compile(r"ferrule: ran main in [\d.]+ us\n +us +calls +GB/s +GFLOP/s  kernel or call\n((?: +[\d.]+ .*\n)+)")


def run(level: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FERRULE_DEBUG": level}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
    return done.stderr


def test_each_run_is_timed() -> None:
    tables = TABLE.findall(run("2"))
    assert len(tables) == 2
    for table in tables:
        rows = {row.split()[-1]: row.split()[:-1] for row in table.splitlines()}
        (tanh,) = (row for name, row in rows.items() if "tanh" in name)
        assert rows["gemm"][1] == tanh[1] == "10"
        times = [float(row[0]) for row in rows.values()]
        assert times == sorted(times, reverse=True) and min(times) >= 0
        # flops and bytes are known: 10 products of 2·256³ operations on three matrices
        seconds, _, gigabytes, gigaflops = map(float, rows["gemm"])
        assert gigaflops == pytest.approx(10 * 2 * 256**3 / seconds * 1e-3, rel=0.05)
        assert gigabytes == pytest.approx(10 * 3 * 4 * 256**2 / seconds * 1e-3, rel=0.05)
        assert float(tanh[2]) > 0 and float(tanh[3]) > 0


@pytest.mark.parametrize("level", ["0", "1", "no"])
def test_lower_levels_say_nothing_about_runs(level: str) -> None:
    assert "ran main" not in run(level)
