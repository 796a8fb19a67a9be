#include "gemm_made.h"

#include "attributes.h"
#include "gemm_block.h"
#include "gemm_spread.h"

namespace ferrule {

Result<MadeRightCall> MadeRightCall::Of(CallDesc* call) {
  MadeRightCall made;
  Attributes attributes(*call);
  const CompiledFn function = attributes.Function("made");
  const int64_t count = attributes.Int("made_of", 0), operands = static_cast<int64_t>(call->operands.size());
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (!function && count == 0) return made;
  if (!function || count < 1 || count > operands - 2 || count >= static_cast<int64_t>(EpilogueCall::kMost)) {
    attributes.Fail("what the right side is made of does not fit the operands");
    return attributes.status();
  }
  made.function_ = reinterpret_cast<MadeRight::Function>(reinterpret_cast<void*>(function));
  made.count_ = static_cast<size_t>(count), made.first_ = static_cast<size_t>(operands - count);
  call->operands.resize(made.first_);
  call->operands[1].dtype = static_cast<int>(Element::kF32);
  if (!call->sources.empty()) {
    call->sources.resize(made.first_);
    call->sources[1] = {};
  }
  return made;
}

bool DotsWithMade(const GemmShape& s, const void* a, void* d, ThreadPool* pool, const GemmExtras& extras) {
  using gemm::ThreadScratch;
  constexpr int64_t kUnit = kEpilogueUnit, kDots = 4, kNear = (64 << 10) / sizeof(float), kWorth = 1 << 17;
  if (s.b_row != 1 || s.m > 2 * ChosenKernels().f32.rows || s.k == 0 || s.add) return false;
  const auto* x = static_cast<const float*>(a);
  int64_t x_row = s.a_row;
  if (s.a_type != Element::kF32 || s.a_col != 1) {
    float* copy = ThreadScratch().a.template Get<float>(s.m * s.k);
    for (int64_t i = 0; i < s.m; ++i)
      LoadElements(s.a_type, gemm::At(a, s.a_type, i * s.a_row), s.a_col, s.k, copy + i * s.k);
    x = copy, x_row = s.k;
  }
  const bool direct = s.d_type == Element::kF32;
  const int64_t step = gemm::PackedColumns(s.k, kUnit);
  const int64_t most = std::clamp<int64_t>(kNear / step / kDots * kDots, kDots, kUnit);  // rows that a cache has
  gemm::Spread(
      pool, DivideUp(s.n, kUnit), std::max<int64_t>(1, kWorth / (kUnit * s.k * s.m)), [&](int64_t begin, int64_t end) {
        gemm::Scratch& scratch = ThreadScratch();
        auto* rows = scratch.row.template Get<float>(most * step);
        for (int64_t from = begin * kUnit; from < std::min(s.n, end * kUnit); from += kUnit) {
          const int64_t n = std::min(kUnit, s.n - from), to_row = direct ? s.d_row : kUnit;
          float* to = direct ? static_cast<float*>(d) + from : scratch.d.template Get<float>(s.m * kUnit);
          for (int64_t j = 0; j < n; j += most) {
            const int64_t count = std::min(most, n - j);
            (*extras.made)(rows, step, from + j, count, 0, s.k);
            for (int64_t i = 0; i < count; i += kDots) {
              gemm::Dots(s.k, s.m, x, x_row, std::min(kDots, count - i), rows + i * step, step, to + j + i, to_row, 1);
            }
          }
          for (int64_t i = 0; !direct && i < s.m; ++i)
            StoreElements(s.d_type, static_cast<char*>(d) + (i * s.d_row + from) * SizeOf(s.d_type), 1, n,
                          to + i * kUnit);
          if (extras.epilogue) (*extras.epilogue)(0, s.m, from, n);
        }
      });
  return true;
}

}  // namespace ferrule
