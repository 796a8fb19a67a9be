"""The debug ladder and the dump of stages.

FERRULE_DEBUG=1  what was compiled and how long · 2 each kernel with its work, and a table of times and rates after each
                 run (native/profile.h) · 3 the graph after each stage that changed it · 4 generated code · 5 everything
FERRULE_DUMP=dir writes every stage to dir/<program>.<id>/NN.stage.txt, the kernels' LLVM IR to kernels.ll, and the
program itself to program.txt and program.ferrule.
FERRULE_VERIFY=1 checks the graph after each stage and names the stage that broke it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ferrule.codegen.kernel import Kernel
from ferrule.errors import FerruleError, Internal
from ferrule.ir import Block, Module
from ferrule.ir.printer import print_block, print_module
from ferrule.program import Program

T = TypeVar("T")


def level() -> int:
    """The value of FERRULE_DEBUG, 0 when unset or no number."""
    text = os.environ.get("FERRULE_DEBUG", "0")
    return int(text) if text.isdigit() else 0


def say(text: str) -> None:
    """Writes one message of the debug ladder."""
    print(f"ferrule: {text}", file=sys.stderr, flush=True)


class Trace:
    """Follows one compile: times, prints, dumps and checks its stages."""

    def __init__(self, user: Mapping[str, Any] | None = None) -> None:
        user = user or {}
        self.level = int(user.get("ferrule_debug", level()))
        folder = user.get("ferrule_dump") or user.get("xla_dump_to")
        self.folder = str(folder or os.environ.get("FERRULE_DUMP", ""))
        self.verify = os.environ.get("FERRULE_VERIFY", "0") not in ("", "0")
        self.times: list[tuple[str, float]] = []
        self.texts: list[tuple[str, str]] = []
        self.last = ""
        self.name, self.now = "", ""  # the program, and the stage that runs
        self.show: Callable[[str, str], None] | None = None

    @property
    def watched(self) -> bool:
        """Does somebody look at the generated code, so that all of it is to be generated?"""
        return bool(self.folder or self.level >= 3 or self.verify or self.show)

    def stage(self, name: str, run: Callable[[], T]) -> T:
        """Runs one stage. An error that is not Ferrule's own becomes one that names the stage."""
        begin, self.now = time.perf_counter(), name
        try:
            result = run()
        except (FerruleError, MemoryError):
            raise
        except Exception as error:
            raise Internal(
                f"the compiler failed in stage '{name}': {type(error).__name__}: {error}",
                why="this is a bug in Ferrule",
                fix="run again with FERRULE_DUMP=<folder> and report the folder's content",
            ) from error
        self.times.append((name, time.perf_counter() - begin))
        if isinstance(result, Module):
            self.name = result.name
        if self.verify and isinstance(result, Block):
            from ferrule.ir.verifier import verify

            verify(result, name)
        if self.folder or self.level >= 3 or self.show:
            text = self._print(result)
            self.texts.append((name, text))
            changed, self.last = text != self.last, text
            if self.show:
                self.show(name, text if changed else "  (unchanged)")
            if (self.level >= 3 and changed and isinstance(result, Block)) or self.level >= 5:
                say(f"after {name}:\n{text}")
        return result

    @staticmethod
    def _print(result: Any) -> str:
        if isinstance(result, Module):
            return print_module(result)
        if isinstance(result, Block):
            return print_block(result)
        return ""

    def finish(self, program: Program, kernels: Sequence[Kernel]) -> None:
        """Reports on the finished program and its kernels."""
        if self.level >= 1:
            total = sum(seconds for _, seconds in self.times)
            parts = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in self.times)
            sizes = f"{len(kernels)} kernels, arena {program.arena_bytes}"
            say(f"compiled {program.name} in {total * 1e3:.1f} ms ({parts}); {sizes}")
        if self.level >= 2:
            for kernel in kernels:
                work = f"{kernel.flops:.3g} flops, {kernel.bytes:.3g} bytes"
                say(f"  {kernel.symbol}: {work}, grid {kernel.grid}, grain {kernel.grain}")
        code = "\n\n".join(kernel.text for kernel in kernels)
        if self.level >= 4:
            say(f"generated code:\n{code}")
        if self.show:
            self.show("kernels", code)
            self.show("program", str(program))
        if self.folder:
            place = Path(self.folder) / f"{program.name}.{program.fingerprint[:8]}"
            place.mkdir(parents=True, exist_ok=True)
            for number, (name, text) in enumerate(t for t in self.texts if t[1]):
                (place / f"{number:02}.{name}.txt").write_text(text)
            (place / "kernels.ll").write_text(code)
            (place / "program.txt").write_text(str(program))
            (place / "program.ferrule").write_bytes(program.serialize())
