#include "attention_shape.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace ferrule {
namespace {

float FloatOf(int64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

// offset, row, column, then the strides of the batch. Fails where an element would lie outside of the buffer.
AttentionView MakeView(Attributes& attributes, const std::string& name, const int64_t* numbers, const Shape& shape,
                       const std::vector<int64_t>& batch, int64_t rows, int64_t columns) {
  AttentionView view;
  view.type = ElementOf(shape);
  view.offset = numbers[0], view.row = numbers[1], view.column = numbers[2];
  view.batch.assign(numbers + 3, numbers + 3 + batch.size());
  int64_t first = view.offset, last = view.offset;
  auto reach = [&](int64_t size, int64_t stride) { (stride < 0 ? first : last) += (size - 1) * stride; };
  reach(rows, view.row);
  reach(columns, view.column);
  for (size_t i = 0; i < batch.size(); ++i) reach(batch[i], view.batch[i]);
  if (first < 0 || last >= shape.elements()) attributes.Fail("the strides of `" + name + "` leave its buffer");
  return view;
}

constexpr size_t kStepNumbers = 9;  // before the strides of the batch

AttentionStep ReadStep(Attributes& attributes, const CallDesc& call, const AttentionShape& shape, const int64_t* n) {
  AttentionStep step;
  step.kind = static_cast<AttentionStep::Kind>(n[0]);
  step.value = FloatOf(n[1]);
  step.operand = n[2];
  step.drop = n[3] != 0;
  step.low = n[4], step.high = n[5];
  bool reads = step.kind == AttentionStep::kAdd || step.kind == AttentionStep::kChoose;
  if (n[0] < AttentionStep::kScale || n[0] > AttentionStep::kTanh) attributes.Fail("an unknown step");
  if (!reads) return step;
  if (step.operand < 3 || step.operand >= static_cast<int64_t>(call.operands.size())) {
    attributes.Fail("a step reads an operand that is not there");
    return step;
  }
  const Shape& operand = call.operands[step.operand];
  step.view = MakeView(attributes, "steps", n + 6, operand, shape.batch, shape.rows, shape.keys);
  bool mask = step.kind == AttentionStep::kChoose;
  if (mask != (step.view.type == Element::kPred)) attributes.Fail("masks are booleans, what is added is not");
  return step;
}

}  // namespace

const char* AttentionShape::At(const void* base, const AttentionView& view, int64_t member) const {
  int64_t offset = view.offset;
  for (size_t i = batch.size(); i-- > 0; member /= batch[i]) offset += member % batch[i] * view.batch[i];
  return static_cast<const char*>(base) + offset * SizeOf(view.type);
}

bool AttentionShape::Negligible(const float* maxima, int64_t rows) const {
  if (outside == -std::numeric_limits<float>::infinity()) return true;
  for (int64_t r = 0; r < rows; ++r) {
    if (!(outside - maxima[r] < -90.0f)) return false;
  }
  return true;
}

float ReadFloat(Attributes& attributes, const char* name) { return FloatOf(attributes.Int(name)); }

AttentionView ReadAttentionView(Attributes& attributes, const char* name, const Shape& shape,
                                const std::vector<int64_t>& batch, int64_t rows, int64_t columns) {
  std::vector<int64_t> numbers = attributes.Ints(name, 3 + batch.size());
  if (!attributes.status().ok()) return {};
  AttentionView view = MakeView(attributes, name, numbers.data(), shape, batch, rows, columns);
  bool known = view.type == Element::kF32 || view.type == Element::kBF16 || view.type == Element::kF16;
  if (!known) attributes.Fail("elements of type " + NameOf(view.type) + " are not supported");
  return view;
}

Result<AttentionShape> ReadAttention(Attributes& attributes, const CallDesc& call) {
  AttentionShape shape;
  shape.batch = attributes.Ints("batch");
  shape.rows = attributes.Int("rows");
  shape.keys = attributes.Int("keys");
  shape.depth = attributes.Int("depth");
  shape.width = attributes.Int("width");
  shape.scale = ReadFloat(attributes, "scale");
  shape.narrow = attributes.Int("narrow", 0) != 0;
  shape.rounded_slopes = attributes.Int("rounded_slopes", 0) != 0;
  std::vector<int64_t> steps = attributes.Ints("steps");
  if (call.operands.size() < 3 || call.results.empty()) attributes.Fail("it takes at least three operands");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  for (int64_t size : shape.batch) shape.members *= size;
  int64_t smallest = std::min({shape.members, shape.rows, shape.keys, shape.depth, shape.width});
  size_t length = kStepNumbers + shape.batch.size();
  if (smallest < 1 || steps.size() % length != 0) attributes.Fail("a size is not positive");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  shape.q = ReadAttentionView(attributes, "q", call.operands[0], shape.batch, shape.rows, shape.depth);
  shape.k = ReadAttentionView(attributes, "k", call.operands[1], shape.batch, shape.keys, shape.depth);
  shape.v = ReadAttentionView(attributes, "v", call.operands[2], shape.batch, shape.keys, shape.width);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  for (size_t i = 0; i < steps.size(); i += length) {
    shape.steps.push_back(ReadStep(attributes, call, shape, steps.data() + i));
  }
  // What lies outside of all bands is known when nothing but masks comes after the first band.
  bool open = true;
  for (const AttentionStep& step : shape.steps) {
    bool mask = step.kind == AttentionStep::kBand || step.kind == AttentionStep::kChoose;
    if (step.kind == AttentionStep::kBand) {
      bool first = !shape.banded();
      if (first && !open) continue;
      shape.low = first ? step.low : std::max(shape.low, step.low);
      shape.high = first ? step.high : std::min(shape.high, step.high);
      shape.outside = first ? step.value : std::max(shape.outside, step.value);
      if (shape.low > shape.high) open = false;  // nothing is inside: no block is skipped
    } else if (shape.banded() && mask) {
      shape.outside = std::max(shape.outside, step.value);
    } else if (shape.banded()) {
      shape.low = 1, shape.high = 0, open = false;
    }
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  return shape;
}

}  // namespace ferrule
