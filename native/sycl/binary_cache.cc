#include "binary_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "errors.h"

namespace ferrule_sycl {
namespace {

struct Header {
  char magic[8];
  Hash key;
  uint64_t size;
  Hash checksum;
};
constexpr char kMagic[8] = {'F', 'R', 'R', 'L', 'B', 'I', 'N', '1'};
constexpr char kSuffix[] = ".bin";

Hash HashOf(const Binary& binary) {
  Hasher hasher;
  hasher.Add(binary.data(), binary.size());
  return hasher.value();
}

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// Makes the folder and those above it.
bool MakeFolder(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    if (mkdir(path.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (at == std::string::npos) return true;
  }
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  bool ok() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  bool Read(void* data, size_t size) {
    for (char* to = static_cast<char*>(data); size;) {
      ssize_t done = read(descriptor_, to, size);
      if (done <= 0) return false;
      to += done, size -= static_cast<size_t>(done);
    }
    return true;
  }
  bool Write(const void* data, size_t size) {
    for (const char* from = static_cast<const char*>(data); size;) {
      ssize_t done = write(descriptor_, from, size);
      if (done <= 0) return false;
      from += done, size -= static_cast<size_t>(done);
    }
    return true;
  }

 private:
  int descriptor_;
};

}  // namespace

void Hasher::Add(const void* data, size_t size) {
  constexpr unsigned __int128 kPrime = (static_cast<unsigned __int128>(1) << 88) | 0x13b;
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) state_ = (state_ ^ bytes[i]) * kPrime;
}

void Hasher::Add(const std::string& text) {
  uint64_t size = text.size();
  Add(&size, sizeof size);
  Add(text.data(), text.size());
}

Hash Hasher::value() const { return {static_cast<uint64_t>(state_ >> 64), static_cast<uint64_t>(state_)}; }

BinaryCache::BinaryCache() {
  if (Variable("FERRULE_CACHE") == "0" || Variable("FERRULE_CACHE") == "programs") return;
  std::string folder = Variable("FERRULE_CACHE_DIR");
  if (folder.empty()) {
    std::string home = Variable("XDG_CACHE_HOME");
    if (home.empty() && !Variable("HOME").empty()) home = Variable("HOME") + "/.cache";
    if (home.empty()) return;
    folder = home + "/ferrule";
  }
  folder += "/sycl";
  if (!MakeFolder(folder)) {
    Say(1, "binaries of kernels are not kept: " + folder + " cannot be made (" + std::strerror(errno) + ")");
    return;
  }
  constexpr int64_t kMegabyte = 1 << 20, kUsual = 512;
  int64_t megabytes = std::atoll(Variable("FERRULE_CACHE_MB").c_str());
  limit_ = (megabytes > 0 ? megabytes : kUsual) * kMegabyte;
  folder_ = std::move(folder);
}

std::string BinaryCache::PathOf(const Hash& key) const {
  char name[40];
  std::snprintf(name, sizeof name, "/%016llx%016llx%s", static_cast<unsigned long long>(key[0]),
                static_cast<unsigned long long>(key[1]), kSuffix);
  return folder_ + name;
}

std::optional<Binary> BinaryCache::Get(const Hash& key) const {
  std::string path = PathOf(key);
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about;
  if (!file.ok() || fstat(file.get(), &about) != 0) return std::nullopt;
  Header header;
  auto damaged = [&] {
    Say(1, "the cached binary " + path + " is damaged and is made again");
    Remove(key);
    return std::nullopt;
  };
  if (!file.Read(&header, sizeof header) || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
      header.key != key || header.size != static_cast<uint64_t>(about.st_size) - sizeof header) {
    return damaged();
  }
  Binary binary(header.size);
  if (!file.Read(binary.data(), binary.size()) || HashOf(binary) != header.checksum) return damaged();
  futimens(file.get(), nullptr);  // was of use: the others are removed first
  return binary;
}

void BinaryCache::Put(const Hash& key, const Binary& binary) const {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key = key;
  header.size = binary.size();
  header.checksum = HashOf(binary);
  int64_t bytes = static_cast<int64_t>(sizeof header + binary.size());
  if (bytes > limit_) return;
  MakeRoom(bytes);
  // Readers see the whole file or none.
  std::string draft = folder_ + "/draft.XXXXXX";
  File file(mkostemp(draft.data(), O_CLOEXEC));
  bool written = file.ok() && file.Write(&header, sizeof header) && file.Write(binary.data(), binary.size()) &&
                 rename(draft.c_str(), PathOf(key).c_str()) == 0;
  if (written) return;
  Say(1, "a kernel's binary is not kept in " + folder_ + ": " + std::strerror(errno));
  if (file.ok()) unlink(draft.c_str());
}

void BinaryCache::Remove(const Hash& key) const { unlink(PathOf(key).c_str()); }

void BinaryCache::MakeRoom(int64_t bytes) const {
  struct Entry {
    timespec used;
    int64_t size;
    std::string path;
  };
  std::vector<Entry> entries;
  int64_t total = bytes;
  DIR* folder = opendir(folder_.c_str());
  if (!folder) return;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    std::string path = folder_ + "/" + entry->d_name;
    struct stat about;
    if (stat(path.c_str(), &about) != 0) continue;
    total += about.st_size;
    entries.push_back({about.st_mtim, about.st_size, std::move(path)});
  }
  closedir(folder);
  if (total <= limit_) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
  });
  // More than is needed, so that not every module has to look again.
  for (const Entry& e : entries) {
    if (total <= limit_ - limit_ / 4) break;
    if (unlink(e.path.c_str()) == 0) total -= e.size;
  }
}

}  // namespace ferrule_sycl
