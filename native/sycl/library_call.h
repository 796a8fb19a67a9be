// Library calls: a call is prepared once for its shapes and run often. "mkl.…" are in mkl/calls.h.
//
// "dnnl.matmul"  d = a * b, for `batch` pairs of matrices.
//   operands a, b, and those of the epilogue; result d: batch x m x n, row-major
//   batch, m, n, k          integers, all at least 1
//   a_strides, b_strides    of batch, row and column, in elements: a is batch x m x k, b is batch x k x n
//   epilogue                see below; rows are dimension m, columns n
//
// "dnnl.conv"  StableHLO's convolution, with the attributes of Ferrule's own call "conv": window_strides, padding (low
//   and high of each dimension), lhs_dilation, rhs_dilation, window_reversal, feature_group_count, batch_group_count,
//   and the dimension numbers under StableHLO's names. Dense row-major operands and result. One to three spatial
//   dimensions. What it takes:
//     forward            lhs_dilation 1, batch_group_count 1, no window_reversal where the kernel is larger than 1
//     backward data      any lhs_dilation; window_strides 1, batch_group_count 1, window_reversal where the kernel is
//                        larger than 1. Who has another kernel reverses it: the `reverse` that JAX writes into the
//                        gradient of a convolution then cancels
//     backward weights   lhs_dilation 1, feature_group_count 1, no window_reversal, padding low not negative: what JAX
//                        writes for the gradient of a kernel
//   Everything else, and padding that takes away from the operand's begin, is kUnimplemented. An epilogue only forward;
//   columns are the output's features.
//
// Types: f32, bf16 and f16 with a result of the same type or f32 (converted where the processor has no good kernels for
// them); products also s8 or u8 times s8 with an s32 result. Sums are made in f32 (s32); an epilogue works in f32 and
// its result is rounded once.
//
// epilogue: names with commas, applied from left to right. One operand each, after a and b, in the same order:
//   add, multiply, maximum, minimum, divide, subtract   x op operand
// The operand has as many elements as the result (same layout), as there are columns, or one; the first of these that
// fits. None:
//   relu, tanh, logistic, exp, abs, sqrt, square, gelu_tanh, gelu_erf, swish
//   linear    x * alpha + beta, of the attributes `alpha` (1) and `beta` (0)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.h"

struct FerruleCall {
  virtual ~FerruleCall() = default;
  // Starts it after the events; the event of its end.
  virtual sycl::event Run(void* const* operands, void* const* results, void* scratch,
                          const std::vector<sycl::event>& after) = 0;

  std::string name;
  FerruleDevice* device = nullptr;
  int64_t scratch_bytes = 0;
  sycl::event last;  // waited for before the call goes
};

namespace ferrule_sycl {

int Prepare(FerruleDevice* device, const FerruleCallDesc* desc, FerruleCall** call, int64_t* scratch_bytes);
int Call(FerruleDevice* device, FerruleCall* call, void* const* operands, void* const* results, void* scratch,
         FerruleAfter after, FerruleEvent** done);
void Discard(FerruleCall* call);

std::unique_ptr<FerruleCall> PrepareMatmul(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareConv(FerruleDevice* device, const FerruleCallDesc& desc);

// The attributes of a call; throws kInvalidArgument for those that are missing or have another form.
class Attributes {
 public:
  explicit Attributes(const FerruleCallDesc& desc) : desc_(desc) {}

  std::vector<int64_t> IntList(const char* name) const;
  std::vector<int64_t> Ints(const char* name, size_t count) const;
  int64_t Int(const char* name) const { return Ints(name, 1)[0]; }
  int64_t Int(const char* name, int64_t otherwise) const { return Find(name) ? Int(name) : otherwise; }
  double Number(const char* name, double otherwise) const;
  std::string Text(const char* name) const;  // empty when there is none

 private:
  const FerruleAttribute* Find(const char* name) const;

  const FerruleCallDesc& desc_;
};

[[noreturn]] void Refuse(const std::string& why);     // kInvalidArgument
[[noreturn]] void CannotDo(const std::string& what);  // kUnimplemented

}  // namespace ferrule_sycl
