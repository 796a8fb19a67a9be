#include "dnnl_call.h"

namespace ferrule_sycl {
namespace {

// In the numbers of a post-operation's arguments its place in the chain is multiplied by this, which was doubled
// between releases: a product with one of them tells.
int PostOperationBase(DnnlObject engine) {
  static std::mutex mutex;
  static int base = 0;
  std::lock_guard lock(mutex);
  if (base) return base;
  const Dnnl& dnnl = Dnnl::Get();
  constexpr int kOlder = 1 << 14, kNewer = 1 << 15;
  DnnlTensor matrix{Dnnl::kF32, {16, 16}, {16, 1}};
  DnnlObject operations = nullptr, attributes = nullptr, made = nullptr;
  DnnlCheck(dnnl.post_ops_create(&operations), "make a chain of operations");
  DnnlOwner operations_owner(operations, dnnl.post_ops_destroy);
  DnnlOwner md = matrix.Desc();
  DnnlCheck(dnnl.post_ops_append_binary(operations, Dnnl::kAdd, md.get()), "add an operation");
  DnnlCheck(dnnl.primitive_attr_create(&attributes), "make attributes");
  DnnlOwner attributes_owner(attributes, dnnl.primitive_attr_destroy);
  DnnlCheck(dnnl.primitive_attr_set_post_ops(attributes, operations), "set operations");
  DnnlCheck(dnnl.matmul_primitive_desc_create(&made, engine, md.get(), md.get(), nullptr, md.get(), attributes),
            "describe a product with an operation after it");
  DnnlOwner owner(made, dnnl.primitive_desc_destroy);
  DnnlObject older = dnnl.primitive_desc_query_md(made, Dnnl::kArgumentMd, kOlder | Dnnl::kSecondSourceArg);
  base = older && dnnl.memory_desc_get_size(older) ? kOlder : kNewer;
  return base;
}

}  // namespace

DnnlQueue::DnnlQueue(FerruleDevice* device) {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject made = nullptr;
  DnnlCheck(dnnl.sycl_interop_engine_create(&made, &device->found->device, &device->found->context),
            "make an engine for the device");
  engine = DnnlOwner(made, dnnl.engine_destroy);
  DnnlCheck(dnnl.sycl_interop_stream_create(&made, engine.get(), &device->queue), "use the device's queue");
  stream = DnnlOwner(made, dnnl.stream_destroy);
}

DnnlQueue& DnnlQueue::Of(FerruleDevice* device) {
  std::lock_guard lock(device->mutex);
  if (!device->dnnl) device->dnnl = std::make_shared<DnnlQueue>(device);
  return *device->dnnl;
}

Epilogue::Epilogue(const FerruleCallDesc& desc, const DnnlTensor& result, size_t columns) {
  struct Known {
    const char* name;
    int algorithm;
    bool binary;
  };
  static const Known known[] = {
      {"add", Dnnl::kAdd, true},
      {"multiply", Dnnl::kMultiply, true},
      {"maximum", Dnnl::kMaximum, true},
      {"minimum", Dnnl::kMinimum, true},
      {"divide", Dnnl::kDivide, true},
      {"subtract", Dnnl::kSubtract, true},
      {"relu", Dnnl::kRelu, false},
      {"tanh", Dnnl::kTanh, false},
      {"logistic", Dnnl::kLogistic, false},
      {"exp", Dnnl::kExp, false},
      {"abs", Dnnl::kAbs, false},
      {"sqrt", Dnnl::kSqrt, false},
      {"square", Dnnl::kSquare, false},
      {"swish", Dnnl::kSwish, false},
      {"linear", Dnnl::kLinear, false},
      {"gelu_tanh", Dnnl::kGeluTanh, false},
      {"gelu_erf", Dnnl::kGeluErf, false},
  };
  ferrule_sycl::Attributes attributes(desc);
  text_ = attributes.Text("epilogue");
  size_t operand = 2;
  for (size_t at = 0; at < text_.size();) {
    size_t end = std::min(text_.find(',', at), text_.size());
    std::string name = text_.substr(at, end - at);
    at = end + 1;
    const Known* found = nullptr;
    for (const Known& k : known) {
      if (name == k.name) found = &k;
    }
    if (!found) Refuse("the epilogue has an unknown operation '" + name + "'");
    Item item{found->algorithm, found->binary, 0, 0};
    if (name == "swish") item.alpha = 1;
    if (name == "linear") {
      item.alpha = static_cast<float>(attributes.Number("alpha", 1));
      item.beta = static_cast<float>(attributes.Number("beta", 0));
    }
    if (found->binary) {
      if (operand >= desc.num_operands) Refuse("the epilogue needs more operands");
      const FerruleShape& shape = desc.operands[operand];
      int64_t elements = 1, whole = 1;
      for (int32_t d = 0; d < shape.rank; ++d) elements *= shape.dims[d];
      for (int64_t d : result.dims) whole *= d;
      DnnlTensor tensor{DnnlType(shape.dtype), result.dims, result.strides};
      if (elements != whole) {
        tensor.dims.assign(result.dims.size(), 1);
        tensor.strides.assign(result.dims.size(), 1);
        if (elements == result.dims[columns]) {
          tensor.dims[columns] = elements;
        } else if (elements != 1) {
          Refuse("operand " + std::to_string(operand) + " of the epilogue has " + std::to_string(elements) +
                 " elements: neither those of the result, nor one for each column, nor one");
        }
      }
      operands_.push_back({operand++, static_cast<int>(items_.size()), std::move(tensor)});
    }
    items_.push_back(item);
  }
  if (operand != desc.num_operands) Refuse("there are operands that the epilogue does not use");
}

DnnlOwner Epilogue::Attributes() const {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject attributes = nullptr, operations = nullptr;
  DnnlCheck(dnnl.primitive_attr_create(&attributes), "make attributes");
  DnnlOwner owner(attributes, dnnl.primitive_attr_destroy);
  // The memory comes from the caller: a primitive may be running several times at once.
  DnnlCheck(dnnl.primitive_attr_set_scratchpad_mode(attributes, Dnnl::kUserScratchpad), "let the caller give memory");
  if (items_.empty()) return owner;
  DnnlCheck(dnnl.post_ops_create(&operations), "make a chain of operations");
  DnnlOwner operations_owner(operations, dnnl.post_ops_destroy);
  size_t next = 0;
  for (const Item& item : items_) {
    if (item.binary) {
      DnnlOwner md = operands_[next++].tensor.Desc();
      DnnlCheck(dnnl.post_ops_append_binary(operations, item.algorithm, md.get()), "add an operation");
    } else {
      DnnlCheck(dnnl.post_ops_append_eltwise(operations, item.algorithm, item.alpha, item.beta), "add an operation");
    }
  }
  DnnlCheck(dnnl.primitive_attr_set_post_ops(attributes, operations), "set operations");
  return owner;
}

DnnlCall::Place DnnlCall::Reserve(size_t bytes) {
  constexpr size_t kAlignment = 64;
  size_t at = static_cast<size_t>(scratch_bytes);
  scratch_bytes = static_cast<int64_t>((at + bytes + kAlignment - 1) / kAlignment * kAlignment);
  return {Place::kScratch, at};
}

DnnlOwner DnnlCall::Clone(DnnlObject desc) const {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject copy = nullptr;
  DnnlCheck(dnnl.memory_desc_clone(&copy, desc), "copy a tensor's description");
  return {copy, dnnl.memory_desc_destroy};
}

size_t DnnlCall::AddStep(DnnlObject desc, std::vector<Binding> bindings, std::vector<size_t> after) {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject primitive = nullptr;
  DnnlCheck(dnnl.primitive_create(&primitive, desc), "make the primitive");
  Step step{DnnlOwner(primitive, dnnl.primitive_destroy), std::move(bindings), std::move(after)};
  DnnlObject scratchpad = dnnl.primitive_desc_query_md(desc, Dnnl::kScratchpadMd, 0);
  if (size_t bytes = scratchpad ? dnnl.memory_desc_get_size(scratchpad) : 0) {
    step.bindings.push_back({Dnnl::kScratchpadArg, Clone(scratchpad), Reserve(bytes), nullptr, {}});
  }
  steps_.push_back(std::move(step));
  return steps_.size() - 1;
}

size_t DnnlCall::AddReorder(DnnlObject from, Place from_place, DnnlObject to, Place to_place,
                            std::vector<size_t> after) {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject desc = nullptr, attributes = nullptr, engine = queue_.engine.get();
  DnnlCheck(dnnl.primitive_attr_create(&attributes), "make attributes");
  DnnlOwner attributes_owner(attributes, dnnl.primitive_attr_destroy);
  DnnlCheck(dnnl.primitive_attr_set_scratchpad_mode(attributes, Dnnl::kUserScratchpad), "let the caller give memory");
  DnnlCheck(dnnl.reorder_primitive_desc_create(&desc, from, engine, to, engine, attributes), "describe a reorder");
  DnnlOwner owner(desc, dnnl.primitive_desc_destroy);
  std::vector<Binding> bindings;
  bindings.push_back({Dnnl::kSourceArg, Clone(from), from_place, nullptr, {}});
  bindings.push_back({Dnnl::kDestinationArg, Clone(to), to_place, nullptr, {}});
  return AddStep(desc, std::move(bindings), std::move(after));
}

void DnnlCall::Add(DnnlOwner desc, const std::vector<Side>& sides, const Epilogue& epilogue) {
  const Dnnl& dnnl = Dnnl::Get();
  struct Back {
    DnnlObject from;
    Place from_place;
    DnnlOwner to;
    Place to_place;
  };
  std::vector<Binding> bindings;
  std::vector<size_t> before;
  std::vector<Back> back;
  for (const Side& side : sides) {
    Place place{side.result ? Place::kResult : Place::kOperand, side.index};
    DnnlOwner outside = side.tensor.Desc();
    DnnlObject inside = dnnl.primitive_desc_query_md(desc.get(), side.query, 0);
    if (!inside) throw Error{kInternal, "oneDNN does not say which layout its primitive takes"};
    if (!dnnl.memory_desc_equal(inside, outside.get())) {
      Place held = Reserve(dnnl.memory_desc_get_size(inside));
      if (side.result) {
        back.push_back({inside, held, std::move(outside), place});
      } else {
        before.push_back(AddReorder(outside.get(), place, inside, held, {}));
      }
      place = held;
    }
    bindings.push_back({side.argument, Clone(inside), place, nullptr, {}});
  }
  for (const Epilogue::Operand& operand : epilogue.operands()) {
    int argument = PostOperationBase(queue_.engine.get()) * (operand.place + 1) | Dnnl::kSecondSourceArg;
    bindings.push_back({argument, operand.tensor.Desc(), {Place::kOperand, operand.index}, nullptr, {}});
  }
  size_t main = AddStep(desc.get(), std::move(bindings), std::move(before));
  for (Back& b : back) AddReorder(b.from, b.from_place, b.to.get(), b.to_place, {main});
  if (DebugLevel() >= 3) {
    Say(3, "oneDNN's implementation " + Implementation(desc.get()) + ", " + std::to_string(steps_.size()) + " steps");
  }
}

sycl::event DnnlCall::Run(void* const* operands, void* const* results, void* scratch,
                          const std::vector<sycl::event>& after) {
  const Dnnl& dnnl = Dnnl::Get();
  std::vector<sycl::event> done(steps_.size()), waits;
  std::vector<DnnlArgument> arguments;
  for (size_t s = 0; s < steps_.size(); ++s) {
    Step& step = steps_[s];
    arguments.clear(), waits.clear();
    for (Binding& binding : step.bindings) {
      const Place& place = binding.place;
      void* data = place.kind == Place::kOperand  ? operands[place.at]
                   : place.kind == Place::kResult ? results[place.at]
                                                  : static_cast<char*>(scratch) + place.at;
      if (data != binding.data || !binding.memory) {
        DnnlObject made = nullptr;
        DnnlCheck(dnnl.sycl_interop_memory_create(&made, binding.desc.get(), queue_.engine.get(), Dnnl::kUsm, data),
                  "use a buffer");
        binding.memory = DnnlOwner(made, dnnl.memory_destroy);
        binding.data = data;
      }
      arguments.push_back({binding.argument, binding.memory.get()});
    }
    for (size_t before : step.after) waits.push_back(done[before]);
    DnnlCheck(dnnl.sycl_interop_primitive_execute(step.primitive.get(), queue_.stream.get(),
                                                  static_cast<int>(arguments.size()), arguments.data(),
                                                  step.after.empty() ? &after : &waits, &done[s]),
              "start the primitive");
  }
  return done.back();
}

std::string Implementation(DnnlObject desc) {
  const char* name = nullptr;
  Dnnl::Get().primitive_desc_query(desc, Dnnl::kImplementation, 0, &name);
  return name ? name : "";
}

}  // namespace ferrule_sycl
