#include "part_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "attributes.h"
#include "inline_vector.h"

namespace ferrule {
namespace {

struct Part {
  int64_t operand, index, offset, limit, stride;
  bool wide = false;  // an index of 64 bits
};

class PartCall final : public Prepared {
 public:
  PartCall(std::unique_ptr<Prepared> call, std::vector<Part> parts, size_t operands)
      : call_(std::move(call)), parts_(std::move(parts)), operands_(operands) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    InlineVector<void*, 16> seen(operands_);
    std::copy_n(operands, operands_, seen.data());
    for (const Part& part : parts_) {
      int64_t at = part.offset;
      if (part.index >= 0)
        at += std::clamp<int64_t>(Index(operands[part.index], part.wide), 0, part.limit) * part.stride;
      seen.data()[part.operand] = static_cast<char*>(operands[part.operand]) + at;
    }
    return call_->Run(seen.data(), results, context);
  }

 private:
  static int64_t Index(const void* from, bool wide) {
    int32_t narrow;
    int64_t number;
    if (wide) {
      std::memcpy(&number, from, sizeof number);
    } else {
      std::memcpy(&narrow, from, sizeof narrow);
      number = narrow;
    }
    return number;
  }

  std::unique_ptr<Prepared> call_;
  std::vector<Part> parts_;
  size_t operands_;
};

// Takes the parts out of the call.
Status Read(CallDesc& call, std::vector<Part>* parts) {
  Attributes attributes(call);
  const std::vector<int64_t> numbers = attributes.Ints("parts");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto count = static_cast<int64_t>(call.operands.size());
  int64_t seen = count;  // by the call
  auto damaged = [&] {
    attributes.Fail("attribute `parts` does not fit the operands");
    return attributes.status();
  };
  for (size_t i = 0; i < numbers.size();) {
    if (numbers.size() - i < 6) return damaged();
    Part part{numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3], numbers[i + 4]};
    const int64_t rank = numbers[i + 5];
    i += 6;
    if (rank < 0 || static_cast<uint64_t>(rank) > numbers.size() - i) return damaged();
    if (part.operand < 0 || part.operand >= count || part.index < -1 || part.index >= count) return damaged();
    Shape& shape = call.operands[static_cast<size_t>(part.operand)];
    const int64_t whole = shape.elements() * SizeOf(ElementOf(shape));
    shape.dims.assign(numbers.begin() + static_cast<int64_t>(i), numbers.begin() + static_cast<int64_t>(i) + rank);
    i += static_cast<size_t>(rank);
    int64_t each = SizeOf(ElementOf(shape));
    for (int64_t size : shape.dims) {
      if (size < 0 || (size > 0 && each > whole / size)) return damaged();
      each *= size;
    }
    if (part.offset < 0 || part.limit < 0 || part.stride < 0 || each > whole || part.offset > whole - each ||
        (part.stride > 0 && part.limit > (whole - each - part.offset) / part.stride))
      return damaged();
    if (part.index >= 0) {
      const Shape& index = call.operands[static_cast<size_t>(part.index)];
      part.wide = ElementOf(index) == Element::kS64;
      if (!index.dims.empty() || (!part.wide && ElementOf(index) != Element::kS32)) return damaged();
      seen = std::min(seen, part.index);
    }
    if (!call.sources.empty()) call.sources[static_cast<size_t>(part.operand)] = {};
    parts->push_back(part);
  }
  if (std::any_of(parts->begin(), parts->end(), [&](const Part& part) { return part.operand >= seen; }))
    return damaged();
  call.operands.resize(static_cast<size_t>(seen));
  if (!call.sources.empty()) call.sources.resize(static_cast<size_t>(seen));
  call.attrs.erase("parts");
  return {};
}

}  // namespace

Result<std::unique_ptr<Prepared>> PrepareParts(const CallDesc& call, Factory factory) {
  CallDesc inner = call;
  std::vector<Part> parts;
  FERRULE_RETURN_IF_ERROR(Read(inner, &parts));
  auto prepared = factory(inner);
  FERRULE_RETURN_IF_ERROR(prepared.status());
  const size_t seen = inner.operands.size();
  return std::unique_ptr<Prepared>(new PartCall(std::move(*prepared), std::move(parts), seen));
}

CallDesc AsSeen(const CallDesc& call) {
  CallDesc inner = call;
  std::vector<Part> parts;
  return inner.attrs.count("parts") && Read(inner, &parts).ok() ? inner : call;
}

}  // namespace ferrule
