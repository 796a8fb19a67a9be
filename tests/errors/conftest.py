"""Bad input: what every test of this folder checks besides its own error."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from sound import ADD, ONE

from ferrule.client import Client, Plugin
from ferrule.errors import FerruleError
from ferrule.native import library_path


@pytest.fixture(scope="session")
def plugin() -> Plugin:
    return Plugin(library_path())


@pytest.fixture
def client(plugin: Plugin) -> Iterator[Client]:
    """A client of its own; afterwards it still computes, and holds no memory."""
    client = plugin.client()
    yield client
    gc.collect()
    np.testing.assert_array_equal(client.compile(ADD.encode())(ONE, ONE)[0], 2 * ONE)
    gc.collect()
    stats = [device.memory_stats()["bytes_in_use"] for device in client.devices]
    assert stats == [0] * len(stats)


@pytest.fixture
def refused() -> Callable[..., contextlib.AbstractContextManager[None]]:
    """`with refused(code, *words):` the block raises an error of that code whose message has all of the words."""

    @contextlib.contextmanager
    def check(code: str, *words: str) -> Iterator[None]:
        with pytest.raises(FerruleError) as caught:
            yield
        error = caught.value
        missing = [w for w in words if w not in str(error)]
        assert (error.code, missing) == (code, []), str(error)
        assert "Traceback" not in str(error) and ".py:" not in str(error).replace("model.py:", "")
        caught.value.__traceback__ = None  # what the block's frames hold is free

    return check
