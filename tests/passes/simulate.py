"""Runs a planned block on real bytes: every value is read from and written to its slot, as the runtime would.

Kernels get their NumPy meaning; what is under test are the addresses, the copies and their order. Memory that a run has
not written holds garbage, and a donated parameter shares its output's memory.
"""

from __future__ import annotations

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.passes.allocate import Plan
from ferrule.program import ARENA, CONSTANT, OUTPUT, PARAM
from ferrule.targets.reference import evaluate_block


class Memory:
    def __init__(self, block: Block, plan: Plan, arrays: list[np.ndarray], aliases: list[int], donate: bool) -> None:
        self.plan = plan
        params = [np.frombuffer(bytearray(np.ascontiguousarray(a).tobytes()), np.uint8) for a in arrays]
        owner = {k: p for p, k in enumerate(aliases) if k >= 0 and donate}
        outputs = [
            params[owner[k]] if k in owner else np.full(v.type.nbytes, 0xCD, np.uint8)
            for k, v in enumerate(block.results)
        ]
        arena = np.full(plan.arena_bytes, 0xCD, np.uint8)
        constants = np.frombuffer(plan.constants, np.uint8)
        self.views = []
        for slot in plan.slots:
            if slot.kind in (PARAM, OUTPUT):
                self.views.append((params if slot.kind == PARAM else outputs)[slot.where])
            else:
                base = arena if slot.kind == ARENA else constants
                assert slot.kind in (ARENA, CONSTANT)
                assert slot.where + slot.size <= len(base)
                self.views.append(base[slot.where : slot.where + slot.size])
        self.outputs = outputs

    def read(self, value: Value) -> np.ndarray:
        raw = self.views[self.plan.slot_of[value]]
        return np.frombuffer(raw.tobytes(), value.dtype.numpy).reshape(value.shape)

    def write(self, value: Value, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array.astype(value.dtype.numpy, copy=False))
        self.views[self.plan.slot_of[value]][:] = np.frombuffer(data.tobytes(), np.uint8)

    def copy(self, moves: list[tuple[int, int, int]]) -> None:
        for dst, src, size in moves:
            self.views[dst][:size] = self.views[src][:size].copy()

    def run(self, block: Block) -> None:
        for op in block.ops:
            self.copy(self.plan.before.get(op, []))
            self.op(op)
        self.copy(self.plan.at_end.get(block, []))

    def in_place(self, op: Op, inputs: list[np.ndarray], results: list[np.ndarray]) -> None:
        """A kernel writes element by element, in any order: of an operand in its results' memory it may need no element
        but the one that it writes. An update needs none of it, except its own target's."""
        updates = op.attrs.get("update", 0)
        for k, result in enumerate(op.results):
            target = self.views[self.plan.slot_of[result]]
            shared = [
                i for i, v in enumerate(op.operands) if np.shares_memory(self.views[self.plan.slot_of[v]], target)
            ]
            if k < updates:
                assert all(i == k for i in shared), f"an update overwrites another operand: {op}"
                continue
            for element in range(0, results[k].size, max(1, results[k].size // 5)) if shared else ():
                spoiled = list(inputs)
                for i in shared:
                    spoiled[i] = np.full_like(inputs[i], 77)
                    spoiled[i].flat[element] = inputs[i].flat[element]
                again = np.asarray(evaluate_block(op.regions[0], spoiled)[k])
                np.testing.assert_array_equal(again.flat[element], results[k].flat[element])

    def op(self, op: Op) -> None:
        match op.name:
            case "fusion":
                inputs = [self.read(v) for v in op.operands]
                for i in range(op.attrs.get("update", 0)):
                    inputs[i] = self.read(op.results[i])  # an update finds its target in the result's memory
                results = [np.asarray(a) for a in evaluate_block(op.regions[0], inputs)]
                self.in_place(op, inputs, results)
                for result, array in zip(op.results, results, strict=True):
                    self.write(result, array)
            case "while":
                cond, body = op.regions
                if "trips" in op.attrs:
                    for _ in range(op.attrs["trips"]):
                        self.run(body)
                    return
                while True:
                    self.run(cond)
                    if not self.read(cond.results[0]):
                        return
                    self.run(body)
            case "if":
                self.run(op.regions[0 if self.read(op.operands[0]) else 1])
            case "case":
                index = int(self.read(op.operands[0]))
                self.run(op.regions[index if 0 <= index < len(op.regions) else -1])
            case "reshape" | "constant" | "uninitialized" | "after_all" | "create_token":
                pass
            case _:
                raise AssertionError(op.name)


def simulate(block: Block, plan: Plan, arrays: list[np.ndarray], aliases: list[int], donate: bool) -> list[np.ndarray]:
    memory = Memory(block, plan, arrays, aliases, donate)
    memory.run(block)
    return [
        np.frombuffer(raw.tobytes(), v.dtype.numpy).reshape(v.shape)
        for raw, v in zip(memory.outputs, block.results, strict=True)
        if isinstance(v.type, Tensor)
    ]
