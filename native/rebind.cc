// The slots are those that ELF's relocations name ("ELF-64 Object File Format", and the supplements of the processors).
#include "rebind.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace ferrule {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kData = R_X86_64_GLOB_DAT, kCall = R_X86_64_JUMP_SLOT;
#else
constexpr uint32_t kData = R_AARCH64_GLOB_DAT, kCall = R_AARCH64_JUMP_SLOT;
#endif

struct Tables {
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  std::pair<const Elf64_Rela*, size_t> relocations[2];
};

Tables TablesOf(const link_map& map) {
  Tables found;
  // The C library may have added the library's address to these, or not.
  auto at = [&](const Elf64_Dyn& entry) {
    return reinterpret_cast<const char*>(entry.d_un.d_ptr < map.l_addr ? map.l_addr + entry.d_un.d_ptr
                                                                       : entry.d_un.d_ptr);
  };
  for (const Elf64_Dyn* d = map.l_ld; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_SYMTAB) found.symbols = reinterpret_cast<const Elf64_Sym*>(at(*d));
    if (d->d_tag == DT_STRTAB) found.names = at(*d);
    if (d->d_tag == DT_RELA) found.relocations[0].first = reinterpret_cast<const Elf64_Rela*>(at(*d));
    if (d->d_tag == DT_RELASZ) found.relocations[0].second = d->d_un.d_val / sizeof(Elf64_Rela);
    if (d->d_tag == DT_JMPREL) found.relocations[1].first = reinterpret_cast<const Elf64_Rela*>(at(*d));
    if (d->d_tag == DT_PLTRELSZ) found.relocations[1].second = d->d_un.d_val / sizeof(Elf64_Rela);
  }
  return found;
}

// The part of a library that the loader made read-only after it had linked it.
struct ReadOnly {
  uintptr_t library, begin, end;

  static int Find(dl_phdr_info* info, size_t, void* self) {
    auto* asked = static_cast<ReadOnly*>(self);
    if (info->dlpi_addr != asked->library) return 0;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const Elf64_Phdr& part = info->dlpi_phdr[i];
      if (part.p_type != PT_GNU_RELRO) continue;
      asked->begin = (info->dlpi_addr + part.p_vaddr) / page * page;
      asked->end = (info->dlpi_addr + part.p_vaddr + part.p_memsz) / page * page;
    }
    return 1;
  }

  bool Protect(int protection) const {
    return begin == end || mprotect(reinterpret_cast<void*>(begin), end - begin, protection) == 0;
  }
};

}  // namespace

bool Rebind(void* library, const std::function<void*(std::string_view)>& other,
            const std::function<bool(std::string_view)>& fits) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return false;
  const Tables tables = TablesOf(*map);
  if (tables.symbols == nullptr || tables.names == nullptr) return false;
  std::vector<std::pair<void**, void*>> slots;
  for (const auto& [first, count] : tables.relocations) {
    for (size_t i = 0; first != nullptr && i < count; ++i) {
      const Elf64_Sym& symbol = tables.symbols[ELF64_R_SYM(first[i].r_info)];
      const uint32_t type = ELF64_R_TYPE(first[i].r_info);
      if (symbol.st_shndx != SHN_UNDEF || symbol.st_name == 0) continue;
      const std::string_view name = tables.names + symbol.st_name;
      if (!fits(name)) return false;
      void* function = other(name);
      if (function == nullptr) continue;
      if (type != kData && type != kCall) return false;
      slots.emplace_back(reinterpret_cast<void**>(map->l_addr + first[i].r_offset), function);
    }
  }
  if (slots.empty()) return false;
  ReadOnly part{map->l_addr, 0, 0};
  dl_iterate_phdr(&ReadOnly::Find, &part);
  if (!part.Protect(PROT_READ | PROT_WRITE)) return false;
  for (const auto& [slot, function] : slots) *slot = function;
  part.Protect(PROT_READ);
  return true;
}

}  // namespace ferrule

#else

namespace ferrule {

bool Rebind(void*, const std::function<void*(std::string_view)>&, const std::function<bool(std::string_view)>&) {
  return false;
}

}  // namespace ferrule

#endif
