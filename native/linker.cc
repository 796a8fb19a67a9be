#include "linker.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace ferrule {
namespace {

// Keeps every distance inside an image within the ±2 GiB of 32-bit relocations.
constexpr uint64_t kMaxImage = uint64_t{1} << 30;
constexpr int kNotLoaded = -1;

// The three protections that sections are grouped by; the order is the order in memory.
enum Region { kText, kReadOnly, kData, kRegions };

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr size_t kStubBytes = 8;  // jmp *disp32(%rip), padded
#else
#error "Ferrule links code for x86-64 only so far: add this processor's relocations and stubs here"
#endif

struct Section {
  Elf64_Shdr header;
  std::string_view name;
  std::string_view data;  // empty for SHT_NOBITS
  int region = kNotLoaded;
  uint64_t offset = 0;  // in the image
};

struct Object {
  std::string_view bytes;
  std::vector<Section> sections;
  std::vector<Elf64_Sym> symbols;
  std::string_view names;                                // the symbols' string table
  std::vector<uint64_t> common;                          // image offset per symbol, for SHN_COMMON
  std::unordered_map<std::string_view, size_t> defined;  // non-local definitions by name
};

template <class T>
bool ReadAt(std::string_view bytes, uint64_t offset, T* out) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(out, bytes.data() + offset, sizeof(T));
  return true;
}

// The zero-terminated string at `offset`, or nothing when it does not lie in the table.
bool StringAt(std::string_view table, uint64_t offset, std::string_view* out) {
  if (offset >= table.size()) return false;
  size_t end = table.find('\0', offset);
  if (end == std::string_view::npos) return false;
  *out = table.substr(offset, end - offset);
  return true;
}

Status Malformed(size_t object, const std::string& why) {
  return InvalidArgument("object " + std::to_string(object) + " of the program is not well formed\n  why: " + why);
}

uint64_t AlignUp(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

}  // namespace

class Linker {
 public:
  explicit Linker(std::span<const std::string_view> objects) : inputs_(objects) {}

  Result<std::unique_ptr<CodeImage>> Link() {
    FERRULE_RETURN_IF_ERROR(Parse());
    FERRULE_RETURN_IF_ERROR(Layout());
    FERRULE_RETURN_IF_ERROR(Map());
    FERRULE_RETURN_IF_ERROR(Relocate());
    FERRULE_RETURN_IF_ERROR(Protect());
    Export();
    return std::move(image_);
  }

 private:
  Status Parse() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      objects_.emplace_back();
      FERRULE_RETURN_IF_ERROR(ParseObject(i, inputs_[i], &objects_.back()));
    }
    return {};
  }

  Status ParseObject(size_t number, std::string_view bytes, Object* object) {
    object->bytes = bytes;
    Elf64_Ehdr header;
    if (!ReadAt(bytes, 0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
      return Malformed(number, "it does not begin with an ELF header");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL)
      return Malformed(number, "it is not a little-endian 64-bit relocatable object");
    if (header.e_machine != kMachine)
      return FailedPrecondition("object " + std::to_string(number) +
                                " of the program is for another kind of processor" + "\n  why: its ELF machine is " +
                                std::to_string(header.e_machine) + ", this process runs on " +
                                std::to_string(kMachine) + "\n  fix: compile the program for this machine");
    if (header.e_shentsize != sizeof(Elf64_Shdr)) return Malformed(number, "its section headers have an unknown size");
    uint64_t count = header.e_shnum, names = header.e_shstrndx;
    if (count == 0 || names == SHN_XINDEX) {  // more sections than the header's 16 bits can tell: see section 0
      Elf64_Shdr first;
      if (!ReadAt(bytes, header.e_shoff, &first)) return Malformed(number, "it has no sections");
      if (count == 0) count = first.sh_size;
      if (names == SHN_XINDEX) names = first.sh_link;
    }
    if (count > bytes.size() / sizeof(Elf64_Shdr)) return Malformed(number, "its section table is cut off");
    object->sections.resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      Section& section = object->sections[i];
      if (header.e_shoff > bytes.size() || !ReadAt(bytes, header.e_shoff + i * sizeof(Elf64_Shdr), &section.header))
        return Malformed(number, "its section table is cut off");
      const Elf64_Shdr& h = section.header;
      if (h.sh_addralign & (h.sh_addralign - 1) || h.sh_addralign > (1 << 20))
        return Malformed(number, "section " + std::to_string(i) + " has an alignment that cannot be met");
      if (h.sh_type == SHT_NOBITS || h.sh_type == SHT_NULL) continue;
      if (h.sh_offset > bytes.size() || h.sh_size > bytes.size() - h.sh_offset)
        return Malformed(number, "section " + std::to_string(i) + " is cut off");
      section.data = bytes.substr(h.sh_offset, h.sh_size);
    }
    if (names >= count) return Malformed(number, "its section names are missing");
    for (Section& section : object->sections)
      if (!StringAt(object->sections[names].data, section.header.sh_name, &section.name))
        return Malformed(number, "a section has no name");
    return ParseSymbols(number, object);
  }

  Status ParseSymbols(size_t number, Object* object) {
    for (const Section& section : object->sections) {
      if (section.header.sh_type == SHT_SYMTAB_SHNDX) return Malformed(number, "it has too many sections");
      if (section.header.sh_type != SHT_SYMTAB) continue;
      if (!object->symbols.empty()) return Malformed(number, "it has two symbol tables");
      if (section.header.sh_link >= object->sections.size()) return Malformed(number, "its symbols have no names");
      object->names = object->sections[section.header.sh_link].data;
      object->symbols.resize(section.data.size() / sizeof(Elf64_Sym));
      std::memcpy(object->symbols.data(), section.data.data(), object->symbols.size() * sizeof(Elf64_Sym));
    }
    for (size_t i = 1; i < object->symbols.size(); ++i) {
      const Elf64_Sym& symbol = object->symbols[i];
      std::string_view name;
      if (!StringAt(object->names, symbol.st_name, &name)) return Malformed(number, "a symbol has no name");
      if (ELF64_ST_TYPE(symbol.st_info) == STT_TLS)
        return Unimplemented("compiled code uses the thread-local variable '" + std::string(name) + "'");
      if (ELF64_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC)
        return Unimplemented("compiled code uses the indirect function '" + std::string(name) + "'");
      if (symbol.st_shndx < SHN_LORESERVE && symbol.st_shndx >= object->sections.size())
        return Malformed(number, "symbol '" + std::string(name) + "' is in a section that does not exist");
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL || name.empty()) continue;
      auto [entry, is_new] = object->defined.emplace(name, i);
      if (!is_new && ELF64_ST_BIND(object->symbols[entry->second].st_info) == STB_WEAK) entry->second = i;
    }
    return {};
  }

  // Gives every section that the code needs at run time its place. Unwind tables are left out: kernels never throw.
  Status Layout() {
    uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    uint64_t at = 0;
    for (int region = 0; region < kRegions; ++region) {
      region_start_[region] = at;
      for (size_t n = 0; n < objects_.size(); ++n) {
        for (Section& section : objects_[n].sections) {
          const Elf64_Shdr& h = section.header;
          if (!(h.sh_flags & SHF_ALLOC) || section.name == ".eh_frame" || section.name.starts_with(".note")) continue;
          if (RegionOf(h) != region) continue;
          if (h.sh_flags & SHF_TLS) return Unimplemented("compiled code has thread-local variables");
          if ((h.sh_type == SHT_INIT_ARRAY || h.sh_type == SHT_FINI_ARRAY) && h.sh_size != 0)
            return Unimplemented("compiled code has static constructors (section " + std::string(section.name) + ")");
          if (h.sh_size > kMaxImage) return TooLarge();
          at = AlignUp(at, std::max<uint64_t>(h.sh_addralign, 1));
          section.region = region;
          section.offset = at;
          at += h.sh_size;
          if (at > kMaxImage) return TooLarge();
        }
        if (region == kData) FERRULE_RETURN_IF_ERROR(LayoutCommon(n, &at));
      }
      if (region == kText) {
        at = AlignUp(at, 16);
        stubs_ = at;
        at += CountExternalNames() * kStubBytes;
      } else if (region == kReadOnly) {
        at = AlignUp(at, 16);
        got_ = at;
        at += CountGotEntries() * sizeof(uint64_t);
      }
      if (at > kMaxImage) return TooLarge();
      region_end_[region] = at;
      at = AlignUp(at, page);
    }
    size_ = std::max(at, page);
    return {};
  }

  Status LayoutCommon(size_t number, uint64_t* at) {
    Object& object = objects_[number];
    object.common.resize(object.symbols.size());
    for (size_t i = 1; i < object.symbols.size(); ++i) {
      const Elf64_Sym& symbol = object.symbols[i];
      if (symbol.st_shndx != SHN_COMMON) continue;
      uint64_t alignment = symbol.st_value;  // by ELF's definition for common symbols
      if (alignment == 0 || alignment & (alignment - 1) || alignment > (1 << 20))
        return Malformed(number, "a common symbol has an alignment that cannot be met");
      if (symbol.st_size > kMaxImage) return TooLarge();
      *at = AlignUp(*at, alignment);
      object.common[i] = *at;
      *at += symbol.st_size;
      if (*at > kMaxImage) return TooLarge();
    }
    return {};
  }

  static int RegionOf(const Elf64_Shdr& h) {
    if (h.sh_flags & SHF_EXECINSTR) return kText;
    return h.sh_flags & SHF_WRITE ? kData : kReadOnly;
  }

  static Status TooLarge() {
    return OutOfMemory("the compiled code is larger than " + std::to_string(kMaxImage >> 20) + " MiB");
  }

  // Upper bounds: stubs are per external function, GOT entries per symbol of an object that is referred to.
  uint64_t CountExternalNames() const {
    uint64_t count = 0;
    for (const Object& object : objects_)
      for (const Elf64_Sym& symbol : object.symbols) count += symbol.st_shndx == SHN_UNDEF;
    return count;
  }
  uint64_t CountGotEntries() const {
    uint64_t count = 0;
    for (const Object& object : objects_) count += object.symbols.size() + 1;
    return count + CountExternalNames();
  }

  Status Map() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(__x86_64__)
    if (NeedsLowAddresses()) flags |= MAP_32BIT;
#endif
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
      return OutOfMemory("no memory for " + std::to_string(size_) + " bytes of compiled code: " + std::strerror(errno));
    image_.reset(new CodeImage);
    image_->base_ = static_cast<char*>(memory);
    image_->size_ = size_;
    for (const Object& object : objects_)
      for (const Section& section : object.sections)
        if (section.region != kNotLoaded && !section.data.empty())
          std::memcpy(image_->base_ + section.offset, section.data.data(), section.data.size());
    return {};
  }

  // Code of the small, position-dependent model holds 32-bit addresses.
  bool NeedsLowAddresses() const {
    bool needed = false;
    ForEachRelocation([&](size_t, const Section&, const Elf64_Rela& r) {
      uint32_t type = ELF64_R_TYPE(r.r_info);
      needed |= kMachine == EM_X86_64 && (type == R_X86_64_32 || type == R_X86_64_32S);
      return Status();
    }).ok();
    return needed;
  }

  template <class F>
  Status ForEachRelocation(F&& visit) const {
    for (size_t n = 0; n < objects_.size(); ++n) {
      for (const Section& table : objects_[n].sections) {
        if (table.header.sh_type == SHT_REL) return Malformed(n, "it has relocations without addends");
        if (table.header.sh_type != SHT_RELA) continue;
        if (table.header.sh_info >= objects_[n].sections.size())
          return Malformed(n, "relocations belong to a section that does not exist");
        const Section& section = objects_[n].sections[table.header.sh_info];
        if (section.region == kNotLoaded) continue;
        if (section.header.sh_type == SHT_NOBITS) return Malformed(n, "relocations belong to a section without data");
        for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= table.data.size(); at += sizeof(Elf64_Rela)) {
          Elf64_Rela relocation;
          std::memcpy(&relocation, table.data.data() + at, sizeof(relocation));
          FERRULE_RETURN_IF_ERROR(visit(n, section, relocation));
        }
      }
    }
    return {};
  }

  Status Relocate() {
    got_of_.resize(objects_.size());
    return ForEachRelocation(
        [this](size_t n, const Section& section, const Elf64_Rela& r) { return Apply(n, section, r); });
  }

  struct Target {
    uint64_t address = 0;
    bool external = false;  // may lie anywhere in the address space
  };

  uint64_t Address(uint64_t offset) const { return reinterpret_cast<uint64_t>(image_->base_) + offset; }

  // The address of a symbol that `object` defines.
  bool Defined(const Object& object, size_t index, uint64_t* address) const {
    const Elf64_Sym& symbol = object.symbols[index];
    if (symbol.st_shndx == SHN_ABS) {
      *address = symbol.st_value;
      return true;
    }
    if (symbol.st_shndx == SHN_COMMON) {
      *address = Address(object.common[index]);
      return true;
    }
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= object.sections.size()) return false;
    const Section& section = object.sections[symbol.st_shndx];
    if (section.region == kNotLoaded || symbol.st_value > section.header.sh_size) return false;
    *address = Address(section.offset + symbol.st_value);
    return true;
  }

  Status Resolve(size_t n, size_t index, Target* target) const {
    const Object& object = objects_[n];
    if (index == 0) return {};  // relocations against no symbol: the addend alone
    if (index >= object.symbols.size()) return Malformed(n, "a relocation names a symbol that does not exist");
    const Elf64_Sym& symbol = object.symbols[index];
    std::string_view name;
    if (!StringAt(object.names, symbol.st_name, &name)) return Malformed(n, "a symbol has no name");
    if (Defined(object, index, &target->address)) return {};
    if (symbol.st_shndx != SHN_UNDEF)
      return Malformed(n, "symbol '" + std::string(name) + "' lies outside of what is loaded");
    for (const Object& other : objects_) {
      auto found = other.defined.find(name);
      if (found != other.defined.end() && Defined(other, found->second, &target->address)) return {};
    }
    if (name == "_GLOBAL_OFFSET_TABLE_") {
      target->address = Address(got_);
      return {};
    }
    target->external = true;
    if (void* function = FindExternal(name)) {
      target->address = reinterpret_cast<uint64_t>(function);
      return {};
    }
    if (ELF64_ST_BIND(symbol.st_info) == STB_WEAK) return {};  // null, as ELF says
    return InvalidArgument(
        "compiled code needs the function '" + std::string(name) +
        "', which the program does not define\n  why: it is neither in the program's objects nor among "
        "the memory and math functions that Ferrule offers to compiled code");
  }

  // The address of a GOT entry that holds `address`.
  uint64_t GotEntry(size_t n, size_t symbol, uint64_t address) {
    auto [entry, is_new] = got_of_[n].try_emplace(symbol, got_ + got_used_ * sizeof(uint64_t));
    if (is_new) {
      ++got_used_;
      std::memcpy(image_->base_ + entry->second, &address, sizeof(address));
    }
    return Address(entry->second);
  }

  // The address of a few instructions within reach that jump to the far function `address`.
  uint64_t Stub(uint64_t address) {
    auto [entry, is_new] = stub_of_.try_emplace(address, stubs_ + stub_of_.size() * kStubBytes);
    if (is_new) {
      uint64_t slot = got_ + got_used_++ * sizeof(uint64_t);
      std::memcpy(image_->base_ + slot, &address, sizeof(address));
      WriteStub(entry->second, slot);
    }
    return Address(entry->second);
  }

#if defined(__x86_64__)
  void WriteStub(uint64_t at, uint64_t slot) {
    unsigned char code[kStubBytes] = {0xff, 0x25, 0, 0, 0, 0, 0xcc, 0xcc};  // jmp *disp32(%rip)
    int32_t distance = static_cast<int32_t>(static_cast<int64_t>(slot) - static_cast<int64_t>(at + 6));
    std::memcpy(code + 2, &distance, sizeof(distance));
    std::memcpy(image_->base_ + at, code, sizeof(code));
  }

  Status Apply(size_t n, const Section& section, const Elf64_Rela& r) {
    uint32_t type = ELF64_R_TYPE(r.r_info);
    if (type == R_X86_64_NONE) return {};
    size_t symbol = ELF64_R_SYM(r.r_info);
    Target target;
    FERRULE_RETURN_IF_ERROR(Resolve(n, symbol, &target));
    uint64_t place = Address(section.offset + r.r_offset);
    uint64_t addend = static_cast<uint64_t>(r.r_addend);
    switch (type) {
      case R_X86_64_64:
        return Write<uint64_t>(n, section, r, target.address + addend);
      case R_X86_64_PC64:
        return Write<uint64_t>(n, section, r, target.address + addend - place);
      case R_X86_64_GOTPC64:
        return Write<uint64_t>(n, section, r, Address(got_) + addend - place);
      case R_X86_64_GOTOFF64:
      case R_X86_64_PLTOFF64:
        return Write<uint64_t>(n, section, r, target.address + addend - Address(got_));
      case R_X86_64_GOT64:
        return Write<uint64_t>(n, section, r, GotEntry(n, symbol, target.address) + addend - Address(got_));
      case R_X86_64_GOTPCREL64:
        return Write<uint64_t>(n, section, r, GotEntry(n, symbol, target.address) + addend - place);
      case R_X86_64_PC32:
      case R_X86_64_PLT32:
        if (target.external) target.address = Stub(target.address);
        return WriteSigned32(n, section, r, target.address + addend - place);
      case R_X86_64_GOTPC32:
        return WriteSigned32(n, section, r, Address(got_) + addend - place);
      case R_X86_64_GOTPCREL:
      case R_X86_64_GOTPCRELX:
      case R_X86_64_REX_GOTPCRELX:
        return WriteSigned32(n, section, r, GotEntry(n, symbol, target.address) + addend - place);
      case R_X86_64_32S:
        if (target.external) target.address = Stub(target.address);
        return WriteSigned32(n, section, r, target.address + addend);
      case R_X86_64_32: {
        if (target.external) target.address = Stub(target.address);
        uint64_t value = target.address + addend;
        if (value > std::numeric_limits<uint32_t>::max()) return OutOfReach(n, type);
        return Write<uint32_t>(n, section, r, static_cast<uint32_t>(value));
      }
      default:
        return Unimplemented("object " + std::to_string(n) + " of the program has a relocation of the unknown type " +
                             std::to_string(type));
    }
  }
#endif

  template <class T>
  Status Write(size_t n, const Section& section, const Elf64_Rela& r, T value) {
    if (r.r_offset > section.header.sh_size || section.header.sh_size - r.r_offset < sizeof(T))
      return Malformed(n, "a relocation lies outside of its section");
    std::memcpy(image_->base_ + section.offset + r.r_offset, &value, sizeof(T));
    return {};
  }

  Status WriteSigned32(size_t n, const Section& section, const Elf64_Rela& r, uint64_t value) {
    int64_t distance = static_cast<int64_t>(value);
    if (distance != static_cast<int32_t>(distance)) return OutOfReach(n, ELF64_R_TYPE(r.r_info));
    return Write<int32_t>(n, section, r, static_cast<int32_t>(distance));
  }

  static Status OutOfReach(size_t n, uint64_t type) {
    return Internal("a relocation (type " + std::to_string(type) + ") in object " + std::to_string(n) +
                    " of the program cannot reach its target");
  }

  Status Protect() {
    const int protections[kRegions] = {PROT_READ | PROT_EXEC, PROT_READ, PROT_READ | PROT_WRITE};
    for (int region = 0; region < kRegions; ++region) {
      uint64_t begin = region_start_[region], end = region_end_[region];
      if (begin == end) continue;
      if (mprotect(image_->base_ + begin, end - begin, protections[region]) != 0)
        return Internal(std::string("the system does not allow compiled code to be made executable: ") +
                        std::strerror(errno));
    }
    __builtin___clear_cache(image_->base_ + region_start_[kText], image_->base_ + region_end_[kText]);
    return {};
  }

  void Export() {
    image_->symbols_.resize(objects_.size());
    for (size_t n = 0; n < objects_.size(); ++n) {
      for (size_t i = 1; i < objects_[n].symbols.size(); ++i) {
        std::string_view name;
        uint64_t address = 0;
        unsigned kind = ELF64_ST_TYPE(objects_[n].symbols[i].st_info);
        if (kind == STT_SECTION || kind == STT_FILE) continue;
        if (!StringAt(objects_[n].names, objects_[n].symbols[i].st_name, &name) || name.empty()) continue;
        if (!Defined(objects_[n], i, &address)) continue;
        image_->symbols_[n].emplace(name, reinterpret_cast<void*>(address));
      }
    }
  }

  std::span<const std::string_view> inputs_;
  std::vector<Object> objects_;
  uint64_t region_start_[kRegions] = {}, region_end_[kRegions] = {};
  uint64_t stubs_ = 0, got_ = 0, got_used_ = 0, size_ = 0;
  std::vector<std::unordered_map<size_t, uint64_t>> got_of_;  // image offset of a symbol's GOT entry, per object
  std::unordered_map<uint64_t, uint64_t> stub_of_;            // image offset of a far function's stub
  std::unique_ptr<CodeImage> image_;
};

Result<std::unique_ptr<CodeImage>> CodeImage::Link(std::span<const std::string_view> objects) {
  return Linker(objects).Link();
}

CodeImage::~CodeImage() {
  if (base_) munmap(base_, size_);
}

void* CodeImage::Find(size_t object, std::string_view symbol) const {
  if (object >= symbols_.size()) return nullptr;
  auto found = symbols_[object].find(std::string(symbol));
  return found == symbols_[object].end() ? nullptr : found->second;
}

}  // namespace ferrule
