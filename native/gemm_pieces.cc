#include "gemm_pieces.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

#include "aligned_scratch.h"
#include "gemm_block.h"
#include "gemm_spread.h"
#include "onednn.h"
#include "packed.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

using gemm::At;

class InPieces : public Prepared {
 public:
  InPieces(const OneDnn& dnnl, const GemmShape& shape, int64_t rows, const EpilogueCall& epilogue,
           const OperandSource& right)
      : dnnl_(dnnl),
        s_(shape),
        rows_(rows),
        pieces_(s_.batch > 1 ? s_.batch : (s_.m + rows - 1) / rows),
        epilogue_(epilogue),
        source_(right) {}

  // False when oneDNN has no such product, only its reference implementation, or would keep the right side as it is.
  bool Make() {
    dnnl_.UseThreads(1);
    DnnlOwner plain = StridedDesc(dnnl_, s_.b_type, {s_.k, s_.n}, {s_.b_row, s_.b_col});
    if (s_.batch > 1) return MakeProduct(rows_, std::move(plain), &product_);
    if (!MakeProduct(rows_, AnyDesc(dnnl_, s_.b_type, {s_.k, s_.n}), &product_)) return false;
    const int64_t rest = s_.m - (pieces_ - 1) * rows_;
    if (rest != rows_ && !MakeProduct(rest, Copy(product_.b.get()), &last_)) return false;
    if (!plain || dnnl_.memory_desc_equal(plain.get(), product_.b.get())) return false;
    DnnlObject desc = nullptr;
    if (dnnl_.reorder_primitive_desc_create(&desc, plain.get(), dnnl_.engine, product_.b.get(), dnnl_.engine,
                                            dnnl_.attributes) != 0) {
      return false;
    }
    DnnlOwner owner(desc, dnnl_.primitive_desc_destroy);
    pack_.a = std::move(plain), pack_.d = Copy(product_.b.get());
    if (!pack_.d || !Finish(desc, &pack_)) return false;
    key_ = "rows";
    for (int64_t part : {rows_, s_.n, s_.k, s_.a_row, s_.a_col, s_.b_row, s_.b_col, static_cast<int64_t>(s_.a_type),
                         static_cast<int64_t>(s_.b_type), static_cast<int64_t>(s_.d_type)}) {
      key_ += ' ' + std::to_string(part);
    }
    return true;
  }
  void SetWhole(std::unique_ptr<Prepared> whole) { whole_ = std::move(whole); }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    Ref<Storage> right;  // while it is used
    if (s_.batch == 1) {
      FERRULE_RETURN_IF_ERROR(GetRight(operands[1], context, &right));
      if (!right) return whole_->Run(operands, results, context);
    }
    const EpilogueRun run(epilogue_, operands, results);
    void* result = results[epilogue_.home()];
    const int64_t a_step = right ? rows_ * s_.a_row : s_.a_batch, d_step = right ? rows_ * s_.d_row : s_.d_batch;
    std::atomic<int> failed{0};
    gemm::Spread(context.pool, pieces_, 1, [&](int64_t begin, int64_t end) {
      dnnl_.UseThreads(1);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i * rows_, rows = right ? std::min(rows_, s_.m - row) : rows_;
        const int status = Execute(rows == rows_ ? product_ : last_, At(operands[0], s_.a_type, i * a_step),
                                   right ? right->data() : At(operands[1], s_.b_type, i * s_.b_batch),
                                   At(result, s_.d_type, i * d_step));
        if (status != 0) failed = status;
        if (run.get()) (*run.get())(row, rows, 0, s_.n);
      }
    });
    return failed == 0 ? Status() : Failed(failed);
  }

 private:
  // A primitive with the layouts of what it reads and writes.
  struct Step {
    DnnlOwner primitive, a, b, d, scratchpad;
    int64_t scratchpad_bytes = 0;
  };

  static Status Failed(int status) { return Internal("oneDNN failed with status " + std::to_string(status)); }

  DnnlOwner Copy(DnnlObject desc) const {
    DnnlObject copy = nullptr;
    return dnnl_.memory_desc_clone(&copy, desc) == 0 ? DnnlOwner(copy, dnnl_.memory_desc_destroy) : DnnlOwner();
  }

  bool MakeProduct(int64_t rows, DnnlOwner b, Step* step) const {
    step->a = StridedDesc(dnnl_, s_.a_type, {rows, s_.k}, {s_.a_row, s_.a_col});
    step->d = StridedDesc(dnnl_, s_.d_type, {rows, s_.n}, {s_.d_row, 1});
    DnnlObject desc = nullptr;
    if (!step->a || !b || !step->d ||
        dnnl_.matmul_primitive_desc_create(&desc, dnnl_.engine, step->a.get(), b.get(), nullptr, step->d.get(),
                                           dnnl_.attributes) != 0) {
      return false;
    }
    DnnlOwner owner(desc, dnnl_.primitive_desc_destroy);
    step->b = Copy(dnnl_.primitive_desc_query_md(desc, OneDnn::kWeightsMd, 0));
    return step->b && DnnlImplementation(dnnl_, desc).rfind("ref", 0) != 0 && Finish(desc, step);
  }

  bool Finish(DnnlObject desc, Step* step) const {
    DnnlObject primitive = nullptr;
    if (dnnl_.primitive_create(&primitive, desc) != 0) return false;
    step->primitive = DnnlOwner(primitive, dnnl_.primitive_destroy);
    DnnlObject scratchpad = dnnl_.primitive_desc_query_md(desc, OneDnn::kScratchpadMd, 0);
    step->scratchpad_bytes = scratchpad ? static_cast<int64_t>(dnnl_.memory_desc_get_size(scratchpad)) : 0;
    if (step->scratchpad_bytes > 0) step->scratchpad = Copy(scratchpad);
    return step->scratchpad_bytes == 0 || step->scratchpad;
  }

  // The right side in the primitives' layout, from an earlier run or made now; null where none is kept.
  Status GetRight(const void* b, ExecContext& context, Ref<Storage>* right) const {
    PackedForms* forms = context.forms ? context.forms(context.forms_self, source_) : nullptr;
    if (!forms || (*right = forms->Find(key_))) return Status();
    *right = forms->Allocate(key_, static_cast<int64_t>(dnnl_.memory_desc_get_size(product_.b.get())));
    if (!*right) return Status();
    dnnl_.UseThreads(1);
    if (int status = Execute(pack_, b, nullptr, (*right)->data()); status != 0) return Failed(status);
    forms->Keep(key_, *right);
    return Status();
  }

  // On the calling thread. Without `b`: a reorder.
  int Execute(const Step& step, const void* a, const void* b, const void* d) const {
    static thread_local AlignedScratch scratch;
    void* scratchpad = step.scratchpad ? scratch.Get<char>(step.scratchpad_bytes) : nullptr;
    DnnlObject stream = nullptr;
    if (int status = dnnl_.stream_create(&stream, dnnl_.engine, 1); status != 0) return status;
    DnnlOwner owner(stream, dnnl_.stream_destroy), memories[4];
    DnnlArgument list[4];
    int count = 0;
    struct Argument {
      int id;
      DnnlObject layout;
      const void* data;
    };
    for (const Argument& argument : {Argument{OneDnn::kSourceArg, step.a.get(), a},
                                     {OneDnn::kWeightsArg, step.b.get(), b},
                                     {OneDnn::kDestinationArg, step.d.get(), d},
                                     {OneDnn::kScratchpadArg, step.scratchpad.get(), scratchpad}}) {
      if (!argument.data) continue;
      DnnlObject memory = nullptr;
      int status = dnnl_.memory_create(&memory, argument.layout, dnnl_.engine, const_cast<void*>(argument.data));
      if (status != 0) return status;
      memories[count] = DnnlOwner(memory, dnnl_.memory_destroy);
      list[count++] = {argument.id, memory};
    }
    return dnnl_.primitive_execute(step.primitive.get(), stream, count, list);
  }

  const OneDnn& dnnl_;
  const GemmShape s_;
  const int64_t rows_, pieces_;  // of a piece, of which the last one may have fewer; whole matrices of a batch
  const EpilogueCall epilogue_;
  const OperandSource source_;
  Step product_, last_, pack_;  // of the last piece where it has fewer rows; of the right side, from `a` to `d`
  std::string key_;             // of the right side's form
  std::unique_ptr<Prepared> whole_;
};

}  // namespace

std::unique_ptr<Prepared> GemmInPieces(std::unique_ptr<Prepared> whole, const GemmShape& s, const OperandSource& right,
                                       const EpilogueCall& epilogue) {
  const bool narrow = s.a_type == Element::kBF16 || s.d_type == Element::kS32;
  const double work = static_cast<double>(s.m) * s.n * s.k;
  const int64_t threads = OneDnn::ThreadsFor(work * s.batch);
  if (!narrow || s.add || threads == 1) return whole;
  const OneDnn* dnnl = OneDnn::Get();
  int64_t rows = s.m;
  if (s.batch > 1) {
    constexpr double kWorthACall = 64 * 64 * 64;
    if (s.batch < threads || work < kWorthACall) return whole;
  } else {
    // Every piece reads all of the right side, which takes rows to pay for it. oneDNN's own cuts go through that side,
    // too.
    constexpr int64_t kUnit = 16, kRightOfRow = 128 << 10, kMany = 5;
    const int64_t least = threads >= kMany ? kUnit / 2 : dnnl->HasTiles() ? 2 * kUnit : kUnit;
    const bool kept = right.kind != OperandSource::kComputed && PackedForms::Enabled();
    const int64_t units = (s.m + kUnit - 1) / kUnit;
    rows = std::min(s.m, (units + threads - 1) / threads * kUnit);
    if (!kept || s.m < least * threads || s.k * s.n * SizeOf(s.b_type) > kRightOfRow * rows) return whole;
  }
  auto call = std::make_unique<InPieces>(*dnnl, s, rows, epilogue, right);
  if (!call->Make()) return whole;
  const char* level = std::getenv("FERRULE_DEBUG");
  if (level && std::atoi(level) >= 3) {
    std::fprintf(stderr, "ferrule: oneDNN product, %lld rows at a time\n", static_cast<long long>(rows));
  }
  call->SetWhole(std::move(whole));
  return call;
}

}  // namespace ferrule
