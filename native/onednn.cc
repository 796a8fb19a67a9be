#include "onednn.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "allocator.h"
#include "openmp.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

void Say(const std::string& text) {
  const char* level = std::getenv("FERRULE_DEBUG");
  if (level && std::atoi(level) >= 1) std::fprintf(stderr, "ferrule: %s\n", text.c_str());
}

// Opens libdnnl and finds every function; null, with the reason said, when something is missing.
const OneDnn* Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    // The wheel does not bring libgomp.so.1, which it needs: take one from its folder if the system has none.
    std::string beside = path.substr(0, path.rfind('/') + 1) + "libgomp.so.1";
    std::string reason = dlerror();
    if (dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL)) library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      Say("oneDNN is not used: " + reason + "; it needs libgomp.so.1 (Debian and Ubuntu: apt install libgomp1)");
      return nullptr;
    }
  }
  static OneDnn dnnl;
  const char* missing = nullptr;
  auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (!function) missing = name;
  };
#define FERRULE_FIND(name) find(dnnl.name, "dnnl_" #name)
  FERRULE_FIND(primitive_create);
  FERRULE_FIND(primitive_destroy);
  FERRULE_FIND(primitive_desc_destroy);
  FERRULE_FIND(primitive_execute);
  FERRULE_FIND(primitive_desc_query_md);
  FERRULE_FIND(primitive_desc_query);
  FERRULE_FIND(memory_desc_create_with_strides);
  FERRULE_FIND(memory_desc_create_with_tag);
  FERRULE_FIND(memory_desc_destroy);
  FERRULE_FIND(memory_desc_clone);
  FERRULE_FIND(memory_desc_equal);
  FERRULE_FIND(memory_desc_get_size);
  FERRULE_FIND(memory_create);
  FERRULE_FIND(memory_destroy);
  FERRULE_FIND(stream_create);
  FERRULE_FIND(stream_destroy);
  FERRULE_FIND(stream_wait);
  FERRULE_FIND(engine_create);
  FERRULE_FIND(get_effective_cpu_isa);
  FERRULE_FIND(primitive_attr_create);
  FERRULE_FIND(primitive_attr_destroy);
  FERRULE_FIND(primitive_attr_set_scratchpad_mode);
  FERRULE_FIND(primitive_attr_set_post_ops);
  FERRULE_FIND(post_ops_create);
  FERRULE_FIND(post_ops_destroy);
  FERRULE_FIND(post_ops_append_sum);
  FERRULE_FIND(reorder_primitive_desc_create);
  FERRULE_FIND(matmul_primitive_desc_create);
  FERRULE_FIND(convolution_forward_primitive_desc_create);
  FERRULE_FIND(convolution_backward_data_primitive_desc_create);
  FERRULE_FIND(convolution_backward_weights_primitive_desc_create);
#undef FERRULE_FIND
  find(dnnl.set_threads, "omp_set_num_threads");
  if (missing) {
    Say("oneDNN is not used: " + path + " has no function " + missing + " (Ferrule needs oneDNN 3.x with OpenMP)");
    return nullptr;
  }
  constexpr int kCpu = 1, kUserScratchpad = 1;
  auto attributes = [&](DnnlObject& set) {
    return dnnl.primitive_attr_create(&set) == 0 && dnnl.primitive_attr_set_scratchpad_mode(set, kUserScratchpad) == 0;
  };
  DnnlObject sum = nullptr;
  bool made = dnnl.engine_create(&dnnl.engine, kCpu, 0) == 0 && attributes(dnnl.attributes) &&
              attributes(dnnl.adding) && dnnl.post_ops_create(&sum) == 0 &&
              dnnl.post_ops_append_sum(sum, 1, 0, 0) == 0 && dnnl.primitive_attr_set_post_ops(dnnl.adding, sum) == 0;
  if (sum) dnnl.post_ops_destroy(sum);
  if (!made) {
    Say("oneDNN is not used: it cannot make an engine for this CPU");
    return nullptr;
  }
  if (UsePoolForOpenMp(library)) {
    dnnl.set_threads = &SetOpenMpThreads;
  } else {
    Say("oneDNN runs on OpenMP's own threads: " + path + " needs functions that native/openmp.cc lacks");
  }
  return &dnnl;
}

}  // namespace

const OneDnn* OneDnn::Get() {
  static std::mutex mutex;
  static const OneDnn* opened = nullptr;
  static bool tried = false;
  std::lock_guard lock(mutex);
  if (!tried) {
    std::string path = GetPath("path.dnnl");
    if (path.empty()) {  // it may still be handed over
      static std::once_flag said;
      std::call_once(said, [] { Say("oneDNN is not used: not found (pip install onednn-cpu-gomp)"); });
      return nullptr;
    }
    tried = true;
    opened = Open(path);
  }
  return opened;
}

int OneDnn::ThreadsFor(double work) {
  constexpr double kEach = 1 << 18;
  return work < 2 * kEach ? 1 : static_cast<int>(std::min<double>(work / kEach, ThreadPool::Global().TeamThreads()));
}

int OneDnn::TypeOf(Element e) {
  switch (e) {
    case Element::kF16:
      return 1;
    case Element::kBF16:
      return 2;
    case Element::kF32:
      return 3;
    case Element::kS32:
      return 4;
    case Element::kS8:
      return 5;
    case Element::kU8:
      return 6;
    default:
      return 0;
  }
}

DnnlOwner StridedDesc(const OneDnn& dnnl, Element type, const std::vector<int64_t>& dims,
                      const std::vector<int64_t>& strides) {
  DnnlObject desc = nullptr;
  int rank = static_cast<int>(dims.size());
  if (dnnl.memory_desc_create_with_strides(&desc, rank, dims.data(), OneDnn::TypeOf(type), strides.data()) != 0) {
    return {};
  }
  return {desc, dnnl.memory_desc_destroy};
}

DnnlOwner AnyDesc(const OneDnn& dnnl, Element type, const std::vector<int64_t>& dims) {
  DnnlObject desc = nullptr;
  int rank = static_cast<int>(dims.size());
  if (dnnl.memory_desc_create_with_tag(&desc, rank, dims.data(), OneDnn::TypeOf(type), OneDnn::kTagAny) != 0) return {};
  return {desc, dnnl.memory_desc_destroy};
}

namespace {

struct Primitive {
  DnnlOwner primitive, scratchpad;  // the scratchpad's descriptor
};

Primitive MakePrimitive(const OneDnn& dnnl, DnnlObject desc) {
  Primitive made;
  DnnlObject primitive = nullptr, scratchpad = nullptr;
  if (dnnl.primitive_create(&primitive, desc) != 0) return made;
  made.primitive = DnnlOwner(primitive, dnnl.primitive_destroy);
  if (DnnlObject md = dnnl.primitive_desc_query_md(desc, OneDnn::kScratchpadMd, 0);
      md && dnnl.memory_desc_get_size(md)) {
    dnnl.memory_desc_clone(&scratchpad, md);
    made.scratchpad = DnnlOwner(scratchpad, dnnl.memory_desc_destroy);
  }
  return made;
}

class Call : public Prepared {
 public:
  struct Side {
    DnnlOwner outside, inside;  // layouts in Ferrule's buffer and in the primitive; equal if `reorder` is empty
    Primitive reorder;
    bool reorders = false;
    int argument = 0;
  };

  Call(const OneDnn& dnnl, int threads) : dnnl_(dnnl), threads_(threads) {}

  // Sets up a side, with a reorder if needed; false when there is none.
  bool AddSide(DnnlObject desc, DnnlTensor tensor, bool result) {
    return SetSide(desc, std::move(tensor), result, sides_.emplace_back());
  }

  // After all sides and the primitive.
  bool AddPart(DnnlPart part) {
    Part& made = more_.emplace_back();
    DnnlTensor first{std::move(part.first), sides_[0].argument, OneDnn::kSourceMd};
    DnnlTensor second{std::move(part.second), sides_[1].argument, OneDnn::kWeightsMd};
    made.primitive = MakePrimitive(dnnl_, part.desc.get());
    made.first_offset = part.first_offset, made.second_offset = part.second_offset;
    return made.primitive.primitive && SetSide(part.desc.get(), std::move(first), false, made.first) &&
           SetSide(part.desc.get(), std::move(second), false, made.second) && !made.first.reorders &&
           !sides_[0].reorders && !sides_[2].reorders && sides_[1].reorders && made.second.reorders;
  }

  bool SetSide(DnnlObject desc, DnnlTensor tensor, bool result, Side& side) {
    DnnlObject inside = nullptr, md = dnnl_.primitive_desc_query_md(desc, tensor.query, 0);
    if (!md || dnnl_.memory_desc_clone(&inside, md) != 0) return false;
    side.inside = DnnlOwner(inside, dnnl_.memory_desc_destroy);
    side.outside = std::move(tensor.layout);
    side.argument = tensor.argument;
    side.reorders = !dnnl_.memory_desc_equal(side.inside.get(), side.outside.get());
    if (side.reorders) {
      DnnlObject reorder = nullptr;
      const DnnlOwner &from = result ? side.inside : side.outside, &to = result ? side.outside : side.inside;
      if (dnnl_.reorder_primitive_desc_create(&reorder, from.get(), dnnl_.engine, to.get(), dnnl_.engine,
                                              dnnl_.attributes) != 0) {
        return false;
      }
      DnnlOwner owner(reorder, dnnl_.primitive_desc_destroy);
      side.reorder = MakePrimitive(dnnl_, reorder);
      if (!side.reorder.primitive) return false;
    }
    return true;
  }

  bool SetPrimitive(DnnlObject desc) {
    primitive_ = MakePrimitive(dnnl_, desc);
    return static_cast<bool>(primitive_.primitive);
  }
  void SetPreparation(std::unique_ptr<DnnlPreparation> preparation) { preparation_ = std::move(preparation); }
  // After everything else is set.
  void KeepSecond(DnnlKept kept) {
    const bool changes = preparation_ || sides_[1].reorders;
    if (changes && kept.source.kind != OperandSource::kComputed) kept_ = std::move(kept);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    dnnl_.UseThreads(threads_);
    DnnlObject stream = nullptr;
    if (dnnl_.stream_create(&stream, dnnl_.engine, 1) != 0) return Internal("oneDNN cannot make a stream");
    DnnlOwner owner(stream, dnnl_.stream_destroy);
    void* data[3] = {operands[0], operands[1], results[0]};
    void* inside[3] = {data[0], data[1], data[2]};
    for (int i : {0, 2}) {
      const Side& side = sides_[i];
      if (!side.reorders) continue;
      int64_t bytes = BytesInside(side);
      inside[i] = Allocate(context, bytes);
      if (!inside[i]) return NoMemory(bytes);
      if (i == 0) FERRULE_RETURN_IF_ERROR(Reorder(side, data[i], inside[i], false, stream, context));
    }
    Ref<Storage> kept;  // while it is used
    FERRULE_RETURN_IF_ERROR(GetSecond(data[1], stream, context, &inside[1], &kept));
    std::vector<Argument> arguments;
    for (int i = 0; i < 3; ++i) arguments.push_back({sides_[i].argument, sides_[i].inside.get(), inside[i]});
    FERRULE_RETURN_IF_ERROR(Execute(primitive_, std::move(arguments), stream, context));
    int64_t kept_at = more_.empty() ? 0 : Rounded(BytesInside(sides_[1]));
    for (const Part& part : more_) {
      FERRULE_RETURN_IF_ERROR(Execute(part.primitive,
                                      {{sides_[0].argument, part.first.inside.get(), At(data[0], part.first_offset)},
                                       {sides_[1].argument, part.second.inside.get(), At(inside[1], kept_at)},
                                       {sides_[2].argument, sides_[2].inside.get(), data[2]}},
                                      stream, context));
      kept_at += Rounded(BytesInside(part.second));
    }
    if (sides_[2].reorders) FERRULE_RETURN_IF_ERROR(Reorder(sides_[2], inside[2], data[2], true, stream, context));
    dnnl_.stream_wait(stream);
    return Status();
  }

 private:
  struct Argument {
    int id;
    DnnlObject layout;
    void* data;
  };

  struct Part {
    Primitive primitive;
    Side first, second;
    int64_t first_offset = 0, second_offset = 0;
  };

  static void* At(void* data, int64_t offset) { return static_cast<char*>(data) + offset; }
  static int64_t Rounded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  int64_t BytesInside(const Side& side) const {
    return static_cast<int64_t>(dnnl_.memory_desc_get_size(side.inside.get()));
  }

  // The second operand as the primitive wants it: itself, a form from an earlier run, or one that is made now. The
  // forms for further parts follow it.
  Status GetSecond(void* data, DnnlObject stream, ExecContext& context, void** inside, Ref<Storage>* kept) const {
    const Side& side = sides_[1];
    *inside = data;
    if (!preparation_ && !side.reorders) return Status();
    const std::string& key = kept_.key;
    PackedForms* forms = key.empty() || !context.forms ? nullptr : context.forms(context.forms_self, kept_.source);
    if (forms && (*kept = forms->Find(key))) {
      *inside = (*kept)->data();
      return Status();
    }
    int64_t bytes = side.reorders ? BytesInside(side) : preparation_->Bytes();
    if (!more_.empty()) bytes = Rounded(bytes);
    for (const Part& part : more_) bytes += Rounded(BytesInside(part.second));
    if (forms) *kept = forms->Allocate(key, bytes);
    *inside = *kept ? (*kept)->data() : Allocate(context, bytes);
    if (!*inside) return NoMemory(bytes);
    if (preparation_) {
      void* prepared = side.reorders ? Allocate(context, preparation_->Bytes()) : *inside;
      if (!prepared) return NoMemory(preparation_->Bytes());
      preparation_->Run(data, prepared);
      data = prepared;
    }
    if (side.reorders) FERRULE_RETURN_IF_ERROR(Reorder(side, data, *inside, false, stream, context));
    int64_t to = more_.empty() ? 0 : Rounded(BytesInside(side));
    for (const Part& part : more_) {
      FERRULE_RETURN_IF_ERROR(
          Reorder(part.second, At(data, part.second_offset), At(*inside, to), false, stream, context));
      to += Rounded(BytesInside(part.second));
    }
    if (!*kept) return Status();
    dnnl_.stream_wait(stream);  // other runs read it at once
    forms->Keep(key, *kept);
    return Status();
  }

  static void* Allocate(ExecContext& context, int64_t bytes) { return context.allocate(context.allocate_self, bytes); }
  static Status NoMemory(int64_t bytes) {
    return OutOfMemory("no memory for " + std::to_string(bytes) + " bytes that oneDNN needs");
  }

  Status Reorder(const Side& side, void* from, void* to, bool result, DnnlObject stream, ExecContext& context) const {
    const DnnlOwner &a = result ? side.inside : side.outside, &b = result ? side.outside : side.inside;
    return Execute(side.reorder, {{OneDnn::kSourceArg, a.get(), from}, {OneDnn::kDestinationArg, b.get(), to}}, stream,
                   context);
  }

  Status Execute(const Primitive& primitive, std::vector<Argument> arguments, DnnlObject stream,
                 ExecContext& context) const {
    if (primitive.scratchpad) {
      int64_t bytes = static_cast<int64_t>(dnnl_.memory_desc_get_size(primitive.scratchpad.get()));
      void* memory = Allocate(context, bytes);
      if (!memory) return NoMemory(bytes);
      arguments.push_back({OneDnn::kScratchpadArg, primitive.scratchpad.get(), memory});
    }
    DnnlOwner memories[4];
    DnnlArgument list[4];
    int count = 0;
    for (const Argument& a : arguments) {
      DnnlObject memory = nullptr;
      if (int status = dnnl_.memory_create(&memory, a.layout, dnnl_.engine, a.data); status != 0) {
        return Internal("oneDNN refused a buffer with status " + std::to_string(status));
      }
      memories[count] = DnnlOwner(memory, dnnl_.memory_destroy);
      list[count++] = {a.id, memory};
    }
    if (int status = dnnl_.primitive_execute(primitive.primitive.get(), stream, count, list); status != 0) {
      return Internal("oneDNN failed with status " + std::to_string(status));
    }
    return Status();
  }

  const OneDnn& dnnl_;
  int threads_;
  Primitive primitive_;
  std::vector<Side> sides_;
  std::vector<Part> more_;
  std::unique_ptr<DnnlPreparation> preparation_;
  DnnlKept kept_;
};

}  // namespace

std::string DnnlImplementation(const OneDnn& dnnl, DnnlObject desc) {
  const char* implementation = nullptr;
  dnnl.primitive_desc_query(desc, OneDnn::kImplementation, 0, &implementation);
  return implementation ? implementation : "";
}

std::unique_ptr<Prepared> DnnlCall(const OneDnn& dnnl, int threads, DnnlOwner desc, DnnlTensor first, DnnlTensor second,
                                   DnnlTensor result, DnnlKept kept_second,
                                   std::unique_ptr<DnnlPreparation> prepare_second, std::vector<DnnlPart> more) {
  std::string name = DnnlImplementation(dnnl, desc.get());
  if (name.rfind("ref", 0) == 0) return nullptr;  // correct but slower than Ferrule's own loops
  auto call = std::make_unique<Call>(dnnl, threads);
  if (!call->AddSide(desc.get(), std::move(first), false) || !call->AddSide(desc.get(), std::move(second), false) ||
      !call->AddSide(desc.get(), std::move(result), true) || !call->SetPrimitive(desc.get())) {
    return nullptr;
  }
  for (DnnlPart& part : more) {
    if (!call->AddPart(std::move(part))) return nullptr;
  }
  call->SetPreparation(std::move(prepare_second));
  call->KeepSecond(std::move(kept_second));
  const char* level = std::getenv("FERRULE_DEBUG");
  if (level && std::atoi(level) >= 3) {
    std::fprintf(stderr, "ferrule: oneDNN primitive %s, %zu in all\n", name.c_str(), more.size() + 1);
  }
  return call;
}

}  // namespace ferrule
