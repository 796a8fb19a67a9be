"""The xpu target's files: where Ferrule's SYCL driver and the oneAPI libraries from PyPI are, and what is missing.

Everything is found by the records of the installed packages, so nobody has to set LD_LIBRARY_PATH or source a script.
The runtime asks once, when an xpu device is first wanted (`ferrule.bridge.device_libraries`): others pay nothing.
A oneAPI that was installed in another way (conda, Intel's own packages) is found in the environment's `lib` and in
LD_LIBRARY_PATH.
"""

from __future__ import annotations

import grp
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ferrule.libraries import installed_files, switched_off

DRIVER = "libferrule_sycl.so"
INSTALL = f"{sys.executable or 'python'} -m pip install 'ferrule[xpu]'"


@dataclass(frozen=True)
class Package:
    """A package on PyPI: what it is for, and those of its libraries that are opened, by their SONAMEs."""

    name: str
    purpose: str
    libraries: tuple[str, ...]
    stand_in: bool = False  # only the CPU device that stands in for a GPU needs it


# In the order in which the libraries are opened. Most of them do not say where the others are, so each must be in the
# process before those that need it: the linker takes what is there under the right SONAME. RTLD_LOCAL is enough for
# that, and the better way: libimf and libsvml have functions of libm's names.
PACKAGES = (
    Package("intel-cmplr-lib-rt", "compiler runtime", ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so")),
    Package("tbb", "threads of the SYCL CPU device", ("libtbb.so.12",), stand_in=True),
    Package("intel-opencl-rt", "the SYCL CPU device", ("libOpenCL.so.1",), stand_in=True),
    Package("tcmlib", "topology of the machine", ("libhwloc.so.15",)),
    Package("umf", "memory pools", ("libumf.so.1",)),
    Package("intel-cmplr-lib-ur", "adapters to Level Zero and OpenCL", ("libur_loader.so.0",)),
    Package("intel-sycl-rt", "SYCL runtime", ("libsycl.so.9",)),
)
ONEDNN = Package("onednn", "products and convolutions", ("libdnnl.so.3",))
# Ferrule's library of oneMKL calls is linked to these; they lie where its own path to look (native/sycl/mkl) has them.
MKL = (
    Package(
        "mkl",
        "the processor's part of oneMKL",
        ("libmkl_core.so.3", "libmkl_intel_ilp64.so.3", "libmkl_tbb_thread.so.3"),
    ),
    Package("onemkl-sycl-blas", "triangular solves", ("libmkl_sycl_blas.so.6",)),
    Package("onemkl-sycl-lapack", "factorizations", ("libmkl_sycl_lapack.so.6",)),
    Package("onemkl-sycl-dft", "Fourier transforms", ("libmkl_sycl_dft.so.6",)),
)
MKL_CALLS = "libferrule_mkl.so"
INSTALL_MKL = f"{sys.executable or 'python'} -m pip install 'ferrule[xpu,mkl]'"
BUILD_MKL = "pip install 'onemkl-sycl-include>=2026.2,<2027' and the extra mkl, then install Ferrule again"
_CPU_DEVICE = "libintelocl.so"  # the OpenCL loader opens it when OCL_ICD_FILENAMES names it

# What the system's packages bring for a real GPU; the last one also brings the compiler that the others load.
LEVEL_ZERO = ("libze_loader.so.1", "libze_intel_gpu.so.1")
SYSTEM_PACKAGES = "libze1 libze-intel-gpu1 intel-opencl-icd"
_SYSTEM = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib")
_INTEL = "0x8086"  # PCI vendor


@dataclass
class Files:
    """What the runtime is told. A path is empty when there is no such file.

    `missing` and `fix` are for the message when no device is found: nothing of it need matter when one is.
    """

    driver: str = ""
    preload: list[str] = field(default_factory=list)
    icd: str = ""
    dnnl: str = ""
    mkl: str = ""
    missing: list[str] = field(default_factory=list)
    fix: list[str] = field(default_factory=list)

    def lines(self) -> str:
        """As `name=value` lines; one `preload` for each file, in the order in which they are to be opened."""
        pairs = [("driver", self.driver), *(("preload", p) for p in self.preload), ("icd", self.icd)]
        pairs += [("dnnl", self.dnnl), ("mkl", self.mkl)]
        pairs += [("missing", "; ".join(self.missing)), ("fix", "; ".join(self.fix))]
        return "".join(f"{name}={value}\n" for name, value in pairs if value)


def find(library: str) -> Files:
    """Looks for everything; `library` is the path of libferrule.so, beside which the driver lies."""
    files = Files(driver=driver_path(library), icd=locate("intel-opencl-rt", _CPU_DEVICE), dnnl=onednn_path())
    files.mkl = mkl_path(library)
    absent = []
    for package in PACKAGES:
        found = [locate(package.name, name) for name in package.libraries]
        files.preload += filter(None, found)
        if not package.stand_in and not all(found):
            absent.append(package.name)
    problems: list[tuple[str, str]] = []
    if not files.driver:
        problems.append(_no_driver(library))
    if absent:
        problems.append((f"not installed: {', '.join(absent)}", INSTALL))
    problems += gpu_problems()
    if not files.icd:
        problems.append(("no CPU device stands in, because intel-opencl-rt is not installed", INSTALL))
    problems += _environment(files.icd)
    for missing, fix in problems:
        files.missing.append(missing)
        if fix and fix not in files.fix:
            files.fix.append(fix)
    return files


def driver_path(library: str) -> str:
    """$FERRULE_DRIVER, else the driver beside libferrule.so; empty when there is none."""
    path = Path(os.environ.get("FERRULE_DRIVER") or Path(library).parent / DRIVER)
    return str(path) if path.is_file() else ""


def onednn_path() -> str:
    """libdnnl of the package `onednn`, whose engines run on SYCL queues; empty when there is none."""
    if "dnnl-sycl" in switched_off():
        return ""
    return locate(ONEDNN.name, ONEDNN.libraries[0])


def mkl_path(library: str) -> str:
    """Ferrule's library of oneMKL calls, beside the driver; empty when it was not built or oneMKL is not installed."""
    path = Path(driver_path(library)).parent / MKL_CALLS
    if "mkl-sycl" in switched_off() or not path.is_file():
        return ""
    return str(path) if all(locate(p.name, name) for p in MKL for name in p.libraries) else ""


def locate(package: str, name: str) -> str:
    """A library by its SONAME: the package's own, else one of another installation; empty when there is none.

    The installed package has the same file under several names, and another package may have overwritten one of them.
    """
    if own := installed_files(package, name):
        return str(next((p for p in own if p.name == name), own[0]))
    if package == ONEDNN.name and installed_files("onednn-cpu-gomp", name):
        return ""  # what lies around under this name is that package's
    folders = [Path(sys.prefix, "lib"), *map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))]
    return next((str(f / name) for f in folders if (f / name).is_file()), "")


def gpus(root: Path = Path("/")) -> list[Path]:
    """The device files (/dev/dri/renderD128, …) of the machine's Intel GPUs, whether they can be opened or not."""
    found = []
    for entry in sorted((root / "sys/class/drm").glob("renderD*")):
        try:
            if (entry / "device/vendor").read_text().strip() == _INTEL:
                found.append(root / "dev/dri" / entry.name)
        except OSError:
            continue
    return found


def usable_gpu(library: str) -> bool:
    """Could there be a GPU device? Asked at each start of JAX: it only looks whether files are there."""
    if not driver_path(library) or not any(os.access(node, os.R_OK | os.W_OK) for node in gpus()):
        return False
    try:
        return bool(metadata.version("intel-sycl-rt"))
    except metadata.PackageNotFoundError:
        return bool(locate("intel-sycl-rt", "libsycl.so.9"))


def can_stand_in(library: str) -> bool:
    """Is everything there that the SYCL CPU device needs?"""
    names = [(p.name, name) for p in PACKAGES for name in p.libraries] + [("intel-opencl-rt", _CPU_DEVICE)]
    return bool(driver_path(library)) and all(locate(*name) for name in names)


def gpu_problems(root: Path = Path("/")) -> Iterator[tuple[str, str]]:
    """What keeps a real GPU from being used: the sentence and the command that mends it."""
    nodes = gpus(root)
    if not nodes:
        yield "no Intel GPU in /sys/class/drm", ""
        return
    shown = "/" + str(nodes[0].relative_to(root))
    if not nodes[0].exists():
        yield f"{shown} is not in this container", "docker run --device /dev/dri …"
    elif not os.access(nodes[0], os.R_OK | os.W_OK):
        group = _group(nodes[0])
        yield f"this user may not open {shown} (group {group})", f"sudo usermod -aG {group} $USER, then log in again"
    if absent := [name for name in LEVEL_ZERO if not level_zero(name, root)]:
        yield f"no {' and no '.join(absent)} of the GPU's driver", f"sudo apt install {SYSTEM_PACKAGES}"


def level_zero(name: str, root: Path = Path("/")) -> str:
    """Where a library of LEVEL_ZERO is; empty when it is not in the usual places."""
    folders = [*(root / f for f in _SYSTEM), *map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    return next((str(f / name) for f in folders if (f / name).is_file()), "")


def _group(node: Path) -> str:
    number = node.stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _no_driver(library: str) -> tuple[str, str]:
    if named := os.environ.get("FERRULE_DRIVER"):
        return f"there is no file {named}, which FERRULE_DRIVER names", "unset FERRULE_DRIVER"
    return (
        f"{DRIVER} is not beside {library}, because Ferrule was built without the SYCL headers",
        "pip install 'intel-sycl-rt>=2026.0,<2027', then install Ferrule again",
    )


def _environment(icd: str) -> Iterator[tuple[str, str]]:
    """What this process itself stands in the way with."""
    if selector := os.environ.get("ONEAPI_DEVICE_SELECTOR"):
        yield f"ONEAPI_DEVICE_SELECTOR={selector} may hide devices", "unset ONEAPI_DEVICE_SELECTOR"
    if icd and icd not in os.environ.get("OCL_ICD_FILENAMES", "") and _sycl_is_loaded():
        # The loader of OpenCL devices reads the variable once.
        yield (
            "another user of SYCL in this process (dpctl, torch) may have started it without the CPU device",
            f"use JAX before it, or export OCL_ICD_FILENAMES={icd}",
        )


def _sycl_is_loaded() -> bool:
    try:
        return "libsycl.so" in Path("/proc/self/maps").read_text()
    except OSError:
        return False
