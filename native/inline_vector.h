// An array whose size is fixed when it is made, without an allocation for up to N elements.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace ferrule {

template <class T, size_t N>
class InlineVector {
 public:
  InlineVector() = default;
  explicit InlineVector(size_t size) : size_(size), heap_(size > N ? std::make_unique<T[]>(size) : nullptr) {}

  T* data() { return heap_ ? heap_.get() : inline_.data(); }
  const T* data() const { return heap_ ? heap_.get() : inline_.data(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }

 private:
  size_t size_ = 0;
  std::array<T, N> inline_{};
  std::unique_ptr<T[]> heap_;
};

}  // namespace ferrule
