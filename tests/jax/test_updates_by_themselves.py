"""In-place updates that read what they overwrite as their indices or as what they write: they see its old content."""

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax

UPDATES = {
    "set": lambda x, at: x.at[at].set(x),
    "add": lambda x, at: x.at[at].add(x),
    "own indices": lambda x, at: x.at[x].set(at),
    "own indices and content": lambda x, at: x.at[x].set(x),
    "rows": lambda x, at: x.reshape(-1, 2).at[at[::2] // 2].add(x.reshape(-1, 2)).reshape(-1),
    "slice": lambda x, at: lax.dynamic_update_slice(x, x, (at[0],)),
    "one element": lambda x, at: lax.dynamic_update_slice(x, x[:1], (x[3],)),
}
TIMES = {
    "of an argument": lambda f: f,
    "of a kernel's result": lambda f: lambda x, at: f((x + at) % len(x), at),
    "of an update": lambda f: lambda x, at: f(lax.dynamic_update_slice(x, at[:2], (1,)), at),
    "in a loop": lambda f: lambda x, at: lax.fori_loop(0, 3, lambda i, x: f(x, at) % len(x), x),
    "as a loop": lambda f: lambda x, at: lax.fori_loop(0, 2, lambda i, x: f(x, at), x % len(x)),
}


@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("update", UPDATES)
def test_old_content_is_read(device, update: str, times: str, donate: bool, size: int) -> None:
    f = TIMES[times](UPDATES[update])
    rng = np.random.default_rng(size)
    x, at = rng.permutation(size).astype(np.int32), rng.permutation(size).astype(np.int32)
    owned = jnp.array(x) + 0  # no memory of NumPy's, which would not be donated
    found = jax.jit(f, donate_argnums=0 if donate else ())(owned, at)
    assert owned.is_deleted() == donate
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = jax.jit(f)(x, at)
    assert found.devices() == {device} and expected.devices() != {device}
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
