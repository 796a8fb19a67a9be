"""Lowering rules for Ferrule's platforms: which of JAX's rules for its own cpu platform are taken, and which are not.

JAX lowers a primitive by the rule of the platform, else by a default rule. The rules of "cpu" in jax 0.10, and what
happens with each:

taken, because there is no default or it is a slow or partial algorithm; they call LAPACK through XLA FFI handlers that
jaxlib brings along (see ffi.py):
    eig, eigh, schur, hessenberg, tridiagonal, geqp3     no default
    svd                                                  the default knows only the polar algorithm
    lu, geqrf, householder_product, ormqr                the default is a loop over columns, or a custom call of XLA's
    tridiagonal_solve                                    the default refuses perturb_singular
    conv_general_dilated                                 turns a complex convolution into real ones
not taken, because the default is as good or better here:
    cholesky, triangular_solve      StableHLO ops that Ferrule gives to LAPACK itself: no jaxlib needed to run them
    dot_general                     refuses some algorithms that XLA:CPU would ignore; Ferrule's compiler decides
    select_and_scatter_add          a way around a bug of XLA:CPU
    threefry2x32                    rolled loops for XLA:CPU's compile time; unrolled, it fuses into one kernel
    random_gamma                    the same as the default
    debug_callback, debug_print,
    check                           own rules, see callbacks.py
taken late, because the default refuses platforms that it does not know:
    mpmd_map                        pl.kernel and pl.core_map of Pallas: interpreted, as on cpu
own:
    platform_index, cond            lax.platform_dependent without a branch for us and without a default: the cpu's
    call_exported                   a program exported for the cpu is one that we can run
    approx_top_k                    the default is a custom call that only XLA's own passes replace; we answer exactly
    custom_partitioning             the default is a custom call for XLA's partitioner; we divide the function ourselves
    logistic, erfc, erf_inv, …      the default takes them apart; see functions.py
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from functools import partial
from typing import Any

logger = logging.getLogger("ferrule.jax")

TAKEN = frozenset(
    {
        *("eig", "eigh", "schur", "hessenberg", "tridiagonal", "geqp3", "svd", "lu", "geqrf"),
        *("householder_product", "ormqr", "tridiagonal_solve", "conv_general_dilated"),
    }
)
# Decided against, see above; a test watches that JAX has no others.
LEFT = frozenset(
    {
        *("cholesky", "triangular_solve", "dot_general", "select_and_scatter_add", "threefry2x32", "random_gamma"),
        *("debug_callback", "debug_print", "check"),
    }
)

# Rules of primitives that do not exist before a program imports their module: primitive → module, function.
LATE = {"mpmd_map": ("jax._src.pallas.mpmd", "_mpmd_map_fallback_lowering")}


class _Rules(dict[Any, Any]):
    """A platform's rules by primitive; adds the late ones when JAX looks for them, instead of importing Pallas."""

    platform = ""

    def __contains__(self, primitive: Any) -> bool:
        if super().__contains__(primitive):
            return True
        module, function = LATE.get(primitive.name, ("", ""))
        rule = getattr(sys.modules.get(module), function, None)
        if rule is None:
            return False
        from jax._src.interpreters import mlir

        mlir.register_lowering(primitive, rule, platform=self.platform)
        return True


def _add_late(name: str) -> None:
    from jax._src.interpreters import mlir

    rules = _Rules(mlir._platform_specific_lowerings[name])
    rules.platform = name
    mlir._platform_specific_lowerings[name] = rules


def register(name: str) -> None:
    """Registers the rules for a platform."""
    from jax._src.interpreters import mlir

    import jax
    from ferrule.frameworks.jax import functions

    functions.register(name)
    _register_platform_index(name)
    _register_call_exported(name)
    _register_custom_partitioning(name)
    found: set[str] = set()
    try:
        import jax._src.lax.linalg

        for primitive, entry in list(mlir._platform_specific_lowerings["cpu"].items()):
            if primitive.name in TAKEN:
                mlir.register_lowering(primitive, entry.rule, platform=name, inline=entry.inline)
                found.add(primitive.name)
    except (AttributeError, ImportError, TypeError) as error:
        logger.warning("JAX %s keeps its lowering rules elsewhere: %s", jax.__version__, error)
    if missing := sorted(TAKEN - found):
        logger.warning(
            "JAX %s has no cpu lowering rule for %s: these work on platform %r only as far as JAX's defaults do",
            *(jax.__version__, ", ".join(missing), name),
        )
    try:
        from jax._src.lax.ann import approx_top_k_p

        mlir.register_lowering(approx_top_k_p, _approx_top_k, platform=name)
    except (AttributeError, ImportError, TypeError) as error:
        logger.warning("jax.lax.approx_max_k is not available on platform %r: %s", name, error)
    try:
        _add_late(name)
    except (AttributeError, ImportError, TypeError) as error:
        logger.info(
            "JAX %s keeps its lowering rules elsewhere (%s): no pl.core_map on %r", jax.__version__, error, name
        )


def _register_platform_index(name: str) -> None:
    """`lax.platform_dependent(cpu=…, cuda=…)` without a default is an error on other platforms.

    What a cpu branch may rely on is there: host memory, and the handlers that are registered for the cpu (see ffi.py).
    """
    import jax

    def ours(platforms: Any) -> Any:
        """The platforms of each branch (None: the default), with ours beside the cpu if no branch is for us."""
        if None in platforms or any(name in names for names in platforms):
            return platforms
        return tuple((*names, name) if "cpu" in names else names for names in platforms)

    def index(usual: Any, ctx: Any, *, platforms: Any) -> Any:
        return usual(ctx, platforms=ours(platforms))

    def cond(usual: Any, ctx: Any, *args: Any, **params: Any) -> Any:
        platforms = params.pop("branches_platforms", None)
        if platforms is not None:
            params["branches_platforms"] = ours(platforms)
        return usual(ctx, *args, **params)

    try:
        from jax._src.interpreters import mlir
        from jax._src.lax.control_flow import conditionals

        for primitive, rule in ((conditionals.platform_index_p, index), (conditionals.cond_p, cond)):
            mlir.register_lowering(primitive, partial(rule, mlir._lowerings[primitive].rule), platform=name)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        logger.info("JAX %s keeps lax.platform_dependent elsewhere: %s", jax.__version__, error)


def _register_call_exported(name: str) -> None:
    """`jax.export` refuses to call a function on a platform that it was not exported for.

    What was exported for the cpu is StableHLO that calls handlers of the cpu at most, and those are ours, too.
    """
    import jax

    def lower(usual: Any, ctx: Any, *args: Any, exported: Any) -> Any:
        if name not in exported.platforms and "cpu" in exported.platforms:
            platforms = tuple(name if p == "cpu" else p for p in exported.platforms)
            exported = dataclasses.replace(exported, platforms=platforms)
        return usual(ctx, *args, exported=exported)

    try:
        from jax._src.export import _export
        from jax._src.interpreters import mlir

        primitive = _export.call_exported_p
        mlir.register_lowering(primitive, partial(lower, mlir._lowerings[primitive].rule), platform=name)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        logger.info("JAX %s keeps jax.export elsewhere: %s", jax.__version__, error)


def _register_custom_partitioning(name: str) -> None:
    """A function that says how XLA is to partition it is divided as any other."""
    import jax

    def inlined(ctx: Any, *args: Any, call: Any, **params: Any) -> Any:
        return mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(ctx, *args)

    try:
        from jax._src import core
        from jax._src.custom_partitioning import custom_partitioning_p
        from jax._src.interpreters import mlir

        mlir.register_lowering(custom_partitioning_p, inlined, platform=name)
    except (AttributeError, ImportError, TypeError) as error:
        logger.warning("JAX %s keeps custom_partitioning elsewhere: %s", jax.__version__, error)


def _approx_top_k(ctx: Any, operand: Any, **params: Any) -> Any:
    """The exact answer has the best recall there is. Without aggregation JAX promises more than k candidates."""
    import jax.numpy as jnp
    from jax._src.interpreters import mlir

    from jax import lax

    axis, is_max = params["reduction_dimension"], params["is_max_k"]
    count = ctx.avals_out[0].shape[axis]

    def exact(x: Any) -> Any:
        x = jnp.moveaxis(x, axis, -1)
        values, indices = lax.top_k(x if is_max else -x, count)
        return jnp.moveaxis(values if is_max else -values, -1, axis), jnp.moveaxis(indices, -1, axis)

    return mlir.lower_fun(exact, multiple_results=True)(ctx, operand)
