"""A random program with its inputs: what the generator makes, the judge runs and the reducer shrinks.

The graph is kept in the classes of `ferrule.ir`, which are plain containers; types and meaning come from elsewhere.
A case prints as one StableHLO file, its inputs in comments, and is read back from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ferrule.ir import Block, Function, Op, Tensor
from ferrule.ir.types import BY_NUMPY, DTYPES

sys.path.append(str(Path(__file__).parents[2] / "ops"))
from mlir_text import Writer, _dense

_HEADER = "// ferrule random program"
_HEX = re.compile(r"// input \d+: tensor<((?:\d+x)*)([\w<>]+)> 0x([0-9A-F]*)")


@dataclass
class Case:
    """`donated` maps an input to the output that may take its memory, or to -1 for "any"."""

    body: Block
    inputs: list[np.ndarray]
    functions: dict[str, Block] = field(default_factory=dict)
    donated: dict[int, int] = field(default_factory=dict)
    seed: int = 0
    kind: str = ""
    source: str = ""

    def text(self) -> str:
        """The program as StableHLO in MLIR's generic form."""
        return self.source or _Text().module(self)

    def ops(self) -> list[str]:
        """The names of all ops, nested ones too."""
        return [op.name for block in (self.body, *self.functions.values()) for op in block.walk()]

    def called(self) -> dict[str, Function]:
        return {name: Function(name, block) for name, block in self.functions.items()}

    def save(self, path: Path, note: str = "") -> None:
        """Writes a file that `run.py --file` takes."""
        lines = [f"{_HEADER}: seed {self.seed}, {self.kind}", *(f"// {line}" for line in note.splitlines())]
        for number, array in enumerate(self.inputs):
            raw = np.ascontiguousarray(array).tobytes().hex().upper()
            lines.append(f"// input {number}: {Tensor(array.shape, BY_NUMPY[array.dtype])} 0x{raw}")
        path.write_text("\n".join([*lines, self.text()]))


def load(path: Path) -> Case:
    """Reads what `save` wrote. The graph is then the one that Ferrule's importer sees."""
    from artifact import portable

    from ferrule.stablehlo.importer import import_module
    from ferrule.stablehlo.legalize import legalize
    from ferrule.stablehlo.reader import read

    whole = path.read_text()
    inputs = []
    for shape, dtype, raw in _HEX.findall(whole):
        dims = tuple(int(d) for d in shape.split("x") if d)
        inputs.append(np.frombuffer(bytes.fromhex(raw), DTYPES[dtype].numpy).reshape(dims))
    source = "\n".join(line for line in whole.splitlines() if not line.startswith("//")) + "\n"
    main = import_module(legalize(read(portable(source), "mlir"))).main
    return Case(main.body, inputs, kind=str(path.name), source=source)


class _Text(Writer):
    """Adds calls, functions and donation to the writer of the op tests."""

    def __init__(self, composites: Collection[str] = ()) -> None:
        super().__init__(composites)
        self.prefix = "v"

    def op(self, op: Op) -> str:
        if op.name in ("composite", "einsum"):
            return self._named(op)
        if op.name == "get_tuple_element":
            return super().op(op).replace(" : i64}", " : i32}")
        if op.name != "func.call":
            return super().op(op)
        types = ", ".join(str(v.type) for v in op.operands)
        outs = ", ".join(str(r.type) for r in op.results)
        left = f"{self(op.results[0])}:{len(op.results)}" if len(op.results) > 1 else self(op.results[0])
        if len(op.results) > 1:
            base = self(op.results[0])
            self.names.update({r: f"{base}#{i}" for i, r in enumerate(op.results)})
            left = f"{base}:{len(op.results)}"
        operands = ", ".join(self(v) for v in op.operands)
        return f"{left} = func.call @{op.attrs['callee']}({operands}) : ({types}) -> ({outs})"

    def _named(self, op: Op) -> str:
        """Ops whose attributes are strings and symbols."""
        attrs = {k: f"@{v}" if k == "decomposition" else f'"{v}"' for k, v in op.attrs.items()}
        types = ", ".join(str(v.type) for v in op.operands)
        operands = ", ".join(self(v) for v in op.operands)
        text = ", ".join(f"{k} = {v}" for k, v in attrs.items())
        return f'{self(op.result)} = "stablehlo.{op.name}"({operands}) {{{text}}} : ({types}) -> {op.result.type}'

    def function(self, name: str, block: Block, notes: Sequence[str] = (), private: bool = True) -> str:
        marks = notes or [""] * len(block.args)
        args = ", ".join(f"{self(a)}: {a.type}{m}" for a, m in zip(block.args, marks, strict=True))
        ops = "\n".join(self.op(op) for op in block.ops)
        types = ", ".join(str(v.type) for v in block.results)
        values = ", ".join(self(v) for v in block.results)
        end = f"return {values} : {types}" if block.results else "return"
        visible = "private " if private else ""
        return f"func.func {visible}@{name}({args}) -> ({types}) {{\n{ops}\n{end}\n}}\n"

    def module(self, case: Case) -> str:
        marks = []
        for number in range(len(case.body.args)):
            target = case.donated.get(number)
            notes = {None: "", -1: " {jax.buffer_donor = true}"}
            marks.append(notes.get(target, f" {{tf.aliasing_output = {target} : i32}}"))
        parts = [self.function("main", case.body, marks, private=False)]
        parts += [_Text().function(name, block) for name, block in case.functions.items()]
        return f"module @program {{\n{''.join(parts)}}}\n"


def constant_text(array: np.ndarray) -> str:
    """An array as an MLIR attribute."""
    return _dense(array)


def type_of(array: Any) -> Tensor:
    return Tensor(array.shape, BY_NUMPY[array.dtype])
