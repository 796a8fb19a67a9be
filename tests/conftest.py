"""What all tests share: is there an xpu device?"""

from __future__ import annotations

import os

import pytest

# A CPU stands in for a GPU without a word.
os.environ.setdefault("FERRULE_XPU_DEVICE", "cpu")


@pytest.fixture(scope="session")
def xpu() -> None:
    """Skips where the extra `xpu` is not installed; where it is, a device that does not start is a failure."""
    from ferrule.native import library_path
    from ferrule.targets import xpu

    if not xpu.can_stand_in(library_path()):
        pytest.skip(f"no xpu target: {'; '.join(xpu.find(library_path()).missing)}")
