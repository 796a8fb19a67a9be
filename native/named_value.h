// PJRT_NamedValue in both directions: options that callers give, attributes that objects show.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pjrt_abi.h"
#include "status.h"

namespace ferrule {

using OptionValue = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;

// Options by name. Names outside `known` are an INVALID_ARGUMENT that lists what there is and what was likely meant.
class Options {
 public:
  static Result<Options> Parse(const PJRT_NamedValue* values, size_t count, std::initializer_list<const char*> known,
                               const char* where);

  bool Has(const std::string& name) const { return values_.count(name) != 0; }
  // The value, `fallback` when absent, an error when it has another type. An int64 option also takes the digits of one.
  Result<std::string> String(const std::string& name, std::string fallback) const;
  Result<int64_t> Int(const std::string& name, int64_t fallback) const;

 private:
  std::map<std::string, OptionValue> values_;
  const char* where_ = "";
};

// A whole decimal number with an optional unit K, M, G, T (powers of 1024).
Result<int64_t> ParseNumber(std::string_view text, const std::string& what);

// A list of attributes with the storage that their pointers need. Fill it once, then hand out data().
class Attributes {
 public:
  void Add(std::string name, std::string value);
  void Add(std::string name, int64_t value);
  void Add(std::string name, std::vector<int64_t> value);
  void Add(std::string name, float value);

  const PJRT_NamedValue* data() const { return values_.data(); }
  size_t size() const { return values_.size(); }

 private:
  PJRT_NamedValue& Append(std::string name, PJRT_NamedValue_Type type, size_t size);

  std::vector<PJRT_NamedValue> values_;
  std::deque<std::string> strings_;  // deques: addresses stay
  std::deque<std::vector<int64_t>> lists_;
};

}  // namespace ferrule
