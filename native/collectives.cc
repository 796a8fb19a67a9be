// Library calls between the devices of one run: all_reduce, reduce_scatter, all_gather, all_to_all, collective_permute,
// collective_broadcast, and device_number.
//
// Each member of a group brings the addresses of its operands and results to a meeting, moves its share of the data
// straight between them, and waits until all are done. `members` and `sizes` list the groups by device number, which is
// replica * partitions + partition; the compiler has resolved replica groups, channels and meshes to that.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "attributes.h"
#include "calls.h"
#include "collective_reduce.h"
#include "element.h"
#include "program.h"
#include "rendezvous.h"
#include "strided_copy.h"

namespace ferrule {
namespace {

using Members = const Rendezvous::Member*;

class Collective : public Prepared {
 public:
  explicit Collective(const CallDesc& call) : name_(call.target) {
    Attributes attributes(call);
    const std::vector<int64_t> members = attributes.Ints("members"), sizes = attributes.Ints("sizes");
    attributes.Expect(call.operands.size(), call.operands.size());
    size_t at = 0;
    for (int64_t size : sizes) {
      if (size < 1 || at + static_cast<size_t>(size) > members.size()) {
        attributes.Fail("its groups of devices are malformed");
        break;
      }
      groups_.emplace_back(members.begin() + static_cast<int64_t>(at),
                           members.begin() + static_cast<int64_t>(at) + size);
      at += static_cast<size_t>(size);
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (size_t place = 0; place < groups_[g].size(); ++place) {
        const int64_t device = groups_[g][place];
        if (device < 0 || device > kMaxDevices) {
          attributes.Fail("its groups name the device " + std::to_string(device));
          break;
        }
        if (places_.size() <= static_cast<size_t>(device)) places_.resize(static_cast<size_t>(device) + 1);
        places_[static_cast<size_t>(device)] = {static_cast<int>(g), static_cast<int>(place)};
      }
    }
    for (const Shape& shape : call.results) result_bytes_.push_back(ByteSize(shape));
    status_ = attributes.status();
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const final {
    int number = 0, count = 1;
    if (context.rendezvous != nullptr) {
      number = context.replica_id * context.rendezvous->partitions() + context.partition_id;
      count = context.rendezvous->partitions() * context.rendezvous->replicas();
    }
    if (places_.size() > static_cast<size_t>(count)) {
      return FailedPrecondition(name_ + " between " + std::to_string(places_.size()) + " devices in a run of " +
                                std::to_string(count) +
                                "\n  fix: run the program on all the devices that it was "
                                "compiled for");
    }
    const Place place = static_cast<size_t>(number) < places_.size() ? places_[static_cast<size_t>(number)] : Place();
    if (place.group < 0) {
      // In no group: a device that takes no part gets zeros.
      for (size_t k = 0; k < result_bytes_.size(); ++k) std::memset(results[k], 0, result_bytes_[k]);
      return {};
    }
    const auto group = static_cast<size_t>(place.group);
    const auto size = static_cast<int64_t>(groups_[group].size());
    const Rendezvous::Member mine{operands, results};
    if (size == 1) {
      Move(&mine, groups_[group], 0);
      return {};
    }
    Members all = nullptr;
    FERRULE_RETURN_IF_ERROR(context.rendezvous->Meet(
        this, group, groups_[group].size(), static_cast<size_t>(place.place), number, name_.c_str(), mine, &all));
    Move(all, groups_[group], place.place);
    return context.rendezvous->Part(this, group, number);
  }

  const Status& status() const { return status_; }

 protected:
  // Moves the share of the member at `place`.
  virtual void Move(Members all, const std::vector<int64_t>& group, int64_t place) const = 0;

  Status status_;
  std::vector<std::vector<int64_t>> groups_;
  std::vector<size_t> result_bytes_;

 private:
  static constexpr int64_t kMaxDevices = 1 << 20;
  struct Place {
    int group = -1, place = 0;
  };

  const std::string name_;
  std::vector<Place> places_;  // by device number
};

const char* Source(Members all, int64_t member, size_t k) { return static_cast<const char*>(all[member].operands[k]); }

int64_t Product(const std::vector<int64_t>& dims, size_t begin, size_t end) {
  int64_t product = 1;
  for (size_t d = begin; d < end; ++d) product *= dims[d];
  return product;
}

// Folds runs of the operands' elements [begin, begin + count) and hands the result to `store` piece by piece.
template <class Store>
void FoldRange(Members all, int64_t size, size_t k, Fold fold, int64_t bytes, int64_t begin, int64_t count,
               Store store) {
  alignas(64) char piece[kFoldElements * 16];
  std::vector<const char*> sources(static_cast<size_t>(size));
  for (int64_t at = 0; at < count; at += kFoldElements) {
    const int64_t n = std::min(kFoldElements, count - at);
    for (int64_t m = 0; m < size; ++m) sources[static_cast<size_t>(m)] = Source(all, m, k) + (begin + at) * bytes;
    fold(sources.data(), size, n, piece);
    store(at, piece, n * bytes);
  }
}

// Every member folds a part of the elements and writes it into everybody's result.
class AllReduce : public Collective {
 public:
  explicit AllReduce(const CallDesc& call) : Collective(call) {
    Attributes attributes(call);
    const std::string reduction = attributes.String("reduction", "");
    for (const Shape& shape : call.operands) {
      const Element type = ElementOf(shape);
      operands_.push_back({FindFold(reduction, type), SizeOf(type), shape.elements()});
      if (operands_.back().fold == nullptr) attributes.Fail("cannot reduce " + NameOf(type) + " by " + reduction);
    }
    if (status_.ok()) status_ = attributes.status();
  }

 protected:
  void Move(Members all, const std::vector<int64_t>& group, int64_t place) const override {
    const auto size = static_cast<int64_t>(group.size());
    for (size_t k = 0; k < operands_.size(); ++k) {
      const auto& [fold, bytes, elements] = operands_[k];
      // Parts of whole cache lines, so that no two members write into one.
      const int64_t part = ((elements + size - 1) / size + 63) & ~int64_t{63};
      const int64_t begin = std::min(elements, part * place), end = std::min(elements, begin + part);
      FoldRange(all, size, k, fold, bytes, begin, end - begin,
                [&, k = k, bytes = bytes](int64_t at, char* p, int64_t n) {
                  for (int64_t m = 0; m < size; ++m)
                    std::memcpy(static_cast<char*>(all[m].results[k]) + (begin + at) * bytes, p, n);
                });
    }
  }

 private:
  struct Operand {
    Fold fold;
    int64_t bytes, elements;
  };
  std::vector<Operand> operands_;
};

// Every member folds the part that is its own result.
class ReduceScatter : public Collective {
 public:
  explicit ReduceScatter(const CallDesc& call) : Collective(call) {
    Attributes attributes(call);
    const std::string reduction = attributes.String("reduction", "");
    const auto dimension = static_cast<size_t>(attributes.Int("dimension"));
    for (size_t k = 0; k < call.operands.size() && attributes.status().ok() && status_.ok(); ++k) {
      const Shape &from = call.operands[k], &to = call.results[k];
      const Element type = ElementOf(from);
      if (dimension >= to.dims.size()) {
        attributes.Fail("there is no dimension " + std::to_string(dimension));
        break;
      }
      operands_.push_back({FindFold(reduction, type), SizeOf(type), Product(to.dims, 0, dimension),
                           Product(to.dims, dimension, to.dims.size())});
      if (operands_.back().fold == nullptr) attributes.Fail("cannot reduce " + NameOf(type) + " by " + reduction);
      for (const auto& group : groups_) {
        if (from.elements() != to.elements() * static_cast<int64_t>(group.size())) {
          attributes.Fail("its result does not fit its groups");
        }
      }
    }
    if (status_.ok()) status_ = attributes.status();
  }

 protected:
  void Move(Members all, const std::vector<int64_t>& group, int64_t place) const override {
    const auto size = static_cast<int64_t>(group.size());
    for (size_t k = 0; k < operands_.size(); ++k) {
      const auto& [fold, bytes, outer, run] = operands_[k];
      for (int64_t o = 0; o < outer; ++o) {
        char* to = static_cast<char*>(all[place].results[k]) + o * run * bytes;
        FoldRange(all, size, k, fold, bytes, (o * size + place) * run, run,
                  [to, bytes = bytes](int64_t at, char* p, int64_t n) { std::memcpy(to + at * bytes, p, n); });
      }
    }
  }

 private:
  struct Operand {
    Fold fold;
    int64_t bytes, outer, run;
  };
  std::vector<Operand> operands_;
};

// Part `place` of everybody's `split` dimension (all of it when it is not split) lands, in the order of the group,
// along the result's `concat` dimension. With nothing split this is all_gather.
class Exchange : public Collective {
 public:
  Exchange(const CallDesc& call, const char* split, const char* concat) : Collective(call), splits_(split != nullptr) {
    Attributes attributes(call);
    concat_ = static_cast<size_t>(attributes.Int(concat));
    split_ = splits_ ? static_cast<size_t>(attributes.Int(split)) : concat_;
    for (size_t k = 0; k < call.operands.size() && attributes.status().ok() && status_.ok(); ++k) {
      const Shape &from = call.operands[k], &to = call.results[k];
      if (std::max(split_, concat_) >= from.dims.size() || to.dims.size() != from.dims.size()) {
        attributes.Fail("there is no dimension " + std::to_string(std::max(split_, concat_)));
        break;
      }
      for (const auto& group : groups_) {
        const auto size = static_cast<int64_t>(group.size());
        std::vector<int64_t> dims = from.dims;
        if (splits_ && dims[split_] % size != 0) attributes.Fail("its operand cannot be split among its groups");
        if (splits_) dims[split_] /= size;
        dims[concat_] *= size;
        if (dims != to.dims) attributes.Fail("its result does not fit its groups");
      }
      operands_.push_back({from.dims, to.dims, SizeOf(ElementOf(from))});
    }
    if (status_.ok()) status_ = attributes.status();
  }

 protected:
  void Move(Members all, const std::vector<int64_t>& group, int64_t place) const override {
    const auto size = static_cast<int64_t>(group.size());
    for (size_t k = 0; k < operands_.size(); ++k) {
      const auto& [from, to, bytes] = operands_[k];
      std::vector<int64_t> block = from;
      if (splits_) block[split_] /= size;
      if (Product(block, 0, block.size()) == 0) continue;
      const std::vector<int64_t> from_strides = RowMajorStrides(from.data(), from.size(), bytes);
      const std::vector<int64_t> to_strides = RowMajorStrides(to.data(), to.size(), bytes);
      for (int64_t m = 0; m < size; ++m) {
        const char* source = Source(all, m, k) + (splits_ ? place * block[split_] * from_strides[split_] : 0);
        char* target = static_cast<char*>(all[place].results[k]) + m * block[concat_] * to_strides[concat_];
        StridedCopy(target, to_strides.data(), source, from_strides.data(), block.data(), block.size(), bytes);
      }
    }
  }

 private:
  struct Operand {
    std::vector<int64_t> from, to;
    int64_t bytes;
  };
  const bool splits_;
  size_t split_ = 0, concat_ = 0;
  std::vector<Operand> operands_;
};

// Every device gets what `sources` names for it: a device number, or -1 for zeros.
class Permute : public Collective {
 public:
  explicit Permute(const CallDesc& call) : Collective(call) {
    Attributes attributes(call);
    sources_ = attributes.Ints("sources");
    for (const auto& group : groups_) {
      for (int64_t device : group) {
        if (device >= static_cast<int64_t>(sources_.size())) {
          attributes.Fail("nothing is said of device " + std::to_string(device));
          continue;
        }
        const int64_t source = sources_[static_cast<size_t>(device)];
        if (source != -1 && std::find(group.begin(), group.end(), source) == group.end()) {
          attributes.Fail("device " + std::to_string(source) + " does not meet its receiver");
        }
      }
    }
    if (status_.ok()) status_ = attributes.status();
  }

 protected:
  void Move(Members all, const std::vector<int64_t>& group, int64_t place) const override {
    const int64_t source = sources_[static_cast<size_t>(group[static_cast<size_t>(place)])];
    const int64_t from = std::find(group.begin(), group.end(), source) - group.begin();
    for (size_t k = 0; k < result_bytes_.size(); ++k) {
      if (source < 0) {
        std::memset(all[place].results[k], 0, result_bytes_[k]);
      } else {
        std::memcpy(all[place].results[k], Source(all, from, k), result_bytes_[k]);
      }
    }
  }

 private:
  std::vector<int64_t> sources_;
};

// Everybody gets what the first of the group has.
class Broadcast : public Collective {
 public:
  using Collective::Collective;

 protected:
  void Move(Members all, const std::vector<int64_t>&, int64_t place) const override {
    for (size_t k = 0; k < result_bytes_.size(); ++k) {
      std::memcpy(all[place].results[k], all[0].operands[k], result_bytes_[k]);
    }
  }
};

// The number of the replica or partition that runs.
class DeviceNumber : public Prepared {
 public:
  explicit DeviceNumber(bool partition) : partition_(partition) {}
  Status Run(void* const*, void* const* results, ExecContext& context) const override {
    const auto number = static_cast<uint32_t>(partition_ ? context.partition_id : context.replica_id);
    std::memcpy(results[0], &number, sizeof(number));
    return {};
  }

 private:
  const bool partition_;
};

Result<std::unique_ptr<Prepared>> PrepareDeviceNumber(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(0, 1);
  const bool partition = attributes.Bool("partition", false);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (ElementOf(call.results[0]) != Element::kU32 || call.results[0].elements() != 1) {
    attributes.Fail("its result must be one ui32");
    return attributes.status();
  }
  return std::unique_ptr<Prepared>(new DeviceNumber(partition));
}

Result<std::unique_ptr<Prepared>> Checked(std::unique_ptr<Collective> made) {
  FERRULE_RETURN_IF_ERROR(made->status());
  return std::unique_ptr<Prepared>(std::move(made));
}

template <class T>
Result<std::unique_ptr<Prepared>> Prepare(const CallDesc& call) {
  return Checked(std::make_unique<T>(call));
}

Result<std::unique_ptr<Prepared>> PrepareAllGather(const CallDesc& call) {
  return Checked(std::make_unique<Exchange>(call, nullptr, "dimension"));
}

Result<std::unique_ptr<Prepared>> PrepareAllToAll(const CallDesc& call) {
  return Checked(std::make_unique<Exchange>(call, "split", "concat"));
}

[[maybe_unused]] const bool registered =
    RegisterCall("all_reduce", &Prepare<AllReduce>) && RegisterCall("reduce_scatter", &Prepare<ReduceScatter>) &&
    RegisterCall("all_gather", &PrepareAllGather) && RegisterCall("all_to_all", &PrepareAllToAll) &&
    RegisterCall("collective_permute", &Prepare<Permute>) &&
    RegisterCall("collective_broadcast", &Prepare<Broadcast>) && RegisterCall("device_number", &PrepareDeviceNumber);

}  // namespace
}  // namespace ferrule
