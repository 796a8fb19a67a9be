"""Products after a loop: what a loop only adds up, or only puts into a result that has all iterations', is computed
after it.

The gradient of a scan by its weights is `total += xᵀ @ g` in each iteration. When nobody reads the total in the loop,
the x and the g of all iterations are kept, and one product sums over iterations, too: instead of reading and writing
the total in each. In the same way y = h @ W, when y goes only into the stacked result, is one product of all h.

The sum has another order then. StableHLO leaves the order of a product's own sum open, and XLA's rewrites take sums of
products for associative as well; the terms are added in f32 or wider, where a total of a narrow type was rounded in
each iteration. Sums of integers are exact either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ferrule.ir import UNKNOWN, Block, DotDims, Op, Tensor, Type, Value, copy_ops, rewrite, splat, tensor
from ferrule.passes.products_plan import Plan, Planner, Result, Term, Total
from ferrule.passes.simplify import simplify
from ferrule.passes.steps import RESULT, Lifter, Stack, Steps, constant, index, steps_of


def products_after(block: Block) -> Block:
    """Returns the block, its loops without the products that can be computed after them."""
    changed = False

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        nonlocal changed
        if op.name != "while" or (steps := steps_of(op, operands)) is None:
            return None
        found = _rewritten(out, steps, operands)
        changed |= found is not None
        return found

    new = rewrite(block, rule)
    return simplify(new, ours=True) if changed else block


def _rewritten(out: Block, steps: Steps, starts: list[Value]) -> Sequence[Value] | None:
    planner = Planner(steps, starts)
    plan = planner.plan()
    blank = [k for k in planner.written if not _is_empty(starts[k]) and all(r.k != k for r in plan.results)]
    if not plan.totals and not plan.results and not blank:
        return None
    return _Writer(planner).emit(out, plan, blank)


def _is_empty(value: Value) -> bool:
    return value.op is not None and value.op.name == "uninitialized"


class _Writer:
    """Writes the loop without what goes, and that after it."""

    def __init__(self, planner: Planner) -> None:
        self.steps, self.starts, self.body = planner.steps, planner.starts, planner.body
        self.stacked, self.written = planner.stacked, planner.written

    def emit(self, out: Block, plan: Plan, blank: list[int]) -> Sequence[Value]:
        steps, loop = self.steps, self.steps.loop
        gone = {r.k for r in plan.results} | {t.k for t in plan.totals if not t.rest}
        left = [k for k in range(len(self.starts)) if k not in gone]
        kept = [v for v in plan.kept if v not in self.stacked]
        starts = [self._empty(out, self.starts[k].type) if k in blank else self.starts[k] for k in left]
        types = [Tensor((steps.trips, *v.shape), v.dtype) for v in kept]
        starts += [self._empty(out, type) for type in types]
        cond, body = (Block(v.type for v in starts) for _ in loop.regions)
        env: dict[Value, Value] = dict(zip((loop.regions[0].args[k] for k in left), cond.args, strict=False))
        copy_ops(cond, loop.regions[0].ops, env)
        cond.results = [env.get(v, v) for v in loop.regions[0].results]
        env = dict(zip((self.body.args[k] for k in left), body.args, strict=False))
        adds = {op for t in plan.totals for op in t.adds}
        updates = {r.update for r in plan.results}
        copy_ops(body, [op for op in self._live(plan) if op not in adds and op not in updates], env)
        rests = {t.k: t.rest for t in plan.totals}
        for k in left:
            value = self.body.results[k]
            if k not in rests:
                body.results.append(env.get(value, value))
                continue
            total = env[self.body.args[k]]
            for v in rests[k]:
                total = body.add("add", [total, env.get(v, v)], [value.type], {}, (), UNKNOWN).result
            body.results.append(total)
        at: dict[int, Value] = {}
        for n, value in enumerate(kept):
            order = plan.kept[value]
            assert steps.counter is not None
            if order not in at:
                at[order] = index(body, steps, env[steps.counter[0]], order)
            one = Tensor((1, *value.shape), value.dtype)
            part = body.add("reshape", [env.get(value, value)], [one], {}, (), UNKNOWN).result
            zero = constant(body, 0, at[order].dtype)
            whole = body.args[len(left) + n]
            operands = [whole, part, at[order], *[zero] * len(value.shape)]
            body.results.append(body.add("dynamic_update_slice", operands, [whole.type], {}, (), UNKNOWN).result)
        new = out.add("while", starts, [v.type for v in starts], loop.attrs, [cond, body], loop.loc).results
        place = dict(zip(left, new, strict=False))
        known = {v: Stack(new[len(left) + n], plan.kept[v]) for n, v in enumerate(kept)}
        lifter = Lifter(steps, out, known, inf)  # what is to go was chosen by the bytes that it takes
        for value, k in self.stacked.items():
            if k in place:
                op, where = self.written[k]
                lifter.stacks[value] = Stack(lifter.in_front(op, place[k], where.dim, value.shape), where.order)
        for t in plan.totals:
            place[t.k] = self._sum(out, lifter, t, place.get(t.k, self.starts[t.k]))
        for result in plan.results:
            place[result.k] = self._all(out, lifter, result)
        return [place[k] for k in range(len(self.starts))]

    def _live(self, plan: Plan) -> list[Op]:
        """The ops of the body without those that go, which the new one would hold values of."""
        gone = {op for r in plan.results for op in r.inner}
        gone |= {op for t in plan.totals for term in t.terms for op in (*term.chain, term.product)}
        if not gone:
            return self.body.ops
        # A product may be a term of one total and stay in another.
        stay = [v.op for t in plan.totals for v in t.rest] + [
            user
            for op in gone
            for user in self.steps.users.get(op.result, ())
            if user not in gone and user is not RESULT
        ]  # fmt: skip
        adds = {op for t in plan.totals for op in t.adds} | {r.update for r in plan.results}
        pending = [op for op in stay if op is not None and op not in adds]
        while pending:
            op = pending.pop()
            gone.discard(op)
            pending += [v.op for v in op.operands if v.op is not None and v.op in gone]
        return [op for op in self.body.ops if op not in gone]

    def _empty(self, out: Block, type: Type) -> Value:
        return out.add("uninitialized", [], [type], {}, (), UNKNOWN).result

    def _sum(self, out: Block, lifter: Lifter, total: Total, start: Value) -> Value:
        value = start if (known := splat(start)) is None or known != 0 else None
        for term in total.terms:
            found = self._product(out, lifter, term, tensor(start)) if term.product.name == "dot_general" else None
            found = found or self._reduced(out, lifter, term)
            value = found if value is None else out.add("add", [value, found], [start.type], {}, (), UNKNOWN).result
        assert value is not None
        return value

    def _product(self, out: Block, lifter: Lifter, term: Term, type: Tensor) -> Value:
        op = term.product
        a, b = (lifter.lift(v) for v in op.operands)
        assert a is not None and b is not None, "what was not known was kept"
        dims: DotDims = op.attrs["dot_dimension_numbers"]
        more = lambda group: tuple(d + 1 for d in group)  # noqa: E731
        new = DotDims(
            more(dims.lhs_batching_dimensions),
            more(dims.rhs_batching_dimensions),
            (0, *more(dims.lhs_contracting_dimensions)),
            (0, *more(dims.rhs_contracting_dimensions)),
        )
        # The wider of the product's type and the total's: nothing is rounded before all is added up.
        wide = type.dtype if type.dtype.bits > op.result.dtype.bits else op.result.dtype
        attrs = {**op.attrs, "dot_dimension_numbers": new}
        operands = [lifter.ordered(a, b.order), b.value]
        value = out.add("dot_general", operands, [Tensor(op.result.shape, wide)], attrs, (), op.loc).result
        for step in term.chain:
            if step.name != "convert":
                value = out.add(step.name, [value], [Tensor(step.result.shape, wide)], step.attrs, (), step.loc).result
        return value if wide == type.dtype else out.add("convert", [value], [type], {}, (), op.loc).result

    def _reduced(self, out: Block, lifter: Lifter, term: Term) -> Value:
        """The sum over the iterations of a sum: in two stages, as exact as it was."""
        stack = lifter.lift(term.value)
        assert stack is not None
        op = term.product
        zero = out.add("constant", [], [op.operands[1].type], {"value": np.zeros((), term.value.dtype.numpy)}).result
        region = rewrite(op.regions[0], lambda *_: None)
        attrs = {**op.attrs, "dimensions": (0,)}
        return out.add("reduce", [stack.value, zero], [term.value.type], attrs, [region], op.loc).result

    def _all(self, out: Block, lifter: Lifter, result: Result) -> Value:
        """What the update writes in all iterations."""
        stack = lifter.lift(result.update.operands[1])
        assert stack is not None, "what was not known was kept"
        value = lifter.ordered(stack, result.place.order)
        dim, type = result.place.dim, result.update.result.type
        shape = [size for d, size in enumerate(type.shape) if d != dim]  # type: ignore[union-attr]
        value = out.add("reshape", [value], [Tensor((self.steps.trips, *shape), type.dtype)], {}).result  # type: ignore[union-attr]
        if not dim:
            return value
        order = (*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1))
        return out.add("transpose", [value], [type], {"permutation": order}).result
