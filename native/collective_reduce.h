// The arithmetic of collectives that reduce: the elements of several devices, folded in the order of the group.
#pragma once

#include <cstdint>
#include <string>

#include "element.h"

namespace ferrule {

// folds `count` elements: to[i] = sources[0][i] ∘ sources[1][i] ∘ …, always from the left, so that the result does not
// depend on who computes it. 16-bit floats are folded in f32 and rounded once.
using Fold = void (*)(const char* const* sources, int64_t members, int64_t count, char* to);

// StableHLO's add, multiply, minimum, maximum, and, or, xor; null for what is not reduced natively.
Fold FindFold(const std::string& reduction, Element type);

// The most elements that one call of a Fold may be given.
constexpr int64_t kFoldElements = 1024;

}  // namespace ferrule
