#include "attributes.h"

namespace ferrule {

void Attributes::Fail(const std::string& what) {
  if (status_.ok()) status_ = InvalidArgument("library call " + call_.target + ": " + what);
}

void Attributes::Expect(size_t operands, size_t results) {
  if (call_.operands.size() == operands && call_.results.size() == results) return;
  Fail("it takes " + std::to_string(operands) + " operands and " + std::to_string(results) + " results, not " +
       std::to_string(call_.operands.size()) + " and " + std::to_string(call_.results.size()));
}

const Value* Attributes::Find(const char* name) const {
  auto found = call_.attrs.find(name);
  return found == call_.attrs.end() ? nullptr : &found->second;
}

int64_t Attributes::Number(const char* name, const int64_t* otherwise) {
  const Value* value = Find(name);
  if (!value && otherwise) return *otherwise;
  if (value) {
    if (auto* number = std::get_if<int64_t>(&value->data)) return *number;
    if (auto* flag = std::get_if<bool>(&value->data)) return *flag;
  }
  Fail(std::string("attribute `") + name + (value ? "` is not a number" : "` is missing"));
  return 0;
}

std::string Attributes::String(const char* name, const std::string& otherwise) {
  const Value* value = Find(name);
  if (!value) return otherwise;
  if (auto* text = std::get_if<std::string>(&value->data)) return *text;
  Fail(std::string("attribute `") + name + "` is not a string");
  return otherwise;
}

std::vector<int64_t> Attributes::Ints(const char* name) {
  const Value* value = Find(name);
  if (value) {
    if (auto* numbers = std::get_if<std::vector<int64_t>>(&value->data)) return *numbers;
    if (auto* numbers = std::get_if<std::vector<double>>(&value->data); numbers && numbers->empty()) return {};
    if (auto* list = std::get_if<std::vector<Value>>(&value->data)) {
      std::vector<int64_t> numbers;
      for (const Value& item : *list) {
        if (auto* flag = std::get_if<bool>(&item.data)) {
          numbers.push_back(*flag);
        } else if (auto* number = std::get_if<int64_t>(&item.data)) {
          numbers.push_back(*number);
        } else {
          Fail(std::string("attribute `") + name + "` is not a list of integers");
          return {};
        }
      }
      return numbers;
    }
  }
  Fail(std::string("attribute `") + name + (value ? "` is not a list of integers" : "` is missing"));
  return {};
}

std::vector<int64_t> Attributes::Ints(const char* name, size_t size) {
  std::vector<int64_t> numbers = Ints(name);
  if (numbers.size() != size) {
    Fail(std::string("attribute `") + name + "` has " + std::to_string(numbers.size()) + " items instead of " +
         std::to_string(size));
    numbers.resize(size);
  }
  return numbers;
}

CompiledFn Attributes::Function(const char* name) {
  const Value* value = Find(name);
  if (!value) return nullptr;
  if (auto* function = std::get_if<CompiledFn>(&value->data)) return *function;
  Fail(std::string("attribute `") + name + "` is not a function");
  return nullptr;
}

}  // namespace ferrule
