// The cache of device binaries on disk, for OpenCL devices: SYCL's own cache leaves SPIR-V modules out, and OpenCL's
// CPU device takes tens of milliseconds for each. Level Zero's driver keeps such a cache itself (on unless
// NEO_CACHE_PERSISTENT=0).
//
// One file for each module in <FERRULE_CACHE_DIR | $XDG_CACHE_HOME/ferrule | ~/.cache/ferrule>/sycl. FERRULE_CACHE=0
// (or =programs, for the cache of src/ferrule/cache.py alone) switches it off, FERRULE_CACHE_MB bounds its size (512).
// What cannot be read is built again; what cannot be written is not kept.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferrule_sycl {

using Hash = std::array<uint64_t, 2>;
using Binary = std::vector<unsigned char>;

// FNV-1a with 128 bits.
class Hasher {
 public:
  void Add(const void* data, size_t size);
  void Add(const std::string& text);  // with its length
  Hash value() const;

 private:
  unsigned __int128 state_ = (static_cast<unsigned __int128>(0x6c62272e07bb0142) << 64) | 0x62b821756295c58d;
};

class BinaryCache {
 public:
  // The cache that the environment asks for.
  BinaryCache();
  bool on() const { return !folder_.empty(); }

  // Empty when there is none, or what is there is damaged.
  std::optional<Binary> Get(const Hash& key) const;
  void Put(const Hash& key, const Binary& binary) const;
  void Remove(const Hash& key) const;

 private:
  std::string PathOf(const Hash& key) const;
  void MakeRoom(int64_t bytes) const;

  std::string folder_;
  int64_t limit_ = 0;
};

}  // namespace ferrule_sycl
