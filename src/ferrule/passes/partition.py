"""Partition: a program over global arrays → the program that each device runs on its own parts.

What stands in a manual computation (shard_map) runs on the parts that its shardings name. Any other op is computed in
parts where its operands are at hand in parts and its rule says which dimensions go together (`division.py`). Sums over
split dimensions leave terms, which are summed, or summed and scattered, when somebody asks for more than one of them.
What has no rule, or is split along dimensions that have to be whole, is gathered and computed by every device. Loops
keep their carries in the parts in which they come, or in which one turn leaves what came as a whole. `shards.py` has
what the devices hold, and how a value gets from one tiling to another.

There is no search: the program is walked once, in its order. Where operands exclude each other's tilings, as weights
and a batch that are split along the same axis do, it is walked in two ways, and the cheaper one stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np

from ferrule.errors import InvalidArgument
from ferrule.ir import Block, Function, Module, Op, Tensor, Token, Value, tensor
from ferrule.ir.types import i1, ui32
from ferrule.ops.bodies import uniform
from ferrule.passes.combine import combine
from ferrule.passes.connect import connect
from ferrule.passes.count import trips_of
from ferrule.passes.halo import Halo
from ferrule.passes.shards import complete, refines_along, size_of
from ferrule.passes.simplify import eliminate_dead_code
from ferrule.stablehlo.layouts import asked_layout
from ferrule.stablehlo.sdy import Axis, Mesh, Sharding, coordinate
from ferrule.stablehlo.tiling import Split, Tiling, classes_of_text, of_sharding, of_splits, of_text, whole

# Ops whose results differ from run to run, and so from device to device.
_DRAWN = {"rng"}
_EXCHANGES = {"all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute", "collective_broadcast"}
# What takes a carry's tiling from one turn to the next settles soon; then turns end with an exchange.
_TURNS = 3


def partition(module: Module, replicas: int, partitions: int, propagate: Sequence[bool] = ()) -> Module:
    """Returns the module whose `main` is one device's program; `propagate` says which outputs may choose a tiling.

    The attributes of parameters and results get "ferrule.sharding": the bytes that tell a framework how the global
    array is split.
    """
    if partitions > 1:
        first = _Partitioner(module, replicas, partitions, leading=False)
        found = first.run(tuple(propagate))
        if first.torn:
            other = _Partitioner(module, replicas, partitions, leading=True).run(tuple(propagate))
            found = min(found, other, key=lambda m: _cost(m.main.body))
        module = found
    main = module.main
    body = connect(combine(main.body))
    function = Function("main", body, main.arg_attrs, main.result_attrs, main.visibility)
    return Module({"main": function}, module.attrs, module.name, module.producer, module.meshes)


class _Partitioner(Halo):
    """One way through the program."""

    def __init__(self, module: Module, replicas: int, partitions: int, leading: bool) -> None:
        super().__init__(replicas, partitions, leading)
        self.module = module
        # What the marks of the form without Shardy say of values of the global program.
        self.marked: dict[Value, Tiling] = {}

    def run(self, propagate: tuple[bool, ...]) -> Module:
        main = self.module.main
        count = len(main.body.args)
        arg_attrs = [dict(a) for a in main.arg_attrs] or [{} for _ in range(count)]
        result_attrs = [dict(a) for a in main.result_attrs] or [{} for _ in main.body.results]
        everywhere = np.zeros(self.partitions, np.int64)
        tilings = []
        for i, (arg, attrs) in enumerate(zip(main.body.args, arg_attrs, strict=True)):
            place = self.declared(attrs, arg, f"parameter {i}") or whole(len(arg.shape), self.partitions)
            attrs["ferrule.sharding"] = place.op_sharding()
            tilings.append(_in_memory(place, attrs, arg))
        types = [
            Tensor(t.local(arg.shape, f"parameter {i}"), arg.dtype)
            for i, (t, arg) in enumerate(zip(tilings, main.body.args, strict=True))
        ]
        body = Block(types)
        self.here = body.add("partition_id", [], Tensor((), ui32)).result
        for arg, part, tiling in zip(main.body.args, body.args, tilings, strict=True):
            self.comes(arg, part, tiling, body, everywhere)
        self.copy(main.body, body, everywhere)
        for i, (value, attrs) in enumerate(zip(main.body.results, result_attrs, strict=True)):
            asked = self.declared(attrs, value, f"result {i}")
            if asked is None and (propagate[min(i, len(propagate) - 1)] if propagate else True):
                asked = self.settled(value)
            chosen = asked or whole(len(value.shape), self.partitions)
            attrs["ferrule.sharding"] = chosen.op_sharding()
            body.results.append(self.part(value, _in_memory(chosen, attrs, value), f"result {i}"))
        function = Function("main", eliminate_dead_code(body), arg_attrs, result_attrs, main.visibility)
        old = self.module
        return Module({"main": function}, old.attrs, old.name, old.producer, old.meshes)

    def declared(self, attrs: dict[str, Any], value: Value, what: str) -> Tiling | None:
        """The tiling that a parameter's or result's attributes ask for; None when they leave it open."""
        rank = len(value.shape)
        sharding, text = attrs.get("sdy.sharding"), attrs.get("mhlo.sharding")
        if isinstance(sharding, Sharding):
            if len(sharding.dims) != rank and sharding.is_replicated:
                return None  # a token, which comes as an empty array
            if any(not d.closed for d in sharding.dims) and sharding.is_replicated:
                return None  # open: whatever suits
            return of_sharding(sharding, rank, self.module.meshes, self.partitions, what)
        return of_text(text, rank, self.partitions, what) if isinstance(text, str) else None

    # --- the walk -------------------------------------------------------------------------------------------------
    def copy(self, block: Block, out: Block, classes: np.ndarray) -> None:
        ways = [self.in_terms, self.in_window, self.later, self.rolled, self.reversed, self.reshaped]
        ways += [self.in_two_steps, self.in_parts]
        for op in block.ops:
            if op.name == "sdy.manual_computation":
                self.manual(op, out, classes)
            elif op.name.startswith("ferrule.S"):
                self.border(op, out, classes)
            elif op.name == "partition_id":
                self.finish(op, [self.here], out, classes)
            elif op.name in ("sdy.sharding_constraint", "sdy.reshard"):
                self.constrain(op, out, classes)
            elif "only_device" in op.attrs:
                self.finish(op, self.once(op, out, classes), out, classes)
            elif op.name == "while":
                self.loop(op, out, classes)
            elif op.name in ("if", "case"):
                self.branches(op, out, classes)
            elif not any(way(op, out, classes) for way in ways):
                regions = [self.region(r, classes) for r in op.regions]
                operands = [self.whole(v) for v in op.operands]
                results = out.add(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc).results
                if op.name in _DRAWN:
                    results = list(self.from_first(out, results, classes, 0, op.loc))
                self.finish(op, results, out, classes)
                if self.can_remake(op):
                    self.held[op.result].source = op

    def region(self, block: Block, classes: np.ndarray) -> Block:
        """A region that every device runs on whole values."""
        out = Block(a.type for a in block.args)
        for arg, new in zip(block.args, out.args, strict=True):
            self.comes(arg, new, None, out, classes)
        self.copy(block, out, classes)
        out.results = [self.whole(v) for v in block.results]
        return out

    # --- control flow ---------------------------------------------------------------------------------------------
    def loop(self, op: Op, out: Block, classes: np.ndarray) -> None:
        """A loop over parts. What a turn leaves as it is stays outside; what else comes as a whole becomes parts if a
        turn makes parts of it."""
        condition, body = op.regions
        still = [a is r for a, r in zip(body.args, body.results, strict=True)]
        if all(still):
            still = [False] * len(still)
        tilings = [None if isinstance(v.type, Token) else self.settled(v) for v in op.operands]
        for turn in range(_TURNS):
            inner = self.turn(op, body, still, tilings, classes)
            self.copy(body, inner, classes)
            found = [None if isinstance(v.type, Token) else self.settled(v) for v in body.results]
            better = [a or b or self.left(op, i) for i, (a, b) in enumerate(zip(tilings, found, strict=True))]
            if turn == _TURNS - 1 or all(a is b for a, b in zip(tilings, better, strict=True)):
                break
            tilings = better
        carried = [i for i, same in enumerate(still) if not same]
        inner.results = [self.under(body.results[i], tilings[i]) for i in carried]
        first = self.turn(op, condition, still, tilings, classes)
        self.copy(condition, first, classes)
        first.results = [self.whole(v) for v in condition.results]
        operands = [self.under(op.operands[i], tilings[i]) for i in carried]
        types = [v.type for v in operands]
        results = iter(out.add(op.name, operands, types, op.attrs, [first, inner], op.loc).results)
        for i, old in enumerate(op.results):
            if still[i]:
                self.held[old] = self.held[op.operands[i]]
            else:
                self.comes(old, next(results), tilings[i], out, classes).weight = self.held[op.operands[i]].weight

    def left(self, op: Op, i: int) -> Tiling | None:
        """The terms in which a carry may stay that begins as zeros and to which each turn adds terms: they are summed
        once, after the loop."""
        body = op.regions[-1]
        made = body.results[i].op
        if uniform(op.operands[i]) != 0 or made is None or made.name not in ("add", "dynamic_update_slice"):
            return None
        added = [v for v in made.operands[:2] if v is not body.args[i]]
        found = self.as_terms(added[0]) if len(added) == 1 else None
        return found[0] if found is not None and found[0].tiles == 1 else None

    def turn(
        self, op: Op, block: Block, still: Sequence[bool], tilings: Sequence[Tiling | None], classes: np.ndarray
    ) -> Block:
        """A region of a loop with arguments for what is carried."""
        carried = [i for i, same in enumerate(still) if not same]
        types = []
        for i in carried:
            kind, tiling = block.args[i].type, tilings[i]
            types.append(
                Tensor(tiling.local(kind.shape, "a carry"), kind.dtype) if tiling and isinstance(kind, Tensor) else kind
            )
        made = Block(types)
        for i, same in enumerate(still):
            if same:
                self.held[block.args[i]] = self.held[op.operands[i]]
        for i, new in zip(carried, made.args, strict=True):
            self.comes(block.args[i], new, tilings[i], made, classes).weight = self.held[op.operands[i]].weight
        return made

    def under(self, value: Value, tiling: Tiling | None) -> Value:
        return self.whole(value) if tiling is None else self.part(value, tiling, "a carry")

    def branches(self, op: Op, out: Block, classes: np.ndarray) -> None:
        """Branches over parts: each result as the first branch that has it in parts has it."""
        blocks = []
        tilings: list[Tiling | None] = [None] * len(op.results)
        for region in op.regions:
            block = Block(())
            self.copy(region, block, classes)
            blocks.append(block)
            for i, value in enumerate(region.results):
                if isinstance(value.type, Tensor):
                    tilings[i] = tilings[i] or self.settled(value)
        for block, region in zip(blocks, op.regions, strict=True):
            for i, value in enumerate(region.results):
                block.results.append(self.under(value, tilings[i]))
        operands = [self.whole(v) for v in op.operands]
        types = [v.type for v in blocks[0].results]
        results = out.add(op.name, operands, types, op.attrs, blocks, op.loc).results
        for old, new, tiling in zip(op.results, results, tilings, strict=True):
            self.comes(old, new, tiling, out, classes)

    # --- what programs say of shardings ---------------------------------------------------------------------------
    def constrain(self, op: Op, out: Block, classes: np.ndarray) -> None:
        """A constraint changes no value, but what it is split into; dimensions that it leaves open stay as they are."""
        (value,) = op.operands
        held = self.held[op.result] = self.held[value]
        sharding = op.attrs.get("sharding")
        if not isinstance(sharding, Sharding) or not isinstance(op.result.type, Tensor):
            return
        open_ = [d for d, dim in enumerate(sharding.dims) if not dim.closed and not dim.axes]
        if open_ and sharding.is_replicated:
            return
        shape = op.result.shape
        asked = of_sharding(sharding, len(shape), self.module.meshes, self.partitions, "a constrained value")
        splits = list(asked.splits)
        for d in open_:
            if held.main is not None and complete([*splits, held.main.splits[d]], classes):
                splits[d] = held.main.splits[d]
        tiling = of_splits(tuple(splits), self.partitions).with_terms(asked.term, asked.terms)
        self.asked(op, tiling, out, classes)

    def asked(self, op: Op, tiling: Tiling, out: Block, classes: np.ndarray) -> None:
        """Notes that an op's result is its operand, in the parts that the program asks for."""
        (value,) = op.operands
        splits = [*tiling.splits, (tiling.terms, tiling.term.tobytes())]
        if any(size % n for size, n in zip(value.shape, tiling.counts, strict=True)) or not complete(splits, classes):
            self.held[op.result] = self.held[value]
            return
        part = self.part(value, tiling, "a constrained value")
        held = self.comes(op.result, part, tiling, out, classes)
        held.whole, held.loc = self.held[value].whole, op.loc

    def manual(self, op: Op, out: Block, classes: np.ndarray) -> None:
        axes = set(op.attrs.get("manual_axes", ()))
        body = op.regions[0]
        ins, outs = op.attrs.get("in_shardings", ()), op.attrs.get("out_shardings", ())
        for what, shardings, have in (("operand", ins, op.operands), ("result", outs, op.results)):
            if len(shardings) != sum(not isinstance(v.type, Token) for v in have) and len(shardings) != len(have):
                raise InvalidArgument(f"a manual computation has {len(shardings)} shardings of {len(have)} {what}s")
        inner = self.refined(classes, axes, [*ins, *outs])
        for i, (value, arg) in enumerate(zip(op.operands, body.args, strict=True)):
            if isinstance(value.type, Token):
                self.held[arg] = self.held[value]
                continue
            what = f"operand {i} of a manual computation"
            tiling = self.tiling(ins[i], value, what, axes)
            kind = Tensor(tiling.local(value.shape, what), value.dtype)
            if kind != arg.type:
                raise InvalidArgument(
                    f"argument {i} of a manual computation has type {arg.type}",
                    where=op.loc,
                    why=f"its sharding gives {kind}",
                )
            further = self.further(tiling, self.settled(value), kind.shape, inner)
            self.comes(arg, self.part(value, _within(tiling, further), what), further, out, inner)
        self.copy(body, out, inner)
        for i, (value, result) in enumerate(zip(body.results, op.results, strict=True)):
            if isinstance(result.type, Token):
                self.comes(result, self.whole(value), None, out, classes)
                continue
            what = f"result {i} of a manual computation"
            tiling = self.tiling(outs[i], result, what, axes)
            if value.shape != tiling.local(result.shape, what):
                raise InvalidArgument(
                    f"result {i} of a manual computation has type {value.type}",
                    where=op.loc,
                    why=f"its sharding makes that {result.type} cut into {list(tiling.counts)}",
                )
            further = self.settled(value) or whole(len(value.shape), self.partitions)
            self.comes(result, self.part(value, further, what), _within(tiling, further), out, classes)

    def further(self, tiling: Tiling, have: Tiling | None, shape: Sequence[int], classes: np.ndarray) -> Tiling:
        """How the parts that come into a manual computation are split along axes that are not manual there."""
        chosen: dict[int, Split] = {}
        for d, n in enumerate(tiling.counts):
            if have is not None and refines_along(have, tiling, d):
                parts = have.counts[d] // n
                split = parts, (have.index[:, d] % parts).tobytes()
                if not shape[d] % split[0] and complete([*chosen.values(), split], classes):
                    chosen[d] = split
        return self.tiling_of(chosen, range(len(shape)))

    def tiling(self, sharding: Sharding, value: Value, what: str, axes: Collection[str]) -> Tiling:
        rank = len(value.shape)
        return of_sharding(sharding, rank, self.module.meshes, self.partitions, what, axes)

    def refined(self, classes: np.ndarray, axes: set[str], shardings: Sequence[Sharding]) -> np.ndarray:
        """The classes inside a manual computation over `axes`, which its shardings' mesh has."""
        for sharding in shardings:
            mesh = self.module.meshes.get(sharding.mesh) if isinstance(sharding.mesh, str) else sharding.mesh
            if isinstance(mesh, Mesh) and axes <= {name for name, _ in mesh.axes} and mesh.size == self.partitions:
                place, count = coordinate(mesh, [Axis(name) for name, _ in mesh.axes if name in axes])
                return classes * count + place
        if not axes:
            return classes
        return np.arange(self.partitions)  # nothing goes in or out: every device is on its own

    def border(self, op: Op, out: Block, classes: np.ndarray) -> None:
        """The form without Shardy: custom calls mark where whole values become parts and parts whole values."""
        text = str(op.attrs["sharding"])
        (value,) = op.operands
        rank = len(value.shape)
        what = f"the value at {op.name.removeprefix('ferrule.')}"
        if op.name == "ferrule.Sharding":
            self.held[op.result] = self.held[value]
            if text != "{manual}":
                self.marked[op.result] = of_text(text, rank, self.partitions, what)
                self.asked(op, self.marked[op.result], out, classes)
            return
        full = value if op.name == "ferrule.SPMDFullToShardShape" else op.result
        if full is value:
            tiling = self.marked.get(full) or whole(rank, self.partitions)
            part = self.part(value, tiling, what)
        else:
            tiling = of_text(text, rank, self.partitions, what)
            part = self.whole(value)
        if tensor(part).shape != tiling.local(full.shape, what):
            raise InvalidArgument(
                f"{what} goes from {value.type} to {op.result.type}", where=op.loc, why=f"its sharding is {text}"
            )
        outer = classes_of_text(text, rank, self.partitions, what)
        if full is value:
            self.comes(op.result, part, None, out, np.arange(self.partitions))
        else:
            self.comes(op.result, part, tiling, out, outer)

    def once(self, op: Op, out: Block, classes: np.ndarray) -> Sequence[Value]:
        """A call that is to run on one device: the others wait for its results."""
        device = int(op.attrs["only_device"])
        if not 0 <= device < self.partitions:
            raise InvalidArgument(f"a call is to run on device {device}", where=op.loc)
        attrs = {k: v for k, v in op.attrs.items() if k != "only_device"}
        types = [r.type for r in op.results]
        operands = [self.whole(v) for v in op.operands]
        if len(set(classes.tolist())) > 1:
            # In a manual computation every device has values of its own.
            return out.add(op.name, operands, types, attrs, op.regions, op.loc).results
        tensors = [t for t in types if isinstance(t, Tensor)]
        number = out.add("constant", [], Tensor((), ui32), {"value": np.array(device, np.uint32)}, loc=op.loc).result
        about = {"comparison_direction": "EQ", "compare_type": "UNSIGNED"}
        chosen = out.add("compare", [self.here, number], Tensor((), i1), about, loc=op.loc).result
        does, waits = Block(), Block()
        call = does.add(op.name, operands, types, attrs, op.regions, op.loc)
        does.results = [r for r in call.results if isinstance(r.type, Tensor)]
        for t in tensors:
            zeros = np.broadcast_to(np.zeros((), t.dtype.numpy), t.shape)
            waits.results.append(waits.add("constant", [], t, {"value": zeros}, loc=op.loc).result)
        both = out.add("if", [chosen], tensors, {}, [does, waits], op.loc).results
        shared = iter(self.from_first(out, both, classes, device, op.loc))
        return [
            next(shared) if isinstance(t, Tensor) else out.add("after_all", [], [Token()], loc=op.loc).result
            for t in types
        ]


def _cost(block: Block) -> float:
    """What one device takes for its program, in bytes that come from other devices: arithmetic and memory of its own
    count less. Only for comparing two divisions of one program."""
    total = 0.0
    for op in block.ops:
        nbytes = sum(map(size_of, op.results))
        if op.name == "while":
            total += (trips_of(op) or 10) * sum(map(_cost, op.regions))
        elif op.name in ("if", "case"):
            total += max(map(_cost, op.regions))
        elif op.name in _EXCHANGES:
            total += max(nbytes, sum(map(size_of, op.operands))) * (2 if op.name == "all_reduce" else 1)
        else:
            total += nbytes / 8 + (tensor(op.result).size * _terms(op) / 10 if _terms(op) else 0)
    return total


def _terms(op: Op) -> int:
    """How many products each element of a product's or convolution's result is the sum of; 0 for other ops."""
    if op.name == "dot_general":
        return prod(op.operands[0].shape[d] for d in op.attrs["dot_dimension_numbers"].lhs_contracting_dimensions)
    if op.name == "convolution":
        made = op.attrs["dimension_numbers"].kernel_output_feature_dimension
        return prod(n for d, n in enumerate(op.operands[1].shape) if d != made)
    return 0


def _in_memory(tiling: Tiling, attrs: dict[str, Any], value: Value) -> Tiling:
    """The tiling of an array with its dimensions in the order in which they lie in memory."""
    layout = asked_layout(attrs, "an array", value.type)
    return tiling.permuted(tuple(reversed(layout))) if layout else tiling


def _within(outer: Tiling, inner: Tiling) -> Tiling:
    """The tiling whose parts are parts under `inner` of the parts under `outer`."""
    counts = tuple(a * b for a, b in zip(outer.counts, inner.counts, strict=True))
    return Tiling(counts, outer.index * inner.counts + inner.index, outer.term, outer.terms)
