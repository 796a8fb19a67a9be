"""Lanes that lie outside of an operand are not read, also where it is within another that has lanes outside."""

from __future__ import annotations

import re

from fused import case

from ferrule.codegen.kernel import emit_kernel
from ferrule.ir import Tensor
from ferrule.ir.types import DTYPES
from ferrule.targets.cpu import host


def test_masks_within_masks():
    """Each further mask leaves out what the one around it leaves out."""
    f = "f32"

    def layers(g, x, y):  # type: ignore[no-untyped-def]
        joined = g("concatenate", x, g("negate", y), dimension=0, result=Tensor((7,), DTYPES[f]))
        more = {"edge_padding_low": (1,), "edge_padding_high": (4,), "interior_padding": (1,)}
        return g("pad", joined, g.const(0, f), **more, result=Tensor((18,), DTYPES[f]))

    text = emit_kernel(case("", [((3,), f), ((4,), f)], layers).block, "k", host()).text
    joins = re.findall(r" and <\d+ x i1> (%\w+), (%\w+)$", text, re.MULTILINE)
    assert joins and all(a != b for a, b in joins), joins
