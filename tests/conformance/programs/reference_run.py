"""The oracle: a program run by the StableHLO reference interpreter, through jaxlib's bindings.

The bindings move only some element types in and out, so a wrapper around the program takes and returns the others in
parts (complex) or as bits (bf16, f8) or wider (i4). The interpreter ends the process where it has no answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from case import Case, constant_text, type_of
from draw import LARGE

from ferrule.ir import Tensor
from ferrule.ir.types import DTYPES, DType

UNSUPPORTED = {"cholesky", "rng_bit_generator", "rng", "torch_index_select", "einsum", "cross-replica-sum"}
_CHLO = "func.func(chlo-legalize-to-stablehlo)"
# It refuses `map`, so it runs only where there are such ops.
_OLD_OPS = "func.func(stablehlo-legalize-deprecated-ops)"
_OLD = re.compile(r"stablehlo\.(dot|broadcast|torch_index_select|einsum|unary_einsum|create_token)\b")


def supported(case: Case) -> bool:
    """Whether the interpreter is asked. Large programs would take it minutes."""
    if case.kind.startswith(LARGE):
        return False
    return UNSUPPORTED.isdisjoint(case.ops() if not case.source else re.findall(r"stablehlo\.(\w+)", case.source))


def carriers(dtype: DType) -> list[DType]:
    """The types in which an array crosses the bindings: two for complex."""
    if dtype.is_complex:
        return [dtype.part] * 2
    if dtype.is_int and dtype.bits < 8:
        return [DTYPES["i8" if dtype.kind == "int" else "ui8"]]
    if dtype.is_float and dtype.bits < 8:
        return [DTYPES["ui8"]]
    if dtype.is_float and dtype.name not in ("f16", "f32", "f64"):
        return [DTYPES[f"ui{dtype.bits}"]]
    return [dtype]


def _apart(array: np.ndarray) -> list[np.ndarray]:
    dtype = type_of(array).dtype
    carrier = carriers(dtype)
    if dtype.is_complex:
        return [array.real.copy(), array.imag.copy()]
    if carrier[0] == dtype:
        return [array]
    if dtype.is_int:
        return [array.astype(carrier[0].numpy)]
    return [array.view(carrier[0].numpy)]


def _together(parts: Sequence[np.ndarray], dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    parts = [np.asarray(p).reshape(shape) for p in parts]
    if dtype.is_complex:
        out = np.empty(shape, dtype.numpy)
        out.real, out.imag = parts
        return out
    if carriers(dtype)[0] == dtype:
        return parts[0].astype(dtype.numpy)
    if dtype.is_int:
        return parts[0].astype(dtype.numpy)
    return np.ascontiguousarray(parts[0]).view(dtype.numpy).reshape(shape)


class _Wrapper:
    """Text of the function that converts, calls the program and converts back."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def line(self, op: str, operands: Sequence[str], kinds: Sequence[Tensor], out: Tensor) -> str:
        self.count += 1
        name = f"%w{self.count}"
        types = ", ".join(map(str, kinds))
        self.lines.append(f'{name} = "stablehlo.{op}"({", ".join(operands)}) : ({types}) -> {out}')
        return name

    def into(self, names: Sequence[str], kinds: Sequence[Tensor], out: Tensor) -> str:
        if kinds[0] == out:
            return names[0]
        if out.dtype.is_complex:
            return self.line("complex", names, kinds, out)
        if out.dtype.is_int:
            return self.line("convert", names, kinds, out)
        bits = Tensor(out.shape, DTYPES[f"ui{out.dtype.bits}"])
        name = names[0] if bits == kinds[0] else self.line("convert", names, kinds, bits)
        return self.line("bitcast_convert", [name], [bits], out)

    def out_of(self, name: str, kind: Tensor) -> list[tuple[str, Tensor]]:
        targets = [Tensor(kind.shape, c) for c in carriers(kind.dtype)]
        if targets[0] == kind:
            return [(name, kind)]
        if kind.dtype.is_complex:
            return [(self.line(part, [name], [kind], targets[0]), targets[0]) for part in ("real", "imag")]
        if kind.dtype.is_int:
            return [(self.line("convert", [name], [kind], targets[0]), targets[0])]
        bits = Tensor(kind.shape, DTYPES[f"ui{kind.dtype.bits}"])
        name = self.line("bitcast_convert", [name], [kind], bits)
        return [(name if bits == targets[0] else self.line("convert", [name], [bits], targets[0]), targets[0])]


def wrapped(case: Case) -> str:
    """The program's text with a main that moves only types which the bindings know."""
    write = _Wrapper()
    given: list[tuple[str, Tensor]] = []
    operands = []
    params = [type_of(a) for a in case.inputs]
    for kind in params:
        parts = [(f"%a{len(given) + i}", Tensor(kind.shape, c)) for i, c in enumerate(carriers(kind.dtype))]
        given += parts
        operands.append(write.into([n for n, _ in parts], [k for _, k in parts], kind))
    results = [r.type for r in case.body.results]
    inner = f"({', '.join(map(str, params))}) -> ({', '.join(map(str, results))})"
    call = f"func.call @program_main({', '.join(operands)}) : {inner}"
    write.lines.append(f"%r:{len(results)} = {call}" if results else call)
    out = [pair for i, kind in enumerate(results) for pair in write.out_of(f"%r#{i}", kind)]  # type: ignore[arg-type]
    args = ", ".join(f"{n}: {k}" for n, k in given)
    types = ", ".join(str(k) for _, k in out)
    end = f"return {', '.join(n for n, _ in out)} : {types}" if out else "return"
    body = "\n".join([*write.lines, end])
    text = re.sub(r"@main\b", "@program_main", case.text(), count=1)
    start = text.index("{\n", text.index("module")) + 2
    return f"{text[:start]}func.func @main({args}) -> ({types}) {{\n{body}\n}}\n{text[start:]}"


def evaluate(case: Case) -> list[np.ndarray]:
    """The results by the reference interpreter. May end the process."""
    from artifact import context, parse
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager

    text = wrapped(case)
    passes = f"{_CHLO},{_OLD_OPS}" if _OLD.search(text) else _CHLO
    module = parse(text)
    with context(), ir.Location.unknown():
        PassManager.parse(f"builtin.module({passes})").run(module.operation)
        args = [ir.Attribute.parse(constant_text(p)) for a in case.inputs for p in _apart(a)]
        flat = iter(stablehlo.eval_module(module, args))
        out = []
        for value in case.body.results:
            kind: Any = value.type
            parts = [_array(next(flat), Tensor(kind.shape, c)) for c in carriers(kind.dtype)]
            out.append(_together(parts, kind.dtype, kind.shape))
    return out


def _array(attr: Any, kind: Tensor) -> np.ndarray:
    """The bindings give bools and zero-size arrays in odd forms."""
    if not kind.size:
        return np.empty(kind.shape, kind.dtype.numpy)
    found = np.array(attr)
    return np.broadcast_to(found.reshape(found.shape if found.size == kind.size else ()), kind.shape)
