// The own matrix product: any element types, any strides, blocked for the caches and spread over the thread pool.
#pragma once

#include <cstdint>
#include <type_traits>

#include "element.h"
#include "gemm_tables.h"
#include "status.h"

namespace ferrule {

class ThreadPool;
class MadeRight;
struct Epilogue;

// D[batch][m][n] = sum over k of A[batch][m][k] * B[batch][k][n]. Strides count elements.
struct GemmShape {
  Element a_type, b_type, d_type;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t a_batch = 0, a_row = 0, a_col = 1;
  int64_t b_batch = 0, b_row = 0, b_col = 1;
  int64_t d_batch = 0, d_row = 0;  // columns of D are adjacent
  bool add = false;                // D += A * B; only where D has the type that sums are kept in
};

// The type that sums are kept in. Integers wrap in the unsigned type of the result's width.
enum class Accumulator { kF32, kF64, kU32, kU64, kC64, kC128 };
Result<Accumulator> AccumulatorFor(Element a, Element b, Element d);

// The innermost loops for this CPU (FERRULE_ISA=baseline or avx2 narrows the choice, for tests and comparisons).
const GemmKernels& ChosenKernels();

// Those for products of bytes; null where the processor has no instruction for them.
const GroupKernels* ChosenQuads();
// Whether a product's sums are formed by them.
bool TakesQuads(const GemmShape& shape);

template <class T>
const MicroKernels<T>& FloatKernels() {
  if constexpr (std::is_same_v<T, float>) return ChosenKernels().f32;
  if constexpr (std::is_same_v<T, double>) return ChosenKernels().f64;
}

// Whether a product has few rows and a large right side of bf16. It is bounded by memory, and the own loops read that
// side once, where it lies (gemm_vectors.h).
bool ReadsBf16Once(const GemmShape& shape);

// What a product may have besides its operands.
struct GemmExtras {
  const Epilogue* epilogue = nullptr;  // runs once on each block, on the thread that has finished it; D then is dense
  const void* packed = nullptr;        // B as PackRight wrote it
  const MadeRight* made = nullptr;     // computes B, which is nowhere then; sums are f32
};

// With a null pool everything runs on the calling thread; a run inside a pool's body does so too.
void BlockedGemm(const GemmShape& shape, Accumulator accumulator, const void* a, const void* b, void* d,
                 ThreadPool* pool, const GemmExtras& extras = {});

// B in the panels that the loops read, to be kept where B is the same in later runs, for products that gain by it. The
// result has the same bits either way.
bool TakesPacked(const GemmShape& shape);
// Whether B is f32 and panels of it take no more memory than itself, as where the compiler gives them a place.
bool FitsPacked(const GemmShape& shape);
int64_t PackedBytes(const GemmShape& shape);
void PackRight(const GemmShape& shape, const void* b, void* packed, ThreadPool* pool);

}  // namespace ferrule
