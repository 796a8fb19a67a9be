"""A program and an argument with which nothing is wrong."""

import numpy as np

ADD = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
ONE = np.ones(4, np.float32)
