"""The pages about troubles quote real messages: each one is found in the source of whoever says it."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("troubleshooting.md", "intel-gpu.md")]
# Two literals that stand behind each other are one message.
JOINT = re.compile(r'"\s*(?:\+\s*)?\n\s*(?:\+\s*)?[fr]*"')

# What varies stands as an ellipsis, or as a name.
VARYING = re.compile(
    r"…|'ferrule'|\bxpu\b|'cuda'|libferrule\w*\.so|libze_\w+\.so\.1|/dev/dri/\w+|group render|intel-sycl-rt|"
    r"the cuda \(NVIDIA GPU\) target"
)


def _text(files: list[Path]) -> str:
    return "\n".join(JOINT.sub("", f.read_text(errors="replace")) for f in files)


@cache
def ours() -> str:
    found = [f for folder in ("src", "native", "tools") for f in sorted((ROOT / folder).rglob("*")) if f.is_file()]
    return _text([f for f in found if f.suffix in (".py", ".cc", ".h", "")] + [ROOT / "Makefile"])


@cache
def jaxs() -> str:
    spec = importlib.util.find_spec("jax")
    assert spec and spec.origin
    return _text(sorted((Path(spec.origin).parent / "_src").rglob("*.py")))


def quoted() -> list[str]:
    """The messages in the tables' first columns; the table of variables has none."""
    pages = [page.read_text().partition("## When it does not work")[2] or page.read_text() for page in PAGES]
    cells = [line.split(" | ")[0] for page in pages for line in page.splitlines() if line.startswith("| ")]
    found = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [
        text for text in found if not re.match(r"FERRULE_|jax\.devices|ferrule doctor|No module named|[A-Z_]+$", text)
    ]


@pytest.mark.parametrize("message", quoted())
def test_quoted_message_exists(message: str) -> None:
    for part in VARYING.split(message):
        words = part.strip(" ,;:'")
        assert len(words) < 4 or words in ours() or words in jaxs(), words


def test_every_variable_exists() -> None:
    for name in {name for page in PAGES for name in re.findall(r"FERRULE_[A-Z_]+", page.read_text())}:
        assert name in ours(), name
