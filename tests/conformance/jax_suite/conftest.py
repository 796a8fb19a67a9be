"""A run of all of Ferrule's tests takes one in six of JAX's primitives; `run.py primitives` takes every one."""

import itertools

import pytest

ONE_IN = 6


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def primitive(item: pytest.Item) -> str | None:
        """`testadd_jaxvals_…` is one of `add`'s; None for other tests."""
        return item.name.split("_")[0] if item.path.name == "primitives_test.py" else None

    left_out: list[pytest.Item] = []
    for name, group in itertools.groupby(items, primitive):
        if name is not None:
            left_out += [item for at, item in enumerate(group) if at % ONE_IN]
    config.hook.pytest_deselected(items=left_out)
    out = set(left_out)
    items[:] = [item for item in items if item not in out]
