"""The command `ferrule`: devices, compile, run, doctor.

Exit codes: 0 done, 1 the program or the machine cannot do it (the message says why), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ferrule.errors import FerruleError, InvalidArgument
from ferrule.version import VERSION

STAGES = ("read", "legalize", "import", "simplify", "match", "expand", "fuse", "kernels", "program")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    from ferrule.client import PjrtError

    try:
        return options.command(options)
    except (FerruleError, PjrtError, OSError) as error:
        print(f"ferrule: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ferrule", description="Compile and run StableHLO programs on ML devices.")
    parser.add_argument("--version", action="version", version=f"ferrule {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    devices = commands.add_parser("devices", help="list the devices that programs can run on")
    devices.add_argument("--target", default="cpu", help="the kind of device: cpu (the default) or xpu")
    devices.set_defaults(command=_devices)

    compile = commands.add_parser("compile", help="compile a StableHLO program; print its stages, or save an artifact")
    compile.add_argument("file", type=Path, help="MLIR text or bytecode, or a portable artifact")
    compile.add_argument(
        "--target",
        default="cpu",
        help="cpu (the default), xpu (the first Intel GPU here), or a device that need not be here, such as xpu:pvc",
    )
    compile.add_argument(
        "--show",
        metavar="STAGES",
        default="",
        help=f"stages to print, comma separated, or `all`: {', '.join(STAGES)}",
    )
    compile.add_argument("-o", "--output", type=Path, help="where to save the compiled program")
    compile.add_argument("--kernels", type=Path, help="where to save the kernels alone: SPIR-V, or an ELF object")
    compile.set_defaults(command=_compile)

    run = commands.add_parser("run", help="run a program or a saved artifact")
    run.add_argument("file", type=Path, help="a StableHLO program, or what `ferrule compile -o` saved")
    run.add_argument(
        *("--input", "-i"),
        action="append",
        default=[],
        metavar="INPUT",
        help="one for each parameter, in order: x.npy, or a shape such as 3x4xf32 (random numbers, always the same)",
    )
    run.add_argument("--target", default="cpu", help="the kind of device: cpu (the default) or xpu")
    run.add_argument("--repeat", type=int, default=1, help="run so many times and print the times")
    run.add_argument("-o", "--output", type=Path, help="a folder for the results as output0.npy, output1.npy, …")
    run.set_defaults(command=_run)

    doctor = commands.add_parser("doctor", help="say what is installed, what is missing, and the command that mends it")
    doctor.set_defaults(command=_doctor)
    return parser


def _devices(options: argparse.Namespace) -> int:
    from ferrule.api import client

    owner = client(options.target)
    print(f"{owner.platform_version}")
    for device in owner.devices:
        stats = device.memory_stats()
        limit = stats.get("bytes_limit", 0)
        print(f"{device}  kind={device.kind!r}  memory {stats['bytes_in_use']} of {limit / 2**30:.1f} GiB in use")
    return 0


def _compile(options: argparse.Namespace) -> int:
    from ferrule.debug import Trace
    from ferrule.pipeline import USER_OPTIONS, compile_module
    from ferrule.stablehlo.options import parse_options
    from ferrule.stablehlo.reader import read
    from ferrule.targets import find

    wanted = set(STAGES) if options.show in ("all", "stages") else {s for s in options.show.split(",") if s}
    if unknown := wanted - set(STAGES):
        raise InvalidArgument(f"there is no stage {sorted(unknown)[0]!r}", fix=f"choose of {', '.join(STAGES)}")
    code = _read(options.file)
    machine = find(_described(options.target))

    def show(stage: str, text: str) -> None:
        if stage in wanted:
            print(f"// --- {stage} ---\n{text}\n")

    trace = Trace()
    trace.show = show
    start = time.perf_counter()
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20000))
    module = trace.stage("read", lambda: read(code))
    program = compile_module(module, parse_options(b"", USER_OPTIONS), trace, machine)
    seconds = time.perf_counter() - start
    data = program.serialize()
    print(
        f"compiled {program.name} for {program.target} in {seconds * 1e3:.0f} ms: {len(program.functions)} kernels, "
        f"{len(program.params)} parameters, {len(program.outputs)} results, {len(data)} bytes"
    )
    if options.kernels:
        options.kernels.write_bytes(b"".join(program.objects[:1]))
        print(f"saved {options.kernels}")
    if options.output:
        options.output.write_bytes(data)
        on = "" if program.target == "cpu" else f" --target {program.target}"
        print(f"saved {options.output}; run it with: ferrule run {options.output}{on}" + _example_inputs(program))
    return 0


def _described(target: str) -> str:
    """`xpu` alone is what this machine has of it: its first device describes itself."""
    if target != "xpu":
        return target
    from ferrule.api import client

    return client(target).devices[0].attributes["compiler_target"]


def _example_inputs(program: Any) -> str:
    return "".join(f" --input {_spec(p.type)}" for p in program.params)


def _spec(type: Any) -> str:
    return str(type).removeprefix("tensor<").removesuffix(">")


def _run(options: argparse.Namespace) -> int:
    import numpy as np

    from ferrule.api import compile, load
    from ferrule.program import MAGIC

    data = _read(options.file)
    executable = load(data, options.target) if data.startswith(MAGIC) else compile(data, options.target)
    inputs = [_input(text, number) for number, text in enumerate(options.input)]
    results: list[Any] = []
    for _ in range(max(1, options.repeat)):
        start = time.perf_counter()
        results = executable(*inputs)
        if options.repeat > 1:
            print(f"{(time.perf_counter() - start) * 1e6:.0f} µs with transfers")
    for number, result in enumerate(results):
        shape = "x".join(map(str, result.shape)) or "scalar"
        print(f"output {number}: {shape} {result.dtype}")
        print(np.array2string(np.asarray(result), threshold=64, edgeitems=3))
        if options.output:
            options.output.mkdir(parents=True, exist_ok=True)
            np.save(options.output / f"output{number}.npy", result)
    return 0


def _input(text: str, number: int) -> Any:
    """An array from a file, or made from a shape such as 3x4xf32."""
    import numpy as np

    from ferrule.ir.types import DTYPES

    if text.endswith(".npy"):
        return np.load(text)
    *dims, name = text.split("x")
    if name.startswith("comple"):  # "complex<f32>" has an x of its own
        name = ""
    if "complex<" in text:
        head, _, tail = text.partition("complex<")
        dims, name = [d for d in head.split("x") if d], "complex<" + tail
    dtype = DTYPES.get(name)
    if dtype is None or not all(d.isdigit() for d in dims):
        raise InvalidArgument(
            f"--input {text} is neither a .npy file nor a shape",
            fix=f"write the dimensions and the element type, such as 3x4xf32; types: {', '.join(DTYPES)}",
        )
    shape = tuple(map(int, dims))
    random = np.random.default_rng(number)
    if dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_int:
        return random.integers(0, 4 if dtype.bits < 8 else 100, shape).astype(dtype.numpy)
    values = random.standard_normal(shape)
    return (values + 1j * random.standard_normal(shape) if dtype.is_complex else values).astype(dtype.numpy)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise InvalidArgument(f"there is no file {path}")
    return path.read_bytes()


def _doctor(options: argparse.Namespace) -> int:
    from ferrule.doctor import examine

    findings = examine()
    for finding in findings:
        print(finding)
    broken = [f for f in findings if f.level == "broken"]
    print("Ferrule cannot work here yet: mend what is marked ✗." if broken else "Ferrule is ready.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
