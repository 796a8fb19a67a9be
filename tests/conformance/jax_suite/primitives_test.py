"""Every use of a primitive that JAX describes for its own tests, on the default platform beside jaxlib's CPU.

The descriptions (`jax._src.internal_test_util.test_harnesses`, several thousand) are in JAX's wheel, so that this file
runs where JAX's repository cannot be reached. It compares values; JAX's tests of the same primitives check gradients
and batching besides.
"""

import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import dtypes
from jax._src import test_util as jtu
from jax._src.internal_test_util import test_harnesses

import jax

# Against a reference that itself has an error of some units in the last place and adds in another order.
TOLERANCE = {
    np.dtype(ml_dtypes.bfloat16): 3e-2,
    np.dtype(np.float16): 4e-3,
    np.dtype(np.float32): 2e-5,
    np.dtype(np.complex64): 2e-5,
    np.dtype(np.float64): 1e-12,
    np.dtype(np.complex128): 1e-12,
}


def described() -> list[tuple[str, test_harnesses.Harness]]:
    """The harnesses that JAX implements on a CPU, with their names."""
    return [(harness.fullname, harness) for harness in test_harnesses.all_harnesses if harness.filter("cpu")]


def run_on(device, harness, arguments) -> list[np.ndarray]:
    with jax.default_device(device):
        results = jax.jit(harness.dyn_fun)(*arguments)
    leaves = []
    for leaf in jax.tree.leaves(results):
        assert leaf.devices() == {device}, f"ran on {leaf.devices()}"
        leaves.append(jax.random.key_data(leaf) if dtypes.issubdtype(leaf.dtype, dtypes.prng_key) else leaf)
    return [np.asarray(leaf) for leaf in leaves]


class PrimitivesTest(jtu.JaxTestCase):
    @parameterized.named_parameters(described())
    def test(self, harness) -> None:
        arguments = harness.dyn_args_maker(self.rng())
        expected = run_on(jax.devices("cpu")[0], harness, arguments)
        found = run_on(jax.devices()[0], harness, arguments)
        self.assertEqual(len(found), len(expected))
        if harness.group_name == "cholesky":  # what stands above the diagonal is the platform's own affair
            found, expected = ([np.tril(value) for value in values] for values in (found, expected))
        for mine, other in zip(found, expected):
            self.assertEqual((mine.shape, mine.dtype), (other.shape, other.dtype))
            error = TOLERANCE.get(other.dtype)
            if error is None:
                np.testing.assert_array_equal(mine, other)
            else:
                jtu._assert_numpy_allclose(mine, other, atol=error, rtol=error)


if __name__ == "__main__":
    absltest.main(testLoader=jtu.JaxTestLoader())
