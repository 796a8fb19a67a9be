"""The pairs of operations that are timed beside PyTorch; PyTorch itself need not be there."""

from __future__ import annotations

import ast
from collections import Counter

import numpy as np
import pytest
from sweeps.pytorch import NAMES, pairs

import jax

PAIRS = list(pairs())


def test_names_are_their_own():
    assert len(PAIRS) > 300
    assert not [name for name, count in Counter(p.name for p in PAIRS).items() if count > 1]


def test_both_read_the_same_arguments():
    """Of the arguments that there are, and the same ones on both sides."""
    for pair in PAIRS[:: len(PAIRS) // 40]:
        expressions = (ast.parse(text) for text in (pair.jax, pair.torch))
        ours, theirs = ({n.id for n in ast.walk(e) if isinstance(n, ast.Name)} & set(NAMES) for e in expressions)
        assert ours == theirs <= set(NAMES[: len(pair.arguments())]), pair.name


@pytest.mark.parametrize("pair", PAIRS[7::29], ids=lambda p: p.name)
def test_some_run(pair):
    found = jax.jit(pair.function)(*pair.arguments())
    assert np.isfinite(np.asarray(found, np.float32)).all()
