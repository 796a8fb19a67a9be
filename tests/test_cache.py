"""The cache of programs on disk: found by another process, whole or not at all, bounded, and never a wrong program."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule import cache, pipeline
from ferrule.program import PYTHON, Program
from ferrule.stablehlo.options import CompileOptions

TEXT = b"""func.func @main(%x: tensor<%Nxf32>) -> tensor<%Nxf32> {
  %y = stablehlo.add %x, %x : tensor<%Nxf32>
  return %y : tensor<%Nxf32>
}"""


def program(size: int) -> bytes:
    return TEXT.replace(b"%N", str(size).encode())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Compiles programs through the cache; gives how often the compiler ran."""
    monkeypatch.setenv("FERRULE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FERRULE_CACHE", "1")
    monkeypatch.setenv("FERRULE_DEBUG", "1")
    for watching in ("FERRULE_VERIFY", "FERRULE_DUMP"):  # other tests set these for a whole run
        monkeypatch.delenv(watching, raising=False)
    runs = []
    original = pipeline.compile_program
    monkeypatch.setattr(pipeline, "compile_program", lambda *a: runs.append(a) or original(*a))

    def compile(*sizes: int, options: bytes = b"", target: str = "cpu") -> int:
        before = len(runs)
        for size in sizes:
            made = Program.deserialize(cache.compile_cached(program(size), "mlir", options, target))
            assert made.params[0].type.shape == (size,)
        return len(runs) - before

    return compile


def files(folder: Path) -> list[Path]:
    return sorted((folder / "programs").iterdir())


def test_found_again(compiled, tmp_path, capfd):
    assert compiled(3, 4) == 2 and compiled(3, 4) == 0 and compiled(5) == 1
    assert len(files(tmp_path)) == 3 and "read" in capfd.readouterr().err


def test_what_the_program_depends_on(compiled, monkeypatch):
    """Another target, other options, another number of threads, processor, cache or Ferrule: compiled again."""
    assert compiled(3) == 1
    assert compiled(3, options=b"\x1a\x02\x20\x02") == 1  # two replicas
    monkeypatch.setenv("FERRULE_NUM_THREADS", "17")
    assert compiled(3) == 1 and compiled(3) == 0
    monkeypatch.setattr(cache, "_machine", lambda: b"another")
    assert compiled(3) == 1
    monkeypatch.setattr(cache, "cache_bytes", lambda: 4096)
    assert compiled(3) == 1
    monkeypatch.setattr(cache, "compiler", lambda: b"another")
    assert compiled(3) == 1


def test_equal_options_are_equal():
    one, two = (CompileOptions(user=dict(items)) for items in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]))
    assert cache.key_of(b"", "mlir", one, "cpu") == cache.key_of(b"", "mlir", two, "cpu")


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "swap"])
def test_a_damaged_entry_is_made_again(compiled, tmp_path, capfd, damage):
    compiled(3, 4)
    one, two = files(tmp_path)
    whole, other = one.read_bytes(), two.read_bytes()
    bad = {"cut": whole[:-1], "flip": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], "empty": b"", "swap": other}
    one.write_bytes(bad[damage])
    assert compiled(3, 4) == 1 and "damaged" in capfd.readouterr().err
    assert one.read_bytes() == whole and compiled(3, 4) == 0


def test_switched_off_or_watched(compiled, monkeypatch, tmp_path):
    settings = {"FERRULE_CACHE": ("0", "binaries"), "FERRULE_DUMP": (str(tmp_path / "dump"),), "FERRULE_VERIFY": ("1",)}
    for name, value in ((n, v) for n, values in settings.items() for v in values):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert compiled(3) == 1 and compiled(3) == 1
    assert not (tmp_path / "programs").exists()


def test_a_folder_that_cannot_be_written(compiled, monkeypatch, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FERRULE_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert compiled(3) == 1 and compiled(3) == 1
    assert "not kept" in capfd.readouterr().err


def test_bounded(tmp_path):
    """What was used last stays."""
    store = cache.Store(tmp_path, 10_000)
    for number in range(12):
        store.put(f"{number:03}", bytes(1000))
        os.utime(tmp_path / f"{number:03}.program", ns=(number, number))
        if number == 6:
            os.utime(tmp_path / "000.program")
    left = sorted(f.stem for f in tmp_path.iterdir())
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 10_000
    assert "000" in left and "011" in left and "001" not in left
    store.put("large", bytes(9000))
    assert store.get("large") is None and store.get("011") is not None


def test_programs_of_this_process_alone_are_not_kept(compiled, monkeypatch, tmp_path):
    original = pipeline.compile_program

    def with_callback(*args):
        made = original(*args)
        made.flags |= PYTHON
        return made

    monkeypatch.setattr(pipeline, "compile_program", with_callback)
    assert compiled(3) == 1 and compiled(3) == 1
    assert not (tmp_path / "programs").exists()


def test_many_writers(tmp_path):
    """Readers see a whole entry or none, whoever writes."""
    store, wrong = cache.Store(tmp_path, 1 << 20), []

    def work(number: int) -> None:
        for i in range(50):
            store.put("one", bytes([7]) * 5000)
            store.put(f"{number}.{i}", bytes([number]) * 1000)
            if store.get("one") not in (None, bytes([7]) * 5000):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not [f for f in tmp_path.iterdir() if f.name.startswith("draft")]
