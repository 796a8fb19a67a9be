// ferrule random program: seed 3830, graph
// error: the compiler failed in stage 'match': two contracted dimensions, one of them empty
// input 0: tensor<3x0xf32> 0x
// input 1: tensor<3x0x2xf32> 0x
module @program {
func.func @main(%v0: tensor<3x0xf32>, %v1: tensor<3x0x2xf32>) -> (tensor<2xf32>) {
%v2 = "stablehlo.dot_general"(%v0, %v1) {dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0, 1], rhs_contracting_dimensions = [0, 1]>} : (tensor<3x0xf32>, tensor<3x0x2xf32>) -> (tensor<2xf32>)
return %v2 : tensor<2xf32>
}
}
