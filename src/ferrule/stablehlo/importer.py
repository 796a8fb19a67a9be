"""A module with functions, Shardy ops and layouts → a module with one function, `main`, for one device.

Calls are inlined (an op that has no source line of its own takes the call's), sharding hints drop out, collectives
over one device become what they are: the identity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, Function, Loc, Module, Op, Tensor, Token, Type, Value
from ferrule.ir.types import i1
from ferrule.stablehlo.check import check
from ferrule.stablehlo.layouts import asked_layout, laid, lay, row_major_call, unlay
from ferrule.stablehlo.sdy import Mesh, MeshGroups, Sharding
from ferrule.stablehlo.tuples import flatten_tuples, has_tuples

Env = dict[Value, Value]
_MAX_CALLS = 200
# What stands for a token at a program's border.
_TOKEN = Tensor((0,), i1)

# Custom calls that only tell a partitioner or a memory planner something; the value passes through.
_HINTS = {
    *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "LayoutConstraint"),
    *("xla.sdy.FuncResultSharding", "xla.sdy.LocalToGlobalShape", "xla.sdy.GlobalToLocalShape"),
    *("MoveToHost", "MoveToDevice"),
}
_COLLECTIVES = {
    *("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute", "collective_broadcast"),
    *("collective_reduce", "cross-replica-sum"),
}


def import_module(module: Module) -> Module:
    """Returns a module whose only function is `main`."""
    if "main" not in module.functions:
        names = ", ".join(f"@{name}" for name in module.functions)
        raise InvalidArgument("the program has no function @main", why=f"it has {names}", fix="name the entry main")
    if has_tuples(module):
        module = flatten_tuples(module)
    partitions, replicas = _count(module, "mhlo.num_partitions"), _count(module, "mhlo.num_replicas")
    main = module.main
    if partitions > 1:
        _require_replicated(module, main, partitions)
    work = _Importer(module, partitions, replicas)
    body, env = _entry(main)
    for old in main.body.args:
        if isinstance(old.type, Token):
            env[old] = body.add("create_token", [], [Token()]).result
    try:
        work.copy(main.body, body, env, None)
    except RecursionError:
        raise Unsupported("the program is nested too deeply", why="Python's recursion limit was reached") from None
    body.results = [env.get(v, v) for v in main.body.results]
    for i, value in enumerate(body.results):
        if isinstance(value.type, Token):
            attrs = {"value": np.zeros(_TOKEN.shape, np.bool_)}
            body.results[i] = body.add("constant", [], [_TOKEN], attrs).result
    for i, attrs in enumerate(main.result_attrs):
        if layout := asked_layout(attrs, f"result {i}", body.results[i].type):
            body.results[i] = lay(body.results[i], layout, body)
    check(body)
    function = Function("main", body, main.arg_attrs, main.result_attrs, main.visibility)
    return Module({"main": function}, module.attrs, module.name, module.producer, module.meshes)


def _entry(main: Function) -> tuple[Block, Env]:
    """The new body, whose parameters have the shapes in which they lie in memory, and what stands for the old ones."""
    types: list[Type] = []
    layouts = {}
    for i, old in enumerate(main.body.args):
        type = _border(old.type)
        if layout := asked_layout(main.arg_attrs[i] if main.arg_attrs else {}, f"parameter {i}", type):
            layouts[i] = layout
        types.append(laid(type, layout) if layout else type)
    body = Block(types)
    env: Env = dict(zip(main.body.args, body.args, strict=True))
    for i, layout in layouts.items():
        env[main.body.args[i]] = unlay(body.args[i], layout, body)
    return body, env


def _border(type: Type) -> Type:
    """A parameter's type: a token that orders effects between programs comes in a buffer, as JAX hands it over."""
    return _TOKEN if isinstance(type, Token) else type


def _count(module: Module, key: str) -> int:
    value = module.attrs.get(key, 1)
    if not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"the module's {key} is {value!r}", fix="it must be an integer of 1 or more")
    return value


def axis_size(module: Module, mesh: str | Mesh | None, name: str) -> int:
    """The size of a mesh axis; 1 if the program does not declare the mesh."""
    if isinstance(mesh, str):
        mesh = module.meshes.get(mesh)
    return dict(mesh.axes).get(name, 1) if isinstance(mesh, Mesh) else 1


def _splits(module: Module, attrs: dict[str, Any]) -> bool:
    """True if an argument's or result's attributes put different parts on different devices."""
    found = attrs.get("sdy.sharding")
    if isinstance(found, Sharding):
        axes = [a for d in found.dims for a in d.axes] + list(found.unreduced)
        return any(a.part[1] > 1 if a.part else axis_size(module, found.mesh, a.name) > 1 for a in axes)
    text = attrs.get("mhlo.sharding")
    return isinstance(text, str) and _splits_text(text)


def _splits_text(text: str) -> bool:
    """The same for XLA's textual sharding, as in {devices=[2,1,4]<=[8] last_tile_dim_replicate}."""
    tiles = re.search(r"devices=\[([\d,]+)\]", text)
    if tiles is None:
        return "replicated" not in text
    sizes = [int(n) for n in tiles[1].split(",")]
    subgroups = re.search(r"last_tile_dims=\{([^}]*)\}", text)
    extra = len(subgroups[1].split(",")) if subgroups else int("last_tile_dim_replicate" in text)
    return prod(sizes[: len(sizes) - extra]) > 1


def _require_replicated(module: Module, main: Function, partitions: int) -> None:
    places = [(f"argument {i}", a) for i, a in enumerate(main.arg_attrs)]
    places += [(f"result {i}", a) for i, a in enumerate(main.result_attrs)]
    for place, attrs in places:
        if _splits(module, attrs):
            raise Unsupported(
                f"the program is split over {partitions} devices",
                where=place,
                why=f"its sharding is {attrs.get('sdy.sharding') or attrs.get('mhlo.sharding')}, and Ferrule cannot "
                "partition programs yet",
                fix="run on one device, or replicate all arguments and results",
            )


def _without_hints(op: Op) -> dict[str, Any]:
    """The op's own attributes. What other dialects attach (shardings, scheduling hints) only a custom call may need."""
    keep = ("mhlo.frontend_attributes", "mhlo.backend_config") if op.name == "custom_call" else ()
    return {k: v for k, v in op.attrs.items() if "." not in k or k in keep}


class _Importer:
    def __init__(self, module: Module, partitions: int, replicas: int) -> None:
        self.module, self.partitions, self.replicas = module, partitions, replicas
        self.stack: list[str] = []
        self.joined: dict[tuple[Loc, Loc], Loc] = {}
        self.handlers: dict[str, Callable[[Op, Block, Env, Loc | None], Sequence[Value] | None]] = {
            "call": self.call,
            "sdy.sharding_constraint": self.identity,
            "sdy.reshard": self.identity,
            "sdy.propagation_barrier": self.identity,
            "sdy.sharding_group": lambda *_: (),
            "sdy.named_computation": self.inline_region,
            "sdy.manual_computation": self.manual_computation,
            # A program of one device has nobody to wait for: what is started is done.
            "async_start": self.inline_region,
            "async_done": self.identity,
            "custom_call": self.custom_call,
            "partition_id": self.device_number,
            "replica_id": self.device_number,
            **dict.fromkeys(_COLLECTIVES, self.collective),
        }

    def copy(self, block: Block, out: Block, env: Env, caller: Loc | None) -> None:
        """Appends copies of the ops of `block` to `out`, rewritten; `env` maps old values to new ones."""
        handlers = self.handlers
        ops = out.ops
        for op in block.ops:
            handler = handlers.get(op.name)
            if handler is not None:
                new = handler(op, out, env, caller)
                if new is not None:
                    env.update(zip(op.results, new, strict=True))
                    continue
            regions = [self.region(r, env, caller) for r in op.regions] if op.regions else ()
            loc = op.loc if caller is None else self.join(caller, op.loc)
            operands = [env.get(v, v) for v in op.operands]
            attrs = op.attrs
            for key in attrs:
                if "." in key:
                    attrs = _without_hints(op)
                    break
            copy = Op(op.name, operands, [r.type for r in op.results], attrs, regions, loc)
            ops.append(copy)
            for old, fresh in zip(op.results, copy.results, strict=True):
                env[old] = fresh

    def region(self, block: Block, env: Env, caller: Loc | None) -> Block:
        out = Block(a.type for a in block.args)
        env.update(zip(block.args, out.args, strict=True))
        self.copy(block, out, env, caller)
        out.results = [env.get(v, v) for v in block.results]
        return out

    def join(self, caller: Loc, inner: Loc) -> Loc:
        """The location of an op that was inlined: its own place if it has one, else the call's."""
        key = caller, inner
        found = self.joined.get(key)
        if found is None:
            name = f"{caller.name}/{inner.name}" if caller.name and inner.name else caller.name or inner.name
            if inner.name.startswith(caller.name.split("/")[0] + "/"):
                name = inner.name  # it holds the whole stack already
            place = inner if inner.file else caller
            found = Loc(name, place.file, place.line, place.col)
            self.joined[key] = found
        return found

    # Handlers: the values that replace the op's results, or None to copy the op.

    def identity(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        return [env.get(v, v) for v in op.operands]

    def call(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        name = str(op.attrs["callee"])
        function = self.module.functions.get(name)
        if function is None:
            raise InvalidArgument(f"the program calls @{name}, which does not exist", where=op.loc)
        if name in self.stack:
            chain = " → ".join(f"@{n}" for n in (*self.stack, name))
            why, fix = f"the calls are {chain}", "write the recursion as a while loop"
            raise Unsupported("recursive calls are not supported", where=op.loc, why=why, fix=fix)
        if len(self.stack) >= _MAX_CALLS:
            fix = "inline some of the functions, or use a while loop"
            raise Unsupported(f"calls are nested more than {_MAX_CALLS} deep", where=op.loc, fix=fix)
        loc = op.loc if caller is None else self.join(caller, op.loc)
        self.stack.append(name)
        values = self.splice(function.body, [env.get(v, v) for v in op.operands], op, out, env, loc)
        self.stack.pop()
        return values

    def splice(
        self, body: Block, args: Sequence[Value], op: Op, out: Block, env: Env, caller: Loc | None
    ) -> Sequence[Value]:
        """Copies a body to `out` with its arguments bound; `env` may keep the bindings, values are unique."""
        for what, have, want in (("operands", args, body.args), ("results", op.results, body.results)):
            if [v.type for v in have] != [v.type for v in want]:
                raise InvalidArgument(f"the {what} of {op.name} do not fit what it calls", where=op.loc)
        env.update(zip(body.args, args, strict=True))
        self.copy(body, out, env, caller)
        return [env.get(v, v) for v in body.results]

    def inline_region(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        return self.splice(op.regions[0], [env.get(v, v) for v in op.operands], op, out, env, caller)

    def manual_computation(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        shardings = [*op.attrs.get("in_shardings", ()), *op.attrs.get("out_shardings", ())]
        for sharding in shardings:
            for axis in op.attrs.get("manual_axes", ()):
                size = axis_size(self.module, sharding.mesh, axis)
                if size > 1:
                    raise Unsupported(
                        "a manual computation (shard_map) over several devices is not supported yet",
                        where=op.loc,
                        why=f"its mesh axis {axis!r} has {size} devices",
                        fix="use a mesh of one device",
                    )
        return self.inline_region(op, out, env, caller)

    def custom_call(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value] | None:
        types = [v.type for v in op.operands]
        if op.attrs.get("call_target_name") in _HINTS and types == [r.type for r in op.results]:
            return self.identity(op, out, env, caller)
        if "operand_layouts" in op.attrs or "result_layouts" in op.attrs:
            loc = op.loc if caller is None else self.join(caller, op.loc)
            return row_major_call(op, [env.get(v, v) for v in op.operands], out, loc)
        return None

    def device_number(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        count = self.partitions if op.name == "partition_id" else self.replicas
        self.require_one_device(op, count)
        zero = np.zeros((), np.uint32)
        return out.add("constant", [], [op.result.type], {"value": zero}, loc=op.loc).results

    def require_one_device(self, op: Op, count: int) -> None:
        if count > 1:
            raise Unsupported(
                f"op {op.name!r} over {count} devices is not supported yet",
                where=op.loc,
                why="this version of Ferrule runs programs without communication between devices",
                fix="run on one device",
            )

    def collective(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        groups = op.attrs.get("replica_groups")
        size = 1
        if isinstance(groups, np.ndarray) and groups.ndim == 2 and groups.size:
            size = groups.shape[1]
        elif isinstance(groups, MeshGroups):
            size = prod(axis_size(self.module, groups.mesh, axis.name) for axis in groups.axes)
        self.require_one_device(op, max(size, self.partitions * self.replicas))
        operands = [env.get(v, v) for v in op.operands]
        if op.name == "collective_permute":
            pairs = np.asarray(op.attrs.get("source_target_pairs", ()))
            if pairs.size == 0:
                return [self.zeros(r, out, op.loc) for r in op.results]
        for value, result in zip(operands, op.results, strict=True):
            if value.type != result.type:
                raise InvalidArgument(f"op {op.name!r} over one device changes its type", where=op.loc)
        return operands

    def zeros(self, like: Value, out: Block, loc: Loc) -> Value:
        assert isinstance(like.type, Tensor)
        value = np.broadcast_to(np.zeros((), like.type.dtype.numpy), like.type.shape)
        return out.add("constant", [], [like.type], {"value": value}, loc=loc).result
