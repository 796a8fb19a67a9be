"""The size of the processor's last cache, from descriptions as Linux gives them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ferrule.targets import cpu
from ferrule.targets.cpu import cache_bytes, last_caches, second_cache
from ferrule.targets.machine import Machine

MB = 1 << 20


def describe(system: Path, processor: int, *caches: tuple[str, str, str, str]) -> None:
    for at, about in enumerate(caches):
        folder = system / f"cpu{processor}" / "cache" / f"index{at}"
        folder.mkdir(parents=True)
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), about, strict=True):
            (folder / name).write_text(text + "\n")


def server(system: Path, last: str = "32768K") -> Path:
    """Eight processors; four have a last cache together."""
    for processor in range(8):
        group = processor // 4 * 4
        describe(
            system,
            processor,
            ("1", "Data", "48K", str(processor)),
            ("1", "Instruction", "32K", str(processor)),
            ("2", "Unified", "1024K", str(processor)),
            ("3", "Unified", last, f"{group}-{group + 1},{group + 2}-{group + 3}"),
        )
    return system


def test_a_shared_cache_counts_once(tmp_path):
    assert last_caches(server(tmp_path), {0, 1, 3}) == 32 * MB


def test_the_caches_of_other_processors_count_too(tmp_path):
    assert last_caches(server(tmp_path), range(8)) == 64 * MB
    assert last_caches(tmp_path, {2, 7}) == 64 * MB
    assert last_caches(tmp_path, {6, 7}) == 32 * MB


def test_units(tmp_path):
    assert last_caches(server(tmp_path, "1M"), {0}) == MB
    assert last_caches(server(tmp_path / "large", "1G"), {0}) == 1024 * MB
    assert last_caches(server(tmp_path / "bytes", "65536"), {0}) == 65536


def test_the_second_level(tmp_path):
    assert second_cache(server(tmp_path), 5) == MB
    assert second_cache(tmp_path, 8) == 0
    describe(tmp_path, 8, ("1", "Data", "64K", "8"))
    assert second_cache(tmp_path, 8) == 0
    describe(tmp_path, 9, ("2", "Unified", "large", "9"))
    assert second_cache(tmp_path, 9) == 0


@pytest.mark.parametrize("last", ["", "large", "0K", "-1K"])
def test_what_the_system_does_not_say_is_not_made_up(tmp_path, last):
    assert last_caches(server(tmp_path, last), {0}) == 0


def test_a_description_without_the_third_level(tmp_path):
    describe(tmp_path, 0, ("1", "Data", "64K", "0"), ("2", "Unified", "4M", "0-1"))
    assert last_caches(tmp_path, {0, 1}) == 0


def test_a_processor_that_is_not_described(tmp_path):
    assert last_caches(server(tmp_path), {0, 8}) == 0
    assert last_caches(tmp_path / "nothing", {0}) == 0


def test_a_file_that_is_missing(tmp_path):
    (server(tmp_path) / "cpu0" / "cache" / "index3" / "shared_cpu_list").unlink()
    assert last_caches(tmp_path, {0}) == 0


def test_this_machine():
    processors = os.sched_getaffinity(0)
    found = last_caches(Path("/sys/devices/system/cpu"), processors)
    assert cache_bytes() == (min(found, 48 * MB * len(processors)) or Machine.cache_bytes) >= 64 << 10


@pytest.mark.parametrize(("last", "counted"), [(480 * MB, 96 * MB), (48 * MB, 48 * MB), (0, Machine.cache_bytes)])
def test_a_few_processors_of_a_server(monkeypatch, last, counted):
    """A virtual machine is told of the whole cache, and stores went through it that had to go past it."""
    monkeypatch.setattr(cpu, "last_caches", lambda *_: last)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert cache_bytes.__wrapped__() == counted
