"""Division: ops on parts of their operands.

An op's rule (`OpDef.factors`) says which dimensions of operands and results go together. An op follows the tilings of
its operands as far as they fit beside each other: where they exclude each other, the largest operand has its way, or,
in a division that puts what leads first, the one by which a result's first dimensions are split, as batches are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, GatherDims, Op, Tensor, Value, tensor
from ferrule.ir.types import f32, i1, i32
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid, uniform
from ferrule.ops.definition import Factors, factors_of
from ferrule.ops.shape import regrouped
from ferrule.ops.starts import evaluate_body
from ferrule.passes.shards import Held, Shards, complete, reducer, size_of
from ferrule.passes.slices import cut
from ferrule.stablehlo.tiling import Split, Tiling, of_splits, whole

# Ops that only move elements: their results count as much as what they are of.
_MOVES = {"broadcast_in_dim", "reshape", "transpose", "convert"}
# Ops whose totals are kept in a wider type than their results have.
_SUMS = {"dot_general", "convolution", "reduce"}
# Ops that put elements elsewhere: what a device computes of a part of the result costs no more than the part.
_ARRANGES = {"slice", "pad", "concatenate", "reverse", "gather", "scatter", "dynamic_slice", "dynamic_update_slice"}


class Division(Shards):
    """Shards, and the ops that make them. `torn` says that operands excluded each other's tilings."""

    def __init__(self, replicas: int, partitions: int, leading: bool) -> None:
        super().__init__(replicas, partitions)
        self.leading, self.torn = leading, False
        self.one: Split = (1, bytes(8 * partitions))

    @abstractmethod
    def region(self, block: Block, classes: np.ndarray) -> Block:
        """A region that every device runs on whole values."""

    def finish(self, op: Op, results: Sequence[Value], out: Block, classes: np.ndarray) -> None:
        """Notes an op's results, which every device has as a whole."""
        for old, new in zip(op.results, results, strict=True):
            self.held[old] = Held(out, classes, new, weight=size_of(old), loc=op.loc)

    # --- sums that are left to do ---------------------------------------------------------------------------------
    def in_terms(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """Adds sums whose terms nobody has summed yet term by term, and puts such a sum into another one's array."""
        if op.name not in ("add", "subtract", "dynamic_update_slice"):
            return False
        first, second = (self.as_terms(v) for v in op.operands[:2])
        if first is None or second is None or first[0].key != second[0].key:
            return False
        tiling = first[0]
        if op.name == "dynamic_update_slice" and tiling.tiles > 1:
            return False
        operands = [first[1], second[1], *(self.whole(v) for v in op.operands[2:])]
        value = out.add(op.name, operands, first[1].type, op.attrs, (), op.loc).result
        held = self.held[op.result] = Held(out, classes, main=tiling, weight=size_of(op.result), loc=op.loc)
        held.keep(tiling, value)
        return True

    def as_terms(self, value: Value) -> tuple[Tiling, Value] | None:
        """A sum that nobody has summed yet as its terms, also where it has been turned or scaled since."""
        held = self.held[value]
        if held.main is not None and held.main.terms > 1:
            return held.main, held.parts[held.main.key][1]
        op = held.source
        if not held.deferred or op is None:
            return None
        if op.name == "multiply" and uniform(op.operands[0]) is not None:
            at = 1
        elif op.name in ("multiply", "divide") and uniform(op.operands[1]) is None:
            return None
        elif op.name == "divide" and not (value.dtype.is_float or value.dtype.is_complex):
            return None
        elif op.name in ("multiply", "divide", "negate", "transpose", "reshape", "broadcast_in_dim"):
            at = 0
        else:
            return None
        found = self.as_terms(op.operands[at])
        if found is None or found[0].tiles > 1:
            return None
        tiling = whole(len(value.shape), self.partitions).with_terms(found[0].term, found[0].terms)
        if tiling.key not in held.parts:
            operands = [found[1] if i == at else self.whole(v) for i, v in enumerate(op.operands)]
            held.keep(tiling, held.home.add(op.name, operands, value.type, op.attrs, (), op.loc).result)
        return tiling, held.parts[tiling.key][1]

    def later(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """Leaves an op on a sum whose terms nobody has summed yet until it is known which part of it is wanted: a
        scaled gradient is summed and scattered, not summed for all and cut."""
        if not self.is_simple(op):
            return False
        found = [self.held[v] for v in op.operands]
        if not any(held.whole is None and (held.deferred or (held.main and held.main.terms > 1)) for held in found):
            return False
        if any(held.main is not None and held.main.terms == 1 and not held.deferred for held in found):
            return False
        rule = factors_of(op)
        chosen = self.chosen(op, rule, classes) if rule is not None else {}
        held = self.held[op.result] = Held(out, classes, source=op, deferred=True, loc=op.loc)
        held.weight = self.weight(op, op.result)
        if rule is not None and chosen:
            held.main = self.tiling_of(chosen, rule.results[0])
        return True

    # --- ops in parts ---------------------------------------------------------------------------------------------
    def in_parts(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """Computes an op in parts, if an operand is at hand in parts that its rule can do with."""
        if all(self.held[v].main is None for v in op.operands):
            return False
        rule = factors_of(op)
        chosen = self.chosen(op, rule, classes) if rule is not None else {}
        if rule is None or not chosen:
            return False
        terms = {f: chosen[f] for f in rule.sums if f in chosen}
        term, count = np.zeros(self.partitions, np.int64), 1
        for parts, index in terms.values():
            term, count = term * parts + np.frombuffer(index, np.int64), count * parts
        operands = [
            self.part(v, self.tiling_of(chosen, d), "a value") for v, d in zip(op.operands, rule.operands, strict=True)
        ]
        tilings = [self.tiling_of(chosen, d) for d in rule.results]
        # Terms of sums are as exact as sums.
        wide = bool(terms) and op.name in _SUMS and op.result.dtype.is_float and op.result.dtype.bits < 32
        if wide and op.name == "reduce":
            kinds = [Tensor(v.shape, f32) for v in operands]
            operands = [
                out.add("convert", [v], kind, loc=op.loc).result for v, kind in zip(operands, kinds, strict=True)
            ]
        results = self.emit(op, out, rule, operands, tilings, chosen, classes, wide)
        for old, new, tiling in zip(op.results, results, tilings, strict=True):
            held = self.held[old] = Held(out, classes, weight=self.weight(op, old), loc=op.loc)
            by = next((rule.sums[f] for f in terms), "add")
            if terms and (by != "add" or wide):
                new = self.combined(out, new, tiling.with_terms(term, count), by, classes, op.loc)
                if wide:
                    new = out.add("convert", [new], Tensor(new.shape, old.dtype), loc=op.loc).result
            elif terms:
                tiling = tiling.with_terms(term, count)
            held.keep(tiling, new)
            held.main = None if tiling.is_whole else tiling
            if op.name == "broadcast_in_dim":
                held.source = op
        return True

    def from_beginning(self, op: Op, out: Block, indices: Value, component: int, dim: int, split: Split) -> Value:
        """A gather's or scatter's indices, one component of them counted from the beginning of a device's part of a
        dimension of the operand. Those of a gather are brought into the whole dimension first, as gathers do."""
        size, dtype = op.operands[0].shape[dim], indices.dtype
        if dtype.bits < 32:
            indices = out.add("convert", [indices], Tensor(indices.shape, i32), loc=op.loc).result
        kind, dtype = tensor(indices), indices.dtype
        vector = _vector_dim(op)
        chosen = np.zeros(kind.shape[vector] if vector < kind.rank else 1, dtype.numpy)
        chosen[component] = 1

        def spread(values: np.ndarray) -> Value:
            row = out.add("constant", [], Tensor(values.shape, dtype), {"value": values}, loc=op.loc).result
            if vector == kind.rank:
                row = out.add("reshape", [row], Tensor((), dtype), loc=op.loc).result
            places = {"broadcast_dimensions": (vector,) if vector < kind.rank else ()}
            return out.add("broadcast_in_dim", [row], kind, places, loc=op.loc).result

        if op.name == "gather":
            largest = np.full_like(chosen, np.iinfo(dtype.numpy).max)
            largest[component] = size - 1
            least = np.full_like(chosen, np.iinfo(dtype.numpy).min)
            least[component] = 0
            indices = out.add("clamp", [spread(least), indices, spread(largest)], kind, loc=op.loc).result
        start = self.number(out, np.frombuffer(split[1], np.int64) * (size // split[0]), op.loc)
        start = out.add("convert", [start], Tensor((), dtype), loc=op.loc).result
        start = out.add("broadcast_in_dim", [start], kind, {"broadcast_dimensions": ()}, loc=op.loc).result
        start = out.add("multiply", [start, spread(chosen)], kind, loc=op.loc).result
        return out.add("subtract", [indices, start], kind, loc=op.loc).result

    def found(self, op: Op, out: Block, value: Value, where: Sequence[tuple[Value, int, int]]) -> Value:
        """A gather's result, with nothing where an index (operand, component, size of the part) lies outside."""
        dims: GatherDims = op.attrs["dimension_numbers"]
        vector = _vector_dim(op)
        for indices, component, size in where:
            kind = tensor(indices)
            if vector < kind.rank:
                indices = _along(out, indices, vector, component, component + 1, op)
                kind = Tensor(tuple(n for d, n in enumerate(kind.shape) if d != vector), kind.dtype)
                indices = out.add("reshape", [indices], kind, loc=op.loc).result
            flags = Tensor(kind.shape, i1)
            sort = "SIGNED" if kind.dtype.kind == "int" else "UNSIGNED"
            ends = []
            for number, direction in ((0, "GE"), (size, "LT")):
                limit = {"value": np.broadcast_to(np.array(number, kind.dtype.numpy), kind.shape)}
                bound = out.add("constant", [], kind, limit, loc=op.loc).result
                about = {"comparison_direction": direction, "compare_type": sort}
                ends.append(out.add("compare", [indices, bound], flags, about, loc=op.loc).result)
            inside = out.add("and", ends, flags, loc=op.loc).result
            shape = tensor(value)
            batch = tuple(d for d in range(shape.rank) if d not in dims.offset_dims)
            places = {"broadcast_dimensions": batch}
            inside = out.add("broadcast_in_dim", [inside], Tensor(shape.shape, i1), places, loc=op.loc).result
            # To which -0 may be added, and stays.
            zero = complex(-0.0, -0.0) if shape.dtype.is_complex else -0.0 if shape.dtype.is_float else 0
            nothing = {"value": np.broadcast_to(np.array(zero).astype(shape.dtype.numpy), shape.shape)}
            zeros = out.add("constant", [], shape, nothing, loc=op.loc).result
            value = out.add("select", [inside, value, zeros], shape, loc=op.loc).result
        return value

    def chosen(self, op: Op, rule: Factors, classes: np.ndarray) -> dict[int, Split]:
        """How the op's factors are split: as the operands' tilings have it, factors that results have before those that
        are summed."""
        wishes = []
        # What is picked from a split table is summed; a small table had better be gathered.
        dear = rule.picked.keys() & rule.sums.keys() if 2 * size_of(op.results[0]) > size_of(op.operands[0]) else ()
        sizes: dict[int, list[int]] = {}
        for value, dims in zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True):
            for size, factor in zip(value.shape, dims, strict=True):
                if factor is not None:
                    sizes.setdefault(factor, []).append(size)
        for value, dims in zip(op.operands, rule.operands, strict=True):
            held = self.held[value]
            if held.main is not None:
                for d, factor in enumerate(dims):
                    if factor is not None and factor not in dear and held.main.counts[d] > 1:
                        split = held.main.splits[d]
                        place = min((r.index(factor) for r in rule.results if factor in r), default=0)
                        wishes.append((factor in rule.sums, place * self.leading, -held.weight, factor, split))
        chosen: dict[int, Split] = {}
        for *_, factor, split in sorted(wishes, key=lambda wish: wish[:3]):
            if factor in chosen or any(size % split[0] for size in sizes[factor]) or not self.meet(op, split):
                continue
            if complete([*chosen.values(), split], classes):
                chosen[factor] = split
            else:
                self.torn = True
        return chosen

    def meet(self, op: Op, split: Split) -> bool:
        """Do the devices between which a collective moves something have the same part?"""
        pairs = op.attrs.get("source_target_pairs", op.attrs.get("replica_groups"))
        if pairs is None:
            return True
        place = np.frombuffer(split[1], np.int64)
        teams = [[int(d) % self.partitions for d in team if d >= 0] for team in np.asarray(pairs)]
        return all(len({*place[team].tolist()}) == 1 for team in teams if team)

    def tiling_of(self, chosen: dict[int, Split], dims: Sequence[int | None]) -> Tiling:
        """The tiling of a tensor whose dimensions have these factors."""
        return of_splits(tuple(chosen.get(f, self.one) if f is not None else self.one for f in dims), self.partitions)

    def emit(
        self,
        op: Op,
        out: Block,
        rule: Factors,
        operands: Sequence[Value],
        tilings: Sequence[Tiling],
        chosen: dict[int, Split],
        classes: np.ndarray,
        wide: bool = False,
    ) -> Sequence[Value]:
        """The op on parts."""
        picked = {f: where for f, where in rule.picked.items() if f in chosen}
        operands = list(operands)
        for factor, (number, component) in picked.items():
            operands[number] = self.from_beginning(op, out, operands[number], component, factor, chosen[factor])
        shapes = [t.local(r.shape, "a value") for t, r in zip(tilings, op.results, strict=True)]
        types = [Tensor(s, f32 if wide else r.dtype) for s, r in zip(shapes, op.results, strict=True)]
        attrs = op.attrs if rule.attrs is None else op.attrs | rule.attrs([v.shape for v in operands], shapes)
        regions = [self.region(r, classes) for r in op.regions]
        if wide and regions:
            regions = [reducer(str(monoid(op.regions[0])), f32)]
        results = out.add(op.name, operands, types, attrs, regions, op.loc).results
        if op.name == "gather" and picked:
            where = [(operands[n], c, operands[0].shape[f]) for f, (n, c) in picked.items()]
            return [self.found(op, out, results[0], where)]
        return results

    def weight(self, op: Op, result: Value) -> int:
        if op.name in _MOVES or OPS[op.name].elementwise:
            return max(
                (self.held[v].weight for v in op.operands if self.held[v].main is not None), default=size_of(result)
            )
        return size_of(result)

    # --- neighbours -----------------------------------------------------------------------------------------------
    def rolled(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """An array that is rolled along a split dimension: devices send what goes over their parts' ends."""
        found = _roll(op)
        if found is None:
            return False
        source, dim, by = found
        held = self.held[source]
        if held.main is None or held.main.counts[dim] == 1:
            return False
        tiling = self.settled(source)
        assert tiling is not None
        value = self.rolled_by(out, self.part(source, tiling, "a value"), tiling, dim, by, op, classes)
        made = self.held[op.result] = Held(out, classes, main=tiling, weight=held.weight, loc=op.loc)
        made.keep(tiling, value)
        return True

    def rolled_by(
        self, out: Block, part: Value, tiling: Tiling, dim: int, by: int, op: Op, classes: np.ndarray
    ) -> Value:
        """Each device's part of an array that begins so many places further along a dimension."""
        if not by:
            return part
        count = tiling.counts[dim]
        tiles, rest = divmod(by, part.shape[dim])
        pieces = [(tiles, rest, part.shape[dim]), (tiles + 1, 0, rest)]
        parts = []
        for away, start, limit in pieces:
            if start < limit:
                piece = _along(out, part, dim, start, limit, op)
                parts.append(self.from_tile(out, piece, tiling, dim, away % count, classes, op.loc))
        value = parts[0]
        if len(parts) > 1:
            value = out.add("concatenate", parts, part.type, {"dimension": dim}, loc=op.loc).result
        return value

    def reversed(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """An array whose split dimensions are turned around: devices exchange their parts."""
        if op.name != "reverse":
            return False
        (source,) = op.operands
        tiling = self.settled(source)
        turned = [] if tiling is None else [d for d in op.attrs["dimensions"] if tiling.counts[d] > 1]
        if tiling is None or not turned:
            return False
        value = self.part(source, tiling, "a value")
        for d in turned:
            value = self.from_tile(out, value, tiling, d, None, classes, op.loc)
        value = out.add("reverse", [value], value.type, op.attrs, (), op.loc).result
        made = self.held[op.result] = Held(out, classes, main=tiling, weight=self.held[source].weight, loc=op.loc)
        made.keep(tiling, value)
        return True

    def reshaped(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """A reshape whose parts are parts of memory, also where one dimension's parts become those of several: 16 heads
        on 8 devices are 2 groups of 8, in 2 and 4 parts."""
        if op.name != "reshape" or 0 in op.result.shape:
            return False
        (source,) = op.operands
        tiling = self.settled(source)
        splits = None if tiling is None else _reshaped(tiling.splits, source.shape, op.result.shape, self.partitions)
        if tiling is None or splits is None:
            return False
        after = of_splits(splits, self.partitions)
        kind = Tensor(after.local(op.result.shape, "a value"), op.result.dtype)
        value = out.add("reshape", [self.part(source, tiling, "a value")], kind, op.attrs, (), op.loc).result
        made = self.held[op.result] = Held(out, classes, main=after, weight=self.held[source].weight, loc=op.loc)
        made.keep(after, value)
        return True

    def in_two_steps(self, op: Op, out: Block, classes: np.ndarray) -> bool:
        """A reduction by a computation of its own, an argmax for one, along split dimensions: of each device's part,
        then of what all have found."""
        rule = factors_of(op) if op.name == "reduce" else None
        half = len(op.operands) // 2
        tiling = next((t for v in op.operands[:half] if (t := self.settled(v)) is not None), None)
        if rule is None or rule.sums or tiling is None:
            return False
        rank, gone = len(tiling.counts), tuple(op.attrs["dimensions"])
        over = [d for d in gone if tiling.counts[d] > 1]
        if not over or not _may_repeat(op.regions[0], op.operands[half:]):
            return False
        kept = [d for d in range(rank) if d not in gone]
        inner = of_splits(tuple(tiling.splits[d] for d in kept), self.partitions)
        inputs = [self.part(v, tiling, "a value") for v in op.operands[:half]]
        inits = [self.whole(v) for v in op.operands[half:]]
        shape = inner.local(op.results[0].shape, "a value")
        types = [Tensor(shape, v.dtype) for v in op.results]
        body = self.region(op.regions[0], classes)
        found = out.add("reduce", [*inputs, *inits], types, op.attrs, [body], op.loc).results
        # Side by side along a new first dimension, in the order of the parts.
        parts = of_splits(tuple(tiling.splits[d] for d in over), self.partitions)
        index = np.zeros((self.partitions, len(shape) + 1), np.int64)
        index[:, 0] = parts.tile
        front = Tiling((parts.tiles, *(1 for _ in shape)), index, np.zeros(self.partitions, np.int64))
        fixed = classes * inner.tiles + inner.tile
        joined = []
        for value, kind in zip(found, types, strict=True):
            one = out.add("reshape", [value], Tensor((1, *shape), kind.dtype), loc=op.loc).result
            joined.append(self.joined(out, one, front, Tensor((parts.tiles, *shape), kind.dtype), fixed, op.loc))
        body = self.region(op.regions[0], classes)
        results = out.add("reduce", [*joined, *inits], types, {"dimensions": (0,)}, [body], op.loc).results
        for old, new in zip(op.results, results, strict=True):
            held = self.comes(old, new, inner, out, classes)
            held.loc = op.loc
        return True

    # --- ops computed anew ----------------------------------------------------------------------------------------
    def is_simple(self, op: Op) -> bool:
        """Is an element of the result one of the operands', or an operation on those at the same place?"""
        if len(op.results) != 1:
            return False
        return op.name in (*_MOVES, "iota", "constant") or (op.name in OPS and OPS[op.name].elementwise)

    def can_remake(self, op: Op) -> bool:
        """Is it as well to compute the parts of a result from parts of the operands as to cut them from it?"""
        return self.is_simple(op) or (op.name in _ARRANGES and len(op.results) == 1)

    def remade(self, held: Held, tiling: Tiling, depth: int) -> Value | None:
        op, out = held.source, held.home
        assert op is not None
        result = op.result
        kind = Tensor(tiling.local(result.shape, "a value"), result.dtype)
        if (element := uniform(result)) is not None:
            filled = {"value": np.broadcast_to(element, kind.shape)}
            return out.add("constant", [], kind, filled, loc=op.loc).result
        rule = factors_of(op)
        if rule is None:
            return None
        chosen: dict[int, Split] = {}
        for d, factor in enumerate(rule.results[0]):
            if tiling.counts[d] > 1:
                if factor is None:
                    return None
                chosen[factor] = tiling.splits[d]
        for value, dims in zip(op.operands, rule.operands, strict=True):
            if any(f in chosen and size % chosen[f][0] for size, f in zip(value.shape, dims, strict=True)):
                return None
        operands = [
            self.part(v, self.tiling_of(chosen, dims), "a value", depth + 1)
            for v, dims in zip(op.operands, rule.operands, strict=True)
        ]
        (part,) = self.emit(op, out, rule, operands, [tiling], chosen, held.classes)
        dim = int(op.attrs["iota_dimension"]) if op.name == "iota" else 0
        if op.name == "iota" and tiling.counts[dim] > 1:
            start = self.number(out, tiling.index[:, dim] * kind.shape[dim], op.loc)
            start = out.add("convert", [start], Tensor((), kind.dtype), loc=op.loc).result
            start = out.add("broadcast_in_dim", [start], kind, {"broadcast_dimensions": ()}, loc=op.loc).result
            part = out.add("add", [part, start], kind, loc=op.loc).result
        return part


def _along(out: Block, value: Value, dim: int, start: int, limit: int, like: Op) -> Value:
    """Elements start to limit of one dimension."""
    starts = [start if d == dim else 0 for d in range(len(value.shape))]
    limits = [limit if d == dim else n for d, n in enumerate(value.shape)]
    return cut(out, value, starts, limits, [1] * len(starts), like)


def _vector_dim(op: Op) -> int:
    """The dimension of a gather's or scatter's indices along which their components are; the rank, if there is none."""
    return int((op.attrs.get("dimension_numbers") or op.attrs["scatter_dimension_numbers"]).index_vector_dim)


def _reshaped(
    splits: Sequence[Split], before: Sequence[int], after: Sequence[int], devices: int
) -> tuple[Split, ...] | None:
    """How a reshaped array's dimensions are split where one becomes several, or several one; None where parts would
    not be whole parts of it."""
    one: Split = (1, bytes(8 * devices))
    found = [one] * len(after)
    for ours, theirs in regrouped(before, after):
        # All parts of these dimensions as parts of one: each before the last that is split must be split to the end.
        tile, count, ended = np.zeros(devices, np.int64), 1, False
        for d in ours:
            parts, index = splits[d]
            if parts > 1 and ended:
                return None
            ended |= parts < before[d]
            tile, count = tile * parts + np.frombuffer(index, np.int64), count * parts
        for d in theirs:
            parts = count if after[d] % count == 0 else after[d]
            if count % parts:
                return None
            count //= parts
            found[d] = (parts, (tile // count % parts).tobytes())
        if count > 1:
            return None
    return tuple(found)


def _may_repeat(body: Block, inits: Sequence[Value]) -> bool:
    """May a reduction's initial values take part several times?"""
    values = [uniform(v) for v in inits]
    if any(x is None for x in values):
        return False
    args = [np.full(1, x, v.dtype.numpy) for x, v in zip(values, inits, strict=True)]
    try:
        found = evaluate_body(body, [*args, *args])
    except KeyError:
        return False
    return all(a.tobytes() == b.tobytes() for a, b in zip(args, found, strict=True))


def _roll(op: Op) -> tuple[Value, int, int] | None:
    """The array, the dimension and the place of its new beginning, if an op joins an array's end and its beginning."""
    if op.name != "concatenate" or len(op.operands) != 2:
        return None
    end, beginning = (v.op for v in op.operands)
    if end is None or beginning is None or not end.name == beginning.name == "slice":
        return None
    source, dim = end.operands[0], int(op.attrs["dimension"])
    at = end.attrs["start_indices"][dim]
    for piece, start, limit in ((end, at, source.shape[dim]), (beginning, 0, at)):
        starts = tuple(start if d == dim else 0 for d in range(len(source.shape)))
        limits = tuple(limit if d == dim else n for d, n in enumerate(source.shape))
        about = piece.attrs["start_indices"], piece.attrs["limit_indices"], piece.attrs.get("strides", (1,))
        if piece.operands[0] is not source or about[:2] != (starts, limits) or {*about[2]} - {1}:
            return None
    return source, dim, at
