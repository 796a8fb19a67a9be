// Links relocatable ELF64 objects, as LLVM writes them, into executable memory of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "status.h"

namespace ferrule {

// The linked code of one program: a single mapping, writable while it is built, then text is executable and constants
// are read-only (never both writable and executable).
class CodeImage {
 public:
  // Symbols resolve in their own object first, then in the other objects in order, then among FindExternal's names.
  // Malformed objects and unknown symbols give an error that names them; only trust decides whether code is run.
  static Result<std::unique_ptr<CodeImage>> Link(std::span<const std::string_view> objects);

  CodeImage(const CodeImage&) = delete;
  CodeImage& operator=(const CodeImage&) = delete;
  ~CodeImage();

  // The address of a global or local symbol that object number `object` defines; null when it has none.
  void* Find(size_t object, std::string_view symbol) const;
  int64_t bytes() const { return static_cast<int64_t>(size_); }

 private:
  friend class Linker;
  CodeImage() = default;

  char* base_ = nullptr;
  size_t size_ = 0;
  std::vector<std::unordered_map<std::string, void*>> symbols_;  // one table per object
};

// The address of a function that compiled code may call: memory and math functions of libc and libm, and the helpers
// that LLVM's code generator calls by itself (half precision, 128-bit integers). Null when the name is not allowed.
void* FindExternal(std::string_view name);

}  // namespace ferrule
