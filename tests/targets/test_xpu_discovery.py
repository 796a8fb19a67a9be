"""Where the oneAPI libraries are looked for, and what is said of a machine that lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ferrule import bridge, libraries
from ferrule.targets import xpu

HERE = "/somewhere/libferrule.so"


class Installed:
    """A folder of packages as pip leaves them, before the real ones on the path."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "lib" / "python" / "site-packages"
        self.site.mkdir(parents=True)
        self.lib = folder / "lib"

    def add(self, package: str, files: dict[str, bytes]) -> None:
        info = self.site / f"{package.replace('-', '_')}-2026.0.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2026.0.0\n")
        record = []
        for name, content in files.items():
            (self.lib / name).write_bytes(content)
            record.append(f"../../{name},,{len(content)}\n")
        (info / "RECORD").write_text("".join(record))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages of the test only: the machine's own are hidden."""
    found = Installed(tmp_path)
    of_path = metadata.MetadataPathFinder.find_distributions

    def only_ours(context=None):
        context = metadata.DistributionFinder.Context(name=context.name, path=[str(found.site)])
        return of_path(context)

    monkeypatch.setattr(metadata.MetadataPathFinder, "find_distributions", only_ours)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nowhere"))
    for name in ("LD_LIBRARY_PATH", "FERRULE_DRIVER", "FERRULE_LIBRARIES_OFF", "ONEAPI_DEVICE_SELECTOR"):
        monkeypatch.delenv(name, raising=False)
    return found


def everything(installed: Installed) -> None:
    for package in xpu.PACKAGES:
        files = {name: package.name.encode() for name in package.libraries}
        if package.name == "intel-opencl-rt":
            files["libintelocl.so"] = b"device"
        installed.add(package.name, files)
    installed.add("onednn", {"libdnnl.so.3": b"sycl", "libdnnl.so.3.13": b"sycl"})


def test_all_there(installed, tmp_path):
    everything(installed)
    (tmp_path / xpu.DRIVER).write_bytes(b"")
    files = xpu.find(str(tmp_path / "libferrule.so"))
    assert files.driver == str(tmp_path / xpu.DRIVER)
    names = [Path(p).name for p in files.preload]
    # Each before those that need it.
    assert names.index("libintlc.so.5") < names.index("libsvml.so") < names.index("libOpenCL.so.1")
    assert names.index("libhwloc.so.15") < names.index("libumf.so.1") < names.index("libur_loader.so.0")
    assert names[-1] == "libsycl.so.9" and len(names) == sum(len(p.libraries) for p in xpu.PACKAGES)
    assert files.icd == str(installed.lib / "libintelocl.so") and files.dnnl == str(installed.lib / "libdnnl.so.3")
    assert not any("installed" in sentence or xpu.DRIVER in sentence for sentence in files.missing)
    lines = files.lines().splitlines()
    assert lines[0] == f"driver={files.driver}"
    assert [line for line in lines if line.startswith("preload=")] == [f"preload={p}" for p in files.preload]


def test_nothing_there(installed):
    files = xpu.find(HERE)
    assert (files.driver, files.preload, files.icd, files.dnnl) == ("", [], "", "")
    said = "; ".join(files.missing)
    assert "libferrule_sycl.so is not beside" in said and "intel-sycl-rt" in said and "intel-cmplr-lib-ur" in said
    assert "no CPU device stands in" in said
    assert any("ferrule[xpu]" in fix for fix in files.fix) and len(set(files.fix)) == len(files.fix)


def test_only_the_stand_in_is_missing(installed, tmp_path):
    """A machine with a GPU needs neither Intel's OpenCL CPU runtime nor its threads."""
    for package in xpu.PACKAGES:
        if not package.stand_in:
            installed.add(package.name, dict.fromkeys(package.libraries, b"x"))
    files = xpu.find(HERE)
    assert not any("not installed:" in sentence for sentence in files.missing)
    assert any("no CPU device stands in" in sentence for sentence in files.missing)


def test_one_file_of_two_packages(installed):
    """`onednn` and `onednn-cpu-gomp` write the same libdnnl.so.3; the one that comes last wins."""
    installed.add("onednn-cpu-gomp", {"libdnnl.so.3": b"openmp", "libdnnl.so.3.2": b"openmp"})
    assert libraries.onednn_path() == installed.lib / "libdnnl.so.3"
    assert xpu.onednn_path() == "", "this one does not run on SYCL queues"
    installed.add("onednn", {"libdnnl.so.3": b"of sycl", "libdnnl.so.3.13": b"of sycl"})
    assert libraries.onednn_path() == installed.lib / "libdnnl.so.3.2"
    assert xpu.onednn_path() == str(installed.lib / "libdnnl.so.3")
    (installed.lib / "libdnnl.so.3").write_bytes(b"openmp")  # installed once more
    assert libraries.onednn_path() == installed.lib / "libdnnl.so.3"
    assert xpu.onednn_path() == str(installed.lib / "libdnnl.so.3.13")


def test_switched_off(installed, monkeypatch):
    everything(installed)
    monkeypatch.setenv("FERRULE_LIBRARIES_OFF", "scipy,dnnl-sycl")
    assert xpu.find(HERE).dnnl == ""
    monkeypatch.setenv("FERRULE_LIBRARIES_OFF", "onednn")  # the cpu target's
    assert xpu.find(HERE).dnnl != ""


def test_onemkl(installed, tmp_path, monkeypatch):
    """It is used where all of it is there: the packages, and Ferrule's library that is linked to them."""
    library, calls = tmp_path / "libferrule.so", tmp_path / "libferrule_mkl.so"
    (tmp_path / "libferrule_sycl.so").write_bytes(b"")
    everything(installed)
    for package in xpu.MKL:
        assert xpu.find(str(library)).mkl == ""
        installed.add(package.name, dict.fromkeys(package.libraries, b""))
    assert xpu.find(str(library)).mkl == "", "Ferrule was built without"
    calls.write_bytes(b"")
    assert xpu.find(str(library)).mkl == str(calls)
    assert f"mkl={calls}\n" in xpu.find(str(library)).lines()
    monkeypatch.setenv("FERRULE_LIBRARIES_OFF", "mkl-sycl")
    assert xpu.find(str(library)).mkl == ""


def test_other_installations(installed, tmp_path, monkeypatch):
    """conda's, in the environment's lib, and Intel's own, whose script sets LD_LIBRARY_PATH."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "conda"))
    (tmp_path / "conda" / "lib").mkdir(parents=True)
    (tmp_path / "conda" / "lib" / "libsycl.so.9").write_bytes(b"")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt" / "libur_loader.so.0").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{tmp_path / 'opt'}")
    found = xpu.find(HERE).preload
    assert found == [str(tmp_path / "opt" / "libur_loader.so.0"), str(tmp_path / "conda" / "lib" / "libsycl.so.9")]


def test_named_driver(installed, tmp_path, monkeypatch):
    driver = tmp_path / "mine.so"
    monkeypatch.setenv("FERRULE_DRIVER", str(driver))
    assert any(f"there is no file {driver}" in sentence for sentence in xpu.find(HERE).missing)
    driver.write_bytes(b"")
    assert xpu.find(HERE).driver == str(driver)


class Machine:
    """The part of a file system where Linux shows GPUs and their drivers."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def gpu(self, vendor: str = "0x8086", node: bool = True) -> Path:
        device = self.root / "sys/class/drm/renderD128/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        file = self.root / "dev/dri/renderD128"
        file.parent.mkdir(parents=True)
        if node:
            file.write_bytes(b"")
        return file

    def driver(self) -> None:
        (self.root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        for name in xpu.LEVEL_ZERO:
            (self.root / "usr/lib/x86_64-linux-gnu" / name).write_bytes(b"")

    def problems(self) -> list[tuple[str, str]]:
        return list(xpu.gpu_problems(self.root))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return Machine(tmp_path)


def test_no_gpu(machine):
    assert machine.problems() == [("no Intel GPU in /sys/class/drm", "")]
    machine.gpu(vendor="0x10de")
    assert machine.problems() == [("no Intel GPU in /sys/class/drm", "")] and not xpu.gpus(machine.root)


def test_gpu_with_driver(machine):
    machine.gpu()
    machine.driver()
    assert machine.problems() == []


def test_gpu_without_driver(machine):
    machine.gpu()
    ((said, fix),) = machine.problems()
    assert "libze_loader.so.1" in said and "libze_intel_gpu.so.1" in said
    assert fix == "sudo apt install libze1 libze-intel-gpu1 intel-opencl-icd"


def test_gpu_of_another_group(machine, monkeypatch):
    file = machine.gpu()
    machine.driver()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file)  # root may open everything
    ((said, fix),) = machine.problems()
    assert said.startswith("this user may not open /dev/dri/renderD128 (group ")
    assert fix.startswith("sudo usermod -aG ")


def test_gpu_outside_of_the_container(machine):
    machine.gpu(node=False)
    machine.driver()
    ((said, fix),) = machine.problems()
    assert "container" in said and "--device /dev/dri" in fix


def test_other_users_of_sycl(installed, monkeypatch):
    """Whoever starts SYCL first decides whether the CPU device is found."""
    everything(installed)
    monkeypatch.delenv("OCL_ICD_FILENAMES", raising=False)
    monkeypatch.setattr(xpu, "_sycl_is_loaded", lambda: True)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "level_zero:*")
    said = "; ".join(xpu.find(HERE).missing)
    assert "dpctl" in said and "ONEAPI_DEVICE_SELECTOR=level_zero:*" in said
    monkeypatch.setenv("OCL_ICD_FILENAMES", str(installed.lib / "libintelocl.so"))
    assert "dpctl" not in "; ".join(xpu.find(HERE).missing)


def test_bridge():
    from ferrule.errors import FerruleError

    with pytest.raises(FerruleError, match="'cuda'"):
        bridge.device_libraries(b"cuda")
    for line in bridge.device_libraries(b"xpu").decode().splitlines():
        name, _, value = line.partition("=")
        assert name in ("driver", "preload", "icd", "dnnl", "mkl", "missing", "fix") and value


def test_others_pay_nothing():
    """Neither the package nor the compiler for the cpu looks for oneAPI."""
    program = (
        "import sys, ferrule, ferrule.bridge, ferrule.api, ferrule.pipeline\n"
        "assert 'ferrule.targets.xpu' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
