// ferrule random program: seed 1345, graph
// wrong: result 0: 1 of 3 elements of float32[1, 3] are wrong
//   [0, 2]: -0.0, should be 0.0 (meaning: 0.0)
// agreeing with the library: nobody
// input 0: tensor<1x3xf32> 0x000000000000807F00000080
// input 1: tensor<1x3xf32> 0x000000000000000000000000
module @program {
func.func @main(%v0: tensor<1x3xf32>, %v1: tensor<1x3xf32>) -> (tensor<1x3xf32>) {
%v2 = "stablehlo.maximum"(%v1, %v0) : (tensor<1x3xf32>, tensor<1x3xf32>) -> (tensor<1x3xf32>)
return %v2 : tensor<1x3xf32>
}
}
