"""The programs that the checks compile: StableHLO text, small enough for a plugin of any kind."""

from __future__ import annotations

import base64


def main(arguments: str, results: str, body: str, *, name: str = "surface", attributes: str = "") -> bytes:
    """A module with one public function."""
    arrow = f" -> ({results})" if results else ""
    return (
        f"module @{name} {attributes}{{\n  func.func public @main({arguments}){arrow} {{\n{body}\n  }}\n}}\n".encode()
    )


ADD = main(
    "%a: tensor<4xf32>, %b: tensor<4xf32>",
    "tensor<4xf32>",
    "%0 = stablehlo.add %a, %b : tensor<4xf32>\n return %0 : tensor<4xf32>",
    name="add",
)
MULTIPLY = main(
    "%a: tensor<4xf32>, %b: tensor<4xf32>",
    "tensor<4xf32>",
    "%0 = stablehlo.multiply %a, %b : tensor<4xf32>\n return %0 : tensor<4xf32>",
    name="multiply",
)
# The first argument's memory becomes the result's.
DONATE = main(
    "%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>",
    "tensor<4xf32>",
    "%0 = stablehlo.add %a, %b : tensor<4xf32>\n return %0 : tensor<4xf32>",
    name="donate",
)
# Given away without a result that takes it.
GIVE = main(
    "%a: tensor<4xf32> {jax.buffer_donor = true}, %b: tensor<4xf32>",
    "tensor<f32>",
    """%z = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>""",
    name="give",
)
THREE_RESULTS = main(
    "%a: tensor<2x3xf32>",
    "tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xi1>",
    """%0 = stablehlo.negate %a : tensor<2x3xf32>
    %1 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %2 = stablehlo.compare LT, %a, %0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    return %0, %1, %2 : tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xi1>""",
)
IDENTITY = main("%a: tensor<4xf32>", "tensor<4xf32>", "return %a : tensor<4xf32>")
TWICE = main(
    "%a: tensor<4xf32>", "tensor<4xf32>, tensor<4xf32>", "return %a, %a : tensor<4xf32>, tensor<4xf32>", name="twice"
)
NO_RESULTS = main("%a: tensor<4xf32>", "", "return")
NO_ARGUMENTS = main(
    "", "tensor<3xi32>", "%0 = stablehlo.iota dim = 0 : tensor<3xi32>\n return %0 : tensor<3xi32>", name="iota"
)
EMPTY_ARRAY = main(
    "%a: tensor<0x3xf32>",
    "tensor<0x3xf32>",
    "%0 = stablehlo.add %a, %a : tensor<0x3xf32>\n return %0 : tensor<0x3xf32>",
)
# Counts to %n one by one, then adds the count to every element: as slow as one likes. The second result is a number
# that depends on every step in a way that no compiler can shorten.
COUNT = main(
    "%n: tensor<i32>, %a: tensor<4xi32>",
    "tensor<4xi32>, tensor<i32>",
    """%zero = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %zero, %k = %n, %s = %zero) : tensor<i32>, tensor<i32>, tensor<i32>
     cond {
      %c = stablehlo.compare LT, %i, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %f = stablehlo.constant dense<1664525> : tensor<i32>
      %d = stablehlo.constant dense<13> : tensor<i32>
      %t = stablehlo.multiply %s, %f : tensor<i32>
      %u = stablehlo.add %t, %j : tensor<i32>
      %v = stablehlo.shift_right_logical %u, %d : tensor<i32>
      %w = stablehlo.xor %u, %v : tensor<i32>
      stablehlo.return %j, %k, %w : tensor<i32>, tensor<i32>, tensor<i32>
    }
    %b = stablehlo.broadcast_in_dim %r#0, dims = [] : (tensor<i32>) -> tensor<4xi32>
    %0 = stablehlo.add %a, %b : tensor<4xi32>
    return %0, %r#2 : tensor<4xi32>, tensor<i32>""",
    name="count",
)
DOT = main(
    "%a: tensor<8x16xf32>, %b: tensor<16x4xf32>",
    "tensor<8x4xf32>",
    """%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>""",
    name="dot",
)
# Each of two replicas gets the same program and its own arguments; nothing is exchanged.
TWO_REPLICAS = main(
    "%a: tensor<4xf32>",
    "tensor<4xf32>",
    "%0 = stablehlo.add %a, %a : tensor<4xf32>\n return %0 : tensor<4xf32>",
    attributes="attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 1 : i32} ",
)
WRONG_TYPES = main(
    "%a: tensor<4xf32>, %b: tensor<5xf32>",
    "tensor<4xf32>",
    "%0 = stablehlo.add %a, %b : tensor<4xf32>\n return %0 : tensor<4xf32>",
)


def custom_call(target: str) -> bytes:
    """A call of the handler of that name in FFI's typed form: four floats in, four out."""
    return main(
        "%a: tensor<4xf32>",
        "tensor<4xf32>",
        f"""%0 = stablehlo.custom_call @{target}(%a) {{api_version = 4 : i32, backend_config = {{scale = 2.5 : f32}}}}
      : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>""",
    )


def element_wise(name: str) -> bytes:
    """x + x for one element type, as StableHLO names it."""
    op = "or" if name == "i1" else "add"
    return main(
        f"%a: tensor<4x{name}>",
        f"tensor<4x{name}>",
        f"%0 = stablehlo.{op} %a, %a : tensor<4x{name}>\n return %0 : tensor<4x{name}>",
    )


# ADD as a portable artifact (MLIR bytecode) of StableHLO 1.0.0, made by
# jaxlib.mlir.dialects.stablehlo.serialize_portable_artifact_str(ADD, "1.0.0").
ADD_ARTIFACT = base64.b64decode(
    """
    TUzvUg1TdGFibGVITE9fdjEuMC4wAAEZBQEFCQEDCwMHDxMXAy8ZBwERCwsTExMTExMDCQsLCwsDBxMbBwJfBQ0FDxcBAwMXAQUHFwEFNRcBBV
    sXAQcNFwEJBQMBIwMdER0TKQMRBREFAQEDAQkEUQUBUAUBBwRBAwEFA1AHAwcELQMHCwUDCQMLAAUGDQMBBQEDBwQPAwUGAwEFAQCVFQ8LCQUV
    DxEPCxFidWlsdGluAHZobG8AbW9kdWxlAGZ1bmNfdjEAYWRkX3YxAHJldHVybl92MQAtAGFkZABtYWluAHB1YmxpYwAIFQUFBwELERMRFRc=
    """
)
