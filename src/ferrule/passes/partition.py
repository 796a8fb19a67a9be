"""Partition: a program over global arrays → the program that each device runs on its own parts.

What stands in a manual computation (shard_map) runs on the parts that its shardings name. Everything else is computed
as a whole by every device: a part is gathered before such a computation reads it, and a whole is cut where a manual
computation or an output wants a part. A part that goes straight from one such place to another, under the same tiling,
is neither gathered nor cut, and elementwise ops between such places are computed on parts as well; of the two ways
only the one that somebody reads is left in the end.

Inside a manual computation values differ from device to device along its axes; there `classes` numbers the devices so
that those with one number hold the same data, and gathers stay within a class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, Function, Loc, Module, Op, Tensor, Token, Value, tensor
from ferrule.ir.types import i1, i32, ui32
from ferrule.ops import OPS
from ferrule.passes.connect import connect
from ferrule.stablehlo.groups import Groups, padded
from ferrule.stablehlo.layouts import asked_layout
from ferrule.stablehlo.sdy import Axis, Mesh, Sharding, coordinate
from ferrule.stablehlo.tiling import Tiling, classes_of_text, of_sharding, of_text, whole

# Ops whose results differ from run to run, and so from device to device.
_DRAWN = {"rng"}


def partition(module: Module, replicas: int, partitions: int, propagate: Sequence[bool] = ()) -> Module:
    """Returns the module whose `main` is one device's program; `propagate` says which outputs may choose a tiling.

    The attributes of parameters and results get "ferrule.sharding": the bytes that tell a framework how the global
    array is split.
    """
    if partitions > 1:
        module = _Partitioner(module, replicas, partitions).run(tuple(propagate))
    main = module.main
    body = connect(main.body)
    function = Function("main", body, main.arg_attrs, main.result_attrs, main.visibility)
    return Module({"main": function}, module.attrs, module.name, module.producer, module.meshes)


class _Partitioner:
    def __init__(self, module: Module, replicas: int, partitions: int) -> None:
        self.module, self.replicas, self.partitions = module, replicas, partitions
        self.env: dict[Value, Value] = {}
        # Whole values of which every device's part is at hand: value → tiling and part.
        self.parts: dict[Value, tuple[Tiling, Value]] = {}
        # What the program's constraints say of values of the global program.
        self.hints: dict[Value, Tiling] = {}

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
            self.env[arg] = self.gather(body, part, tiling, tensor(arg), everywhere, Loc("parameter"))
        self.copy(main.body, body, everywhere)
        for i, (value, attrs) in enumerate(zip(main.body.results, result_attrs, strict=True)):
            new = self.env[value]
            asked = self.declared(attrs, value, f"result {i}")
            if asked is None and (propagate[min(i, len(propagate) - 1)] if propagate else True):
                asked = self.suggested(value)
            chosen = asked or whole(len(value.shape), self.partitions)
            attrs["ferrule.sharding"] = chosen.op_sharding()
            part = self.cut(body, new, _in_memory(chosen, attrs, value), f"result {i}", Loc("result"))
            body.results.append(part)
        function = Function("main", body, arg_attrs, result_attrs, main.visibility)
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
        for op in block.ops:
            operands = [self.env.get(v, v) for v in op.operands]
            if op.name == "sdy.manual_computation":
                results = self.manual(op, operands, out, classes)
            elif op.name.startswith("ferrule.S"):
                results = self.border(op, operands, out)
            elif op.name == "partition_id":
                results = [self.here]
            elif op.name in ("sdy.sharding_constraint", "sdy.reshard"):
                self.constrain(op)
                results = operands
            elif "only_device" in op.attrs:
                results = self.once(op, operands, out, classes)
            else:
                regions = [self.region(r, classes) for r in op.regions]
                results = out.add(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc).results
                if op.name in _DRAWN:
                    results = self.from_first(out, results, classes, 0, op.loc)
                elif len(results) == 1 and OPS[op.name].elementwise:
                    self.on_parts(op, operands, results[0], out)
                for region in op.regions if op.name in ("while", "if", "case") else ():
                    # The condition of a loop returns something else; a body's and a branch's results become the op's.
                    if len(region.results) == len(op.results):
                        for inner, result in zip(region.results, op.results, strict=True):
                            if inner in self.hints and inner.type == result.type:
                                self.hints.setdefault(result, self.hints[inner])
            self.env.update(zip(op.results, results, strict=True))

    def constrain(self, op: Op) -> None:
        """A constraint changes no value; an output that is left open follows it."""
        sharding = op.attrs.get("sharding")
        if isinstance(sharding, Sharding) and isinstance(op.result.type, Tensor):
            open_ = any(not d.closed for d in sharding.dims)
            if not (open_ and sharding.is_replicated):
                rank = len(op.result.shape)
                self.hints[op.result] = of_sharding(
                    sharding, rank, self.module.meshes, self.partitions, "a constrained value"
                )

    def suggested(self, value: Value) -> Tiling | None:
        """The tiling for an output that the program leaves open: the one of a constraint, or of the parts at hand."""
        hint = self.hints.get(value)
        if hint and not any(size % count for size, count in zip(value.shape, hint.counts, strict=True)):
            return hint
        part = self.parts.get(self.env[value])
        return part[0] if part else None

    def on_parts(self, op: Op, operands: list[Value], whole_result: Value, out: Block) -> None:
        """Computes an elementwise op on parts, too, where every operand has its parts under one tiling."""
        shape = op.result.shape
        for old in op.operands:
            if old in self.hints and old.shape == shape:
                self.hints.setdefault(op.result, self.hints[old])
        tilings = [self.parts[v][0] for v in operands if v in self.parts]
        if op.regions or any(v in self.parts and v.shape != shape for v in operands):
            return
        if not tilings or tilings[0].terms > 1 or any(t.key != tilings[0].key for t in tilings):
            return
        tiling = tilings[0]
        local = tiling.local(shape, "a value")
        parts = []
        for value in operands:
            if value in self.parts:
                parts.append(self.parts[value][1])
            elif not value.shape:
                parts.append(value)
            elif (same := _uniform(value)) is not None:
                parts.append(_spread(out, same, Tensor(local, value.dtype), op.loc))
            else:
                return
        kind = Tensor(local, tensor(whole_result).dtype)
        part = out.add(op.name, parts, kind, op.attrs, (), op.loc).result
        self.parts[whole_result] = (tiling, part)

    def region(self, block: Block, classes: np.ndarray) -> Block:
        out = Block(a.type for a in block.args)
        self.env.update(zip(block.args, out.args, strict=True))
        self.copy(block, out, classes)
        out.results = [self.env.get(v, v) for v in block.results]
        return out

    def manual(self, op: Op, operands: list[Value], out: Block, classes: np.ndarray) -> Sequence[Value]:
        axes = set(op.attrs.get("manual_axes", ()))
        body = op.regions[0]
        ins, outs = op.attrs.get("in_shardings", ()), op.attrs.get("out_shardings", ())
        for what, shardings, have in (("operand", ins, op.operands), ("result", outs, op.results)):
            if len(shardings) != sum(not isinstance(v.type, Token) for v in have) and len(shardings) != len(have):
                raise InvalidArgument(f"a manual computation has {len(shardings)} shardings of {len(have)} {what}s")
        inner = self.refined(classes, axes, [*ins, *outs])
        for i, (value, arg) in enumerate(zip(operands, body.args, strict=True)):
            if isinstance(value.type, Token):
                self.env[arg] = value
                continue
            tiling = self.tiling(ins[i], value, f"operand {i} of a manual computation", axes)
            self.env[arg] = self.cut(out, value, tiling, f"operand {i} of a manual computation", op.loc)
            if self.env[arg].type != arg.type:
                raise InvalidArgument(
                    f"argument {i} of a manual computation has type {arg.type}",
                    where=op.loc,
                    why=f"its sharding gives {self.env[arg].type}",
                )
        self.copy(body, out, inner)
        results = []
        for i, (value, result) in enumerate(zip(body.results, op.results, strict=True)):
            part = self.env.get(value, value)
            if isinstance(result.type, Token):
                results.append(part)
                continue
            tiling = self.tiling(outs[i], result, f"result {i} of a manual computation", axes)
            if tensor(part).shape != tiling.local(result.shape, f"result {i} of a manual computation"):
                raise InvalidArgument(
                    f"result {i} of a manual computation has type {part.type}",
                    where=op.loc,
                    why=f"its sharding makes that {result.type} cut into {list(tiling.counts)}",
                )
            results.append(self.gather(out, part, tiling, tensor(result), classes, op.loc))
        return results

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

    def border(self, op: Op, operands: list[Value], out: Block) -> Sequence[Value]:
        """The form without Shardy: custom calls mark where whole values become parts and parts whole values."""
        text = str(op.attrs["sharding"])
        (value,) = operands
        what = f"the value at {op.name.removeprefix('ferrule.')}"
        if op.name == "ferrule.Sharding":
            if text != "{manual}":
                self.hints[op.result] = of_text(text, len(value.shape), self.partitions, what)
            return operands
        full = op.operands[0] if op.name == "ferrule.SPMDFullToShardShape" else op.result
        if full is op.result:
            tiling = of_text(text, len(value.shape), self.partitions, what)
        else:
            tiling = self.hints.get(full) or whole(len(value.shape), self.partitions)
        part = value if full is op.result else self.cut(out, value, tiling, what, op.loc)
        if tensor(part).shape != tiling.local(full.shape, what):
            raise InvalidArgument(
                f"{what} goes from {value.type} to {op.result.type}", where=op.loc, why=f"its sharding is {text}"
            )
        if full is not op.result:
            return [part]
        classes = classes_of_text(text, len(value.shape), self.partitions, what)
        return [self.gather(out, part, tiling, tensor(full), classes, op.loc)]

    def once(self, op: Op, operands: list[Value], out: Block, classes: np.ndarray) -> Sequence[Value]:
        """A call that is to run on one device: the others wait for its results."""
        device = int(op.attrs["only_device"])
        if not 0 <= device < self.partitions:
            raise InvalidArgument(f"a call is to run on device {device}", where=op.loc)
        attrs = {k: v for k, v in op.attrs.items() if k != "only_device"}
        types = [r.type for r in op.results]
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

    # --- whole and part -------------------------------------------------------------------------------------------
    def from_first(
        self, out: Block, values: Sequence[Value], classes: np.ndarray, device: int, loc: Loc
    ) -> Sequence[Value]:
        """The values of one device of each class (of `device` in its own), on all of it."""
        groups = []
        for number in np.unique(classes):
            members = np.flatnonzero(classes == number).tolist()
            groups.append(sorted(members, key=lambda d: d != device))
        if all(len(g) == 1 for g in groups) or not values:
            return values
        attrs = {"replica_groups": self.all_replicas(groups)}
        return [out.add("collective_broadcast", [v], v.type, attrs, loc=loc).result for v in values]

    def all_replicas(self, groups: Groups) -> np.ndarray:
        return padded([[r * self.partitions + p for p in g] for r in range(self.replicas) for g in groups])

    def cut(self, out: Block, value: Value, tiling: Tiling, what: str, loc: Loc) -> Value:
        """Each device's part of a value that it holds as a whole."""
        if value in self.parts and self.parts[value][0].key == tiling.key:
            return self.parts[value][1]
        if tiling.is_whole:
            return value
        shape = tiling.local(value.shape, what)
        if tiling.tiles > 1:
            starts = [self.number(out, tiling.index[:, d] * size, loc) for d, size in enumerate(shape)]
            kind = Tensor(shape, value.dtype)
            value = out.add("dynamic_slice", [value, *starts], kind, {"slice_sizes": shape}, loc=loc).result
        if tiling.terms > 1:
            # A sum of parts: the first holds all of it, the others nothing.
            first = self.number(out, tiling.term, loc)
            zero = out.add("constant", [], Tensor((), i32), {"value": np.array(0, np.int32)}, loc=loc).result
            about = {"comparison_direction": "EQ", "compare_type": "SIGNED"}
            chosen = out.add("compare", [first, zero], Tensor((), i1), about, loc=loc).result
            none = np.broadcast_to(np.zeros((), value.dtype.numpy), shape)
            nothing = out.add("constant", [], value.type, {"value": none}, loc=loc).result
            value = out.add("select", [chosen, value, nothing], value.type, loc=loc).result
        return value

    def number(self, out: Block, table: np.ndarray, loc: Loc) -> Value:
        """The entry of a table that belongs to the device that runs, as a scalar i32."""
        if not table.any():
            return out.add("constant", [], Tensor((), i32), {"value": np.array(0, np.int32)}, loc=loc).result
        kind = Tensor((len(table),), i32)
        entries = out.add("constant", [], kind, {"value": table.astype(np.int32)}, loc=loc).result
        here = out.add("convert", [self.here], Tensor((), i32), loc=loc).result
        one = out.add("dynamic_slice", [entries, here], Tensor((1,), i32), {"slice_sizes": (1,)}, loc=loc).result
        return out.add("reshape", [one], Tensor((), i32), loc=loc).result

    def gather(self, out: Block, part: Value, tiling: Tiling, kind: Tensor, classes: np.ndarray, loc: Loc) -> Value:
        """The whole value on every device, from the devices' parts."""
        if tiling.is_whole:
            return part
        value = part
        if tiling.terms > 1:
            value = self.summed(out, value, tiling, classes, loc)
        if tiling.tiles > 1:
            value = self.joined(out, value, tiling, kind, classes, loc)
        self.parts[value] = (tiling, part)
        return value

    def summed(self, out: Block, value: Value, tiling: Tiling, classes: np.ndarray, loc: Loc) -> Value:
        scalar = Tensor((), value.dtype)
        body = Block([scalar, scalar])
        body.results = body.add("add", body.args, scalar).results
        groups = _teams(classes * tiling.tiles + tiling.tile, tiling.term, tiling.terms)
        attrs = {"replica_groups": self.all_replicas(groups)}
        return out.add("all_reduce", [value], value.type, attrs, [body], loc).result

    def joined(self, out: Block, value: Value, tiling: Tiling, kind: Tensor, classes: np.ndarray, loc: Loc) -> Value:
        """One all_gather puts the tiles behind each other; a transpose brings them to their places."""
        local, tiles = tensor(value).shape, tiling.tiles
        attrs = {
            "all_gather_dim": 0,
            "replica_groups": self.all_replicas(_teams(classes, tiling.tile, tiles)),
        }
        value = out.add("reshape", [value], Tensor((1, *local), kind.dtype), loc=loc).result
        value = out.add("all_gather", [value], Tensor((tiles, *local), kind.dtype), attrs, loc=loc).result
        split = [d for d, count in enumerate(tiling.counts) if count > 1]
        if split == [0]:
            return out.add("reshape", [value], kind, loc=loc).result
        shape = (*(tiling.counts[d] for d in split), *local)
        value = out.add("reshape", [value], Tensor(shape, kind.dtype), loc=loc).result
        order = []
        for d in range(len(local)):
            if d in split:
                order.append(split.index(d))
            order.append(len(split) + d)
        moved = Tensor(tuple(shape[d] for d in order), kind.dtype)
        value = out.add("transpose", [value], moved, {"permutation": tuple(order)}, loc=loc).result
        return out.add("reshape", [value], kind, loc=loc).result


def _uniform(value: Value) -> Value | np.ndarray | None:
    """The scalar that fills an array, when that is how it was made."""
    op = value.op
    if op is not None and op.name == "broadcast_in_dim" and not op.operands[0].shape:
        return op.operands[0]
    if op is not None and op.name == "constant":
        array = op.attrs["value"]
        if array.size and not any(array.strides):
            return array.reshape(-1)[0]
    return None


def _spread(out: Block, scalar: Value | np.ndarray, kind: Tensor, loc: Loc) -> Value:
    if isinstance(scalar, Value):
        return out.add("broadcast_in_dim", [scalar], kind, {"broadcast_dimensions": ()}, loc=loc).result
    return out.add("constant", [], kind, {"value": np.broadcast_to(scalar, kind.shape)}, loc=loc).result


def _in_memory(tiling: Tiling, attrs: dict[str, Any], value: Value) -> Tiling:
    """The tiling of an array with its dimensions in the order in which they lie in memory."""
    layout = asked_layout(attrs, "an array", value.type)
    return tiling.permuted(tuple(reversed(layout))) if layout else tiling


def _teams(classes: np.ndarray, label: np.ndarray, labels: int) -> Groups:
    """Groups of devices of one class each, with every label once and in order."""
    teams: Groups = []
    for number in np.unique(classes):
        holders = [np.flatnonzero((classes == number) & (label == one)).tolist() for one in range(labels)]
        if len({len(h) for h in holders}) != 1:
            raise Unsupported(
                "a sharding splits an array within a manual computation along axes that are manual already",
                fix="shard inner arrays along the other axes of the mesh only",
            )
        teams += [list(team) for team in zip(*holders, strict=True)]
    return teams
