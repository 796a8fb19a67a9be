"""Long compiles say that they are at work; short ones say nothing."""

from __future__ import annotations

import time

import pytest

from ferrule import pipeline, progress

TEXT = b"func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile whose fusion takes 2 s, and a watcher that waits 1 s."""
    pipeline.compile_program(TEXT)  # text is read in a process that has to start first
    original = pipeline.fuse
    monkeypatch.setattr(pipeline, "fuse", lambda *a, **named: time.sleep(2) or original(*a, **named))
    monkeypatch.setattr(progress, "FIRST", 1.0)


def test_a_long_compile_says_where_it_is(slow, capfd):
    pipeline.compile_program(TEXT)
    assert "ferrule: compiling main: 1 s so far, now fuse" in capfd.readouterr().err


def test_it_can_be_switched_off(slow, capfd, monkeypatch):
    monkeypatch.setenv("FERRULE_PROGRESS", "0")
    pipeline.compile_program(TEXT)
    assert capfd.readouterr().err == ""


def test_a_short_compile_says_nothing(capfd):
    pipeline.compile_program(TEXT)
    assert capfd.readouterr().err == ""


def test_a_compile_that_fails_is_not_watched_any_more(slow, capfd):
    with pytest.raises(Exception, match="."):
        pipeline.compile_program(b"nonsense")
    time.sleep(1.2)
    assert "compiling" not in capfd.readouterr().err
