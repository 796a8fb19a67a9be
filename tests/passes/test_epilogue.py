"""What is added to a product of the device's library goes into the call, where nothing else reads the product."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import ferrule
import jax
from ferrule.passes.epilogue import attach_epilogues
from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.targets.gpu import find

GPU = find("xpu:kind=gpu,units=64,dnnl=1")
X, W, BIAS, REST = normal(64, 100), normal(100, 80, seed=1), normal(80, seed=2), normal(64, 80, seed=3)

CASES = {
    "bias": (lambda x, w, b: x @ w + b, (X, W, BIAS), ["add"]),
    "residual": (lambda x, w, r: r + x @ w, (X, W, REST), ["add"]),
    "both": (lambda x, w, b, r: x @ w + b + r, (X, W, BIAS, REST), ["add,add"]),
    "batched": (lambda x, w, b: jnp.einsum("bij,bjk->bik", x, w) + b, (X[None], W[None], BIAS), ["add"]),
    "of another product": (lambda x, w, r: (x @ w + r) @ w.T + x, (X, W, REST), ["add", "add"]),
    "along the other dimension": (lambda x, w, b: x @ w + b[:, None], (X, W, normal(64)), [""]),
    "read twice": (lambda x, w, b: (x @ w + b, x @ w), (X, W, BIAS), [""]),
    "narrow": (lambda x, w, b: (x @ w + b).astype(jnp.bfloat16), [v.astype(jnp.bfloat16) for v in (X, W, BIAS)], [""]),
    "NaN": (lambda x, w: jnp.maximum(x @ w, 0), (X.copy(), W), [""]),
}
CASES["NaN"][1][0][3, 4] = np.nan


@pytest.mark.parametrize("name", CASES)
def test_what_the_call_takes(name):
    f, args, expected = CASES[name]
    block = simplify(attach_epilogues(simplify(match(simplify(graph(f, *args)), GPU))))
    calls = [op.attrs["attrs"] for op in block.walk() if op.name == "library"]
    assert [c.get("epilogue", "") for c in calls] == expected


@pytest.mark.parametrize("name", CASES)
def test_results(name, xpu):
    from jaxlib.mlir.dialects import stablehlo

    f, args, _ = CASES[name]
    module = jax.jit(f).trace(*args).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    code = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    found = ferrule.compile(code, "xpu")(*args)
    found = list(found) if isinstance(found, list | tuple) else [found]
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.tree.leaves(jax.jit(f)(*args))
    for a, b in zip(found, wanted, strict=True):
        a, b = (np.asarray(v).astype(np.float32) for v in (a, b))
        np.testing.assert_allclose(
            a, b, rtol=2e-2 if name == "narrow" else 1e-5, atol=1e-1 if name == "narrow" else 1e-4
        )
