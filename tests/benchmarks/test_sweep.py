"""The sweep of programs nobody chose: sets load, a program is timed on both platforms, and a wrong one is named."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
import sweep
from sweeps import SETS, Program, drawn, load

import jax


@pytest.mark.parametrize("area", SETS)
def test_programs(area):
    """Their names are their own, and arguments are made by NumPy, the same each time."""
    programs = [program for _, program in load((area,))]
    twice = [name for name, count in Counter(p.name for p in programs).items() if count > 1]
    assert len(programs) > 50 and not twice
    for program in programs[::10]:
        for a, b in zip(*map(jax.tree.leaves, (program.arguments(), program.arguments())), strict=True):
            assert isinstance(a, np.ndarray | np.generic)
            assert a.tobytes() == b.tobytes()


def test_drawn_programs():
    """A program is its seed: the same steps on the same numbers each time, whatever the others are."""
    first, again = list(drawn.programs(40)), list(drawn.programs(20, 20))
    assert [p.name for p in first[20:]] == [p.name for p in again]
    assert len({p.name.split()[2] for p in first}) > 10
    for one, other in zip(first[20::4], again[::4], strict=True):
        (x,), (y,) = one.arguments(), other.arguments()
        assert isinstance(x, np.ndarray) and x.tobytes() == y.tobytes()
        texts = [jax.jit(p.function).lower(x).as_text() for p in (one, other)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("step", drawn.STEPS)
def test_steps(step):
    """Each takes whatever another one gives."""
    rng = np.random.default_rng(0)
    for shape, dtype in (((7,), "float32"), ((6, 1), "bool"), ((9, 3, 8), "int8"), ((2, 5, 1, 4), "bfloat16")):
        x = jnp.asarray(rng.integers(0, 9, shape)).astype(dtype)
        assert drawn.STEPS[step](np.random.default_rng(1), x).ndim >= 0


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    monkeypatch.setattr(sweep, "SECONDS", 0.0)


@pytest.mark.parametrize("area", SETS)
def test_one_of_each_set(short, area):
    _, program = next(load((area,)))
    row = sweep.look(program.name, program, below=0.0)
    assert not row.said
    assert min(row.ferrule, row.xla, row.first, row.first_xla) > 0
    assert f"{row.ratio:.2f}" in sweep.line(row)


def test_a_drawn_one(short):
    row = sweep.look("drawn", next(drawn.programs(1, 7)), below=0.0)
    assert not row.said and row.ferrule > 0


def test_what_fails_is_said(short):
    row = sweep.look("fails", Program("fails", lambda x: x @ x, lambda: (np.ones((2, 3), np.float32),)), below=0.0)
    assert row.said.startswith("TypeError") and row.said in sweep.line(row)


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    "ours, theirs, said",
    [
        (ONES, ONES * 1.001, ""),
        (ONES, ONES * 1.1, "differs from XLA's by 0.1"),
        (ONES, ONES.astype(np.float64), "is float32[3], XLA's float64[3]"),
        (ONES, np.ones(4, np.float32), "is float32[3], XLA's float32[4]"),
        (np.array([1, np.nan]), np.array([np.nan, 1]), "is not finite in other places"),
        (np.array([1, np.inf]), np.array([1, -np.inf]), "differs from XLA's in what is not finite"),
        (ONES.astype(jnp.bfloat16), ONES.astype(jnp.bfloat16), ""),
        (ONES * 1j, ONES * 1.2j, "differs from XLA's by 0.2"),
    ],
)
def test_differences(ours, theirs, said):
    found = sweep.different([ours], [theirs], 1e-2)
    assert said in found if said else not found
