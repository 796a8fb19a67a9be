"""The three ways by which JAX finds Ferrule, and what a wrong wish is answered."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

import ferrule
import jax
from ferrule.targets.xpu import gpus

# What `jax_plugins` does for an installed package; a checkout that is not installed does it by hand.
INSTALLED = any(e.value == "ferrule.frameworks.jax" for e in entry_points(group="jax_plugins"))
START = "" if INSTALLED else "import ferrule.frameworks.jax as f; f.initialize()\n"
SHOW = "import jax; print(jax.devices())"
ONE = "[FerruleCpuDevice(id=0, process_index=0)]"


def test_entry_point(python):
    done = python(START + SHOW, JAX_PLATFORMS="ferrule")
    assert done.stdout.strip() == ONE, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["other", "ferrule"])
def test_path_alone(python, name):
    """Also under the name that the installed package would take itself."""
    program = (
        "import jax, numpy as np, jax.numpy as jnp\n"
        "x = jnp.eye(3)\n"
        "print(jax.devices(), jnp.linalg.eigvalsh(x)[0])\n"
        "print(jax.jit(lambda x: jax.pure_callback(np.negative, x, x))(x).sum())\n"
        "y = jnp.ones(3); jax.jit(lambda v: v + 1, donate_argnums=0)(y); print(y.is_deleted())\n"
    )
    listed = f"{name}:{ferrule.library_path()}"
    done = python(program, JAX_PLATFORMS=f"{name},cpu", PJRT_NAMES_AND_LIBRARY_PATHS=listed)
    assert done.stdout.split("\n")[:3] == [f"{ONE} 1.0", "-3.0", "True"], done.stderr


def test_explicit(python):
    program = "import ferrule; ferrule.register_jax(num_devices=3, memory_limit_bytes=1 << 20)\n" + SHOW
    program += "; print(jax.devices()[0].memory_stats()['bytes_limit'])"
    done = python(program)
    assert "FerruleCpuDevice(id=2" in done.stdout and done.stdout.count("FerruleCpuDevice") == 3, done.stderr
    assert done.stdout.split()[-1] == str(1 << 20)


def test_explicit_under_another_name(python):
    program = "import ferrule; ferrule.register_jax('mine')\nimport jax\nprint(jax.devices('mine')[0].platform)"
    done = python(program)
    assert done.stdout.strip() == "mine", done.stderr


def test_too_late():
    jax.devices()
    with pytest.raises(ferrule.FerruleError, match="before the first use"):
        ferrule.register_jax("late")


def test_unknown_option(python):
    done = python("import ferrule; ferrule.register_jax(target='quantum')\n" + SHOW)
    assert done.returncode != 0
    assert "quantum" in done.stderr and "known: auto, cpu" in done.stderr


def test_installed_is_silent_and_not_the_default(python):
    done = python(START + SHOW)
    assert "CpuDevice(id=0)" in done.stdout and "Ferrule" not in done.stdout
    assert "xpu" not in done.stderr and "ferrule" not in done.stderr.lower()


XPU = "[IntelXpuDevice(id=0, process_index=0)]"


@pytest.mark.parametrize("way", ["entry", "path", "register", "variable"])
def test_xpu(python, xpu, way):
    """Without an export, by the path alone, by a call, and by FERRULE_TARGET under another name."""
    variables = {"JAX_PLATFORMS": "xpu"}
    start = START
    if way == "path":
        variables["PJRT_NAMES_AND_LIBRARY_PATHS"], start = f"xpu:{ferrule.library_path()}", ""
    if way == "register":
        variables, start = {}, "import ferrule; ferrule.register_jax(target='xpu')\n"
    if way == "variable":
        variables = {"JAX_PLATFORMS": "ferrule", "FERRULE_TARGET": "xpu"}
    done = python(start + SHOW + "; import jax.numpy as jnp; print(jnp.arange(3.) + 1)", **variables)
    assert done.stdout == f"{XPU}\n[1. 2. 3.]\n", done.stderr
    assert "ferrule" not in done.stderr


def test_a_processor_stands_in_audibly(python, xpu):
    done = python(START + SHOW, JAX_PLATFORMS="xpu", FERRULE_XPU_DEVICE="")
    assert done.stdout.strip() == XPU
    if not gpus():
        assert "no Intel GPU can be used" in done.stderr


def test_a_processor_never_stands_in_unasked(python, xpu):
    program = (
        START + "import jax; print(jax.default_backend())\ntry: jax.devices('xpu')\nexcept RuntimeError as e: print(e)"
    )
    done = python(program)
    if done.stdout.startswith("xpu"):
        pytest.skip("this machine has an Intel GPU")
    assert done.stdout.startswith("cpu\n") and "JAX_PLATFORMS=xpu" in done.stdout, done.stderr


@pytest.mark.parametrize("way", ["entry", "path"])
def test_xpu_says_what_is_missing(python, way):
    variables = {"JAX_PLATFORMS": "xpu", "FERRULE_DRIVER": "/nowhere/driver.so"}
    if way == "path":
        variables["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"xpu:{ferrule.library_path()}"
    done = python((START if way == "entry" else "") + SHOW, **variables)
    assert done.returncode != 0
    said = done.stderr.rsplit("RuntimeError:", 1)[1]
    assert "no device for the platform xpu was found" in said and "looked for: an Intel GPU" in said
    assert "there is no file /nowhere/driver.so" in said and "fix: unset FERRULE_DRIVER" in said


def test_xpu_without_a_gpu(python, xpu):
    done = python(START + SHOW, JAX_PLATFORMS="xpu", FERRULE_XPU_DEVICE="gpu")
    if XPU in done.stdout:
        pytest.skip("this machine has an Intel GPU")
    assert "FERRULE_XPU_DEVICE=gpu, and what was found is" in done.stderr


def test_several_xpu_devices(python, xpu):
    """Logical devices on one: each has a queue of its own."""
    program = START + (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "a, b, c = jax.devices()\n"
        "x = jax.device_put(jnp.arange(4.), b)\n"
        "y = jax.jit(lambda v: v * 2)(x)\n"
        "print(y.devices() == {b}, np.asarray(jax.device_put(y, c)).tolist())\n"
    )
    done = python(program, JAX_PLATFORMS="xpu", FERRULE_NUM_DEVICES="3")
    assert done.stdout.strip() == "True [0.0, 2.0, 4.0, 6.0]", done.stderr


def test_two_devices(python):
    program = START + (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "a, b = jax.devices()\n"
        "x = jax.device_put(jnp.arange(4.), b)\n"
        "y = jax.jit(lambda v: v * 2)(x)\n"
        "print(y.devices() == {b}, np.asarray(jax.device_put(y, a)).tolist())\n"
    )
    done = python(program, JAX_PLATFORMS="ferrule", FERRULE_NUM_DEVICES="2")
    assert done.stdout.strip() == "True [0.0, 2.0, 4.0, 6.0]", done.stderr


def test_jax_comes_after_another_user_of_the_library(python) -> None:
    """The library is loaded when JAX is imported but has not looked for its platforms: no failure, no rule is lost."""
    program = f"""
import jax, numpy
from ferrule.client import Plugin
assert len(Plugin({str(ferrule.library_path())!r}).client().devices) == 1
print(jax.jit(lambda x: jax.scipy.special.erfc(x) * jax.pure_callback(numpy.cos, x, x))(numpy.float32(0.5)))
"""
    listed = f"ferrule:{ferrule.library_path()}"
    done = python(program, PJRT_NAMES_AND_LIBRARY_PATHS=listed, JAX_PLATFORMS="ferrule,cpu")
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - 0.4795001 * 0.8775826) < 1e-6


def test_compile_for_a_gpu_that_is_not_here(python):
    """No device, no driver, nothing of oneAPI is needed."""
    program = START + (
        "import jax, jax.numpy as jnp\n"
        "from jax.experimental import topologies\n"
        "from jax.sharding import SingleDeviceSharding\n"
        "found = topologies.get_topology_desc(platform='xpu', target='xpu:pvc')\n"
        "place = SingleDeviceSharding(found.devices[0])\n"
        "step = jax.jit(lambda x: jnp.sin(x) @ x, in_shardings=place, out_shardings=place)\n"
        "compiled = step.lower(jax.ShapeDtypeStruct((8, 8), jnp.float32)).compile()\n"
        "print(found.devices, compiled.cost_analysis()['flops'] > 0)\n"
    )
    done = python(program, FERRULE_DRIVER="/nowhere/driver.so")
    assert done.stdout.strip() == f"{XPU} True", done.stderr


def test_a_missing_library_is_said_once(python, xpu):
    program = """
import ferrule, jax, numpy
ferrule.register_jax("xpu", target="xpu")
x = numpy.eye(64, dtype=numpy.float32)
print(float(jax.jit(lambda x: (x @ x).sum())(x)), float(jax.jit(lambda x: (x @ x).max())(x)))
"""
    done = python(program, FERRULE_LIBRARIES_OFF="dnnl-sycl", FERRULE_DEBUG="1", JAX_PLATFORMS="xpu,cpu")
    assert done.stdout.split() == ["64.0", "1.0"], done.stdout + done.stderr
    assert done.stderr.count("products and convolutions run as generated kernels") == 1
