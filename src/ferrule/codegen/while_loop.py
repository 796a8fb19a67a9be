"""The element expression of `loop`: a while loop that runs in a kernel, for one element of the carried arrays or for as
many as there are lanes. Scalars, and with them the condition, are the same in all lanes."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen.emitter import Emitter, Key, Lanes, parts, whole
from ferrule.codegen.llvm import V, i64
from ferrule.ir import Block, Op, Value

# What a loop of unknown length asks (native/trial.h): the number of iterations that may pass; 0 ends it. No loop's
# memory changes by asking.
MORE = "declare i64 @ferrule_more() nounwind willreturn memory(inaccessiblemem: readwrite)"
FIRST = 64  # iterations before it asks for the first time


def asks(op: Op) -> bool:
    """May this loop be cut short? Loops over arrays are not: they run in many threads."""
    return "trips" not in op.attrs and not any(v.shape for v in op.operands)


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

    last = repeat_asking(em, start, test, step) if asks(op) else em.b.repeat_while(start, test, step)
    for i, dtype in zip(active, dtypes, strict=True):
        put(op.results[i], whole(dtype, [last.pop(0) for _ in range(2 if dtype.is_complex else 1)]))
    return get(op.results[k])


def repeat_asking(
    em: Emitter, start: list[V], test: Callable[[list[V]], V], step: Callable[[list[V]], list[V]]
) -> list[V]:
    """`repeat_while` that the runtime can end."""
    b = em.b
    if em.family.machine.grouped:
        return b.repeat_while(start, test, step)

    def ask() -> list[V]:
        b.declares["ferrule_more"] = MORE
        return [b.emit("i64", "call i64 @ferrule_more()")]

    def more(flat: list[V]) -> V:
        return b.binary("and", test(flat), b.compare("icmp ne", flat[-1], i64(0)))

    def onward(flat: list[V]) -> list[V]:
        new = step(flat)
        left = b.binary("sub", flat[-1], i64(1))
        return [*new, *b.branch(b.compare("icmp eq", left, i64(0)), ask, lambda: [left])]

    return b.repeat_while([*start, i64(FIRST)], more, onward)[:-1]
