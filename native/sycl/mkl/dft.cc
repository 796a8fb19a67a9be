// Fourier transforms.
#include <complex>
#include <oneapi/mkl/dft.hpp>

#include "calls.h"

namespace ferrule_sycl {
namespace {

namespace dft = oneapi::mkl::dft;

// A run uses the descriptor's own workspace, so each waits for the one before it.
template <class Real, dft::domain kDomain>
class Dft : public FerruleCall {
  static constexpr auto kPrecision = std::is_same_v<Real, double> ? dft::precision::DOUBLE : dft::precision::SINGLE;
  using Complex = std::complex<Real>;
  using Signal = std::conditional_t<kDomain == dft::domain::REAL, Real, Complex>;

 public:
  // `lengths` are those of the signal, the real one of real kinds.
  Dft(FerruleDevice* device, bool forward, int64_t batch, const std::vector<int64_t>& lengths)
      : forward_(forward), descriptor_(lengths) {
    std::vector<int64_t> spectrum = lengths;
    if (kDomain == dft::domain::REAL) spectrum.back() = lengths.back() / 2 + 1;
    using P = dft::config_param;
    descriptor_.set_value(P::PLACEMENT, dft::config_value::NOT_INPLACE);
    descriptor_.set_value(P::DESTROY_INPUT, dft::config_value::AVOID);
    descriptor_.set_value(P::FWD_STRIDES, Strides(lengths));
    descriptor_.set_value(P::BWD_STRIDES, Strides(spectrum));
    descriptor_.set_value(P::NUMBER_OF_TRANSFORMS, batch);
    descriptor_.set_value(P::FWD_DISTANCE, Elements(lengths));
    descriptor_.set_value(P::BWD_DISTANCE, Elements(spectrum));
    if (!forward) descriptor_.set_value(P::BACKWARD_SCALE, static_cast<Real>(1.0 / Elements(lengths)));
    descriptor_.commit(device->queue);
  }

  sycl::event Run(void* const* operands, void* const* results, void*, const std::vector<sycl::event>& after) override {
    std::vector<sycl::event> waits = after;
    waits.push_back(last);
    if (forward_) {
      return dft::compute_forward(descriptor_, static_cast<Signal*>(operands[0]), static_cast<Complex*>(results[0]),
                                  waits);
    }
    return dft::compute_backward(descriptor_, static_cast<Complex*>(operands[0]), static_cast<Signal*>(results[0]),
                                 waits);
  }

 private:
  static int64_t Elements(const std::vector<int64_t>& lengths) {
    int64_t elements = 1;
    for (int64_t n : lengths) elements *= n;
    return elements;
  }
  // oneMKL's: the offset of the first element, then those of the dimensions.
  static std::vector<int64_t> Strides(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> strides(lengths.size() + 1, 0);
    int64_t stride = 1;
    for (size_t d = lengths.size(); d-- > 0;) {
      strides[d + 1] = stride;
      stride *= lengths[d];
    }
    return strides;
  }

  bool forward_;
  dft::descriptor<kPrecision, kDomain> descriptor_;
};

}  // namespace

std::unique_ptr<FerruleCall> PrepareDft(FerruleDevice* device, const FerruleCallDesc& desc) {
  Attributes attributes(desc);
  std::string type = attributes.Text("type");
  bool forward = type == "FFT" || type == "RFFT", real = type == "RFFT" || type == "IRFFT";
  if (!forward && type != "IFFT" && type != "IRFFT") Refuse("the transform '" + type + "' is unknown");
  std::vector<int64_t> lengths = attributes.IntList("length");
  if (lengths.empty() || lengths.size() > 3)
    MklCannotDo("transform of " + std::to_string(lengths.size()) + " dimensions");
  const FerruleShape& signal = forward ? desc.operands[0] : desc.results[0];
  const FerruleShape& spectrum = forward ? desc.results[0] : desc.operands[0];
  int64_t elements = 1, bins = 1;
  for (int64_t n : lengths) elements *= n, bins *= n;
  if (elements < 1) MklCannotDo("transform of nothing: lengths must be at least 1");
  if (real) bins = bins / lengths.back() * (lengths.back() / 2 + 1);
  if (ElementsOf(signal) == 0) MklCannotDo("transform of nothing: there must be at least one");
  int64_t batch = ElementsOf(signal) / elements;
  bool wide = spectrum.dtype == kC128;
  if (batch * elements != ElementsOf(signal) || batch * bins != ElementsOf(spectrum) ||
      !(wide || spectrum.dtype == kC64) || signal.dtype != (real ? (wide ? kF64 : kF32) : spectrum.dtype)) {
    Refuse("operand and result do not fit the transform");
  }
  using D = dft::domain;
  if (real && wide) return std::make_unique<Dft<double, D::REAL>>(device, forward, batch, lengths);
  if (real) return std::make_unique<Dft<float, D::REAL>>(device, forward, batch, lengths);
  if (wide) return std::make_unique<Dft<double, D::COMPLEX>>(device, forward, batch, lengths);
  return std::make_unique<Dft<float, D::COMPLEX>>(device, forward, batch, lengths);
}

}  // namespace ferrule_sycl
