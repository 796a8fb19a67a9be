// Reading a call's attributes: each reader names the target and the attribute when it is missing or of another kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calls.h"
#include "element.h"

namespace ferrule {

class Attributes {
 public:
  explicit Attributes(const CallDesc& call) : call_(call) {}

  int64_t Int(const char* name) { return Number(name, nullptr); }
  int64_t Int(const char* name, int64_t otherwise) { return Number(name, &otherwise); }
  bool Bool(const char* name, bool otherwise) { return Number(name, otherwise ? &kOne : &kZero) != 0; }
  std::string String(const char* name, const std::string& otherwise);
  // A list of integers (a list of booleans counts as one).
  std::vector<int64_t> Ints(const char* name, size_t size);
  std::vector<int64_t> Ints(const char* name);
  CompiledFn Function(const char* name);

  // Checks the numbers of operands and results; results = -1 accepts any.
  void Expect(size_t operands, size_t results);
  void Fail(const std::string& what);
  // The first failure, or success.
  const Status& status() const { return status_; }

 private:
  static constexpr int64_t kZero = 0, kOne = 1;
  const Value* Find(const char* name) const;
  int64_t Number(const char* name, const int64_t* otherwise);

  const CallDesc& call_;
  Status status_;
};

inline Element ElementOf(const Shape& shape) { return static_cast<Element>(shape.dtype); }

}  // namespace ferrule
