"""CompileOptionsProto, read without protobuf."""

from __future__ import annotations

import random

import numpy as np
import pytest
from jaxlib import _jax  # type: ignore[attr-defined]

from ferrule.errors import InvalidArgument
from ferrule.stablehlo.options import CompileOptions, parse_options


def _made(replicas: int = 1, partitions: int = 1) -> bytes:
    options = _jax.CompileOptions()
    build = options.executable_build_options
    options.num_replicas, options.num_partitions = replicas, partitions
    build.num_replicas, build.num_partitions = replicas, partitions
    build.use_shardy_partitioner = True
    ids = np.arange(10, 10 + replicas * partitions).reshape(replicas, partitions)
    options.device_assignment = _jax.DeviceAssignment.create(ids)
    options.env_option_overrides = [("ferrule_debug", "3"), ("flag", True), ("size", 7), ("rate", 0.5)]
    return bytes(options.SerializeAsString())


@pytest.mark.parametrize("replicas, partitions", [(1, 1), (2, 3), (4, 1)])
def test_fields(replicas: int, partitions: int) -> None:
    options = parse_options(_made(replicas, partitions))
    assert (options.num_replicas, options.num_partitions) == (replicas, partitions)
    assert options.use_shardy and not options.portable
    assert options.device_assignment == tuple(range(10, 10 + replicas * partitions))
    assert options.user == {"ferrule_debug": "3", "flag": True, "size": 7, "rate": 0.5}


def test_defaults() -> None:
    assert parse_options(b"") == CompileOptions()


def test_user_options_are_checked() -> None:
    known = {"ferrule_debug": (int, "x"), "flag": (bool, ""), "size": (int, ""), "rate": (float, "")}
    assert parse_options(_made(), known).user["ferrule_debug"] == 3
    del known["size"]
    with pytest.raises(InvalidArgument, match="size"):
        parse_options(_made(), known)
    with pytest.raises(InvalidArgument, match="did you mean 'ferrule_debugs'"):
        parse_options(_made(), {"ferrule_debugs": (int, "")})
    with pytest.raises(InvalidArgument, match="not a valid bool value"):
        parse_options(_made(), known | {"size": (int, ""), "ferrule_debug": (bool, "")})


def test_damaged_bytes() -> None:
    code, rng = _made(2, 2), random.Random(0)
    for _ in range(500):
        bad = bytearray(code)
        bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            parse_options(bytes(bad[: rng.randrange(len(bad))]))
        except InvalidArgument as error:
            assert str(error)
