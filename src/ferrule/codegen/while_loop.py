"""The element expression of `loop`: a while loop that runs in a kernel, for one element of the carried arrays or for as
many as there are lanes. Scalars, and with them the condition, are the same in all lanes."""

from __future__ import annotations

from ferrule.codegen.emitter import Emitter, Key, Lanes, parts, whole
from ferrule.codegen.llvm import V
from ferrule.ir import Block, Op, Value


def loop_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    """Result k at `index`. Scalars are carried for their own sake by a kernel that gives only scalars."""
    cond, body = op.regions
    arrays = bool(op.results[k].shape)
    active = [i for i, v in enumerate(op.operands) if arrays or not v.shape]
    dtypes = [op.operands[i].dtype for i in active]
    one = em.family.at(1)

    def get(value: Value) -> Lanes:
        return em.value(value, index) if value.shape else one.value(value, ())

    def put(value: Value, lanes: Lanes) -> None:
        if value.shape:
            em.remember(value, index, lanes)
        else:
            one.remember(value, (), lanes)

    # What the loop reads from outside is read once, before it.
    for value in {**dict.fromkeys(cond.free()), **dict.fromkeys(body.free())}:
        if not value.shape or (arrays and value.shape == op.results[k].shape):
            get(value)
    start = [p for i in active for p in parts(get(op.operands[i]))]

    def bind(region: Block, flat: list[V]) -> None:
        rest = list(flat)
        for i, dtype in zip(active, dtypes, strict=True):
            put(region.args[i], whole(dtype, [rest.pop(0) for _ in range(2 if dtype.is_complex else 1)]))

    def test(flat: list[V]) -> V:
        with em.scope():
            bind(cond, flat)
            found = get(cond.results[0])
            assert isinstance(found, V)
            return found

    def step(flat: list[V]) -> list[V]:
        with em.scope():
            bind(body, flat)
            return [p for i in active for p in parts(get(body.results[i]))]

    last = em.b.repeat_while(start, test, step)
    for i, dtype in zip(active, dtypes, strict=True):
        put(op.results[i], whole(dtype, [last.pop(0) for _ in range(2 if dtype.is_complex else 1)]))
    return get(op.results[k])
