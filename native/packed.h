// Other forms of data that stays as it is from run to run: a product's weights in a library's own layout. The first
// call that uses the data converts it for that one run, as data may be used only once; the second keeps what it
// converted, and all later ones, of any program, find it. FERRULE_PACK=0 switches this off.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.h"

namespace ferrule {

class PackedForms {
 public:
  explicit PackedForms(Ref<Allocator> allocator) : allocator_(std::move(allocator)) {}
  ~PackedForms();
  PackedForms(const PackedForms&) = delete;
  PackedForms& operator=(const PackedForms&) = delete;

  // The form with this key (its layout, and how it was made); null when there is none.
  Ref<Storage> Find(const std::string& key);
  // Memory for a form that Find did not find, to be filled and given to Keep; null when it is not to be kept: it is
  // asked for for the first time, or kept forms have their share of the machine's memory.
  Ref<Storage> Allocate(const std::string& key, int64_t bytes);
  void Keep(const std::string& key, Ref<Storage> form);

  // The form with this key, which fill(memory) writes where it is to be kept from now on; null where there is none.
  template <class F>
  Ref<Storage> Get(const std::string& key, int64_t bytes, F&& fill) {
    Ref<Storage> form = Find(key);
    if (form || !(form = Allocate(key, bytes))) return form;
    fill(form->data());
    Keep(key, form);
    return form;
  }

  // Whether forms are kept at all.
  static bool Enabled();

 private:
  struct Form {
    std::string key;
    Ref<Storage> storage;  // null: was asked for
  };
  Form* Entry(const std::string& key);

  const Ref<Allocator> allocator_;
  std::mutex mutex_;
  std::vector<Form> forms_;
};

}  // namespace ferrule
