"""Match attention: softmax(f(Q Kᵀ)) V becomes one call of the runtime that never writes the matrix of logits.

On a processor only. Recognized are scales, soft limits (tanh), masks by `where` and added biases between the first
product and the softmax, and any order and grouping of the dimensions (attention.py). When the gradient is in the same
program, it becomes a call too (attention_gradient.py). What else reads something of the size of the logits leaves all
as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Value, rewrite
from ferrule.passes.attention import Attention, emit, find_attention, worth_a_gradient
from ferrule.passes.attention_gradient import Gradient, emit_gradient, find_gradient
from ferrule.targets.machine import Machine


def match_attention(block: Block, machine: Machine) -> Block:
    """Returns the block with attention as library ops; what they replace is left without readers."""
    names = {op.name for op in block.walk()}
    if machine.grouped or not {"exponential", "dot_general", "divide"} <= names:
        return block
    uses = block.uses()
    for value in block.results:
        uses.setdefault(value, []).append(RESULT)
    found = [a for op in block.walk() if op.name == "dot_general" and (a := find_attention(op, uses, machine))]
    replaced: dict[Op, Attention] = {}
    gradients: dict[Op, Gradient] = {}
    for a in found:
        if alone(a.inside | {a.dot}, a.inside, uses):
            replaced[a.op] = a
        elif worth_a_gradient(a) and (gradient := find_gradient(a, uses)) is not None:
            inside = a.inside | gradient.inside
            if alone(inside | {a.dot, *gradient.dots}, inside, uses):
                a.statistics = True
                replaced[a.op] = a
                gradients |= dict.fromkeys((part.op for part in gradient.parts), gradient)
    if not replaced:
        return block
    env: dict[Value, Value] = {}
    calls: dict[Attention, list[Value]] = {}  # the call's own result and its statistics
    slopes: dict[Gradient, list[Value]] = {}

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if (a := replaced.get(op)) is not None:
            result, calls[a] = emit(out, a, env)
            return [result]
        if (gradient := gradients.get(op)) is not None:
            if gradient not in slopes:
                slopes[gradient] = emit_gradient(out, gradient, env, calls[gradient.attention])
            return [slopes[gradient][[part.op for part in gradient.parts].index(op)]]
        return None

    return rewrite(block, rule, env, ours=True)


# Stands for the program's results among the readers of a value.
RESULT = Op("return", [], [])


def alone(mine: set[Op], inside: set[Op], uses: dict[Value, list[Op]]) -> bool:
    """Nobody else reads anything of the size of the logits, or the statistics of the rows."""
    return all(user in mine for op in inside for value in op.results for user in uses.get(value, ()))
