"""Mathematical functions that JAX would take apart, although Ferrule computes each in one expression.

JAX lowers `logistic` to 1 / (1 + exp(-x)) and `exp2` to exp(x log 2), whose rounded product costs up to 60 ulp; jaxlib
rewrites erfc, erf_inv, lgamma, digamma and bessel_i1e to long sums before a plugin sees the program. On Ferrule's
platforms `logistic` stays the StableHLO op, and the others become composites: a name that Ferrule knows, with JAX's own
formula beside it for anyone who does not. What the exchanges of rows in an LU factorization come to is a composite,
too: JAX writes a loop with several small steps for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

logger = logging.getLogger("ferrule.jax")

COMPOSITES = ("erfc", "erf_inv", "lgamma", "digamma", "bessel_i1e")


def register(name: str) -> None:
    """Registers the rules for a platform."""
    from jax._src.interpreters import mlir

    import jax

    try:
        from jax._src.lax import lax, special

        for op in COMPOSITES:
            primitive = getattr(special, f"{op}_p")
            rule = partial(_composite, f"chlo.{op}", mlir._lowerings[primitive].rule)
            mlir.register_lowering(primitive, partial(_widened, primitive, rule), platform=name)
        default = mlir._lowerings[special.erf_p].rule
        mlir.register_lowering(special.erf_p, partial(_widened, special.erf_p, default), platform=name)
        exp2 = mlir._lowerings[lax.exp2_p].rule
        mlir.register_lowering(lax.exp2_p, partial(_composite, "ferrule.exp2", exp2), platform=name)
        mlir.register_lowering(lax.logistic_p, _logistic, platform=name)
        from jax._src.lax.linalg import lu_pivots_to_permutation_p as permutation

        rule = partial(_composite, "ferrule.lu_permutation", mlir._lowerings[permutation].rule)
        mlir.register_lowering(permutation, rule, platform=name)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        # Nothing is lost but speed and a few ulp: JAX's formulas are made of ops that Ferrule has.
        logger.info("JAX %s keeps its mathematical functions elsewhere: %s", jax.__version__, error)


def _widened(primitive: Any, rule: Callable[..., Any], ctx: Any, x: Any, **params: Any) -> Any:
    """Of 8-bit floats by way of f32: jaxlib refuses some of these functions on them."""
    from jax._src.interpreters import mlir

    import jax

    dtype = ctx.avals_in[0].dtype
    if dtype.itemsize > 1:
        return rule(ctx, x, **params)

    def wide(value: Any) -> Any:
        return jax.lax.convert_element_type(
            primitive.bind(jax.lax.convert_element_type(value, "float32"), **params), dtype
        )

    return mlir.lower_fun(wide, multiple_results=False)(ctx, x)


def _logistic(ctx: Any, x: Any, accuracy: Any = None) -> Any:
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    return [mlir.lower_with_sharding_in_types(ctx, stablehlo.logistic(x), ctx.avals_out[0])]


def _composite(name: str, formula: Callable[..., Any], ctx: Any, *args: Any, **params: Any) -> Any:
    """The op by name; its decomposition is a private function that holds what JAX's default rule writes."""
    from jax._src import core
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, stablehlo

    if not core.is_constant_shape(ctx.avals_out[0].shape):
        # What jaxlib has to derive sizes of an exported program knows no composites.
        return formula(ctx, *args, **params)
    module = ctx.module_context
    result = mlir.aval_to_ir_type(module, ctx.avals_out[0])
    signature = ir.FunctionType.get([a.type for a in args], [result])
    function = func.FuncOp(f"{name.split('.')[1]}.formula", signature, ip=module.ip)
    function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    symbol = module.symbol_table.insert(function)
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        func.ReturnOp(list(formula(ctx, *block.arguments, **params)))
    op = stablehlo.CompositeOp(
        [result],
        list(args),
        name=ir.StringAttr.get(name),
        decomposition=ir.FlatSymbolRefAttr.get(symbol.value),
    )
    return [mlir.lower_with_sharding_in_types(ctx, op.results[0], ctx.avals_out[0])]
