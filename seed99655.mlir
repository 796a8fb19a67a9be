// ferrule random program: seed 99655, graph
// wrong: result 0: 1 of 16 elements of float32[2, 2, 2, 2] are wrong
//   [0, 0, 0, 1]: -0.0, should be -1e-45 (meaning: -1e-45)
// agreeing with the library: xla
// input 0: tensor<2x2x2x2xf32> 0x000040C001000080F2C8E6BFF5370B40047E15BF6E8D28C09C0683BD0000807F0000803F000000C0DFE4893F106160BF59CA24C04C83393F000000BF000020C0
// input 1: tensor<2x2x2x2xf32> 0x000000C01930BDBFD70898BFBCD8D3BF4CBD17400000C0BFE23462BEEBEE28C0FA3E5DBE5BC52DBF000020400000C07FC56FF9BF119526C00F7932BF00000000
module @program {
func.func @main(%v0: tensor<2x2x2x2xf32>, %v1: tensor<2x2x2x2xf32>) -> (tensor<2x2x2x2xf32>) {
%v2 = "stablehlo.maximum"(%v0, %v1) : (tensor<2x2x2x2xf32>, tensor<2x2x2x2xf32>) -> (tensor<2x2x2x2xf32>)
return %v2 : tensor<2x2x2x2xf32>
}
}
