"""The SYCL driver, opened once: SYCL enumerates devices once in a process."""

from __future__ import annotations

import pytest
from driver_binding import Driver, driver_file

from ferrule.native import library_path
from ferrule.targets import xpu


@pytest.fixture(scope="session")
def driver() -> Driver:
    missing = xpu.find(library_path())
    if not driver_file().is_file():
        pytest.skip(f"{driver_file()} was not built: it needs the headers of intel-sycl-rt")
    if not missing.icd or not missing.preload:
        pytest.skip("intel-sycl-rt and intel-opencl-rt are not installed")
    return Driver()


@pytest.fixture
def device(driver):
    opened = driver.open(len(driver.devices()) - 1)  # the CPU device is the last
    yield opened
    opened.close()
