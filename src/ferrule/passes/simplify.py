"""Simplify: algebra, constants, common subexpressions, dead code, shape ops.

Every rule looks at an op and at what its operands are computed from, never at who reads it. So a walk from the first op
to the last is all it takes, if what a rule adds goes through the rules at once; only what loops and branches leave
behind is looked at in another walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ferrule.ir import Block, DotDims, Op, Tensor, Value, constant, is_plain_reduction, rewrite, splat
from ferrule.ops import OPS
from ferrule.passes import conversions, joined_windows, narrow_sums, picked, powers, slices

# Folding evaluates ops with NumPy; larger results are cheaper to compute than to carry as constants.
FOLD_ELEMENTS = 1024
# Ops whose every execution matters, or whose result is not a function of their operands.
EFFECTS = frozenset({"infeed", "outfeed", "send", "recv", "rng"})
_BOUNDARIES = frozenset(
    {"while", "case", "if", "library", "custom_call", "fusion", "optimization_barrier", "uninitialized"}
)

Rule = Callable[[Block, Op, list[Value]], Value | None]
RULES: dict[str, Rule] = {}


def simplify(block: Block, rounds: int = 8, ours: bool = False, settled: Collection[Op] = frozenset()) -> Block:
    """Returns an equivalent block; at most `rounds` sweeps.

    `ours` says that nobody else holds the block, so that its ops may become the result's: copies take half the time.
    `settled` are ops that were simplified before: they, and what they were computed from then, need no second look.
    """
    frozen: dict[int, tuple[Any, Any]] = {}
    for _ in range(rounds):
        sweep = _Sweep(ours, frozen)
        if settled and ours:
            sweep.settled = settled
            sweep.fresh = {op.name for op in block.walk() if op not in settled}
        block = eliminate_dead_code(rewrite(block, sweep.rule, ours=ours))
        kept: set[Op] = set()
        _gather(block, kept)
        for op in sweep.passed:
            if op not in kept:  # only the garbage collector frees what refers to itself
                op.operands, op.results = [], []
        if not sweep.again:
            break
        ours, settled = True, frozenset()
    return block


def _gather(block: Block, ops: set[Op]) -> None:
    ops.update(block.ops)
    for op in block.ops:
        for region in op.regions:
            _gather(region, ops)


def has_effects(op: Op) -> bool:
    """True when the op must be kept although nobody reads its results."""
    if op.name in EFFECTS or (op.name in ("custom_call", "library") and op.attrs.get("has_side_effect")):
        return True
    return bool(op.regions) and any(has_effects(inner) for region in op.regions for inner in region.ops)


def eliminate_dead_code(block: Block) -> Block:
    """Drops, in place, the ops that nobody reads; `block` must not be shared."""
    live: set[Value] = set(block.results)
    _sweep_dead(block, live)
    return block


def _sweep_dead(block: Block, live: set[Value]) -> None:
    kept = []
    for op in reversed(block.ops):
        if live.isdisjoint(op.results) and not has_effects(op):
            continue
        kept.append(op)
        live.update(op.operands)
        for region in op.regions:
            live.update(region.results)
            _sweep_dead(region, live)
    block.ops = kept[::-1]


class _Sweep:
    """One pass over the block. The tables of common subexpressions are per block, nested ones see the outer ones.

    Attributes are never changed, copies of an op share them: `frozen` has their hashable form by identity.
    """

    def __init__(self, ours: bool, frozen: dict[int, tuple[Any, Any]]) -> None:
        self.ours, self.frozen = ours, frozen
        self.again = False  # is there something new that the rules have not seen?
        self.passed: list[Op] = []  # ops that nobody else holds
        self.seen: dict[Block, dict[Any, list[Value]]] = {}
        self.alike: dict[Block, dict[Any, list[Op]]] = {}  # calls, loops and choices, by what they read
        self.settled: Collection[Op] = frozenset()
        self.fresh: Collection[str] = frozenset()  # names of the others: a settled op may be the same as one of them

    def _is_settled(self, op: Op, operands: list[Value]) -> bool:
        """Is there nothing new about an op, or in what it reads, that is still what it was?"""
        settled = self.settled
        if op not in settled or op.name in self.fresh or operands != op.operands:
            return False
        if op.regions and not is_plain_reduction(op):
            return False
        for value in operands:
            if value.op is not None and value.op not in settled:
                return False
        return True

    def rule(self, out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if self.settled and self._is_settled(op, operands):
            self.passed.append(op)
            return None
        for result in op.results:
            if 0 in result.type.shape:
                break
        else:
            return self._rule(out, op, operands, self.ours)
        if op.name == "constant" or has_effects(op):
            return self._rule(out, op, operands, self.ours)
        # A result without elements is known. An op that has no other need not run: LAPACK aborts on empty matrices.
        self.again = True
        if all(map(_is_empty, op.results)):
            return [_nothing(out, r, op) for r in op.results]
        new = self._rule(out, op, operands, self.ours)
        if new is None:
            new = out.add(op.name, operands, [r.type for r in op.results], op.attrs, op.regions, op.loc).results
        return [_nothing(out, r, op) if _is_empty(r) else v for r, v in zip(op.results, new, strict=True)]

    def _rule(self, out: Block, op: Op, operands: list[Value], ours: bool) -> Sequence[Value] | None:
        name = op.name
        if ours:
            self.passed.append(op)
        if name in ("while", "case", "if"):
            simpler = self._invariant_carries if name == "while" else self._known_branch
            changed = simpler(out, op, operands)
            return self._once(out, op, operands, ours) if changed is None else changed
        before = len(out.ops)
        rule = RULES.get(name)
        if rule is not None and (new := rule(out, op, operands)) is not None:
            return self._settle(out, before, [new])
        table = self.seen.setdefault(out, {})
        key = None
        if operands and (inner := operands[0].op) is not None and inner.name == "constant":
            if not op.regions:  # a network's layers spread the same constants over the same shapes
                key = self._key(op, operands)
                if (known := table.get(key)) is not None:
                    return known
            if (folded := _fold(out, op, operands)) is not None:
                folded = list(self._settle(out, before, folded))
                if key is not None:
                    table[key] = folded
                return folded
        if name in ("custom_call", "library"):
            return self._once(out, op, operands, ours)
        if name in _BOUNDARIES or name in EFFECTS or (op.regions and has_effects(op)):
            return None
        if key is None:
            key = self._key(op, operands)
        if (known := table.get(key)) is not None:
            return known
        table[key] = _kept(out, op, operands, ours).results
        return table[key]

    def _settle(self, out: Block, before: int, values: Sequence[Value]) -> Sequence[Value]:
        """Puts the ops that a rule has just added, those from `before` on, through the rules; gives `values` then."""
        added = out.ops[before:]
        del out.ops[before:]
        env: dict[Value, Value] = {}
        for op in added:
            new = self._rule(out, op, [env.get(v, v) for v in op.operands] if env else op.operands, True)
            assert new is not None, f"a rule added {op.name}, which has none"
            if new is not op.results:
                env.update(zip(op.results, new, strict=True))
        return [env.get(v, v) for v in values] if env else values

    def _once(self, out: Block, op: Op, operands: list[Value], ours: bool) -> Sequence[Value] | None:
        """A call, a loop or a choice, or the same one before it. Most differ from others in what they read already; a
        loop's key is as long as its body."""
        if has_effects(op):
            return None
        alike = self.alike.setdefault(out, {}).setdefault((op.name, *operands), [])
        key = _key(op, operands, {}) if alike else None
        for other in alike:
            if _key(other, other.operands, {}) == key:
                return other.results
        alike.append(_kept(out, op, operands, ours))
        return alike[-1].results

    def _key(self, op: Op, operands: list[Value]) -> Any:
        if op.regions:
            return _key(op, operands, {})
        attrs: Any = ()
        if op.attrs:
            kept = self.frozen.get(id(op.attrs))
            if kept is None:
                kept = self.frozen[id(op.attrs)] = (op.attrs, _freeze(op.attrs))
            attrs = kept[1]
        return (op.name, *operands, attrs, op.results[0].type) if len(op.results) == 1 else _key(op, operands, {})

    def _invariant_carries(self, out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        """A value that a loop only hands on is not carried: the body reads the outer value instead."""
        cond, body = op.regions
        fixed = {i for i, arg in enumerate(body.args) if body.results[i] is arg or _is_empty(arg)}
        if not fixed:
            return None
        self.again = True
        moving = [i for i in range(len(operands)) if i not in fixed]
        regions = []
        for region in (cond, body):
            env = {region.args[i]: operands[i] for i in fixed}
            slim = Block(region.args[i].type for i in moving)
            env.update(zip((region.args[i] for i in moving), slim.args, strict=True))
            for inner in region.ops:
                nested = [rewrite(r, lambda *_: None, env) for r in inner.regions]
                reads = [env.get(v, v) for v in inner.operands]
                copy = slim.add(inner.name, reads, [r.type for r in inner.results], inner.attrs, nested, inner.loc)
                env.update(zip(inner.results, copy.results, strict=True))
            results = region.results if region is cond else [region.results[i] for i in moving]
            slim.results = [env.get(v, v) for v in results]
            regions.append(slim)
        starts = [operands[i] for i in moving]
        if not moving and not has_effects(op):
            return operands
        new = out.add("while", starts, [v.type for v in starts], op.attrs, regions, op.loc)
        carried = dict(zip(moving, new.results, strict=True))
        return [carried.get(i, operands[i]) for i in range(len(operands))]

    def _known_branch(self, out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        """A branch on a constant is inlined."""
        from ferrule.ir import inline

        chosen = constant(operands[0])
        if chosen is None:
            return None
        self.again = True
        index = int(chosen.reshape(-1)[0])
        if op.name == "if":
            region = op.regions[0 if index else 1]
        else:
            region = op.regions[index if 0 <= index < len(op.regions) else -1]
        return inline(out, region, [])


def _kept(out: Block, op: Op, operands: list[Value], ours: bool) -> Op:
    """The op, now the block's, or a copy where it may be somebody else's."""
    if not ours:
        return out.add(op.name, operands, [r.type for r in op.results], op.attrs, op.regions, op.loc)
    op.operands = operands
    out.ops.append(op)
    return op


def _key(op: Op, operands: Sequence[Any], inside: dict[Value, int]) -> Any:
    """Equal for ops that compute the same. Values within regions go by their numbers in `inside`."""
    regions = []
    for region in op.regions:
        inside = dict(inside)
        for arg in region.args:
            inside[arg] = len(inside)
        body = []
        for inner in region.ops:
            body.append(_key(inner, [inside.get(v, v) for v in inner.operands], inside))
            for result in inner.results:
                inside[result] = len(inside)
        regions.append((tuple(a.type for a in region.args), *body, *(inside.get(v, v) for v in region.results)))
    return (op.name, tuple(operands), _freeze(op.attrs), tuple(r.type for r in op.results), *regions)


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _freeze(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, np.ndarray):
        if value.size > 1 and not any(value.strides):
            return (value.shape, value.dtype, 1, value.reshape(-1)[:1].tobytes())
        return (value.shape, value.dtype, value.tobytes())
    if isinstance(value, float):
        return value.hex()
    return value


def _constant(out: Block, array: np.ndarray, like: Op) -> Value:
    return out.add("constant", [], [like.results[0].type], {"value": array}, (), like.loc).result


def _is_empty(value: Value) -> bool:
    return 0 in value.type.shape


def _nothing(out: Block, like: Value, op: Op) -> Value:
    empty = np.empty(like.shape, like.dtype.numpy)
    return out.add("constant", [], [like.type], {"value": empty}, (), op.loc).result


def _splat(out: Block, element: Any, op: Op) -> Value:
    return _constant(out, np.broadcast_to(np.asarray(element), op.result.shape), op)


_SPLAT_KEEPS = frozenset({"reshape", "transpose", "slice", "reverse", "broadcast_in_dim", "dynamic_slice", "gather"})


def _fold(out: Block, op: Op, operands: list[Value]) -> list[Value] | None:
    """The values of an op whose first operand is a constant, if all are."""
    definition = OPS.get(op.name)
    if definition is None or definition.evaluate is None or op.regions or op.name in _BOUNDARIES:
        return None
    if has_effects(op) or not all(isinstance(r.type, Tensor) for r in op.results):
        return None
    if op.name in _SPLAT_KEEPS and (element := splat(operands[0])) is not None:
        return [_splat(out, element, op)]
    if definition.elementwise:
        elements = [splat(v) for v in operands]
        if all(e is not None for e in elements):
            arrays = [np.asarray(e) for e in elements]
            probe = _scalar_op(op, operands)
            (value,) = definition.evaluate(probe, arrays, _no_region)
            return [_splat(out, np.asarray(value, dtype=op.result.dtype.numpy).reshape(()), op)]
    if any(r.type.size > FOLD_ELEMENTS for r in op.results):  # type: ignore[union-attr]
        return None
    arrays = [constant(v) for v in operands]  # type: ignore[misc]
    if any(a is None or a.size > FOLD_ELEMENTS for a in arrays):
        return None
    values = definition.evaluate(_with_operands(op, operands), arrays, _no_region)
    return [
        out.add("constant", [], [r.type], {"value": np.asarray(v, r.dtype.numpy).reshape(r.shape)}, (), op.loc).result
        for r, v in zip(op.results, values, strict=True)
    ]


def _no_region(*_: Any) -> list[np.ndarray]:
    raise AssertionError("ops with regions are not folded")


def _with_operands(op: Op, operands: list[Value]) -> Op:
    return Op(op.name, operands, [r.type for r in op.results], op.attrs, (), op.loc)


def _scalar_op(op: Op, operands: list[Value]) -> Op:
    scalars = [Value(Tensor((), v.dtype)) for v in operands]
    return Op(op.name, scalars, [Tensor((), op.result.dtype)], op.attrs, (), op.loc)


# --- rules by op ------------------------------------------------------------------------------------------------
def rule(*names: str) -> Callable[[Rule], Rule]:
    def attach(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return attach


@rule("convert", "reshape", "bitcast_convert", "broadcast_in_dim", "slice", "copy")
def _same_type(out: Block, op: Op, operands: list[Value]) -> Value | None:
    source = operands[0]
    if source.type == op.result.type:
        dims = op.attrs.get("broadcast_dimensions")
        if dims is None or tuple(dims) == tuple(range(len(dims))):
            return source
    if op.name == "slice":
        return slices.of_slice(out, op, source)
    if op.name == "convert":
        return conversions.of_convert(out, op, source) or narrow_sums.of_convert(out, op, source)
    inner = source.op
    if op.name == "reshape" and inner is not None and inner.name == "reshape":
        return out.add("reshape", inner.operands, [op.result.type], {}, (), op.loc).result
    if op.name == "broadcast_in_dim" and inner is not None and inner.name == "broadcast_in_dim":
        dims = tuple(op.attrs["broadcast_dimensions"][d] for d in inner.attrs["broadcast_dimensions"])
        attrs = {"broadcast_dimensions": dims}
        return out.add("broadcast_in_dim", inner.operands, [op.result.type], attrs, (), op.loc).result
    return None


@rule("transpose")
def _transpose(out: Block, op: Op, operands: list[Value]) -> Value | None:
    (source,), order = operands, tuple(op.attrs["permutation"])
    if order == tuple(range(len(order))):
        return source
    inner = source.op
    if inner is not None and inner.name == "transpose":
        both = tuple(inner.attrs["permutation"][d] for d in order)
        return out.add("transpose", inner.operands, [op.result.type], {"permutation": both}, (), op.loc).result
    if inner is not None and inner.name == "dot_general" and (swapped := _swap_dot(out, op, inner, order)):
        return swapped
    if inner is not None and inner.name == "concatenate" and (joined := slices.transposed(out, op, inner)) is not None:
        return joined
    # Only unit dimensions move: the elements stay where they are.
    if [d for d in order if source.shape[d] != 1] == [d for d in range(len(order)) if source.shape[d] != 1]:
        return out.add("reshape", [source], [op.result.type], {}, (), op.loc).result
    return None


@rule("gather")
def _pick(out: Block, op: Op, operands: list[Value]) -> Value | None:
    source, indices = operands
    places = constant(indices)
    return None if places is None else picked.of_gather(out, op, source, places)


@rule("scatter")
def _scatter(out: Block, op: Op, operands: list[Value]) -> Value | None:
    if len(operands) == 3 and (places := constant(operands[1])) is not None:
        target, _, update = operands
        found = picked.of_scatter(out, op, target, splat(target) is not None, places, update)
        if found is not None:
            return found
    return joined_windows.of_scatter(out, op, operands)


@rule("reverse")
def _reverse(out: Block, op: Op, operands: list[Value]) -> Value | None:
    (source,), dims = operands, op.attrs["dimensions"]
    turned = {d for d in dims if source.shape[d] != 1}
    inner = source.op
    if inner is not None and inner.name == "reverse":
        (source,), turned = inner.operands, turned.symmetric_difference(inner.attrs["dimensions"])
    elif len(turned) == len(dims) > 0:
        return None
    if not turned:
        return source
    return out.add("reverse", [source], [op.result.type], {"dimensions": tuple(sorted(turned))}, (), op.loc).result


def _swap_dot(out: Block, op: Op, dot: Op, order: tuple[int, ...]) -> Value | None:
    """transpose(a · b) as b · a, when the transposition exchanges the two sides; gradients of weights come so."""
    dims = dot.attrs["dot_dimension_numbers"]
    lhs, rhs = dot.operands
    batch = len(dims.lhs_batching_dimensions)
    left = len(lhs.shape) - batch - len(dims.lhs_contracting_dimensions)
    rank = len(order)
    if order != (*range(batch), *range(batch + left, rank), *range(batch, batch + left)):
        return None
    exchanged = DotDims(
        dims.rhs_batching_dimensions,
        dims.lhs_batching_dimensions,
        dims.rhs_contracting_dimensions,
        dims.lhs_contracting_dimensions,
    )
    attrs = dot.attrs | {"dot_dimension_numbers": exchanged}
    return out.add("dot_general", [rhs, lhs], [op.result.type], attrs, (), op.loc).result


@rule("concatenate")
def _concatenate(out: Block, op: Op, operands: list[Value]) -> Value | None:
    parts = [v for v in operands if v.type.size]  # type: ignore[union-attr]
    if len(parts) == 1:
        return parts[0]
    if parts and len(parts) < len(operands):
        return out.add("concatenate", parts, [op.result.type], op.attrs, (), op.loc).result
    return slices.of_joined(out, op, parts)


@rule("select")
def _select(out: Block, op: Op, operands: list[Value]) -> Value | None:
    pred, yes, no = operands
    chosen = splat(pred)
    if chosen is not None:
        return yes if bool(chosen) else no
    return yes if yes is no else None


@rule("pad")
def _pad(out: Block, op: Op, operands: list[Value]) -> Value | None:
    amounts = (op.attrs["edge_padding_low"], op.attrs["edge_padding_high"], op.attrs["interior_padding"])
    return operands[0] if not any(any(a) for a in amounts) else None


def _is(value: Value, number: float) -> bool:
    element = splat(value)
    return element is not None and bool(element == number)


@rule("multiply")
def _multiply(out: Block, op: Op, operands: list[Value]) -> Value | None:
    a, b = operands
    if _is(b, 1):
        return a
    if _is(a, 1):
        return b
    return None


@rule("add", "subtract")
def _add(out: Block, op: Op, operands: list[Value]) -> Value | None:
    a, b = operands
    # x + 0.0 is not x for x = -0.0, so floats stay.
    if op.result.dtype.is_int:
        if _is(b, 0):
            return a
        if op.name == "add" and _is(a, 0):
            return b
    return None


@rule("and", "or")
def _logic(out: Block, op: Op, operands: list[Value]) -> Value | None:
    if op.result.dtype.kind != "bool":
        return None
    for this, other in (operands, operands[::-1]):
        known = splat(this)
        if known is not None:
            return other if bool(known) == (op.name == "and") else this
    return None


@rule("maximum", "minimum")
def _extreme(out: Block, op: Op, operands: list[Value]) -> Value | None:
    """With the least or the greatest integer of the type, as where bytes are clipped to 0 and 255."""
    dtype = op.result.dtype
    if not dtype.is_int or dtype.bits < 8:
        return None
    limits = np.iinfo(dtype.numpy)
    idle, end = (limits.min, limits.max) if op.name == "maximum" else (limits.max, limits.min)
    for this, other in (operands, operands[::-1]):
        known = splat(this)
        if known is not None and int(known) in (idle, end):
            return other if int(known) == idle else this
    return None


@rule("divide")
def _divide(out: Block, op: Op, operands: list[Value]) -> Value | None:
    return operands[0] if _is(operands[1], 1) else None


@rule("power")
def _power(out: Block, op: Op, operands: list[Value]) -> Value | None:
    if op.result.dtype.is_float and _is(operands[0], 1):
        return operands[0]  # 1 to the power of NaN, too: factors that grow with the steps are often none
    exponent = splat(operands[1])
    if exponent is None or not op.result.dtype.is_float or constant(operands[0]) is not None:
        return None
    return powers.of_constant(out, op, operands[0], float(exponent))


@rule("reduce")
def _reduce(out: Block, op: Op, operands: list[Value]) -> Value | None:
    """Over dimensions of one element: the body applied once. Gradients of broadcasts come so."""
    if len(operands) != 2 or any(operands[0].shape[d] != 1 for d in op.attrs["dimensions"]):
        return None
    (source, init), body, result = operands, op.regions[0], op.result.type
    inner = body.results[0].op
    if inner is None or len(body.ops) != 1 or inner.operands != body.args or not OPS[inner.name].elementwise:
        return None
    if any(v.dtype != op.result.dtype for v in (source, init, *body.args, *body.results)):
        return None
    start = out.add("broadcast_in_dim", [init], [result], {"broadcast_dimensions": ()}, (), op.loc).result
    only = out.add("reshape", [source], [result], {}, (), op.loc).result
    return out.add(inner.name, [start, only], [result], inner.attrs, (), op.loc).result
