"""Operands of gathers, broadcasts and scatters: computed where they are read, or written to memory first."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import fused

import jax
from ferrule.ir import Block


def kernels(f: Any, *args: np.ndarray) -> list[Block]:
    return [op.regions[0] for op in fused(f, *args).walk() if op.name == "fusion"]


def names(block: Block) -> set[str]:
    return {op.name for op in block.ops}


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


ROWS = np.arange(600, dtype=np.int32)[::-1].copy()


def outer(v: Any) -> Any:
    return v[:, None] - v[None, :]


@pytest.mark.parametrize(
    ("scattered", "apart"),
    [
        (lambda x: jnp.concatenate([x[:500], x * 2])[:600], True),
        (lambda x: x[::-1][:600], True),
        (lambda x: x[::3][:600], True),
        (lambda x: jnp.pad(x, (7, 0))[:600], True),
        (lambda x: x[:600], False),
        (lambda x: x[:600] * 2, False),
    ],
)
def test_what_is_spread(scattered: Any, apart: bool) -> None:
    """An outer product of parts of a joined array looked for each of its elements in the array."""
    assert len(kernels(lambda x: outer(scattered(x)), floats(2000))) == 1 + apart


def test_little_is_spread_as_it_is() -> None:
    assert len(kernels(lambda x: outer(x[::-1]), floats(60))) == 1


@pytest.mark.parametrize(
    ("made", "fused"),
    [
        (lambda x: x * 2 - 1, True),
        (lambda x: outer(x[0, :600] * 2), True),
        (lambda x: jnp.concatenate([x, x], 1), True),
        (lambda x: jnp.repeat(x[:, :300], 2, 1), False),
        (lambda x: x.T[:600], False),
    ],
)
def test_rows_that_are_picked(made: Any, fused: bool) -> None:
    """As many as there are: made where they are picked, if vectors of rows are vectors of what is read."""
    picked = kernels(lambda x: made(x).at[ROWS].get(mode="promise_in_bounds"), floats(600, 600))
    (last,) = [block for block in picked if "gather" in names(block)]
    assert (names(last) <= {"gather", "broadcast_in_dim"}) != fused
    assert (len(picked) == 1) == fused


def test_rows_of_a_part() -> None:
    """One of several tables is not copied to pick rows of it."""

    def f(tables: Any, which: Any) -> Any:
        table = jax.lax.dynamic_index_in_dim(tables, which, keepdims=False)
        return table.at[ROWS].get(mode="promise_in_bounds")

    assert written(kernels(f, floats(3, 600, 64), np.int32(1)), 600, 64) == 1


def test_what_is_picked_of_sums() -> None:
    """They are in memory, and what is picked of them is part of what it is needed for."""
    few = ROWS[:8]
    blocks = kernels(lambda x: jnp.exp(x.sum(1).at[few].get(mode="promise_in_bounds")) + 1, floats(600, 1000, 8))
    assert len(blocks) == 2 and {"gather", "exponential"} <= names(blocks[1]) and written(blocks, 8, 8) == 1


def test_single_elements_that_are_picked() -> None:
    def f(x: Any, i: Any) -> Any:
        return (jnp.exp(x) * 2 + x).at[i].get(mode="promise_in_bounds")

    few, many = (kernels(f, floats(4000), np.zeros(n, np.int32)) for n in (400, 4000))
    assert (len(few), len(many)) == (1, 2)


JOINED = {
    "a row more": lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])]),
    "padded": lambda x: jnp.pad(x, 1),
    "with its double": lambda x: jnp.concatenate([x, x * 2]),
    "beside its double": lambda x: jnp.concatenate([x, x * 2], 1),
}


@pytest.mark.parametrize("name", JOINED)
def test_rows_that_are_picked_of_a_joined_array(name: str) -> None:
    """As many as there are, they are selected where they are picked; of more the array is written."""

    def f(x: Any, i: Any) -> Any:
        return JOINED[name](x).at[i].get(mode="promise_in_bounds")

    for count, picked in ((400, True), (1900, True), (5000, False)):
        found = kernels(f, floats(2000, 64), np.zeros(count, np.int32))
        (last,) = [block for block in found if "gather" in names(block)]
        assert bool(names(last) & {"concatenate", "pad"}) == picked
        assert any("dynamic_update_slice" in names(block) for block in found) != picked


@pytest.mark.parametrize(
    "part",
    [
        lambda x, i: jnp.pad(x, ((1, 0), (1, 1))),
        lambda x, i: x.T,
        lambda x, i: x[:, :4].at[i].get(mode="promise_in_bounds"),
    ],
)
def test_parts_that_are_written_first(part: Any) -> None:
    """They are joined themselves, turned, or picked one by one."""

    def f(x: Any, i: Any, few: Any) -> Any:
        first = part(x, i)
        return jnp.concatenate([first, jnp.ones((9, first.shape[1]))]).at[few].get(mode="promise_in_bounds")

    found = kernels(f, floats(2000, 64), np.zeros(2000, np.int32), np.zeros(30, np.int32))
    assert sum("dynamic_update_slice" in names(block) for block in found) == 2
    assert "gather" in names(found[-1]) and not names(found[-1]) & {"concatenate", "pad", "transpose"}


def test_a_slice_of_a_joined_array() -> None:
    def f(x: Any, i: Any) -> Any:
        return jax.lax.dynamic_slice(jnp.concatenate([x, x * 2]), (i, 0), (100, 64))

    found = kernels(f, floats(2000, 64), np.int32(3))
    assert not any("dynamic_update_slice" in names(block) for block in found)


def test_several_pick_of_a_joined_array() -> None:
    """Each of them a part, all together more than there is."""

    def f(x: Any, *places: Any) -> Any:
        joined = jnp.concatenate([x, x * 2])
        return [joined.at[i].get(mode="promise_in_bounds") for i in places]

    found = kernels(f, floats(2000, 64), *np.zeros((11, 400), np.int32))
    assert not any({"gather", "concatenate"} <= names(block) for block in found)


def test_what_is_picked_of_a_turned_array_and_reduced() -> None:
    """A reduction asks for elements across memory, few of them; the array is not turned around for that."""

    def f(x: Any) -> Any:
        return jnp.argmin(jnp.diagonal(x).reshape(-1))

    assert len(kernels(f, floats(17, 874, 6))) == 1


def test_a_diagonal() -> None:
    """A row of it is all that is computed, also of what comes from two places for each element."""
    assert len(kernels(lambda x: jnp.diagonal(jnp.tril(x)), floats(300, 400))) == 1
    assert len(kernels(lambda x: jnp.diagonal(jnp.exp(x[::-1]) * 2 + x), floats(300, 400))) == 1


@pytest.mark.parametrize("rows", [True, False])
def test_updates(rows: bool) -> None:
    """Rows of updates that are turned on the way lie in memory first; single elements do not gain by that."""

    def f(x: Any, i: Any) -> Any:
        if rows:
            return jax.ops.segment_sum(x.T, i, 50)
        return jnp.zeros(50).at[i].add(x[0, ::-1])

    found = kernels(f, floats(64, 600), ROWS)
    (last,) = [block for block in found if "scatter" in names(block)]
    assert bool(names(last) & {"transpose", "reverse"}) != rows


def test_updates_of_sums() -> None:
    """What is made of sums, which are in memory, is made where it is added."""
    found = kernels(lambda x, i: jax.ops.segment_sum(x.sum(1) * 2, i, 50), floats(600, 40, 64), ROWS)
    (last,) = [block for block in found if "scatter" in names(block)]
    assert "multiply" in names(last) and written(found, 600, 64) == 1


def test_messages_of_a_graph() -> None:
    """Rows are picked, and added up where others of their kind are: no array of all of them."""

    def f(x: Any, senders: Any, receivers: Any) -> Any:
        return jax.ops.segment_sum(x.at[senders].get(mode="promise_in_bounds"), receivers, 500)

    (last,) = [block for block in kernels(f, floats(500, 32), ROWS, ROWS) if "scatter" in names(block)]
    assert "gather" in names(last)


def written(blocks: list[Block], *shape: int) -> int:
    """How many arrays of a shape kernels write."""
    return sum(value.shape == shape for block in blocks for value in block.results)


def test_dear_values_with_several_readers() -> None:
    """Reductions that are one loop are one reader: what they share with others is written all the same, once, and not
    each of its parts."""

    def f(x: Any, scale: Any, bias: Any, w: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
        return (jax.nn.gelu(normal) * w).sum()

    args = floats(4096, 1024), floats(1024), floats(1024), floats(4096, 1024)
    assert written(kernels(jax.grad(f, (0, 1, 2)), *args), 4096, 1024) == 3


def test_what_is_made_of_a_little() -> None:
    """Of a part of a large array no more is read: both halves of what is joined are made of it."""

    def f(x: Any) -> Any:
        steps = jnp.abs(jnp.diff(outer(x.reshape(-1)[:600]), axis=0)) ** 2
        return jnp.concatenate([steps, steps[::-1]])

    blocks = kernels(f, floats(2000, 2000))
    assert written(blocks, 599, 600) == 0 and written(blocks, 1198, 600) == 2
