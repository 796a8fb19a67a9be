"""Loop products: a product in each iteration of a loop becomes one, before the loop or after it, where that can be.

Recurrent networks multiply a few rows by a large matrix in each step, and their gradients add a product of a few terms
to a large matrix: both are bounded by memory, and one product of all steps is not.
"""

from __future__ import annotations

from ferrule.ir import Block
from ferrule.passes.cut_first import cut_first
from ferrule.passes.products_after import products_after
from ferrule.passes.products_before import cut_products, products_before


def loop_products(block: Block) -> Block:
    """Returns the block with the products of its loops where they cost least."""
    if not block.holds("while"):
        return block
    # A product that is only added up would otherwise be computed before the loop, of all iterations apart.
    return cut_first(products_before(products_after(cut_products(block))))
