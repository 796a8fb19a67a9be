// ferrule random program: written by hand, a sibling of scatter_into_iota and scatter_one_array_twice
// input 0: tensor<2xf32> 0x0000803F00000040
// input 1: tensor<i32> 0x03000000
module @program {
func.func @main(%v0: tensor<2xf32>, %v1: tensor<i32>) -> (tensor<7xf32>, tensor<7xf32>, tensor<7xf32>) {
%v2 = "stablehlo.iota"() {iota_dimension = 0 : i64} : () -> (tensor<7xf32>)
%v3 = "stablehlo.dynamic_update_slice"(%v2, %v0, %v1) : (tensor<7xf32>, tensor<2xf32>, tensor<i32>) -> (tensor<7xf32>)
%v4 = "stablehlo.constant"() {value = dense<5.0> : tensor<7xf32>} : () -> (tensor<7xf32>)
%v5 = "stablehlo.reshape"(%v1) : (tensor<i32>) -> (tensor<1xi32>)
%v6, %v7 = "stablehlo.scatter"(%v4, %v4, %v5, %v0, %v0) ({
^bb0(%v8: tensor<f32>, %v9: tensor<f32>, %v10: tensor<f32>, %v11: tensor<f32>):
%v12 = "stablehlo.add"(%v8, %v10) : (tensor<f32>, tensor<f32>) -> (tensor<f32>)
%v13 = "stablehlo.multiply"(%v9, %v11) : (tensor<f32>, tensor<f32>) -> (tensor<f32>)
"stablehlo.return"(%v12, %v13) : (tensor<f32>, tensor<f32>) -> ()
}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 0>, indices_are_sorted = false, unique_indices = false} : (tensor<7xf32>, tensor<7xf32>, tensor<1xi32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<7xf32>, tensor<7xf32>)
return %v3, %v6, %v7 : tensor<7xf32>, tensor<7xf32>, tensor<7xf32>
}
}
