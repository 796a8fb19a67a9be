#include "gemm_library.h"

#include <algorithm>
#include <climits>
#include <complex>
#include <cstdlib>
#include <string>
#include <vector>

#include "blas.h"
#include "cpu_features.h"
#include "onednn.h"
#include "packed.h"
#include "program.h"
#include "thread_pool.h"
#include "tile_registers.h"

namespace ferrule {
namespace {

// How BLAS reads a row-major matrix: as its transpose, whose leading dimension is the row stride. `plain` when the
// columns are adjacent, else the rows must be.
struct BlasMatrix {
  bool fits = false, plain = true;
  int leading = 1;
};

BlasMatrix Describe(int64_t rows, int64_t columns, int64_t row, int64_t col) {
  BlasMatrix m;
  if (col == 1 || columns == 1) {
    int64_t leading = rows == 1 ? columns : row;
    if (leading >= columns && leading <= INT_MAX) return {true, true, static_cast<int>(leading)};
  }
  if (row == 1 || rows == 1) {
    int64_t leading = columns == 1 ? rows : col;
    if (leading >= rows && leading <= INT_MAX) return {true, false, static_cast<int>(leading)};
  }
  return m;
}

template <class T>
class BlasCall : public Prepared {
 public:
  BlasCall(const GemmShape& shape, GemmRoutine<T> gemm, BlasMatrix a, BlasMatrix b)
      : s_(shape), gemm_(gemm), a_(a), b_(b) {}

  Status Run(void* const* operands, void* const* results, ExecContext&) const override {
    // D' = B' A' in column-major terms.
    int m = static_cast<int>(s_.n), n = static_cast<int>(s_.m), k = static_cast<int>(s_.k);
    const T one(1), zero(0);
    OneBlasThread thread;  // only compared with, see LibraryGemm: one thread is what the comparison is about
    for (int64_t i = 0; i < s_.batch; ++i) {
      gemm_(b_.plain ? "N" : "T", a_.plain ? "N" : "T", &m, &n, &k, &one,
            static_cast<const T*>(operands[1]) + i * s_.b_batch, &b_.leading,
            static_cast<const T*>(operands[0]) + i * s_.a_batch, &a_.leading, &zero,
            static_cast<T*>(results[0]) + i * s_.d_batch, &m);
    }
    return Status();
  }

 private:
  GemmShape s_;
  GemmRoutine<T> gemm_;
  BlasMatrix a_, b_;
};

template <class T>
std::unique_ptr<Prepared> MakeBlas(const GemmShape& s) {
  GemmRoutine<T> gemm = BlasGemm<T>();
  BlasMatrix a = Describe(s.m, s.k, s.a_row, s.a_col), b = Describe(s.k, s.n, s.b_row, s.b_col);
  if (!gemm || !a.fits || !b.fits || s.m > INT_MAX || s.n > INT_MAX || s.k > INT_MAX || s.d_row != s.n) return nullptr;
  return std::make_unique<BlasCall<T>>(s, gemm, a, b);
}

// oneDNN's own layout depends on the whole product and the number of threads.
std::string KeyOf(const GemmShape& s, int threads) {
  std::string key = "matmul";
  for (int64_t part : {s.m, s.n, s.k, s.a_row, s.a_col, s.b_row, s.b_col, s.d_row, static_cast<int64_t>(s.a_type),
                       static_cast<int64_t>(s.b_type), static_cast<int64_t>(s.d_type), static_cast<int64_t>(threads)}) {
    key += ' ' + std::to_string(part);
  }
  return key;
}

bool Empty(const GemmShape& s) { return s.batch == 0 || s.m == 0 || s.n == 0 || s.k == 0; }

}  // namespace

std::unique_ptr<Prepared> BlasGemmCall(const GemmShape& s) {
  if (Empty(s) || s.a_type != s.b_type || s.a_type != s.d_type) return nullptr;
  switch (s.a_type) {
    case Element::kF32:
      return MakeBlas<float>(s);
    case Element::kF64:
      return MakeBlas<double>(s);
    case Element::kC64:
      return MakeBlas<std::complex<float>>(s);
    case Element::kC128:
      return MakeBlas<std::complex<double>>(s);
    default:
      return nullptr;
  }
}

std::unique_ptr<Prepared> OneDnnGemmCall(const GemmShape& s, const OperandSource& right) {
  bool f32 = s.a_type == Element::kF32 && s.b_type == Element::kF32 && s.d_type == Element::kF32;
  bool bf16 = s.a_type == Element::kBF16 && s.b_type == Element::kBF16 &&
              (s.d_type == Element::kBF16 || s.d_type == Element::kF32);
  bool int8 =
      (s.a_type == Element::kS8 || s.a_type == Element::kU8) && s.b_type == Element::kS8 && s.d_type == Element::kS32;
  if (Empty(s) || !(f32 || bf16 || int8)) return nullptr;
  const OneDnn* dnnl = OneDnn::Get();
  if (!dnnl || (int8 && !dnnl->ExactBytes())) return nullptr;
  int threads = OneDnn::ThreadsFor(static_cast<double>(s.batch) * s.m * s.n * s.k);
  dnnl->UseThreads(threads);
  // Three dimensions only where there is a batch: the two-dimensional kernels are the better ones.
  auto dims = [&](int64_t rows, int64_t columns) {
    return s.batch == 1 ? std::vector<int64_t>{rows, columns} : std::vector<int64_t>{s.batch, rows, columns};
  };
  auto a = dims(s.m, s.k), b = dims(s.k, s.n), d = dims(s.m, s.n);
  auto layout = [&](Element type, const std::vector<int64_t>& shape, int64_t batch, int64_t row, int64_t col) {
    return StridedDesc(*dnnl, type, shape,
                       s.batch == 1 ? std::vector<int64_t>{row, col} : std::vector<int64_t>{batch, row, col});
  };
  auto a_layout = [&] { return layout(s.a_type, a, s.a_batch, s.a_row, s.a_col); };
  auto b_layout = [&] { return layout(s.b_type, b, s.b_batch, s.b_row, s.b_col); };
  auto d_layout = [&] { return layout(s.d_type, d, s.d_batch, s.d_row, 1); };
  bool kept = s.batch == 1 && right.kind != OperandSource::kComputed && PackedForms::Enabled();
  DnnlOwner a_md = a_layout(), b_md = kept ? AnyDesc(*dnnl, s.b_type, b) : b_layout(), d_md = d_layout();
  if (!a_md || !b_md || !d_md) return nullptr;
  DnnlObject desc = nullptr;
  if (dnnl->matmul_primitive_desc_create(&desc, dnnl->engine, a_md.get(), b_md.get(), nullptr, d_md.get(),
                                         dnnl->attributes) != 0) {
    return nullptr;
  }
  return DnnlCall(*dnnl, threads, DnnlOwner(desc, dnnl->primitive_desc_destroy),
                  {a_layout(), OneDnn::kSourceArg, OneDnn::kSourceMd},
                  {b_layout(), OneDnn::kWeightsArg, OneDnn::kWeightsMd},
                  {d_layout(), OneDnn::kDestinationArg, OneDnn::kDestinationMd},
                  kept ? DnnlKept{right, KeyOf(s, threads)} : DnnlKept{});
}

std::unique_ptr<Prepared> LibraryGemm(const GemmShape& s, bool finished, const OperandSource& right) {
  const char* text = std::getenv("FERRULE_GEMM");
  std::string wish = text ? text : "";
  if (wish == "own") return nullptr;
  if (wish == "blas") return BlasGemmCall(s);
  if (wish == "onednn") return OneDnnGemmCall(s, right);
  // Measured: Ferrule's own loops are faster than OpenBLAS everywhere and as fast as oneDNN for f32 on AMD's processors
  // (both within 15 %). Intel's with AVX-512 take a fifth less time in oneDNN's, once a product is large in all three
  // sizes; where there are many threads, both are level (docs/measurements.md). Batches gain as well where there are a
  // few matrices for each thread, but epilogues are better run on the own loops' blocks. For bf16 and 8-bit integers
  // oneDNN's instructions are worth 3 to 6 times, where the processor has them (TileGemm has taken what it does faster
  // on tile registers); elsewhere oneDNN has no kernels for these, and OneDnnGemmCall gives none.
  constexpr double kWorthACall = 32 * 32 * 32, kWorthTiles = 1 << 21, kLarge = 512.0 * 512 * 512,
                   kHuge = 3072.0 * 3072 * 3072;
  constexpr int64_t kLeast = 64, kManyThreads = 9, kSomeRows = 32;
  // The own loops have VNNI's instructions for bytes as well, and are faster with them: but for small products in
  // batches, of which they pack too much, and for large ones where there are tile registers.
  const double each = static_cast<double>(s.m) * s.n * s.k;
  const bool small = s.batch > 1 && each <= kWorthACall, tiles = MayUseTiles() && (s.batch == 1 || each > kWorthTiles);
  if (TakesQuads(s) && !tiles && !small) return nullptr;
  bool narrow = s.a_type == Element::kBF16 || s.d_type == Element::kS32;
  const double work = each * static_cast<double>(s.batch);
  if (s.a_type == Element::kF32 && !s.add && IsIntelWithAvx512() && std::min({s.m, s.n, s.k}) >= kLeast) {
    const int threads = ThreadPool::Global().threads();
    const bool large = s.batch == 1 && work >= (threads < kManyThreads ? kLarge : kHuge);
    const bool batch = s.batch >= 4 * threads && threads < kManyThreads && !finished;
    if (large || batch) return OneDnnGemmCall(s, right);
  }
  // But Intel's without tile registers multiply pairs of bf16 no faster than floats, which the own loops make of them;
  // few rows are read as oneDNN keeps them.
  if (s.a_type == Element::kBF16 && std::min(s.m, s.n) > kSomeRows && IsIntelWithAvx512() && !MayUseTiles()) {
    return nullptr;
  }
  return narrow && work >= kWorthACall && !ReadsBf16Once(s) ? OneDnnGemmCall(s, right) : nullptr;
}

}  // namespace ferrule
