// ferrule random program: seed 231, graph
// error: PjrtError: the compiler failed in stage 'fuse': AssertionError: %726: tensor<1x1x1x1xf32>
//   why: this is a bug in Ferrule
//   fix: run again with FERRULE_DUMP=<folder> and report the folder's content
// input 0: tensor<1x1x1xi32> 0x02000000
// input 1: tensor<1x1x1x1xf32> 0x00000000
module @program {
func.func @main(%v0: tensor<1x1x1xi32>, %v1: tensor<1x1x1x1xf32>) -> (tensor<1x1x1x1xf32>) {
%v2 = "stablehlo.iota"() {iota_dimension = 3 : i64} : () -> (tensor<1x1x1x1xf32>)
%v3 = "stablehlo.scatter"(%v2, %v0, %v1) ({
^bb0(%v4: tensor<f32>, %v5: tensor<f32>):

"stablehlo.return"(%v4) : (tensor<f32>) -> ()
}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 3], inserted_window_dims = [0, 3], scatter_dims_to_operand_dims = [3], index_vector_dim = 2>, indices_are_sorted = false, unique_indices = false} : (tensor<1x1x1x1xf32>, tensor<1x1x1xi32>, tensor<1x1x1x1xf32>) -> (tensor<1x1x1x1xf32>)
return %v3 : tensor<1x1x1x1xf32>
}
}
