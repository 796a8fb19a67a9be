// Writes protocol buffers, field by field.
#pragma once

#include <cstdint>
#include <string>

namespace ferrule {

inline void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

inline void PutInt(std::string& out, int field, int64_t value) {
  PutVarint(out, static_cast<uint64_t>(field) << 3);
  PutVarint(out, static_cast<uint64_t>(value));
}

inline void PutBytes(std::string& out, int field, const std::string& value) {
  PutVarint(out, static_cast<uint64_t>(field) << 3 | 2);
  PutVarint(out, value.size());
  out += value;
}

}  // namespace ferrule
