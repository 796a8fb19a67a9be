"""The reference target: a graph evaluated op by op on NumPy arrays. Slow, exact, and the judge of the other targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.errors import FerruleError, Internal, InvalidArgument, Unsupported
from ferrule.ir import Block, Function, Module, Op, Tensor, Value
from ferrule.ops import lookup
from ferrule.ops.control import TOKEN


class Interpreter:
    """Evaluates blocks; calling it evaluates a nested region, which may use the values around it."""

    def __init__(self, functions: dict[str, Function] | None = None, check: bool = False) -> None:
        self.functions = functions or {}
        self.check = check
        self.values: dict[Value, np.ndarray] = {}

    def __call__(self, block: Block, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.values.update(zip(block.args, args, strict=True))
        # a scalar body may be given whole arrays (ops/bodies.py); what it computes then has their shape
        before, self.check = self.check, self.check and all(np.shape(a) == v.shape for v, a in zip(block.args, args))
        for op in block.ops:
            for result, array in zip(op.results, self._results(op), strict=True):
                self.values[result] = array
        self.check = before
        return [self.values[v] for v in block.results]

    def _results(self, op: Op) -> Sequence[np.ndarray]:
        definition = lookup(op)
        if definition.evaluate is None:
            raise Unsupported(f"op {op.name!r} has no meaning in NumPy", where=op.loc)
        arrays = [self.values[v] for v in op.operands]
        try:
            found = definition.evaluate(op, arrays, self)
        except (FerruleError, MemoryError):
            raise
        except Exception as error:
            raise Internal(
                f"evaluating op {op.name!r} failed: {type(error).__name__}: {error}",
                where=op.loc,
                why="this is a bug in the op's NumPy meaning",
            ) from error
        if self.check:
            for result, array in zip(op.results, found, strict=True):
                check_array(array, result, f"op {op.name!r}", op)
        return found


def check_array(array: np.ndarray, value: Value, what: str, op: Op | None = None) -> None:
    """An evaluated result must be an array of the type that the graph states."""
    if not isinstance(value.type, Tensor):
        return
    if not isinstance(array, np.ndarray) or array.shape != value.shape or array.dtype != value.dtype.numpy:
        found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise Internal(f"{what} gave {found} for {value.type}", where=op.loc if op else None)


def evaluate_block(
    block: Block,
    args: Sequence[np.ndarray],
    functions: dict[str, Function] | None = None,
    outer: dict[Value, np.ndarray] | None = None,
    check: bool = False,
) -> list[np.ndarray]:
    """The block's results for these arguments. `outer` binds values that it uses but does not define."""
    interpreter = Interpreter(functions, check)
    interpreter.values.update(outer or {})
    return interpreter(block, args)


def evaluate_module(module: Module, args: Sequence[np.ndarray], check: bool = False) -> list[np.ndarray]:
    """Runs `main`. Arguments must have the program's shapes and element types; nothing is converted."""
    params = module.main.body.args
    if len(args) != len(params):
        raise InvalidArgument(f"the program takes {len(params)} arguments, got {len(args)}")
    bound = []
    for number, (array, param) in enumerate(zip(args, params, strict=True)):
        if not isinstance(param.type, Tensor):
            bound.append(TOKEN)
            continue
        array = np.asarray(array)
        if array.shape != param.shape or array.dtype != param.dtype.numpy:
            raise InvalidArgument(
                f"argument {number} is {array.dtype}{list(array.shape)}",
                why=f"the program takes {param.type}",
            )
        bound.append(array)
    return evaluate_block(module.main.body, bound, module.functions, check=check)
