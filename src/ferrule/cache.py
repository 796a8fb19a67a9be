"""The cache on disk: a program that was compiled before is read, not compiled.

One file for each in <FERRULE_CACHE_DIR | $XDG_CACHE_HOME/ferrule | ~/.cache/ferrule>/programs, named by a hash of
everything that the compiler's answer depends on: the program, its options, the target, the processor, Ferrule itself.
Beside them, in kernels, lie the kernels of programs, for other programs that have the same ones (kernel_cache.py).
FERRULE_CACHE=0 switches the cache off; FERRULE_CACHE_MB bounds its size (512), the least recently used goes first.
What cannot be read is compiled again, what cannot be written is not kept, and FERRULE_DEBUG=1 says so. (The driver of
Intel GPUs keeps the device's binaries beside it, native/sycl/binary_cache.h; FERRULE_CACHE=binaries is that one alone.)

A hit must cost little, so this file imports nothing of the compiler.
"""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

from ferrule.libraries import has_lapack
from ferrule.stablehlo.options import CompileOptions, parse_options
from ferrule.targets.cpu import cache_bytes, second_cache_bytes
from ferrule.version import VERSION

MAGIC = b"FERRULE program 1\n"
MEGABYTES = 512
KERNELS_SHARE = 4  # one part in so many is for kernels
# Names of options of a compile that is watched: it takes place.
WATCHED = {"ferrule_dump", "ferrule_debug", "xla_dump_to"}


class Store:
    """A folder of entries: bytes by hash, checked when they are read, at most `limit` bytes in all.

    `what` is the word for an entry, and the ending of its file.
    """

    def __init__(self, folder: Path, limit: int, what: str = "program") -> None:
        self.folder, self.limit, self.what = folder, limit, what
        self.room = 0  # bytes that may be written before somebody looks how many there are

    def get(self, key: str) -> bytes | None:
        """The entry; None when there is none, or when it is damaged."""
        path = self.folder / f"{key}.{self.what}"
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + 32
        payload = entry[start:]
        if entry[:start] != MAGIC + hashlib.sha256(key.encode() + payload).digest():
            _say(f"the cached {self.what} {path} is damaged and is made again")
            path.unlink(missing_ok=True)
            return None
        try:
            os.utime(path)  # it was of use: the others go first
        except OSError:
            pass  # a cache that this user may only read
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Keeps an entry, unless that is not possible. Readers see the whole of it or nothing."""
        if len(payload) > self.limit // 4:
            return
        entry = MAGIC + hashlib.sha256(key.encode() + payload).digest() + payload
        draft = None
        try:
            if self.room < len(entry):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._make_room(len(entry))
            self.room -= len(entry)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix="draft.", delete=False) as file:
                draft = file.name
                file.write(entry)
            os.replace(draft, self.folder / f"{key}.{self.what}")
        except OSError as error:
            self.room = 0
            _say(f"a compiled {self.what} is not kept in {self.folder}: {error}")
            if draft:
                Path(draft).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        entries = []
        for entry in os.scandir(self.folder):
            try:
                entries.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
            except OSError:
                continue  # another process has just removed it
        total = size + sum(e[1] for e in entries)
        if total > self.limit:
            # More than is needed, so that not every program has to look again.
            for _, freed, path in sorted(entries):
                if total <= self.limit * 3 // 4:
                    break
                Path(path).unlink(missing_ok=True)
                total -= freed
        # Other processes write, too.
        self.room = size + min(self.limit - total, self.limit // 16)


def compile_cached(code: bytes, format: str, options: bytes, target: str) -> bytes:
    """The serialized program, as `pipeline.compile_program` makes it; read from the disk where that is possible."""
    store = open_store("program")
    verified = os.environ.get("FERRULE_VERIFY", "0") not in ("", "0")
    watched = verified or os.environ.get("FERRULE_DUMP") or _debug() > 2
    if store is None or watched or not WATCHED.isdisjoint((settings := parse_options(options)).user):
        return _compile(code, format, options, target)[0]
    key = key_of(code, format, settings, target)
    found = store.get(key)
    if found is not None:
        _say(f"read {len(found)} bytes of program {key[:8]} from {store.folder}")
        return found
    made, keep = _compile(code, format, options, target)
    if keep:
        store.put(key, made)
    return made


def _compile(code: bytes, format: str, options: bytes, target: str) -> tuple[bytes, bool]:
    from ferrule.pipeline import compile_program
    from ferrule.program import PYTHON

    with _no_cycles_left():
        program = compile_program(code, format, options, target)
        # Functions of this process are called by their numbers, which mean nothing to another one.
        return program.serialize(), not program.flags & PYTHON


@contextmanager
def _no_cycles_left() -> Iterator[None]:
    """A graph's ops and values refer to each other, so only the garbage collector frees it.

    It is off during a compile, which keeps what the compile makes among the young objects, and frees these at the end:
    that is quick, and nothing is left for a collection in the middle of the user's program.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        gc.collect(0)


def key_of(code: bytes, format: str, settings: CompileOptions, target: str) -> str:
    """The hash of all that the compiled program depends on."""
    digest = hashlib.sha256()
    # Frameworks write the bytes of equal options in another order each time.
    options = repr(replace(settings, user=sorted(settings.user.items()))).encode()  # type: ignore[arg-type]
    caches = f"{cache_bytes()} {second_cache_bytes()}".encode()
    for part in (compiler(), _machine(), _threads(), caches, target.encode(), format.encode(), options, code):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _threads() -> bytes:
    # As targets/cpu.py counts them.
    return (os.environ.get("FERRULE_NUM_THREADS") or str(len(os.sched_getaffinity(0)))).encode()


@cache
def compiler() -> bytes:
    """Ferrule's version and files, as this process loaded them, and what else decides on the code."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        about = path.stat()
        digest.update(f"{path.relative_to(root)} {about.st_size} {about.st_mtime_ns}\n".encode())
    versions = [f"{name} {metadata.version(name)}" for name in ("llvmlite", "numpy")]
    lapack = f"lapack {has_lapack()}"  # passes/eigh.py asks for it
    return "\n".join([VERSION, *versions, sys.version, lapack, digest.hexdigest()]).encode()


@cache
def _machine() -> bytes:
    """What LLVM's names of the processor and its features follow from."""
    lines = [platform.machine()]
    try:
        described = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        import llvmlite.binding as llvm

        return repr((lines, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())).encode()
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return "\n".join(lines + [line for line in described if line.startswith(wanted)]).encode()


def is_on() -> bool:
    """Does the environment allow what was compiled to be used again?"""
    return os.environ.get("FERRULE_CACHE") not in ("0", "binaries")


def open_store(what: str) -> Store | None:
    """The store of programs or kernels that the environment asks for."""
    folder = os.environ.get("FERRULE_CACHE_DIR")
    if not folder:
        home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and os.environ["HOME"] + "/.cache")
        if not home:
            return None
        folder = home + "/ferrule"
    text = os.environ.get("FERRULE_CACHE_MB", "")
    limit = (int(text) if text.isdigit() and int(text) else MEGABYTES) << 20
    share = limit // KERNELS_SHARE
    return _opened(Path(folder, what + "s"), share if what == "kernel" else limit - share, what) if is_on() else None


_opened = cache(Store)


def _debug() -> int:
    text = os.environ.get("FERRULE_DEBUG", "0")
    return int(text) if text.isdigit() else 0


def _say(text: str) -> None:
    if _debug():
        print(f"ferrule: {text}", file=sys.stderr, flush=True)
