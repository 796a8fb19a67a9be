#include "hazards.h"

#include <algorithm>
#include <map>
#include <variant>

namespace ferrule {
namespace {

// Who touched a piece of memory last.
struct Segment {
  int64_t end;
  int64_t writer = -1;            // a step, or -1
  std::vector<uint32_t> readers;  // since it was written
};

// The pieces of one space, cut where accesses begin and end.
class Space {
 public:
  // Adds to `after` whom an access of `step` must wait for, and remembers it.
  void Touch(uint32_t step, int64_t begin, int64_t end, bool write, std::vector<uint32_t>* after) {
    if (begin >= end) return;
    Cut(begin);
    Cut(end);
    for (auto at = pieces_.lower_bound(begin); begin < end;) {
      if (at == pieces_.end() || at->first > begin) {  // never touched before
        const int64_t stop = at == pieces_.end() ? end : std::min(end, at->first);
        at = pieces_.emplace_hint(at, begin, Segment{stop, -1, {}});
      }
      Segment& piece = at->second;
      if (piece.writer >= 0) after->push_back(static_cast<uint32_t>(piece.writer));
      if (write) {
        after->insert(after->end(), piece.readers.begin(), piece.readers.end());
        piece.writer = step;
        piece.readers.clear();
      } else if (piece.readers.empty() || piece.readers.back() != step) {
        piece.readers.push_back(step);
      }
      begin = piece.end;
      ++at;
    }
  }

 private:
  void Cut(int64_t where) {
    auto at = pieces_.upper_bound(where);
    if (at == pieces_.begin()) return;
    --at;
    if (at->first == where || at->second.end <= where) return;
    Segment rest = at->second;
    at->second.end = where;
    pieces_.emplace(where, std::move(rest));
  }

  std::map<int64_t, Segment> pieces_;  // by their first byte
};

void SortUnique(std::vector<uint32_t>* list) {
  std::sort(list->begin(), list->end());
  list->erase(std::unique(list->begin(), list->end()), list->end());
}

}  // namespace

Hazards::Hazards(const Program& program, const ProgramData& data) : data_(data) {
  outputs_.assign(program.outputs.size(), UINT32_MAX);
  for (const ParamInfo& param : program.params) {
    const auto space = static_cast<uint32_t>(spaces_++);
    params_.push_back(space);
    if (param.alias >= 0) outputs_[static_cast<size_t>(param.alias)] = space;
  }
  for (uint32_t& space : outputs_) {
    if (space == UINT32_MAX) space = static_cast<uint32_t>(spaces_++);
  }
  for (const SlotData& slot : data.slots) {
    Range& range = ranges_.emplace_back();
    switch (slot.kind) {
      case SlotKind::kParam:
        range = {params_[static_cast<size_t>(slot.where)], 0, slot.size};
        break;
      case SlotKind::kOutput:
        range = {outputs_[static_cast<size_t>(slot.where)], 0, slot.size};
        break;
      case SlotKind::kConstant:
        break;
      case SlotKind::kArena:
        range = {static_cast<int64_t>(spaces_), slot.where, slot.where + slot.size};
        break;
    }
  }
}

std::vector<Access> Hazards::AccessesOf(const StepData& step) const {
  std::vector<Access> found;
  const auto nested = [&](uint32_t block) {
    for (const StepData& inner : data_.blocks[block]) {
      for (const Access& access : AccessesOf(inner)) found.push_back(access);
    }
  };
  if (auto* launch = std::get_if<LaunchData>(&step)) {
    const size_t reads = launch->slots.size() - launch->writes;
    for (size_t i = 0; i < launch->slots.size(); ++i) found.push_back({launch->slots[i], i >= reads});
  } else if (auto* copy = std::get_if<CopyData>(&step)) {
    found = {{copy->src, false}, {copy->dst, true}};
  } else if (auto* loop = std::get_if<WhileData>(&step)) {
    if (loop->trips < 0) {
      nested(loop->cond);
      found.push_back({loop->predicate, false});
    }
    nested(loop->body);
  } else if (auto* branch = std::get_if<CaseData>(&step)) {
    found.push_back({branch->index, false});
    for (uint32_t block : branch->branches) nested(block);
  } else {
    const auto& call = std::get<CallData>(step);
    for (uint32_t slot : call.operands) found.push_back({slot, false});
    for (uint32_t slot : call.results) found.push_back({slot, true});
  }
  // The same slot once, as written if anything writes it.
  std::sort(found.begin(), found.end(),
            [](const Access& a, const Access& b) { return a.slot != b.slot ? a.slot < b.slot : a.write > b.write; });
  found.erase(
      std::unique(found.begin(), found.end(), [](const Access& a, const Access& b) { return a.slot == b.slot; }),
      found.end());
  return found;
}

std::vector<Order> Hazards::Of(const std::vector<std::vector<Access>>& steps) const {
  std::vector<Order> orders(steps.size());
  std::vector<Space> spaces(spaces_ + 1);
  for (uint32_t i = 0; i < steps.size(); ++i) {
    Order& order = orders[i];
    for (const Access& access : steps[i]) {
      const Range& range = ranges_[access.slot];
      if (range.space < 0) continue;
      if (range.space < static_cast<int64_t>(spaces_)) order.spaces.push_back(static_cast<uint32_t>(range.space));
      spaces[static_cast<size_t>(range.space)].Touch(i, range.begin, range.end, access.write, &order.after);
    }
    SortUnique(&order.after);
    SortUnique(&order.spaces);
    std::erase(order.after, i);
    // Whoever is waited for by someone else here needs no mention.
    std::vector<uint32_t> needless;
    for (uint32_t earlier : order.after) {
      const auto& list = orders[earlier].after;
      needless.insert(needless.end(), list.begin(), list.end());
    }
    SortUnique(&needless);
    std::erase_if(order.after,
                  [&](uint32_t step) { return std::binary_search(needless.begin(), needless.end(), step); });
  }
  for (Order& order : orders) order.exit = true;
  for (const Order& order : orders) {
    for (uint32_t earlier : order.after) orders[earlier].exit = false;
  }
  return orders;
}

}  // namespace ferrule
