"""The engines: each prepares a case and then runs it as often as it is told to. Each lives in a worker of its own."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.case import Case, Gradient
from harness.limits import LimitsEngine

# What each worker's environment has, beside what the user set. An empty value unsets.
ENVIRONMENT = {
    "ferrule": {"JAX_PLATFORMS": "ferrule,cpu", "FERRULE_CACHE": "0"},
    "ferrule warm": {"JAX_PLATFORMS": "ferrule,cpu", "FERRULE_CACHE": ""},
    "ferrule alone": {"JAX_PLATFORMS": "ferrule,cpu", "FERRULE_CACHE": ""},
    "xla": {"JAX_PLATFORMS": "cpu", "PJRT_NAMES_AND_LIBRARY_PATHS": ""},
    "reference": {"JAX_PLATFORMS": "cpu", "PJRT_NAMES_AND_LIBRARY_PATHS": ""},
    "iree": {"JAX_PLATFORMS": "cpu", "PJRT_NAMES_AND_LIBRARY_PATHS": ""},
    "limits": {"JAX_PLATFORMS": "cpu", "PJRT_NAMES_AND_LIBRARY_PATHS": ""},
    "torch": {"JAX_PLATFORMS": "cpu", "PJRT_NAMES_AND_LIBRARY_PATHS": ""},
    "torch.compile": {
        "JAX_PLATFORMS": "cpu",
        "PJRT_NAMES_AND_LIBRARY_PATHS": "",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    },
}
TITLES = {
    "ferrule": "Ferrule",
    "xla": "XLA:CPU",
    "iree": "IREE",
    "torch": "PyTorch",
    "torch.compile": "torch.compile",
}


class NotThere(Exception):
    """The engine has no counterpart of this case."""


class JaxEngine:
    """Ferrule and XLA:CPU: `jax.jit` on the first device of the process."""

    def __init__(self, platform: str) -> None:
        import jax

        self.jax = jax
        self.device = jax.devices(platform)[0]
        self.compiling = 0.0
        begin = time.perf_counter()
        jax.jit(lambda x: x * 3)(jax.device_put(np.zeros(3, np.float32), self.device)).block_until_ready()
        self.start = time.perf_counter() - begin  # loads the compiler; this is no case's first call
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def version(self) -> str:
        name, package = ("Ferrule", "ferrule") if self.device.platform == "ferrule" else ("XLA:CPU", "jaxlib")
        module = importlib.import_module(package)
        version = f"{name} {module.__version__} (JAX {self.jax.__version__})"
        return f"{version}, {self.start:.2f} s for the first program of a process"

    def _listen(self, event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            self.compiling += seconds

    def prepare(self, case: Case) -> dict[str, float]:
        """The first call: its seconds, how many of them the compiler took, and the temporaries' bytes."""
        jax = self.jax
        # JAX remembers the jitted forms of its own functions; the first call of a case should find nothing.
        jax.clear_caches()
        self.args = list(jax.device_put(case.arguments(), self.device))
        jax.block_until_ready(self.args)
        self.donate = case.donate
        self.call = jax.jit(case.function, donate_argnums=case.donate, keep_unused=case.keep_unused)
        self.compiling = 0.0
        begin = time.perf_counter()
        self.first = self.step()
        jax.block_until_ready(self.first)
        found = {"first": time.perf_counter() - begin, "compile": self.compiling}
        memory = self.call.lower(*self.args).compile().memory_analysis()  # JAX remembers what it has compiled
        return found | {"temporaries": memory.temp_size_in_bytes if memory else 0}

    def step(self) -> Any:
        result = self.call(*self.args)
        if self.donate:
            values = (result,) if len(self.donate) == 1 and not isinstance(result, tuple) else result
            for place, value in zip(self.donate, values, strict=False):
                self.args[place] = value
        return result

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def results(self) -> list[np.ndarray]:
        """The first call's results. A donated argument's first successor is gone, so such a case is run again."""
        return [np.asarray(x) for x in self.jax.tree.leaves(self.first)]

    def drop(self) -> None:
        self.args = self.call = self.first = None  # type: ignore[assignment]


class ReferenceEngine(JaxEngine):
    """XLA with 64-bit types: what the others' results are compared with."""

    def prepare(self, case: Case) -> dict[str, float]:
        jax = self.jax
        wide = case.reference == "f64"
        jax.config.update("jax_enable_x64", wide)
        args = case.arguments()
        if wide:
            args = jax.tree.map(_widened, args)
        begin = time.perf_counter()
        self.first = jax.block_until_ready(jax.jit(case.exact or case.function)(*args))
        return {"first": time.perf_counter() - begin}


def _widened(x: Any) -> Any:
    kind = getattr(x, "dtype", None)
    if kind == np.complex64:
        return x.astype(np.complex128)
    if kind is not None and (kind == np.float32 or kind.name in ("bfloat16", "float16")):
        return x.astype(np.float64)
    return x


class PluginEngine(JaxEngine):
    """Ferrule through PJRT's C API, without what the framework does around a compile: it converts, verifies and writes
    the program before it asks a plugin, which is most of what loading a program from the cache takes."""

    def prepare(self, case: Case) -> dict[str, float]:
        """Seconds of PJRT_Client_Compile with the case's MLIR bytecode."""
        import ferrule

        jax = self.jax
        jax.clear_caches()
        args = jax.device_put(case.arguments(), self.device)
        call = jax.jit(case.function, donate_argnums=case.donate, keep_unused=case.keep_unused)
        program = io.BytesIO()
        call.lower(*args).compiler_ir().operation.write_bytecode(program)
        begin = time.perf_counter()
        self.first = ferrule.compile(program.getvalue())
        return {"compile": time.perf_counter() - begin}


class IreeEngine:
    """IREE: the StableHLO that JAX makes, compiled for this CPU, run by its runtime on all cores."""

    def __init__(self) -> None:
        import iree.compiler as compiler
        import iree.runtime as runtime

        import jax

        self.jax, self.compiler, self.runtime = jax, compiler, runtime
        self.config = runtime.Config("local-task")

    def version(self) -> str:
        return f"IREE {importlib.metadata.version('iree-base-compiler')}"

    def prepare(self, case: Case) -> dict[str, float]:
        args = case.arguments()
        begin = time.perf_counter()
        lowered = self.jax.jit(case.function, keep_unused=True).lower(*args)
        text = str(lowered.compiler_ir("stablehlo"))
        middle = time.perf_counter()
        binary = self.compiler.compile_str(
            text,
            input_type="stablehlo",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host"],
        )
        compiled = time.perf_counter() - middle
        module = self.runtime.VmModule.copy_buffer(self.config.vm_instance, binary)
        context = self.runtime.SystemContext(config=self.config)
        context.add_vm_module(module)
        name = module.name
        self.call = context.modules[name]["main"]
        self.context = context
        self.args = [self.runtime.asdevicearray(self.config.device, x) for x in self.jax.tree.leaves(args)]
        self.first = self.step()
        return {"first": time.perf_counter() - begin, "compile": compiled}

    def step(self) -> Any:
        return self.call(*self.args)

    def wait(self, result: Any) -> None:
        """A call returns when its results are there."""

    def results(self) -> list[np.ndarray]:
        first = self.first if isinstance(self.first, (tuple, list)) else [self.first]
        return [x.to_host() for x in first]

    def drop(self) -> None:
        self.args = self.call = self.first = self.context = None  # type: ignore[assignment]


class TorchEngine:
    """PyTorch, as it is or through torch.compile."""

    def __init__(self, compiled: bool) -> None:
        import torch

        self.torch, self.compiled = torch, compiled
        if compiled:  # its first compile of all makes precompiled headers, which is nobody's first call
            torch.compile(lambda x: x * 2 + 1)(torch.zeros(4))

    def version(self) -> str:
        name = "torch.compile" if self.compiled else "PyTorch"
        return f"{name} {self.torch.__version__}, {self.torch.get_num_threads()} threads"

    def prepare(self, case: Case) -> dict[str, float]:
        import jax

        if case.torch is None:
            raise NotThere("this workload has no PyTorch counterpart")
        if self.compiled:
            self.torch._dynamo.reset()
        arguments = case.arguments()
        if case.torch_arguments:
            arguments = case.torch_arguments(arguments)
        self.args = [jax.tree.map(self._tensor, a) for a in arguments]
        self.case = case
        wrap: Callable[[Any], Any] = self.torch.compile if self.compiled else lambda f: f
        if isinstance(case.torch, Gradient):
            loss, update = wrap(case.torch.loss), case.torch.update and wrap(case.torch.update)
            tensors = jax.tree.leaves(self.args[: case.torch.over])
            for x in tensors:
                x.requires_grad_(True)
            self.call = lambda: self._gradient(loss, update, tensors)
        else:
            function = wrap(case.torch)
            self.call = lambda: self._plain(function)
        begin = time.perf_counter()
        self.first = self.call()
        return {"first": time.perf_counter() - begin}

    def _tensor(self, x: Any) -> Any:
        x = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
        if x.dtype.name == "bfloat16":
            return self.torch.from_numpy(x.view(np.int16).copy()).view(self.torch.bfloat16)
        return self.torch.from_numpy(x.copy())

    def _plain(self, function: Any) -> Any:
        with self.torch.no_grad():
            return function(*self.args)

    def _gradient(self, loss: Any, update: Any, tensors: list[Any]) -> Any:
        value = loss(*self.args)
        gradients = list(self.torch.autograd.grad(value, tensors))
        if update is None:
            return gradients
        with self.torch.no_grad():
            return update(tuple(self.args), value, gradients)

    def step(self) -> Any:
        return self.call()

    def wait(self, result: Any) -> None:
        """PyTorch's CPU calls return when they are done."""

    def results(self) -> list[np.ndarray]:
        import jax

        first = self.case.torch_results(self.first) if self.case.torch_results else self.first
        leaves = [x.detach() for x in jax.tree.leaves(first)]
        return [(x.float() if x.dtype == self.torch.bfloat16 else x).resolve_conj().numpy() for x in leaves]

    def drop(self) -> None:
        self.args = self.call = self.first = None  # type: ignore[assignment]


def make(name: str) -> Any:
    """The engine of a worker."""
    if name == "ferrule alone":
        return PluginEngine("ferrule")
    if name.startswith("ferrule"):
        return JaxEngine("ferrule")
    if name == "xla":
        return JaxEngine("cpu")
    if name == "reference":
        return ReferenceEngine("cpu")
    if name == "limits":
        return LimitsEngine()
    if name == "iree":
        return IreeEngine()
    return TorchEngine(compiled=name == "torch.compile")
