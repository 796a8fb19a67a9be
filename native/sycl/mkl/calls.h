// Library calls of oneMKL on the device's queue and memory. All matrices are dense and row-major, with any number of
// leading batch dimensions; sizes are at least 1. f32, f64, c64 and c128.
//
// "mkl.dft"  StableHLO's fft: attributes `type` ("FFT", "IFFT", "RFFT", "IRFFT") and `length` (of the last one to three
//   dimensions). An IRFFT takes the spectrum of a real signal, symmetric in the columns that stand for themselves (the
//   first, and the last of an even length): of other spectra oneMKL makes other things than StableHLO. The operand is
//   kept.
#pragma once

#include <memory>
#include <string>

#include "../library_call.h"

namespace ferrule_sycl {

std::unique_ptr<FerruleCall> PrepareDft(FerruleDevice* device, const FerruleCallDesc& desc);

enum Type : int { kF32 = 11, kF64 = 12, kC64 = 14, kC128 = 15 };  // PJRT_Buffer_Type

[[noreturn]] void MklCannotDo(const std::string& what);  // kUnimplemented

}  // namespace ferrule_sycl
