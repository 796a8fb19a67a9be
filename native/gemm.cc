// Library call "gemm": D[batch][m][n] = sum over k of A[batch][m][k] * B[batch][k][n], and what follows elementwise.
#include <string>

#include "attributes.h"
#include "calls.h"
#include "epilogue.h"
#include "gemm_blocked.h"
#include "gemm_call.h"
#include "gemm_library.h"
#include "gemm_made.h"
#include "gemm_pieces.h"
#include "gemm_sparse.h"
#include "gemm_tiles.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {

GemmShape GemmShapeOf(const CallDesc& call, const Shape& product, Attributes* attributes) {
  GemmShape shape;
  shape.batch = attributes->Int("batch");
  shape.m = attributes->Int("m");
  shape.n = attributes->Int("n");
  shape.k = attributes->Int("k");
  std::vector<int64_t> a = attributes->Ints("a_strides", 3), b = attributes->Ints("b_strides", 3);
  if (!attributes->status().ok()) return shape;
  shape.a_batch = a[0], shape.a_row = a[1], shape.a_col = a[2];
  shape.b_batch = b[0], shape.b_row = b[1], shape.b_col = b[2];
  shape.d_batch = shape.m * shape.n, shape.d_row = shape.n;
  shape.a_type = ElementOf(call.operands[0]);
  shape.b_type = ElementOf(call.operands[1]);
  shape.d_type = ElementOf(product);
  if (shape.batch < 0 || shape.m < 0 || shape.n < 0 || shape.k < 0 ||
      product.elements() != shape.batch * shape.m * shape.n) {
    attributes->Fail("the result's size is not batch * m * n");
  }
  return shape;
}

namespace {

class Gemm : public Prepared {
 public:
  Gemm(const GemmShape& shape, Accumulator accumulator, const EpilogueCall& epilogue, const CallDesc& call, bool packed,
       const MadeRightCall& made)
      : shape_(shape), accumulator_(accumulator), epilogue_(epilogue), packed_(packed), made_(made) {
    if (packed || call.sources.empty() || call.sources[1].kind == OperandSource::kComputed) return;
    if (!TakesPacked(shape)) return;
    source_ = call.sources[1];
    for (int64_t part : {shape.k, shape.n, shape.b_row, shape.b_col, static_cast<int64_t>(shape.a_type),
                         static_cast<int64_t>(shape.b_type)}) {
      key_ += " " + std::to_string(part);
    }
    key_ = "gemm " + std::string(ChosenKernels().isa) + key_;
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const EpilogueRun run(epilogue_, operands, results);
    GemmExtras extras;
    extras.epilogue = run.get();
    Ref<Storage> packed = key_.empty() ? nullptr : Packed(operands[1], context);
    if (packed) extras.packed = packed->data();
    if (packed_) extras.packed = operands[1];
    const MadeRight made = made_.In(operands);
    if (made_) extras.made = &made;
    BlockedGemm(shape_, accumulator_, operands[0], operands[1], results[epilogue_.home()], context.pool, extras);
    return Status();
  }

 private:
  // The right side in panels, where it is the same as in an earlier run (packed.h).
  Ref<Storage> Packed(const void* b, ExecContext& context) const {
    PackedForms* forms = context.forms ? context.forms(context.forms_self, source_) : nullptr;
    if (!forms) return nullptr;
    return forms->Get(key_, PackedBytes(shape_), [&](void* to) { PackRight(shape_, b, to, context.pool); });
  }

  OperandSource source_;
  std::string key_;  // of the packed form of the right side; empty when there is none
  GemmShape shape_;
  Accumulator accumulator_;
  EpilogueCall epilogue_;
  bool packed_;  // the right side comes from gemm.pack
  MadeRightCall made_;
};

// Whether B lies row by row, or its transpose does.
bool RightInRows(const GemmShape& s) { return s.b_col == 1 && s.b_row == s.n; }
bool RightInColumns(const GemmShape& s) { return s.b_row == 1 && s.b_col == s.k; }

Result<std::unique_ptr<Prepared>> PrepareGemm(const CallDesc& whole) {
  CallDesc call = whole;
  Result<MadeRightCall> made = MadeRightCall::Of(&call);
  FERRULE_RETURN_IF_ERROR(made.status());
  Attributes attributes(call);
  EpilogueCall epilogue(call, &attributes);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const GemmShape shape = GemmShapeOf(call, call.results[epilogue.home()], &attributes);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  Result<Accumulator> accumulator = AccumulatorFor(shape.a_type, shape.b_type, shape.d_type);
  FERRULE_RETURN_IF_ERROR(accumulator.status());
  const bool packed = attributes.Bool("packed", false);
  if (packed && (!FitsPacked(shape) || shape.m < 2 || shape.m > shape.n || shape.a_type != Element::kF32 ||
                 shape.d_type != Element::kF32)) {
    attributes.Fail("a right side in panels does not fit");
    return attributes.status();
  }
  if (*made && (packed || shape.batch != 1 || *accumulator != Accumulator::kF32 ||
                !(RightInRows(shape) || RightInColumns(shape)))) {
    attributes.Fail("a right side that is computed does not fit");
    return attributes.status();
  }
  const OperandSource right = call.sources.empty() ? OperandSource{} : call.sources[1];
  auto own = [&] { return std::unique_ptr<Prepared>(new Gemm(shape, *accumulator, epilogue, call, packed, *made)); };
  if (packed || *made) return own();
  std::unique_ptr<Prepared> dense = TileGemm(shape, right, epilogue, own);
  if (!dense && (dense = LibraryGemm(shape, bool{epilogue}, right))) {
    if (epilogue) dense = ThenEpilogue(std::move(dense), shape.batch * shape.m, shape.n, epilogue);
    dense = GemmInPieces(std::move(dense), shape, right, epilogue);
  }
  return SparseOrNot(shape, epilogue, dense ? std::move(dense) : own());
}

// Library call "gemm.pack": the right side of products in a loop, in the panels that these read.
class PackCall : public Prepared {
 public:
  explicit PackCall(const GemmShape& shape) : shape_(shape) {}
  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    PackRight(shape_, operands[0], results[0], context.pool);
    return Status();
  }

 private:
  GemmShape shape_;
};

Result<std::unique_ptr<Prepared>> PreparePack(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 1);
  GemmShape shape;
  shape.n = attributes.Int("n");
  shape.k = attributes.Int("k");
  std::vector<int64_t> b = attributes.Ints("b_strides", 3);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  shape.b_row = b[1], shape.b_col = b[2];
  shape.b_type = ElementOf(call.operands[0]);
  if (!FitsPacked(shape) || call.operands[0].elements() < shape.k * shape.n ||
      call.results[0].elements() != shape.k * shape.n || ElementOf(call.results[0]) != Element::kF32) {
    attributes.Fail("a matrix does not fit panels");
    return attributes.status();
  }
  return std::unique_ptr<Prepared>(new PackCall(shape));
}

[[maybe_unused]] const bool registered = RegisterCall("gemm", &PrepareGemm);
[[maybe_unused]] const bool pack_registered = RegisterCall("gemm.pack", &PreparePack);

}  // namespace
}  // namespace ferrule
