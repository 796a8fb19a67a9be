"""Calls, loops and choices that a program has twice are done once, unless they have effects."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.passes.simplify import simplify
from ferrule.stablehlo.importer import import_module
from ferrule.stablehlo.legalize import legalize
from ferrule.stablehlo.options import CompileOptions
from ferrule.stablehlo.reader import read

MATRICES = np.random.default_rng(0).standard_normal((5, 4, 4)).astype("f")


def scanned(a: Any, more: float = 0.0) -> Any:
    return jax.lax.scan(lambda c, x: (jnp.tanh(c @ x) + more, None), a[0], a)[0]


def repeated(a: Any) -> Any:
    return jax.lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 1.5 + 1, a)


def chosen(a: Any, other: float = 2.0) -> Any:
    return jax.lax.cond(a.sum() > 0, jnp.sin, lambda x: x * other, a)


def shown(a: Any) -> Any:
    def body(c: Any) -> Any:
        jax.debug.callback(print, c.sum(), ordered=False)
        return c + 1

    return jax.lax.while_loop(lambda c: c.sum() < 1e3, body, a)


# What is done, what is written, and how often the one is in the other.
CASES: dict[str, tuple[Any, Any, int]] = {
    "lu": (jnp.linalg.inv, lambda a: (jnp.linalg.inv(a), jnp.linalg.inv(a) * 2), 1),
    "eigh": (jnp.linalg.eigh, lambda a: (jnp.linalg.eigh(a)[0], jnp.linalg.eigh(a)[1] * 2), 1),
    "of other matrices": (jnp.linalg.qr, lambda a: (*jnp.linalg.qr(a), *jnp.linalg.qr(a + 1)), 2),
    "scan": (scanned, lambda a: (scanned(a), scanned(a) * 2), 1),
    "other scans": (scanned, lambda a: (scanned(a), scanned(a, 1.0)), 2),
    "loop": (repeated, lambda a: (repeated(a), repeated(a) * 2), 1),
    "one after the other": (repeated, lambda a: repeated(repeated(a)), 2),
    "cond": (chosen, lambda a: (chosen(a), chosen(a) + 1), 1),
    "other conds": (chosen, lambda a: (chosen(a), chosen(a, 3.0) + 1), 2),
    "with effects": (shown, lambda a: (shown(a), shown(a) * 2), 2),
}
KINDS = ("custom_call", "while", "case")


def counted(f: Any, ours: bool) -> list[int]:
    module = jax.jit(f).trace(MATRICES).lower(lowering_platforms=("cpu",))
    text = str(module.compiler_ir("stablehlo")).encode()
    graph = import_module(legalize(read(text, "mlir")), CompileOptions()).main.body
    found = Counter(op.name for op in simplify(graph, ours=ours).walk())
    return [found[kind] for kind in KINDS]


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_once(name: str, ours: bool) -> None:
    once, written, times = CASES[name]
    wanted = [times * count for count in counted(once, ours)]
    assert any(wanted)
    assert counted(written, ours) == wanted


@pytest.mark.parametrize("name", [name for name in CASES if name != "with effects"])
def test_values(name: str) -> None:
    f, a = CASES[name][1], MATRICES @ MATRICES.transpose(0, 2, 1) + np.eye(4, dtype="f")
    found, wanted = (
        jax.tree.leaves(jax.jit(lambda *a: f(*a))(jax.device_put(a, device)))
        for device in (jax.devices("ferrule")[0], jax.devices("cpu")[0])
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())
