"""docs/troubleshooting.md quotes real messages: each one is found in the source of whoever says it."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
# Two literals that stand behind each other are one message.
JOINT = re.compile(r'"\s*(?:\+\s*)?\n\s*(?:\+\s*)?[fr]*"')


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
    cells = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [
        text for text in found if not re.match(r"FERRULE_|jax\.devices|ferrule doctor|No module named|[A-Z_]+$", text)
    ]


@pytest.mark.parametrize("message", quoted())
def test_quoted_message_exists(message: str) -> None:
    # What varies stands as an ellipsis or a name in quotes.
    for part in re.split(r"…|'ferrule'|'xpu'|libferrule\.so|the xpu \(Intel GPU, SYCL\) target", message):
        words = part.strip(" ,;:'")
        assert len(words) < 4 or words in ours() or words in jaxs(), words


def test_every_variable_exists() -> None:
    for name in set(re.findall(r"FERRULE_[A-Z_]+", PAGE.read_text())):
        assert name in ours(), name
