"""What of a processor's instructions LLVM may use."""

from __future__ import annotations

import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest

import jax
from ferrule.targets.cpu import host


@pytest.fixture
def with_sse4a(monkeypatch):
    found = {**llvm.get_host_cpu_features(), "sse4a": True}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: found)


def test_bytes_are_not_put_together_by_insertq(with_sse4a):
    """A hundred times as slow, where vectors of 256 bits were used before."""
    assert "-sse4a" in host().features and "+sse4a" not in host().features


@pytest.mark.skipif(host().triple.split("-")[0] != "x86_64", reason="the instruction is x86's")
def test_llvm_would_use_it():
    """Else the rule above can go."""
    source = "define <8 x i8> @g(ptr %p) {\n"
    for lane in range(8):
        source += f"  %a{lane} = getelementptr i8, ptr %p, i64 {8 * lane}\n  %v{lane} = load <8 x i8>, ptr %a{lane}\n"
    last = "%v0"
    for lane in range(1, 8):
        picks = [f"i32 {8 if at == lane else at}" for at in range(8)]
        source += f"  %s{lane} = shufflevector <8 x i8> {last}, <8 x i8> %v{lane}, <8 x i32> <{', '.join(picks)}>\n"
        last = f"%s{lane}"
    module = llvm.parse_assembly(source + f"  ret <8 x i8> {last}\n}}\n")
    target = llvm.Target.from_triple(host().triple)

    def text(features: str) -> str:
        return target.create_target_machine(cpu="znver3", features=features, opt=2).emit_assembly(module)

    assert "insertq" in text("+sse4a") and "insertq" not in text("-sse4a")


def test_rows_of_bytes():
    x, y = np.arange(8 * 999, dtype=np.int8).reshape(999, 8), np.arange(16, dtype=np.int8).reshape(8, 2)
    with jax.default_device(jax.devices("ferrule")[0]):
        z = jax.jit(lambda x, y: jax.lax.dot(x, y, preferred_element_type=jnp.int32))(x, y)
    np.testing.assert_array_equal(z, x.astype(np.int32) @ y.astype(np.int32))
