"""What a call costs when there is nothing to compute."""

from __future__ import annotations

import numpy as np
from harness.case import Case


def cases() -> list[Case]:
    def add(x):
        return x + 1

    def ends(*xs):
        return xs[0] + xs[99]

    def ten(x):
        return tuple(x + i for i in range(10))

    four = np.arange(4, dtype=np.float32)
    return [
        Case("x + 1, 4 floats", add, lambda: (four,), torch=add),
        Case("100 arguments, 1 result", ends, lambda: (four,) * 100, torch=ends, keep_unused=True),
        Case("1 argument, 10 results", ten, lambda: (four,), torch=ten),
    ]
