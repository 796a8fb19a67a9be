"""What starting a command costs on an xpu device, through the driver as the runtime uses it.

    python benchmarks/xpu_launch.py

Needs the extra `xpu` and g++. Times are medians of 15 rounds of 500 commands; a kernel has 1024 work-items.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "drivers"))

from driver_binding import Driver, DriverError  # noqa: E402
from spirv_kernels import spirv  # noqa: E402

KERNEL = """
define spir_kernel void @touch(ptr addrspace(1) %data) {
  %i = call i64 @_Z13get_global_idj(i32 0)
  %p = getelementptr float, ptr addrspace(1) %data, i64 %i
  %x = load float, ptr addrspace(1) %p
  %y = fadd float %x, 1.0
  store float %y, ptr addrspace(1) %p
  ret void
}
"""
PRODUCT = dict(batch=1, m=32, n=32, k=32, a_strides=(1024, 32, 1), b_strides=(1024, 32, 1))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libxpu_launch.so"
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'native'}"]
        subprocess.run(["g++", *flags, "-o", str(library), str(Path(__file__).with_suffix(".cc"))], check=True)
        run = ctypes.CDLL(str(library)).xpu_launch
    driver = Driver()
    device = driver.open(0)
    print(driver.devices()[0].name.decode())
    kernel = device.kernel(device.load(spirv(KERNEL)), "touch")
    try:
        call = device.prepare("dnnl.matmul", [(11, (32, 32))] * 2, [(11, (32, 32))], PRODUCT)
    except DriverError as error:
        print(error.message)
        call = None
    run.argtypes = [ctypes.c_void_p] * 5
    run(ctypes.addressof(driver.table), device.handle, kernel, call and call.handle, call.scratch if call else None)


if __name__ == "__main__":
    main()
