#include "named_value.h"

#include <algorithm>
#include <cctype>

#include "entry.h"

namespace ferrule {
namespace {

// Levenshtein distance, for "did you mean".
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

Status Unknown(std::string_view name, std::initializer_list<const char*> known, const char* where) {
  std::string text = std::string(where) + ": unknown option `" + std::string(name) + "`";
  const char* best = nullptr;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  std::string all;
  for (const char* candidate : known) {
    if (!all.empty()) all += ", ";
    all += candidate;
    if (const size_t d = Distance(name, candidate); d < best_distance) best = candidate, best_distance = d;
  }
  if (best != nullptr) text += std::string("; did you mean `") + best + "`?";
  return InvalidArgument(text + "\n  known options: " + all);
}

}  // namespace

Result<Options> Options::Parse(const PJRT_NamedValue* values, size_t count, std::initializer_list<const char*> known,
                               const char* where) {
  Options options;
  options.where_ = where;
  if (values == nullptr && count != 0) return InvalidArgument(std::string(where) + ": the options are null");
  for (size_t i = 0; i < count; ++i) {
    const PJRT_NamedValue& v = values[i];
    const std::string name(Text(v.name, v.name_size));
    if (std::none_of(known.begin(), known.end(), [&](const char* k) { return name == k; })) {
      return Unknown(name, known, where);
    }
    switch (v.type) {
      case PJRT_NamedValue_kString:
        options.values_[name] = std::string(Text(v.string_value, v.value_size));
        break;
      case PJRT_NamedValue_kInt64:
        options.values_[name] = v.int64_value;
        break;
      case PJRT_NamedValue_kInt64List:
        options.values_[name] = std::vector<int64_t>(v.int64_array_value, v.int64_array_value + v.value_size);
        break;
      case PJRT_NamedValue_kFloat:
        options.values_[name] = v.float_value;
        break;
      case PJRT_NamedValue_kBool:
        options.values_[name] = v.bool_value;
        break;
      default:
        return InvalidArgument(std::string(where) + ": option `" + name + "` has the unknown type " +
                               std::to_string(static_cast<int>(v.type)));
    }
  }
  return options;
}

Result<std::string> Options::String(const std::string& name, std::string fallback) const {
  auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  if (const auto* text = std::get_if<std::string>(&it->second)) return *text;
  return InvalidArgument(std::string(where_) + ": option `" + name + "` must be a string");
}

Result<int64_t> Options::Int(const std::string& name, int64_t fallback) const {
  auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  if (const auto* number = std::get_if<int64_t>(&it->second)) return *number;
  if (const auto* text = std::get_if<std::string>(&it->second)) return ParseNumber(*text, "option `" + name + "`");
  return InvalidArgument(std::string(where_) + ": option `" + name + "` must be a whole number");
}

Result<int64_t> ParseNumber(std::string_view text, const std::string& what) {
  int64_t number = 0;
  size_t at = 0;
  while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) && number < (int64_t{1} << 50)) {
    number = number * 10 + (text[at++] - '0');
  }
  const bool digits = at > 0;
  if (at < text.size()) {
    const size_t unit = std::string_view("KMGT").find(static_cast<char>(std::toupper(text[at])));
    if (unit != std::string_view::npos) number <<= 10 * (unit + 1), ++at;
  }
  if (!digits || at != text.size() || number < 0) {
    return InvalidArgument(what + " must be a whole number (a unit K, M, G or T may follow), got `" +
                           std::string(text) + "`");
  }
  return number;
}

PJRT_NamedValue& Attributes::Append(std::string name, PJRT_NamedValue_Type type, size_t size) {
  strings_.push_back(std::move(name));
  PJRT_NamedValue& v = values_.emplace_back();
  v.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  v.name = strings_.back().c_str();
  v.name_size = strings_.back().size();
  v.type = type;
  v.value_size = size;
  return v;
}

void Attributes::Add(std::string name, std::string value) {
  PJRT_NamedValue& v = Append(std::move(name), PJRT_NamedValue_kString, value.size());
  strings_.push_back(std::move(value));
  v.string_value = strings_.back().c_str();
}

void Attributes::Add(std::string name, int64_t value) {
  Append(std::move(name), PJRT_NamedValue_kInt64, 1).int64_value = value;
}

void Attributes::Add(std::string name, std::vector<int64_t> value) {
  PJRT_NamedValue& v = Append(std::move(name), PJRT_NamedValue_kInt64List, value.size());
  lists_.push_back(std::move(value));
  v.int64_array_value = lists_.back().data();
}

void Attributes::Add(std::string name, float value) {
  Append(std::move(name), PJRT_NamedValue_kFloat, 1).float_value = value;
}

}  // namespace ferrule
