// Loading: what does not depend on the device in Init, what does in Prepare.
#include "device_program.h"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <variant>

#include "host_call.h"
#include "profile.h"

namespace ferrule {
namespace {

bool IsDriverCall(const std::string& target) { return target.starts_with("dnnl.") || target.starts_with("mkl."); }

bool IsElf(std::string_view object) {
  return object.starts_with(
      "\x7f"
      "ELF");
}

// Nothing leaves the device without a word; once per kind of call is enough.
void SayHostCall(const std::string& target, const std::string& program) {
  static std::mutex& mutex = *new std::mutex;
  static auto& said = *new std::set<std::string>;
  if (DebugLevel() < 1) return;
  std::lock_guard lock(mutex);
  if (!said.insert(target).second) return;
  std::fprintf(stderr,
               "ferrule: '%s' (first in `%s`) is not a kernel: it runs on the host, which waits for its operands\n",
               target.c_str(), program.c_str());
}

// A call's attributes in the driver's form. Integers, lists of them, numbers and texts; the rest is for host calls.
class DriverAttributes {
 public:
  explicit DriverAttributes(const Dict& dict) {
    for (const auto& [name, value] : dict) {
      FerruleAttribute& out = list_.emplace_back();
      out.name = name.c_str();
      if (auto* list = std::get_if<std::vector<int64_t>>(&value.data)) {
        out.ints = list->data(), out.num_ints = list->size();
      } else if (auto* number = std::get_if<int64_t>(&value.data)) {
        out.ints = number, out.num_ints = 1;
      } else if (auto* flag = std::get_if<bool>(&value.data)) {
        out.ints = *flag ? &kOne : &kZero, out.num_ints = 1;
      } else if (auto* real = std::get_if<double>(&value.data)) {
        out.kind = FerruleAttribute::FERRULE_FLOAT, out.number = *real;
      } else if (auto* text = std::get_if<std::string>(&value.data)) {
        out.kind = FerruleAttribute::FERRULE_STRING, out.text = text->c_str();
      } else {
        list_.pop_back();
      }
    }
  }
  const std::vector<FerruleAttribute>& list() const { return list_; }

 private:
  static constexpr int64_t kZero = 0, kOne = 1;
  std::vector<FerruleAttribute> list_;
};

std::vector<FerruleShape> DriverShapes(const std::vector<Shape>& shapes) {
  std::vector<FerruleShape> list;
  for (const Shape& shape : shapes) {
    list.push_back({shape.dtype, static_cast<int32_t>(shape.dims.size()), shape.dims.data()});
  }
  return list;
}

std::string StepName(const StepData& step, const ProgramData& data) {
  if (auto* launch = std::get_if<LaunchData>(&step)) return data.functions[launch->function].symbol;
  if (auto* call = std::get_if<CallData>(&step)) return call->desc.target;
  if (std::holds_alternative<CopyData>(step)) return "copy";
  return std::holds_alternative<WhileData>(step) ? "while" : "case";
}

}  // namespace

DeviceProgram::Code::~Code() {
  for (auto& [call, scratch] : calls) {
    if (call != nullptr) accelerator->Discard(call);
  }
  for (FerruleModule* module : modules) accelerator->Unload(module);
}

Status DeviceProgram::Init() {
  ProgramReader reader(bytes);
  FERRULE_RETURN_IF_ERROR(reader.ReadHead(this, &data_));
  std::vector<std::string_view> host_objects;
  std::vector<size_t> host_index(data_.objects.size());
  for (size_t i = 0; i < data_.objects.size(); ++i) {
    code_bytes += static_cast<int64_t>(data_.objects[i].size());
    if (!IsElf(data_.objects[i])) continue;
    host_index[i] = host_objects.size();
    host_objects.push_back(data_.objects[i]);
  }
  auto image = CodeImage::Link(host_objects);
  if (!image.ok()) return image.status();
  image_ = std::move(image.value());
  std::vector<CompiledFn> functions;
  for (const FunctionData& function : data_.functions) {
    if (!IsElf(data_.objects[function.object])) {
      functions.push_back(nullptr);
      continue;
    }
    void* address = image_->Find(host_index[function.object], function.symbol);
    if (address == nullptr) {
      return InvalidArgument("the Ferrule program is damaged\n  why: object " + std::to_string(function.object) +
                             " does not define the function '" + function.symbol + "'");
    }
    functions.push_back(reinterpret_cast<CompiledFn>(address));
  }
  FERRULE_RETURN_IF_ERROR(reader.ReadBlocks(functions, this, &data_));
  hazards_ = std::make_unique<Hazards>(*this, data_);
  uint32_t calls = 0;
  blocks_.resize(data_.blocks.size());
  for (size_t b = 0; b < data_.blocks.size(); ++b) {
    std::vector<std::vector<Access>> accesses;
    for (const StepData& data : data_.blocks[b]) {
      const bool call = std::holds_alternative<CallData>(data);
      const uint32_t number = call ? calls++ : 0;
      if (auto* launch = std::get_if<LaunchData>(&data); launch != nullptr) {
        if (launch->grid == 0) continue;
        if (functions[launch->function] != nullptr || launch->grain < 1) {
          return InvalidArgument("the Ferrule program is damaged\n  why: a launch for the target '" + target +
                                 "' names a function of the host");
        }
      }
      if (auto* copy = std::get_if<CopyData>(&data); copy != nullptr && copy->bytes == 0) continue;
      blocks_[b].push_back({&data, number, {}, StepName(data, data_)});
      accesses.push_back(hazards_->AccessesOf(data));
    }
    std::vector<Order> orders = hazards_->Of(accesses);
    for (size_t i = 0; i < orders.size(); ++i) blocks_[b][i].order = std::move(orders[i]);
  }
  return PrepareCalls();
}

Status DeviceProgram::PrepareCalls() {
  for (const auto& block : data_.blocks) {
    for (const StepData& step : block) {
      auto* call = std::get_if<CallData>(&step);
      if (call == nullptr) continue;
      if (IsDriverCall(call->desc.target)) {
        host_calls_.push_back(nullptr);
        continue;
      }
      auto prepared = PrepareHostCall(*call, name, compiler);
      if (!prepared.ok()) return prepared.status();
      SayHostCall(call->desc.target, name);
      host_calls_.push_back(std::move(prepared.value()));
    }
  }
  return {};
}

std::string DeviceProgram::MissingFeatures(const std::string& features, const FerruleDeviceInfo& info) {
  std::string missing;
  std::stringstream list(features);
  for (std::string item; std::getline(list, item, ',');) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const int64_t value = equals == std::string::npos ? 0 : std::atoll(item.c_str() + equals + 1);
    bool there = true;
    if (key == "f16") there = (info.formats & FERRULE_FORMAT_F16) != 0;
    if (key == "f64") there = (info.formats & FERRULE_FORMAT_F64) != 0;
    if (key == "atomic64") there = (info.formats & FERRULE_FORMAT_ATOMIC64) != 0;
    if (key == "group") there = value <= info.max_group_size;
    if (key == "local") there = value <= info.local_memory_bytes;
    if (key == "sub_group") {
      there = false;
      for (int32_t size : info.sub_group_sizes) there |= size != 0 && size == value;
    }
    if (!there) missing += (missing.empty() ? "" : ", ") + item;
  }
  return missing;
}

const DeviceProgram::Code* DeviceProgram::Find(const Accelerator* accelerator) const {
  std::lock_guard lock(mutex_);
  auto found = codes_.find(accelerator);
  return found == codes_.end() ? nullptr : found->second.get();
}

Status DeviceProgram::Prepare(Accelerator* accelerator, Allocator* memory) const {
  if (Find(accelerator) != nullptr) return {};
  auto code = Build(accelerator, memory);
  if (!code.ok()) return code.status();
  std::lock_guard lock(mutex_);
  codes_.emplace(accelerator, std::move(code.value()));  // a second thread may have been first: then ours goes
  return {};
}

Result<std::unique_ptr<DeviceProgram::Code>> DeviceProgram::Build(Accelerator* accelerator, Allocator* memory) const {
  if (std::string missing = MissingFeatures(features, accelerator->info()); !missing.empty()) {
    return FailedPrecondition("the program '" + name + "' needs what " + accelerator->name() + " (" +
                              accelerator->info().name + ") lacks: " + missing + "\n  fix: compile it for this device");
  }
  auto code = std::make_unique<Code>();
  code->accelerator = Ref<Accelerator>::Share(accelerator);
  std::vector<FerruleModule*> module_of(data_.objects.size());
  for (size_t i = 0; i < data_.objects.size(); ++i) {
    if (IsElf(data_.objects[i])) continue;
    FERRULE_RETURN_IF_ERROR(accelerator->LoadModule(data_.objects[i], &module_of[i]));
    code->modules.push_back(module_of[i]);
  }
  for (const FunctionData& function : data_.functions) {
    FerruleKernel*& kernel = code->kernels.emplace_back();
    if (module_of[function.object] == nullptr) continue;
    FERRULE_RETURN_IF_ERROR(accelerator->FindKernel(module_of[function.object], function.symbol.c_str(), &kernel));
  }
  for (const auto& block : data_.blocks) {
    for (const StepData& step : block) {
      if (auto* call = std::get_if<CallData>(&step)) FERRULE_RETURN_IF_ERROR(BuildCall(*call, code.get()));
    }
  }
  if (!data_.constants.empty()) {
    const auto size = static_cast<int64_t>(data_.constants.size());
    auto storage = Storage::Allocate(memory, size);
    if (!storage.ok()) return storage.status();
    FERRULE_RETURN_IF_ERROR(accelerator->CopyNow((*storage)->data(), data_.constants.data(), size));
    code->constants = std::move(*storage);
  }
  return code;
}

Status DeviceProgram::BuildCall(const CallData& call, Code* code) const {
  auto& [prepared, scratch] = code->calls.emplace_back(nullptr, 0);
  if (!IsDriverCall(call.desc.target)) return {};
  const DriverAttributes attributes(call.desc.attrs);
  const std::vector<FerruleShape> operands = DriverShapes(call.desc.operands);
  const std::vector<FerruleShape> results = DriverShapes(call.desc.results);
  FerruleCallDesc desc{};
  desc.target = call.desc.target.c_str();
  desc.operands = operands.data(), desc.num_operands = operands.size();
  desc.results = results.data(), desc.num_results = results.size();
  desc.attributes = attributes.list().data(), desc.num_attributes = attributes.list().size();
  return Located(code->accelerator->PrepareCall(desc, &prepared, &scratch), call.where);
}

Status DeviceProgram::Run(void* const*, void* const*, void*, ExecContext&) const {
  return FailedPrecondition("the program '" + name + "' is for the target '" + target +
                            "': it runs on the devices of a PJRT client, not on host memory");
}

}  // namespace ferrule
