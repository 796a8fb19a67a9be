// Products of matrices, see library_call.h.
#include "dnnl_call.h"

namespace ferrule_sycl {
namespace {

bool Takes(int a, int b, int d) {
  switch (a) {
    case Dnnl::kF32:
      return b == a && d == a;
    case Dnnl::kF16:
    case Dnnl::kBF16:
      return b == a && (d == a || d == Dnnl::kF32);
    case Dnnl::kS8:
    case Dnnl::kU8:
      return b == Dnnl::kS8 && d == Dnnl::kS32;
    default:
      return false;
  }
}

// Without VNNI, the instructions that oneDNN uses for 8-bit integers saturate in 16 bits: wrong results, not just
// rounded ones.
bool EightBitsAreExact(const FerruleDevice& device) {
#if defined(__x86_64__)
  return !device.found->device.is_cpu() || __builtin_cpu_supports("avx512vnni") || __builtin_cpu_supports("avxvnni");
#else
  return !device.found->device.is_cpu();
#endif
}

}  // namespace

std::unique_ptr<FerruleCall> PrepareMatmul(FerruleDevice* device, const FerruleCallDesc& desc) {
  Attributes attributes(desc);
  if (desc.num_operands < 2 || desc.num_results != 1) Refuse("a product has two operands or more, and one result");
  int64_t batch = attributes.Int("batch"), m = attributes.Int("m"), n = attributes.Int("n"), k = attributes.Int("k");
  std::vector<int64_t> as = attributes.Ints("a_strides", 3), bs = attributes.Ints("b_strides", 3);
  if (batch < 1 || m < 1 || n < 1 || k < 1) CannotDo("product of nothing: sizes must be at least 1");
  // Three dimensions only where there is a batch: the two-dimensional kernels are the better ones.
  auto tensor = [&](const FerruleShape& shape, int64_t rows, int64_t columns, const std::vector<int64_t>& strides) {
    DnnlTensor made;
    made.type = DnnlType(shape.dtype);
    if (batch > 1) made.Add(batch, strides[0]);
    made.Add(rows, strides[1]);
    made.Add(columns, strides[2]);
    // The stride of a dimension of size 1 means nothing, but oneDNN chooses kernels by it.
    for (size_t i = made.dims.size(); i-- > 0;) {
      bool last = i + 1 == made.dims.size();
      if (made.dims[i] == 1) made.strides[i] = last ? 1 : made.dims[i + 1] * made.strides[i + 1];
    }
    return made;
  };
  DnnlTensor a = tensor(desc.operands[0], m, k, as), b = tensor(desc.operands[1], k, n, bs);
  DnnlTensor d = tensor(desc.results[0], m, n, {m * n, n, 1});
  if (!Takes(a.type, b.type, d.type)) CannotDo("product of these element types");
  auto call = std::make_unique<DnnlCall>(device);
  Epilogue epilogue(desc, d, d.dims.size() - 1);
  const Dnnl& dnnl = Dnnl::Get();
  DnnlOwner options = epilogue.Attributes();
  auto describe = [&](bool widened) {
    auto desc_of = [&](const DnnlTensor& t) {
      return widened ? DnnlTensor{Dnnl::kF32, t.dims, RowMajor(t.dims)}.Desc() : t.Desc();
    };
    DnnlOwner a_md = desc_of(a), b_md = desc_of(b), d_md = desc_of(d);
    DnnlObject made = nullptr;
    DnnlCheck(dnnl.matmul_primitive_desc_create(&made, DnnlQueue::Of(device).engine.get(), a_md.get(), b_md.get(),
                                                nullptr, d_md.get(), options.get()),
              "do this product");
    return DnnlOwner(made, dnnl.primitive_desc_destroy);
  };
  Choice choice;
  choice.Try([&] { return describe(false); });
  if (IsShortFloat(a.type)) choice.Try([&] { return describe(true); });
  DnnlOwner owner = choice.Take();
  if (d.type == Dnnl::kS32 && !EightBitsAreExact(*device)) {
    while (Implementation(owner.get()).rfind("ref", 0) != 0) {
      DnnlCheck(dnnl.primitive_desc_next_impl(owner.get()), "multiply 8-bit integers exactly on this processor");
    }
  }
  call->Add(std::move(owner),
            {{a, Dnnl::kSourceArg, Dnnl::kSourceMd, false, 0},
             {b, Dnnl::kWeightsArg, Dnnl::kWeightsMd, false, 1},
             {d, Dnnl::kDestinationArg, Dnnl::kDestinationMd, true, 0}},
            epilogue);
  return call;
}

}  // namespace ferrule_sycl
