"""A module with functions, Shardy ops and layouts → a module with one function, `main`.

Calls are inlined (an op that has no source line of its own takes the call's), sharding hints drop out, collectives
name devices by number, and over one device become what they are: the identity. Of a program for several partitions
`passes/partition.py` makes what each device runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, DType, Function, Loc, Module, Op, Tensor, Token, Type, Value, tensor
from ferrule.ir.types import i1
from ferrule.stablehlo.check import check
from ferrule.stablehlo.groups import device_groups, device_pairs, only_device, padded
from ferrule.stablehlo.layouts import asked_layout, laid, lay, row_major_call, unlay
from ferrule.stablehlo.options import CompileOptions
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
# The same, where parts of values are meant: `sharding` says how the device holds them.
_BORDERS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
_COLLECTIVES = {
    *("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute", "collective_broadcast"),
    *("collective_reduce", "cross-replica-sum"),
}
# What says between whom a collective is; replaced by numbers of devices.
_CONNECTIONS = {"replica_groups", "source_target_pairs", "channel_handle", "use_global_device_ids", "has_dynamic_root"}


def device_count(module: Module, settings: CompileOptions) -> tuple[int, int]:
    """The numbers of replicas and partitions that a program is for; its options and its attributes must agree."""
    counts = []
    for key, asked in (("mhlo.num_replicas", settings.num_replicas), ("mhlo.num_partitions", settings.num_partitions)):
        stated = _count(module, key)
        if 1 != asked != stated != 1:
            raise InvalidArgument(f"the compile options ask for {asked} devices", why=f"the module's {key} is {stated}")
        counts.append(max(asked, stated))
    return counts[0], counts[1]


def import_module(module: Module, settings: CompileOptions | None = None, ours: bool = False) -> Module:
    """Returns a module whose only function is `main`.

    `ours` says that nobody else needs the given one: the ops that stay are not copied.
    """
    if "main" not in module.functions:
        names = ", ".join(f"@{name}" for name in module.functions)
        raise InvalidArgument("the program has no function @main", why=f"it has {names}", fix="name the entry main")
    if has_tuples(module):
        module = flatten_tuples(module)
    replicas, partitions = device_count(module, settings or CompileOptions())
    main = module.main
    work = _Importer(module, partitions, replicas, ours)
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


def _sum_of(dtype: DType) -> Block:
    """The computation of a sum."""
    scalar = Tensor((), dtype)
    block = Block([scalar, scalar])
    block.results = block.add("add", block.args, scalar).results
    return block


def _count(module: Module, key: str) -> int:
    value = module.attrs.get(key, 1)
    if not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"the module's {key} is {value!r}", fix="it must be an integer of 1 or more")
    return value


def _without_hints(op: Op) -> dict[str, Any]:
    """The op's own attributes. What other dialects attach (shardings, scheduling hints) only a custom call may need."""
    keep = ("mhlo.frontend_attributes", "mhlo.backend_config") if op.name == "custom_call" else ()
    return {k: v for k, v in op.attrs.items() if "." not in k or k in keep}


class _Importer:
    def __init__(self, module: Module, partitions: int, replicas: int, ours: bool) -> None:
        self.module, self.partitions, self.replicas, self.ours = module, partitions, replicas, ours
        self.stack: list[str] = []
        self.joined: dict[tuple[Loc, Loc], Loc] = {}
        self.handlers: dict[str, Callable[[Op, Block, Env, Loc | None], Sequence[Value] | None]] = {
            "call": self.call,
            "sdy.sharding_constraint": self.constraint,
            "sdy.reshard": self.constraint,
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
        """Appends copies of the ops of `block` to `out`, rewritten; `env` maps old values to new ones.

        A function may be called twice; the ops of main itself stay what they are when they are ours.
        """
        handlers = self.handlers
        ops = out.ops
        moved = self.ours and caller is None
        left: list[Op] = []
        for op in block.ops:
            handler = handlers.get(op.name)
            if handler is not None:
                new = handler(op, out, env, caller)
                if new is not None:
                    env.update(zip(op.results, new, strict=True))
                    left.append(op)
                    continue
            regions = [self.region(r, env, caller) for r in op.regions] if op.regions else ()
            loc = op.loc if caller is None else self.join(caller, op.loc)
            operands = [env.get(v, v) for v in op.operands]
            attrs = op.attrs
            for key in attrs:
                if "." in key:
                    attrs = _without_hints(op)
                    break
            if moved:
                op.operands, op.attrs, op.regions = operands, attrs, regions
                ops.append(op)
                continue
            copy = Op(op.name, operands, [r.type for r in op.results], attrs, regions, loc)
            ops.append(copy)
            for old, fresh in zip(op.results, copy.results, strict=True):
                env[old] = fresh
        if moved:
            block.ops = left

    def region(self, block: Block, env: Env, caller: Loc | None) -> Block:
        if self.ours and caller is None:
            out = Block()
            out.args = block.args
        else:
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

    def constraint(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value] | None:
        return None if self.partitions > 1 else self.identity(op, out, env, caller)

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

    def manual_computation(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value] | None:
        if self.partitions > 1:
            return None  # passes/partition.py takes it from here
        return self.inline_region(op, out, env, caller)

    def custom_call(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value] | None:
        types = [v.type for v in op.operands]
        target = op.attrs.get("call_target_name")
        if self.partitions > 1:
            place = op.attrs.get("mhlo.sharding")
            if target in _BORDERS and isinstance(place, str):
                operands = [env.get(v, v) for v in op.operands]
                result = [r.type for r in op.results]
                return out.add(f"ferrule.{target}", operands, result, {"sharding": place}, loc=op.loc).results
            if (device := only_device(op, self.module.meshes)) is not None:
                op.attrs = {**op.attrs, "only_device": device}
        if target in _HINTS and types == [r.type for r in op.results]:
            return self.identity(op, out, env, caller)
        if "operand_layouts" in op.attrs or "result_layouts" in op.attrs:
            loc = op.loc if caller is None else self.join(caller, op.loc)
            return row_major_call(op, [env.get(v, v) for v in op.operands], out, loc)
        return None

    def device_number(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value] | None:
        if (self.partitions if op.name == "partition_id" else self.replicas) > 1:
            return None
        zero = np.zeros((), np.uint32)
        return out.add("constant", [], [op.result.type], {"value": zero}, loc=op.loc).results

    def collective(self, op: Op, out: Block, env: Env, caller: Loc | None) -> Sequence[Value]:
        """Groups are resolved to numbers of devices. Over one device each, nothing moves."""
        operands = [env.get(v, v) for v in op.operands]
        if op.name == "collective_permute":
            pairs = device_pairs(op, self.replicas, self.partitions)
            alone, connection = self.replicas * self.partitions == 1, {"source_target_pairs": np.array(pairs, np.int64)}
            if not pairs:
                return [self.zeros(r, out, op.loc) for r in op.results]
        else:
            groups = device_groups(op, self.module.meshes, self.replicas, self.partitions)
            alone, connection = all(len(g) == 1 for g in groups), {"replica_groups": padded(groups)}
            covered = sum(map(len, groups)) == self.replicas * self.partitions
            alone = alone and (covered or op.name != "collective_broadcast")
        if alone:
            for value, result in zip(operands, op.results, strict=True):
                if value.type != result.type:
                    raise InvalidArgument(f"op {op.name!r} over one device changes its type", where=op.loc)
            return operands
        if op.name == "collective_reduce" or op.attrs.get("has_dynamic_root"):
            raise Unsupported(f"op {op.name!r} over several devices is not supported", where=op.loc)
        attrs = {k: v for k, v in op.attrs.items() if k not in _CONNECTIONS} | connection
        loc = op.loc if caller is None else self.join(caller, op.loc)
        regions = [self.region(r, env, caller) for r in op.regions]
        name = "all_reduce" if op.name == "cross-replica-sum" else op.name
        if op.name == "cross-replica-sum":
            regions = [_sum_of(tensor(op.result).dtype)]
        return out.add(name, operands, [r.type for r in op.results], attrs, regions, loc).results

    def zeros(self, like: Value, out: Block, loc: Loc) -> Value:
        assert isinstance(like.type, Tensor)
        value = np.broadcast_to(np.zeros((), like.type.dtype.numpy), like.type.shape)
        return out.add("constant", [], [like.type], {"value": value}, loc=loc).result
