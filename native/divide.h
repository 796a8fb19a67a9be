// Whole numbers of pieces.
#pragma once

#include <cstdint>

namespace ferrule {

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return DivideUp(a, b) * b; }

}  // namespace ferrule
