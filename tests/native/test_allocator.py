"""Memory that programs gave back is there for those that come after, whatever sizes they ask for."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pjrt_host import Host, Table

MEGABYTE = 1 << 20


@pytest.fixture
def host(native: Any) -> Iterator[Host]:
    host = Host(Table.load(str(native.path)))
    yield host
    host.close()


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer takes pages of its own")
def test_blocks_of_a_new_size_are_kept_though_old_ones_fill_the_cache(host: Host) -> None:
    """What was freed last stays; else each run of a program gets fresh pages, because of one that ran before it."""
    old, new = (np.ones(n * MEGABYTE, np.uint8) for n in (100, 40))
    host.destroy(*[host.put(old) for _ in range(3)])
    host.destroy(host.put(new))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        host.destroy(host.put(new))
    # fresh pages would be ten times 20 faults, even if all are huge
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100
    assert host.stats().pool_bytes <= 320 * MEGABYTE


def test_what_nobody_wanted_for_longest_goes_first(host: Host) -> None:
    first, second = (np.ones(n * MEGABYTE, np.uint8) for n in (60, 50))
    held = [host.put(first) for _ in range(4)] + [host.put(second) for _ in range(2)]
    host.destroy(*held)  # the largest use so far: all are kept
    peak = host.stats().pool_bytes
    host.destroy(host.put(np.ones(90 * MEGABYTE, np.uint8)))
    kept = host.stats().pool_bytes
    assert kept <= peak
    host.destroy(*[host.put(second) for _ in range(2)])
    assert host.stats().pool_bytes == kept, "blocks of 50 MB went before older ones of 60"
