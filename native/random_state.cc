// Library call "random_state": a Philox state that no other execution gets, for the stateful `rng` op. The key is drawn
// once per process; the counter moves on by what the caller will use.
#include <atomic>
#include <random>

#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "program.h"

namespace ferrule {
namespace {

uint64_t ProcessKey() {
  static const uint64_t key = [] {
    std::random_device source;
    return static_cast<uint64_t>(source()) << 32 | source();
  }();
  return key;
}

class RandomState : public Prepared {
 public:
  explicit RandomState(uint64_t used) : used_(used) {}

  Status Run(void* const*, void* const* results, ExecContext&) const override {
    static std::atomic<uint64_t> counter{0};
    uint64_t* state = static_cast<uint64_t*>(results[0]);
    state[0] = ProcessKey();
    state[1] = counter.fetch_add(used_);
    state[2] = 0;
    return Status();
  }

 private:
  uint64_t used_;
};

Result<std::unique_ptr<Prepared>> PrepareRandomState(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(0, 1);
  int64_t used = attributes.Int("used");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (ElementOf(call.results[0]) != Element::kU64 || call.results[0].elements() != 3) {
    attributes.Fail("the state is not three elements of type ui64");
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  return std::unique_ptr<Prepared>(new RandomState(static_cast<uint64_t>(used)));
}

[[maybe_unused]] const bool registered = RegisterCall("random_state", &PrepareRandomState);

}  // namespace
}  // namespace ferrule
