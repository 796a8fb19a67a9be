// Library call "gemm": D[batch][m][n] = sum over k of A[batch][m][k] * B[batch][k][n].
#include <string>

#include "attributes.h"
#include "calls.h"
#include "gemm_blocked.h"
#include "gemm_library.h"
#include "program.h"

namespace ferrule {
namespace {

class Gemm : public Prepared {
 public:
  Gemm(const GemmShape& shape, Accumulator accumulator) : shape_(shape), accumulator_(accumulator) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    BlockedGemm(shape_, accumulator_, operands[0], operands[1], results[0], context.pool);
    return Status();
  }

 private:
  GemmShape shape_;
  Accumulator accumulator_;
};

Result<std::unique_ptr<Prepared>> PrepareGemm(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(2, 1);
  GemmShape shape;
  shape.batch = attributes.Int("batch");
  shape.m = attributes.Int("m");
  shape.n = attributes.Int("n");
  shape.k = attributes.Int("k");
  std::vector<int64_t> a = attributes.Ints("a_strides", 3), b = attributes.Ints("b_strides", 3);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  shape.a_batch = a[0], shape.a_row = a[1], shape.a_col = a[2];
  shape.b_batch = b[0], shape.b_row = b[1], shape.b_col = b[2];
  shape.d_batch = shape.m * shape.n, shape.d_row = shape.n;
  shape.a_type = ElementOf(call.operands[0]);
  shape.b_type = ElementOf(call.operands[1]);
  shape.d_type = ElementOf(call.results[0]);
  if (shape.batch < 0 || shape.m < 0 || shape.n < 0 || shape.k < 0 ||
      call.results[0].elements() != shape.batch * shape.m * shape.n) {
    attributes.Fail("the result's size is not batch * m * n");
    return attributes.status();
  }
  Result<Accumulator> accumulator = AccumulatorFor(shape.a_type, shape.b_type, shape.d_type);
  FERRULE_RETURN_IF_ERROR(accumulator.status());
  if (auto library = LibraryGemm(shape)) return library;
  return std::unique_ptr<Prepared>(new Gemm(shape, *accumulator));
}

[[maybe_unused]] const bool registered = RegisterCall("gemm", &PrepareGemm);

}  // namespace
}  // namespace ferrule
