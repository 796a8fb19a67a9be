"""Functions, composites, shardings, layouts, tuples → one `main` for one device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from programs import artifact, f32, lower, programs

import jax
from ferrule.errors import InvalidArgument, Unsupported
from ferrule.ir import Block, DotDims, Module, Tensor
from ferrule.ir.types import DTYPES
from ferrule.ops import OPS
from ferrule.passes.partition import partition
from ferrule.stablehlo import import_module, legalize, load, read
from ferrule.stablehlo.check import check
from ferrule.stablehlo.reader import read_bytecode
from ferrule.stablehlo.sdy import Axis, Mesh, Sharding, coordinate
from ferrule.stablehlo.tiling import of_text


def evaluate(block: Block, args: list[np.ndarray], outer: dict[Any, np.ndarray] | None = None) -> list[np.ndarray]:
    """Runs a block with the NumPy meaning of each op."""
    env = {**(outer or {}), **dict(zip(block.args, args, strict=True))}
    for op in block.ops:
        run = OPS[op.name].evaluate
        assert run is not None
        env.update(zip(op.results, run(op, [env[v] for v in op.operands], lambda b, a: evaluate(b, list(a), env))))
    return [env[v] for v in block.results]


def names(block: Block) -> list[str]:
    return [op.name for op in block.walk()]


def text(body: str) -> bytes:
    return f"module {{ {body} }}".encode()


@pytest.mark.parametrize(
    "name, f, args", [p for p in programs() if p[0] != "callback"], ids=lambda v: v if isinstance(v, str) else ""
)
def test_everything_ends_in_known_ops(name: str, f: Any, args: Any) -> None:
    module = load(lower(f, *args))
    assert list(module.functions) == ["main"]
    main = module.main.body
    found = {op.name for op in main.walk()}
    assert not found & {"call", "composite", "dot", "broadcast"} and not any("." in n for n in found)
    assert found - {"custom_call"} <= set(OPS), found - set(OPS)
    _check_scopes(main, set())


def _check_scopes(block: Block, seen: set[Any]) -> None:
    seen = seen | set(block.args)
    for op in block.ops:
        assert set(op.operands) <= seen, op
        for region in op.regions:
            _check_scopes(region, seen)
        seen |= set(op.results)
    assert set(block.results) <= seen


def test_a_function_called_twice_is_copied_twice() -> None:
    g = jax.jit(jnp.sin)
    main = load(lower(lambda x: g(g(x)), f32(3))).main.body
    assert names(main) == ["sine", "sine"]
    assert main.ops[1].operands == main.ops[0].results


def test_recursion_is_refused() -> None:
    body = "func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = func.call @main(%a) : (tensor<f32>) -> tensor<f32> "
    with pytest.raises(Unsupported, match="recursive"):
        load(text(body + "return %0 : tensor<f32> }"))


def test_deep_chains_of_calls() -> None:
    functions = "func.func @main(%a: tensor<f32>) -> tensor<f32> { "
    functions += "%0 = func.call @f0(%a) : (tensor<f32>) -> tensor<f32> return %0 : tensor<f32> } "
    for i in range(250):
        functions += f"func.func private @f{i}(%a: tensor<f32>) -> tensor<f32> {{ "
        functions += f"%0 = func.call @f{i + 1}(%a) : (tensor<f32>) -> tensor<f32> return %0 : tensor<f32> }} "
    functions += "func.func private @f250(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }"
    with pytest.raises(Unsupported, match=r"recursive|deep"):
        load(text(functions))


def test_no_main() -> None:
    with pytest.raises(InvalidArgument, match="main"):
        load(text("func.func @f(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }"))


def test_composites_by_name_or_by_decomposition() -> None:
    main = load(lower(lambda x: jax.lax.top_k(x, 2), f32(3, 4))).main.body
    assert names(main) == ["top_k"] and main.ops[0].attrs["k"] == 2
    mine = 'func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = stablehlo.composite "my.op" %a {decomposition = @d} '
    mine += (
        ": (tensor<f32>) -> tensor<f32> return %0 : tensor<f32> } func.func private @d(%a: tensor<f32>) -> tensor<f32> "
    )
    main = load(text(mine + "{ %0 = stablehlo.sine %a : tensor<f32> return %0 : tensor<f32> }")).main.body
    assert names(main) == ["sine"]


def test_complex_composites_are_decomposed() -> None:
    assert "asin" not in names(load(lower(jnp.arcsin, f32(3) + 1j)).main.body)


def test_old_ops() -> None:
    body = "func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>) "
    body += "-> (tensor<2x4xf32>, tensor<5x2x3xf32>, tensor<i32>) {"
    body += " %0 = stablehlo.dot %a, %b : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>"
    body += " %1 = stablehlo.broadcast %a, sizes = [5] : (tensor<2x3xf32>) -> tensor<5x2x3xf32>"
    body += " %2 = stablehlo.get_dimension_size %a, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>"
    body += " return %0, %1, %2 : tensor<2x4xf32>, tensor<5x2x3xf32>, tensor<i32> }"
    dot, broadcast, size = load(text(body)).main.body.ops
    assert dot.attrs["dot_dimension_numbers"] == DotDims((), (), (1,), (0,))
    assert broadcast.attrs == {"broadcast_dimensions": (1, 2)}
    assert size.name == "constant" and size.attrs["value"] == 3


@pytest.mark.parametrize("config, shape", [("ab,bc->ac", (2, 4)), ("ab,bc->ca", (4, 2)), ("ab,bc->bac", (3, 2, 4))])
def test_einsum(config: str, shape: tuple[int, ...]) -> None:
    result = f"tensor<{'x'.join(map(str, shape))}xf32>"
    body = f"func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>) -> {result} {{ %0 = stablehlo.einsum %a, %b, "
    body += f'config = "{config}" : (tensor<2x3xf32>, tensor<3x4xf32>) -> {result} return %0 : {result} }}'
    main = load(text(body)).main.body
    a, b = np.random.rand(2, 3).astype(np.float32), np.random.rand(3, 4).astype(np.float32)
    np.testing.assert_allclose(evaluate(main, [a, b])[0], np.einsum(config, a, b), rtol=1e-5)


def test_torch_index_select() -> None:
    body = "func.func @main(%a: tensor<2x3x4xf32>, %i: tensor<2x5xi32>) -> tensor<2x5x4xf32> { "
    body += '%0 = "stablehlo.torch_index_select"(%a, %i) <{dim = 1 : i64, batch_dims = 1 : i64}> : '
    body += "(tensor<2x3x4xf32>, tensor<2x5xi32>) -> tensor<2x5x4xf32> return %0 : tensor<2x5x4xf32> }"
    a, i = np.random.rand(2, 3, 4).astype(np.float32), np.random.randint(0, 3, (2, 5)).astype(np.int32)
    expected = np.stack([a[n][i[n]] for n in range(2)])
    np.testing.assert_array_equal(evaluate(load(text(body)).main.body, [a, i])[0], expected)


# Sharding.


def _mesh(n: int) -> Any:
    return jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,))


def test_shard_map_on_one_device() -> None:
    mesh, spec = _mesh(1), PartitionSpec("x")

    def body(v: Any) -> Any:
        gathered = jax.lax.all_gather(v, "x", tiled=True)
        return jax.lax.psum(v, "x") + jax.lax.axis_index("x") + jax.lax.ppermute(gathered, "x", [(0, 0)])

    f = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    module = load(lower(f, f32(4)))
    assert isinstance(module.main.arg_attrs[0].get("sdy.sharding", Sharding("m", ())), Sharding)
    assert not set(names(module.main.body)) & {"all_reduce", "all_gather", "collective_permute", "partition_id"}


def _split(n: int, axes: str, partitions: int = 2) -> bytes:
    sharding = f"#sdy.sharding<@mesh, [{{{axes}}}]>"
    head = f'module attributes {{mhlo.num_partitions = {partitions} : i32}} {{ sdy.mesh @mesh = <["x"={n}]> '
    head += f"func.func @main(%a: tensor<4xf32> {{sdy.sharding = {sharding}}}) -> tensor<4xf32> {{ "
    return (head + "%0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32> } }").encode()


@pytest.mark.parametrize("size, axes, local", [(2, "", 4), (2, '"x"', 2), (1, '"x"', 4)])
def test_each_device_gets_its_part(size: int, axes: str, local: int) -> None:
    module = partition(load(_split(size, axes)), 1, 2)
    assert [a.type.shape for a in module.main.body.args] == [(local,)]
    # Nobody says how the result is split: it stays as its operand is.
    assert [v.type.shape for v in module.main.body.results] == [(local,)]


@pytest.mark.parametrize(
    "sharding, devices, tiles",
    [
        ("{replicated}", 2, [[0, 0], [0, 0]]),
        ("{devices=[2,1]<=[2]}", 2, [[0, 0], [1, 0]]),
        ("{devices=[1,2]1,0}", 2, [[0, 1], [0, 0]]),
        ("{devices=[1,1,2]<=[2] last_tile_dim_replicate}", 2, [[0, 0], [0, 0]]),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 4, [[0, 0], [0, 0], [1, 0], [1, 0]]),
        ("{devices=[2,2]<=[2,2]T(1,0)}", 4, [[0, 0], [1, 0], [0, 1], [1, 1]]),
        ("{devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}", 4, [[0, 0]] * 4),
    ],
)
def test_textual_shardings(sharding: str, devices: int, tiles: list[list[int]]) -> None:
    assert of_text(sharding, 2, devices, "the array").index.tolist() == tiles


@pytest.mark.parametrize(
    "sharding, error", [("{maximal device=0}", Unsupported), ("{devices=[2,4]<=[8]}", InvalidArgument)]
)
def test_textual_shardings_that_do_not_fit(sharding: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="the array"):
        of_text(sharding, 2, 4, "the array")


AXES = [Axis("x"), Axis("y"), Axis("y", (1, 2)), Axis("y", (2, 2))]
PLACES = ["00001111", "01230123", "00110011", "01010101"]


@pytest.mark.parametrize("axis, places", list(zip(AXES, PLACES, strict=True)))
def test_positions_along_axes(axis: Axis, places: str) -> None:
    found, count = coordinate(Mesh((("x", 2), ("y", 4))), [axis])
    assert ("".join(map(str, found)), count) == (places, int(max(places)) + 1)


def test_positions_in_a_mesh_of_another_order() -> None:
    mesh = Mesh((("x", 2), ("y", 2)), (3, 2, 1, 0))
    assert coordinate(mesh, [Axis("x"), Axis("y")])[0].tolist() == [3, 2, 1, 0]


def test_hints_of_other_dialects_are_dropped() -> None:
    body = "func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = stablehlo.sine %a "
    body += '{mhlo.frontend_attributes = {a = "b"}, mhlo.sharding = "{replicated}"} : tensor<f32> '
    (op,) = load(text(body + "return %0 : tensor<f32> }")).main.body.ops
    assert op.attrs == {}


def test_collectives_over_devices_that_the_program_has_not() -> None:
    body = 'func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = "stablehlo.all_reduce"(%a) <{replica_groups = '
    body += "dense<[[0, 1]]> : tensor<1x2xi64>}> ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>): "
    body += (
        "%1 = stablehlo.add %x, %y : tensor<f32> stablehlo.return %1 : tensor<f32> }) : (tensor<f32>) -> tensor<f32> "
    )
    with pytest.raises(InvalidArgument, match="all_reduce"):
        load(text(body + "return %0 : tensor<f32> }"))


def test_what_is_started_asynchronously_is_done_at_once() -> None:
    body = 'func.func @main(%a: T) -> T { %0 = "stablehlo.async_start"(%a) ({ ^bb0(%x: T): %2 = "stablehlo.all_gather"'
    body += "(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}> : (T) -> T "
    body += "stablehlo.return %2 : T }) : (T) -> !stablehlo.future<T> "
    body += '%1 = "stablehlo.async_done"(%0) : (!stablehlo.future<T>) -> T return %1 : T }'
    main = load(text(body.replace("T", "tensor<4xf32>"))).main.body
    assert main.ops == [] and main.results == main.args


def test_shardings_are_recorded() -> None:
    mesh = _mesh(1)
    lowered = jax.jit(lambda x: x + 1, in_shardings=NamedSharding(mesh, PartitionSpec("x"))).lower(f32(4))
    module = read(artifact(lowered))
    sharding = module.main.arg_attrs[0]["sdy.sharding"]
    assert isinstance(sharding, Sharding) and sharding.dims[0].axes[0].name == "x"
    assert module.meshes[str(sharding.mesh)].axes == (("x", 1),)


# Custom calls.


def _call(attributes: str) -> Module:
    body = 'func.func @main(%a: tensor<2x3xf32>) -> tensor<2x3xf32> { %0 = "stablehlo.custom_call"(%a) '
    body += f'<{{call_target_name = "f", {attributes}}}> : (tensor<2x3xf32>) -> tensor<2x3xf32> '
    return load(text(body + "return %0 : tensor<2x3xf32> }"))


COLUMNS = "dense<[0, 1]> : tensor<2xindex>"
ROWS = "dense<[1, 0]> : tensor<2xindex>"


def test_custom_call_attributes() -> None:
    ffi = 'api_version = 4 : i32, has_side_effect = true, backend_config = {n = 3 : i64, s = "t", b = true, '
    (op,) = _call(ffi + "f = 1.5 : f64}").main.body.ops
    assert op.attrs["api_version"] == 4 and op.attrs["has_side_effect"] is True
    assert op.attrs["backend_config"] == {"n": 3, "s": "t", "b": True, "f": 1.5}
    (op,) = _call('backend_config = "raw"').main.body.ops
    assert op.attrs["backend_config"] == "raw" and op.attrs["call_target_name"] == "f"


def test_column_major_custom_calls_are_transposed() -> None:
    main = _call(f"operand_layouts = [{COLUMNS}], result_layouts = [{COLUMNS}]").main.body
    assert names(main) == ["transpose", "reshape", "custom_call", "reshape", "transpose"]
    assert [op.result.shape for op in main.ops] == [(3, 2), (2, 3), (2, 3), (3, 2), (2, 3)]
    # A callee that copies bytes must give back its operand.
    x = np.arange(6).reshape(2, 3)
    raw = x.transpose(main.ops[0].attrs["permutation"]).reshape(2, 3)
    np.testing.assert_array_equal(raw.reshape(3, 2).transpose(main.ops[4].attrs["permutation"]), x)


def test_row_major_custom_calls_stay() -> None:
    (op,) = _call(f"operand_layouts = [{ROWS}], result_layouts = [{ROWS}]").main.body.ops
    assert op.name == "custom_call" and "operand_layouts" not in op.attrs


def test_hints_vanish() -> None:
    body = (
        "func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = stablehlo.custom_call @annotate_device_placement(%a) "
    )
    body += '{mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<f32>) -> tensor<f32> '
    assert names(load(text(body + "return %0 : tensor<f32> }")).main.body) == []


# Tuples.


def test_tuples_are_flattened() -> None:
    body = "func.func @main(%a: tuple<tensor<f32>, tensor<2xi32>>) -> tuple<tensor<2xi32>, tensor<f32>> { "
    body += "%0 = stablehlo.get_tuple_element %a[0] : (tuple<tensor<f32>, tensor<2xi32>>) -> tensor<f32> "
    body += "%1 = stablehlo.get_tuple_element %a[1] : (tuple<tensor<f32>, tensor<2xi32>>) -> tensor<2xi32> "
    body += "%2 = stablehlo.tuple %1, %0 : tuple<tensor<2xi32>, tensor<f32>> "
    main = load(text(body + "return %2 : tuple<tensor<2xi32>, tensor<f32>> }")).main
    assert main.body.ops == [] and main.body.results == list(reversed(main.body.args))
    assert all(isinstance(a.type, Tensor) for a in main.body.args) and len(main.arg_attrs) == 2


def test_stages_one_by_one() -> None:
    module = read_bytecode(lower(lambda x: jax.jit(jnp.tanh)(x), f32(2)))
    assert "call" in names(module.main.body)
    assert names(import_module(legalize(module)).main.body) == ["tanh"]


@pytest.mark.parametrize("fault", ["result", "body"])
def test_reductions_like_an_earlier_one_are_checked(fault):
    """Equal ones are checked once; one that differs in its result or its body is another."""
    attrs = {"dimensions": (1,)}
    types = [Tensor((n,), DTYPES["f32"]) for n in (4, 5)]
    block = Block([Tensor((4, 8), DTYPES["f32"]), Tensor((), DTYPES["f32"])])

    def add(fault: str) -> None:
        scalar = Tensor((), DTYPES["f64" if fault == "body" else "f32"])
        body = Block([scalar, scalar])
        body.results = body.add("add", body.args, [scalar]).results
        block.results = block.add("reduce", block.args, [types[fault == "result"]], attrs, [body]).results

    add("")
    add("")
    check(block)
    add(fault)
    with pytest.raises(InvalidArgument, match="'reduce'"):
        check(block)
