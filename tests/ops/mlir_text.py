"""Writes a block as StableHLO text in MLIR's generic form, so that other compilers can run our samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ferrule.ir import Block, ConvDims, DotDims, GatherDims, Op, ScatterDims, Value
from ferrule.ir.types import BY_NUMPY

CHLO = {"sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "square", "mulhi"}
CHLO |= {"top_k", "lgamma", "digamma", "next_after", "bessel_i1e"}
_ENUMS = {
    **{"comparison_direction": "comparison_direction", "compare_type": "comparison_type", "fft_type": "fft_type"},
    **{"transpose_a": "transpose", "rng_algorithm": "rng_algorithm", "rng_distribution": "rng_distribution"},
}
_I32 = {"exponent_bits", "mantissa_bits"}


def _list(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _sides(*groups: tuple[dict[int, str], Sequence[int]]) -> list[str]:
    out = []
    for named, spatial in groups:
        marks = {**named, **{d: str(i) for i, d in enumerate(spatial)}}
        out.append("[" + ", ".join(marks[i] for i in range(len(marks))) + "]")
    return out


def _attribute(name: str, value: Any) -> str:
    if name in _ENUMS:
        return f"#stablehlo<{_ENUMS[name]} {value}>"
    if name == "precision_config":
        return "[" + ", ".join(f"#stablehlo<precision {v}>" for v in value) + "]"
    if isinstance(value, ConvDims):
        v = value
        x, k, y = _sides(
            ({v.input_batch_dimension: "b", v.input_feature_dimension: "f"}, v.input_spatial_dimensions),
            (
                {v.kernel_input_feature_dimension: "i", v.kernel_output_feature_dimension: "o"},
                v.kernel_spatial_dimensions,
            ),
            ({v.output_batch_dimension: "b", v.output_feature_dimension: "f"}, v.output_spatial_dimensions),
        )
        return f"#stablehlo.conv<{x}x{k}->{y}>"
    for struct, kind in ((DotDims, "dot"), (GatherDims, "gather"), (ScatterDims, "scatter")):
        if isinstance(value, struct):
            fields = {k: v if isinstance(v, int) else _list(v) for k, v in vars(value).items()}
            return f"#stablehlo.{kind}<{', '.join(f'{k} = {v}' for k, v in fields.items() if v != '[]')}>"
    if isinstance(value, np.ndarray):
        return _dense(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : {'i32' if name in _I32 else 'i64'}"
    if name == "padding":
        return _dense(np.array(value, np.int64).reshape(-1, 2))
    kind = "i1" if name == "window_reversal" else "i64"
    items = ", ".join(str(v).lower() for v in value)
    return f"array<{kind}: {items}>" if items else f"array<{kind}>"


def _dense(value: np.ndarray) -> str:
    dtype = BY_NUMPY[value.dtype]
    kind = f"tensor<{''.join(f'{s}x' for s in value.shape)}{dtype}>"
    if value.size == 0:
        return f"dense<> : {kind}"
    if dtype.bits < 8:
        return f"dense<{str(value.astype(int).tolist()) if dtype.is_int else str(value.tolist()).lower()}> : {kind}"
    return f'dense<"0x{np.ascontiguousarray(value).tobytes().hex().upper()}"> : {kind}'


class Writer:
    """Numbers values and writes ops; `ops` puts several blocks into one function."""

    def __init__(self, composites: Collection[str] = ()) -> None:
        self.names: dict[Value, str] = {}
        self.composites = composites
        self.functions: list[str] = []

    def __call__(self, value: Value) -> str:
        return self.names.setdefault(value, f"%v{len(self.names)}")

    def op(self, op: Op) -> str:
        dialect = "chlo" if op.name in CHLO else "stablehlo"
        if op.name in self.composites and len(op.results) == 1 and op.result.dtype.is_float:
            return self.composite(op)
        skip = {("compare_type", "NOTYPE")}
        attrs = [f"{k} = {_attribute(k, v)}" for k, v in op.attrs.items() if (k, str(v)) not in skip]
        left = ", ".join(self(r) for r in op.results)
        types = ", ".join(str(v.type) for v in op.operands)
        outs = ", ".join(str(r.type) for r in op.results)
        regions = f" ({', '.join(self.region(r) for r in op.regions)})" if op.regions else ""
        middle = f" {{{', '.join(attrs)}}}" if attrs else ""
        operands = ", ".join(self(v) for v in op.operands)
        return f'{left} = "{dialect}.{op.name}"({operands}){regions}{middle} : ({types}) -> ({outs})'

    def composite(self, op: Op) -> str:
        """As JAX hands CHLO functions over. The decomposition here is wrong on purpose: it must not be taken."""
        name, kind = f"impl{len(self.functions)}", op.result.type
        args = ", ".join(f"%x{i}: {kind}" for i in range(len(op.operands)))
        self.functions.append(f"func.func private @{name}({args}) -> {kind} {{\nreturn %x0 : {kind}\n}}\n")
        operands = ", ".join(self(v) for v in op.operands)
        call = f'"stablehlo.composite"({operands}) {{name = "chlo.{op.name}", decomposition = @{name}}}'
        return f"{self(op.result)} = {call} : ({', '.join([str(kind)] * len(op.operands))}) -> {kind}"

    def region(self, block: Block) -> str:
        args = ", ".join(f"{self(a)}: {a.type}" for a in block.args)
        ops = "\n".join(self.op(op) for op in block.ops)
        values = ", ".join(self(v) for v in block.results)
        types = ", ".join(str(v.type) for v in block.results)
        return f'{{\n^bb0({args}):\n{ops}\n"stablehlo.return"({values}) : ({types}) -> ()\n}}'


def module_text(blocks: Sequence[Block], composites: Collection[str] = ()) -> str:
    """One program: the blocks side by side, their arguments and results joined.

    The CHLO functions named in `composites` are written as composites, as JAX does.
    """
    write = Writer(composites)
    args = ", ".join(f"{write(a)}: {a.type}" for b in blocks for a in b.args)
    ops = "\n".join(write.op(op) for b in blocks for op in b.ops)
    results = [v for b in blocks for v in b.results]
    types = ", ".join(str(v.type) for v in results)
    values = ", ".join(write(v) for v in results)
    functions = "".join(write.functions)
    return f"module {{\nfunc.func @main({args}) -> ({types}) {{\n{ops}\nreturn {values} : {types}\n}}\n{functions}}}\n"
