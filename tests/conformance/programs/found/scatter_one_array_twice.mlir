// ferrule random program: seed 1945, graph
// error: PjrtError: the Ferrule program is damaged
//   why: a step needs more bytes than its slot has (near byte 1463)
// input 0: tensor<1x2xi64> 0x00000000000000000000000000000000
// input 1: tensor<1x2x2xf32> 0x00000000000000000000000000000000
// input 2: tensor<2x2x2xf32> 0x0000000000000000000000000000000000000000000000000000000000000000
module @program {
func.func @main(%v0: tensor<1x2xi64>, %v1: tensor<1x2x2xf32>, %v2: tensor<2x2x2xf32>) -> (tensor<2x2x2xf32>) {
%v3 = "stablehlo.constant"() {value = dense<"0x0000C03F52DFAEBF92C003C0000040C0"> : tensor<1x2x2xf32>} : () -> (tensor<1x2x2xf32>)
%v4, %v5 = "stablehlo.scatter"(%v2, %v2, %v0, %v3, %v1) ({
^bb0(%v6: tensor<f32>, %v7: tensor<f32>, %v8: tensor<f32>, %v9: tensor<f32>):

"stablehlo.return"(%v6, %v7) : (tensor<f32>, tensor<f32>) -> ()
}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 2], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false} : (tensor<2x2x2xf32>, tensor<2x2x2xf32>, tensor<1x2xi64>, tensor<1x2x2xf32>, tensor<1x2x2xf32>) -> (tensor<2x2x2xf32>, tensor<2x2x2xf32>)
return %v5 : tensor<2x2x2xf32>
}
}
