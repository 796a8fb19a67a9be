"""What of a loop's work products_after.py computes after the loop: totals that nobody reads in the loop, and what only
goes into results that have all iterations'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from ferrule.ir import Block, DotDims, Op, Tensor, Value, splat, tensor
from ferrule.passes.slices import elementwise
from ferrule.passes.steps import MOVES, RESULT, Lifter, Place, Steps, cheap, in_place, reads

# The most bytes that a loop may keep of all its iterations for this, and multiplications of an iteration's product
# below which it is better part of a kernel. Terms from which the product of an iteration is as fast by itself.
BYTES, LITTLE, TERMS = 1 << 26, 1 << 12, 512
# Operations per element of what is rather computed again than kept.
FEW = 3


@dataclass
class Total:
    """Carry k is a sum: of `terms`, which go after the loop, and of others that stay."""

    k: int
    adds: list[Op]
    rest: list[Value]
    terms: list[Term]


@dataclass
class Term:
    """What `chain`, first op first, makes of a product; or a sum along dimensions, then the chain is empty."""

    value: Value
    product: Op
    chain: list[Op]


@dataclass
class Result:
    """Carry k holds what the update computes in each iteration; `inner` are the ops that go after the loop."""

    k: int
    update: Op
    place: Place
    inner: set[Op]
    sources: frozenset[int] = frozenset()  # the carries that it is derived from, which stay


@dataclass
class Plan:
    totals: list[Total] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    kept: dict[Value, int] = field(default_factory=dict)  # values to stack, and in which order


class Planner:
    def __init__(self, steps: Steps, starts: list[Value]) -> None:
        self.steps, self.starts, self.body = steps, starts, steps.body
        self.probe = Lifter(steps, Block())  # says what could be had, its ops are thrown away
        self.written = {k: w for k in range(len(starts)) if (w := steps.written(k)) is not None}
        self.private = self._private()
        self.stacked: dict[Value, int] = {}  # values that the loop gives of all iterations as it is
        for k, (op, _) in self.written.items():
            value = op.operands[1]
            self.stacked.setdefault(value, k)
            while value in steps.inside and value.op is not None and in_place(value.op):
                value = value.op.operands[0]
                self.stacked.setdefault(value, k)

    def plan(self) -> Plan:
        plan = Plan()
        totals = [t for k in range(len(self.starts)) if (t := self._total(k)) is not None]
        results = [r for k in self.written if (r := self._result(k)) is not None]
        results = _with_sources(results)
        # A product that somebody else reads would be computed twice.
        while self._dropped(totals, results):
            pass
        used = 0
        for total in totals:
            chosen: list[Term] = []
            for term in total.terms:
                need = self._kept(term.product.operands, plan.kept)
                size = self._bytes(need, plan.kept)
                if used + size <= BYTES and self._pays(term, size):
                    used += size
                    plan.kept |= need
                    chosen.append(term)
                else:
                    total.rest.append(term.value)
            total.terms = chosen
            if chosen:
                plan.totals.append(total)
        for result in results:
            need = self._kept([result.update.operands[1]], plan.kept, result.inner)
            size = self._bytes(need, plan.kept)
            if used + size <= BYTES:
                used += size
                plan.kept |= need
                plan.results.append(result)
        self._with_sums(plan)
        return plan

    def _dropped(self, totals: list[Total], results: list[Result]) -> bool:
        """Takes back what is of no use since others read it; True when there was some."""
        gone = {op for t in totals for term in t.terms for op in (*term.chain, term.product)}
        gone |= {op for t in totals for op in t.adds} | {op for r in results for op in (*r.inner, r.update)}
        users = self.steps.users

        def read(ops: Iterable[Op]) -> bool:
            return any(user not in gone for op in ops for user in users.get(op.result, ()))

        found = [r for r in results if read(r.inner)]
        results[:] = [r for r in results if r not in found]
        for total in list(totals):
            stay = [t for t in total.terms if read((*t.chain, t.product))]
            total.rest += [t.value for t in stay]
            total.terms = [t for t in total.terms if t not in stay]
            if not total.terms:
                totals.remove(total)
            if stay:
                return True
        return bool(found)

    def _bytes(self, need: dict[Value, int], kept: dict[Value, int]) -> int:
        return sum(tensor(v).nbytes * self.steps.trips for v in need if v not in kept and v not in self.stacked)

    def _pays(self, term: Term, size: int) -> bool:
        """Writing and reading what is kept, against reading and writing the total in each iteration."""
        dims: DotDims = term.product.attrs["dot_dimension_numbers"]
        shape = term.product.operands[0].shape
        terms = prod(shape[d] for d in dims.lhs_contracting_dimensions)
        if prod(term.product.result.shape) * terms < LITTLE and size:
            return False
        return terms < TERMS and size <= 2 * term.product.result.type.nbytes * self.steps.trips  # type: ignore[union-attr]

    def _total(self, k: int) -> Total | None:
        """Carry k as a sum with products among its terms, if nothing else is done with it."""
        arg, value = self.body.args[k], self.body.results[k]
        if not isinstance(arg.type, Tensor) or reads(self.steps.loop.regions[0], self.steps.loop.regions[0].args[k]):
            return None
        if not (arg.dtype.is_int or arg.dtype.is_float or arg.dtype.is_complex):
            return None
        if len(self.steps.users.get(arg, ())) != 1 or self.steps.users.get(value) != [RESULT]:
            return None
        total = Total(k, [], [], [])
        leaves, stack = list[Value](), [value]
        while stack:
            v = stack.pop()
            op = v.op
            if op is not None and v in self.steps.inside and op.name == "add" and len(self.steps.users[v]) == 1:
                total.adds.append(op)
                stack += op.operands
            else:
                leaves.append(v)
        if leaves.count(arg) != 1:
            return None
        for leaf in leaves:
            if leaf is arg:
                continue
            term = self._term(leaf)
            if term is None or leaves.count(leaf) > 1:
                total.rest.append(leaf)
            else:
                total.terms.append(term)
        return total if total.terms else None

    def _term(self, leaf: Value) -> Term | None:
        chain: list[Op] = []
        value = leaf
        while (op := value.op) is not None and value in self.steps.inside:
            if op.name == "dot_general":
                whole = [self.probe.fixed(v) is None and isinstance(v.type, Tensor) for v in op.operands]
                return Term(leaf, op, chain[::-1]) if all(whole) else None
            widths = op.name == "convert" and op.result.dtype.is_float and op.operands[0].dtype.is_float
            arranges = op.name in ("reshape", "transpose", "slice") or (
                op.name == "broadcast_in_dim" and prod(op.result.shape) == prod(op.operands[0].shape)
            )
            if not widths and not arranges:
                return None
            chain.append(op)
            value = op.operands[0]
        return None

    def _result(self, k: int) -> Result | None:
        """Carry k as what products give in all iterations."""
        update, place = self.written[k]
        found: dict[Value, bool] = {}

        def walk(value: Value) -> bool:
            """Is there a product that the value is computed from, and that only such results need?"""
            if value not in found:
                op = value.op
                if op is None or op not in self.private or self.probe.fixed(value) is not None:
                    found[value] = False
                elif op.name == "dot_general":
                    found[value] = any(self.probe.fixed(v) is not None for v in op.operands) and self._large(op)
                else:
                    known = elementwise(op) or op.name in MOVES or op.name in ("slice", "concatenate")
                    found[value] = known and bool([v for v in op.operands if walk(v)])
            return found[value]

        if not walk(update.operands[1]):
            return self._derived(k, update, place)
        return Result(k, update, place, {v.op for v, inner in found.items() if inner and v.op is not None})

    def _derived(self, k: int, update: Op, place: Place) -> Result | None:
        """Carry k as a cheap function of what other carries hold of all iterations: 1 - x beside x."""
        inner: set[Op] = set()
        sources: set[int] = set()

        def walk(value: Value) -> bool:
            if self.probe.fixed(value) is not None:
                return splat(value) is not None
            if value in self.stacked and self.stacked[value] != k and self.written[self.stacked[value]][1] == place:
                sources.add(self.stacked[value])
                return True
            op = value.op
            if op is None or op not in self.private or not (cheap(op) or in_place(op)):
                return False
            inner.add(op)
            return all(walk(v) for v in op.operands)

        if not walk(update.operands[1]) or not sources or sum(map(cheap, inner)) not in range(1, FEW + 1):
            return None
        return Result(k, update, place, inner, frozenset(sources))

    def _private(self) -> set[Op]:
        """The ops that nothing but such stacked results is computed from."""
        updates = {op: op.operands[1] for op, _ in self.written.values()}
        private: set[Op] = set()
        for op in reversed(self.body.ops):
            users = [u for r in op.results for u in self.steps.users.get(r, ())]
            if len(op.results) == 1 and all(u in private or updates.get(u) is op.result for u in users):
                private.add(op)
        return private

    def _large(self, op: Op) -> bool:
        """Is the product of one iteration neither so small that it is part of a kernel, nor as fast as a large one?"""
        dims: DotDims = op.attrs["dot_dimension_numbers"]
        shape = op.operands[0].shape
        terms = prod(shape[d] for d in dims.lhs_contracting_dimensions)
        batch = prod(shape[d] for d in dims.lhs_batching_dimensions)
        rows, results = prod(shape) // max(1, terms * batch), prod(op.result.shape)
        if self.probe.fixed(op.operands[0]) is not None:
            rows = results // max(1, rows * batch)
        return results * terms >= LITTLE and rows < 128

    def _kept(self, values: Sequence[Value], kept: dict[Value, int], inner: set[Op] | None = None) -> dict[Value, int]:
        """What has to be stacked, so that these values are known in all iterations."""
        need: list[Value] = []
        orders: list[int] = []

        def walk(value: Value) -> None:
            if self.probe.fixed(value) is not None:
                return
            if inner and value.op in inner:
                for v in value.op.operands:  # type: ignore[union-attr]
                    walk(v)
                return
            if (stack := self.probe.lift(value)) is not None:
                orders.append(stack.order)
                return
            if value in self.stacked:
                orders.append(self.written[self.stacked[value]][1].order)
                return
            op = value.op
            moved = op is not None and value in self.steps.inside and (
                op.name in ("reshape", "transpose")
                or (op.name == "convert" and op.operands[0].dtype.itemsize <= op.result.dtype.itemsize)
            )  # fmt: skip
            if op is not None and moved:
                for v in op.operands:
                    walk(v)
            else:
                need.append(value)

        for value in values:
            walk(value)
        order = orders[0] if orders else 1
        return {value: kept.get(value, order) for value in need}

    def _with_sums(self, plan: Plan) -> None:
        """Sums along dimensions that are added up, too, of what is kept anyway: gradients of biases."""
        known = {**dict.fromkeys(plan.kept), **dict.fromkeys(self.stacked)}
        taken = {t.k for t in plan.totals}
        for k, (arg, value) in enumerate(zip(self.body.args, self.body.results, strict=True)):
            add = value.op
            if k in taken or add is None or add.name != "add" or value not in self.steps.inside:
                continue
            if arg not in add.operands or not arg.dtype.is_float and not arg.dtype.is_int:
                continue
            if len(self.steps.users.get(arg, ())) != 1 or self.steps.users[value] != [RESULT]:
                continue
            if reads(self.steps.loop.regions[0], self.steps.loop.regions[0].args[k]):
                continue
            leaf = _without_zero(add.operands[1] if add.operands[0] is arg else add.operands[0])
            op = leaf.op
            if (
                op is not None
                and op.name == "reduce"
                and len(op.operands) == 2
                and op.operands[0] in known
                and _sums(op)
            ):
                plan.totals.append(Total(k, [add], [], [Term(leaf, op, [])]))


def _without_zero(value: Value) -> Value:
    """What is added to 0: the gradient of a broadcast comes so."""
    while (op := value.op) is not None and op.name == "add":
        left = [v for v in op.operands if (known := splat(v)) is None or known != 0]
        if len(left) != 1:
            break
        value = left[0]
    return value


def _with_sources(results: list[Result]) -> list[Result]:
    """Those whose sources stay."""
    gone = {r.k for r in results if not r.sources}
    found = []
    for result in results:
        if not result.sources:
            found.append(result)
        elif not result.sources & gone and not any(result.k in other.sources for other in found):
            gone.add(result.k)
            found.append(result)
    return found


def _sums(op: Op) -> bool:
    """Is the reduction a plain sum?"""
    if len(op.operands) != 2:
        return False
    region = op.regions[0]
    inner = region.results[0].op
    start = splat(op.operands[1])
    if len(region.ops) != 1 or inner is None or inner.name != "add" or set(inner.operands) != set(region.args):
        return False
    return start is not None and start == 0
