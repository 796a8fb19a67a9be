"""Contract: a product and the sum that alone reads it are one `multiply_add`, rounded once.

    %2 = multiply(%0, %1)                %3 = multiply_add(%0, %1, %c)
    %3 = add(%2, %c)

One instruction in place of two, and one rounding error less. XLA:CPU's and the GPUs' compilers do it to machine code,
where an expression may be fused in one kernel and not in another. Here it is an op of the graph, so that a value is the
same wherever it is computed again. What is left alone, since users count on its exactness:

* a product with other readers: `x * y - x * y` is zero, and whoever else reads it sees the number that was added;
* a sum of two products, which of them would be rounded being arbitrary: `x * y.T + y * x.T` stays symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Value, rewrite

# Ops whose regions are parts of the program, not the few words of a reduction or a comparison.
_INSIDE = frozenset({"while", "loop", "case", "if"})


def contract(block: Block) -> Block:
    """Returns the block, of which nobody else may need the old one."""
    products: dict[Op, Op] = {}  # by the sum
    _find(block, products)
    if not products:
        return block
    gone, factors = set(products.values()), dict[Op, list[Value]]()

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op in gone:
            factors[op] = operands
            return [operands[0]]  # nobody reads it but the sum
        if (product := products.get(op)) is None:
            return None
        (a, b), which = factors[product], op.operands.index(product.result)
        c = operands[1 - which]
        if op.name == "subtract" and which:
            a = _minus(out, op, a)
        elif op.name == "subtract":
            c = _minus(out, op, c)
        return out.add("multiply_add", [a, b, c], [op.result.type], {}, (), op.loc).results

    return rewrite(block, rule, ours=True)


def _minus(out: Block, op: Op, value: Value) -> Value:
    return out.add("negate", [value], [value.type], {}, (), op.loc).result


def _find(block: Block, products: dict[Op, Op]) -> None:
    readers: dict[Value, list[Op | None]] = {}
    for value in block.results:
        readers.setdefault(value, []).append(None)
    for op in block.ops:
        for value in (*op.operands, *(v for region in op.regions for v in region.free())):
            readers.setdefault(value, []).append(op)
        if op.name in _INSIDE:
            for region in op.regions:
                _find(region, products)
    here = set(block.ops)
    for op in block.ops:
        if op.name not in ("add", "subtract") or not op.result.dtype.is_float or op.result.dtype.bits < 32:
            continue
        terms = [v.op for v in op.operands if v.op is not None and v.op.name == "multiply"]
        if len(terms) == 1 and terms[0] in here and readers[terms[0].result] == [op]:
            products[op] = terms[0]
