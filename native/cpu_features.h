// What this machine's processor can do, in LLVM's feature names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ferrule {

// The names in `features` (comma separated, e.g. "avx2,fma") that this processor or its operating system lacks, or
// that this version of Ferrule does not know.
std::vector<std::string> MissingCpuFeatures(std::string_view features);

// The instruction sets that hand-written loops are compiled for. FERRULE_ISA=baseline or avx2 asks for a lesser one.
enum class Isa { kBaseline, kAvx2, kAvx512 };
Isa ChosenIsa();

// Whether loops run with AVX-512 on a processor of Intel, for choices that were measured to differ from AMD's.
bool IsIntelWithAvx512();

}  // namespace ferrule
