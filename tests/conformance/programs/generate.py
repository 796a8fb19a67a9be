"""Seed → program. Every fourth seed gives a single op, all of them in turn; the others give graphs.

Profiles: `plain` programs are small; `large` ones have larger arrays and products; `odd` ones hold ops that frameworks
seldom write as well; `places` ones move, update and loop, and return much of what they compute on the way: they ask
where values lie, and for how long; `matrices` ones move and update parts of arrays of many small vectors and matrices.
"""

from __future__ import annotations

from typing import Any

import draw_control
import draw_elementwise
import draw_index
import draw_math
import draw_odd
import draw_own
import draw_patterns
import draw_reduce
import draw_shape
from case import Case
from draw import ENTRIES, Draw, Entry, Impossible

from ferrule.ir import Tensor, Value

_MODULES = (draw_control, draw_elementwise, draw_index, draw_math, draw_odd, draw_own, draw_patterns)
_MODULES += (draw_reduce, draw_shape)
SINGLE = [e for e in ENTRIES if e.group not in ("pattern", "odd", "own")]
ODD = [e for e in ENTRIES if e.group == "odd"]
PROFILES = ("plain", "large", "odd", "places", "matrices")
WEIGHTS = {  # by profile and group: times an entry's own weight; 1 where nothing is said
    "odd": {"odd": 5.0},
    "places": {"shape": 3.0, "index": 4.0, "control": 3.0, "elementwise": 0.4, "reduction": 0.3, "pattern": 0.3}
    | {"product": 0.1, "solver": 0.1, "sort": 0.5, "own": 3.0},
    "matrices": {"shape": 3.0, "index": 8.0, "elementwise": 0.3, "control": 0.1, "product": 0.1, "solver": 0.1},
}


def _steps(g: Draw, count: int) -> None:
    """Appends a number of random ops; deeper regions hold no more loops."""
    left_out = {"control"} if g.depth >= 2 else set()
    left_out |= {group for group, profile in (("odd", "odd"), ("own", "places")) if g.profile != profile}
    entries = [e for e in ENTRIES if e.group not in left_out]
    factors = WEIGHTS.get(g.profile, {})
    weights = [e.weight * factors.get(e.group, 1.0) for e in entries]
    for _ in range(count):
        entry: Entry = g.rng.choices(entries, weights)[0]
        try:
            entry.make(g)
        except Impossible:
            continue
        g.pool = [v for v in g.pool if isinstance(v.type, Tensor) and v.type.nbytes <= 32 * g.most]


draw_control.set_steps(_steps)


def generate(seed: int, profile: str = "plain") -> Case:
    """The program of a seed; always the same."""
    g = Draw(seed, profile)
    if seed % 4 == 0:
        entries = ODD if profile == "odd" else SINGLE
        entry = entries[seed // 4 % len(entries)]
        for _ in range(20):
            try:
                entry.make(g)
                break
            except Impossible:
                continue
        kind = f"single {entry.name}"
    else:
        _steps(g, g.int(2, 20) if g.chance(0.5) else g.int(2, 7))
        kind = "graph"
    _finish(g)
    return _with_donation(g, g.case(kind if profile == "plain" else f"{profile} {kind}"))


def _finish(g: Draw) -> None:
    """Outputs: what nobody uses, and some other values."""
    used = g.body.uses()
    results = [r for op in g.body.ops for r in op.results]
    results = [v for v in results if isinstance(v.type, Tensor)]
    last = [v for v in results if v not in used]
    others = [v for v in results if v in used]
    chosen: list[Any] = last[-g.int(1, 6) :] if last else []
    places = g.profile == "places"
    if others and g.chance(0.9 if places else 0.4):
        chosen += g.sample(others, g.int(1, min(6 if places else 3, len(others))))
    if g.chance(0.05) and g.body.args:
        chosen.append(g.pick(g.body.args))
    if chosen and g.chance(0.05):
        chosen.append(g.pick(chosen))
    if not chosen:
        chosen = [g.like(Tensor((2,), g.dtype()))]
    g.body.results = g.shuffled(chosen)
    _drop_dead(g)


def _drop_dead(g: Draw) -> None:
    """Ops that nothing needs stay at times: compilers must cope with them."""
    if g.chance(0.3):
        return
    while True:
        used = g.body.uses()
        kept = [op for op in g.body.ops if any(r in used or r in g.body.results for r in op.results)]
        if len(kept) == len(g.body.ops):
            break
        g.body.ops = kept
    ops = [op for block in (g.body, *g.functions.values()) for op in block.walk()]
    called = {op.attrs.get("callee") or op.attrs.get("decomposition") for op in ops}
    g.functions = {name: body for name, body in g.functions.items() if name in called}
    alive: list[Value] = [a for a in g.body.args if a in used or a in g.body.results]
    if g.chance(0.9):
        g.inputs = [x for a, x in zip(g.body.args, g.inputs, strict=True) if a in alive]
        g.body.args = alive
        for number, value in enumerate(alive):
            value.index = number


def _with_donation(g: Draw, case: Case) -> Case:
    """Some inputs may be overwritten: by an output of the same type, or by any."""
    if not g.chance(0.25):
        return case
    free = list(range(len(case.body.results)))
    for number, arg in enumerate(case.body.args):
        same = [o for o in free if case.body.results[o].type == arg.type]
        if same and g.chance(0.7):
            free.remove(same[0])
            case.donated[number] = same[0]
        elif g.chance(0.3):
            case.donated[number] = -1
    return case
