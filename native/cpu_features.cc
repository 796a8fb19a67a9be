#include "cpu_features.h"

#include <cstdint>
#include <cstdlib>
#include <set>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ferrule {
namespace {

#if defined(__x86_64__)

// Which register state the operating system must save for a feature to be usable (bits of XCR0).
enum State : uint64_t { kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kAmx = 0x60000, kApx = 0x80000 };
enum Register { kEax, kEbx, kEcx, kEdx };

struct Feature {
  std::string_view name;
  uint32_t leaf, subleaf;
  Register reg;
  int bit;
  State state;
};

// All that LLVM can find on a processor: a feature without a line here is one that every program compiled on a
// processor with it would be refused for. avx10.2 is found by its number, below.
constexpr Feature kFeatures[] = {
    {"cx8", 1, 0, kEdx, 8, kNone},
    {"cmov", 1, 0, kEdx, 15, kNone},
    {"mmx", 1, 0, kEdx, 23, kNone},
    {"fxsr", 1, 0, kEdx, 24, kNone},
    {"sse", 1, 0, kEdx, 25, kNone},
    {"sse2", 1, 0, kEdx, 26, kNone},
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"pclmul", 1, 0, kEcx, 1, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"cx16", 1, 0, kEcx, 13, kNone},
    {"sse4.1", 1, 0, kEcx, 19, kNone},
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"crc32", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"aes", 1, 0, kEcx, 25, kNone},
    {"xsave", 1, 0, kEcx, 26, kNone},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"rdrnd", 1, 0, kEcx, 30, kNone},
    {"fsgsbase", 7, 0, kEbx, 0, kNone},
    {"sgx", 7, 0, kEbx, 2, kNone},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"invpcid", 7, 0, kEbx, 10, kNone},
    {"rtm", 7, 0, kEbx, 11, kNone},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"rdseed", 7, 0, kEbx, 18, kNone},
    {"adx", 7, 0, kEbx, 19, kNone},
    {"avx512ifma", 7, 0, kEbx, 21, kAvx512},
    {"clflushopt", 7, 0, kEbx, 23, kNone},
    {"clwb", 7, 0, kEbx, 24, kNone},
    {"avx512cd", 7, 0, kEbx, 28, kAvx512},
    {"sha", 7, 0, kEbx, 29, kNone},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512vbmi", 7, 0, kEcx, 1, kAvx512},
    {"pku", 7, 0, kEcx, 4, kNone},
    {"waitpkg", 7, 0, kEcx, 5, kNone},
    {"avx512vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"shstk", 7, 0, kEcx, 7, kNone},
    {"gfni", 7, 0, kEcx, 8, kNone},
    {"vaes", 7, 0, kEcx, 9, kAvx},
    {"vpclmulqdq", 7, 0, kEcx, 10, kAvx},
    {"avx512vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512bitalg", 7, 0, kEcx, 12, kAvx512},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kAvx512},
    {"rdpid", 7, 0, kEcx, 22, kNone},
    {"kl", 7, 0, kEcx, 23, kNone},
    {"cldemote", 7, 0, kEcx, 25, kNone},
    {"movdiri", 7, 0, kEcx, 27, kNone},
    {"movdir64b", 7, 0, kEcx, 28, kNone},
    {"enqcmd", 7, 0, kEcx, 29, kNone},
    {"uintr", 7, 0, kEdx, 5, kNone},
    {"avx512vp2intersect", 7, 0, kEdx, 8, kAvx512},
    {"serialize", 7, 0, kEdx, 14, kNone},
    {"tsxldtrk", 7, 0, kEdx, 16, kNone},
    {"pconfig", 7, 0, kEdx, 18, kNone},
    {"amx-bf16", 7, 0, kEdx, 22, kAmx},
    {"avx512fp16", 7, 0, kEdx, 23, kAvx512},
    {"amx-tile", 7, 0, kEdx, 24, kAmx},
    {"amx-int8", 7, 0, kEdx, 25, kAmx},
    {"sha512", 7, 1, kEax, 0, kAvx},
    {"sm3", 7, 1, kEax, 1, kAvx},
    {"sm4", 7, 1, kEax, 2, kAvx},
    {"raoint", 7, 1, kEax, 3, kNone},
    {"avxvnni", 7, 1, kEax, 4, kAvx},
    {"avx512bf16", 7, 1, kEax, 5, kAvx512},
    {"cmpccxadd", 7, 1, kEax, 7, kNone},
    {"amx-fp16", 7, 1, kEax, 21, kAmx},
    {"hreset", 7, 1, kEax, 22, kNone},
    {"avxifma", 7, 1, kEax, 23, kAvx},
    {"movrs", 7, 1, kEax, 31, kNone},
    {"avxvnniint8", 7, 1, kEdx, 4, kAvx},
    {"avxneconvert", 7, 1, kEdx, 5, kAvx},
    {"amx-complex", 7, 1, kEdx, 8, kAmx},
    {"avxvnniint16", 7, 1, kEdx, 10, kAvx},
    {"prefetchi", 7, 1, kEdx, 14, kNone},
    {"usermsr", 7, 1, kEdx, 15, kNone},
    {"avx10.1", 7, 1, kEdx, 19, kAvx512},
    {"ccmp", 7, 1, kEdx, 21, kApx},
    {"cf", 7, 1, kEdx, 21, kApx},
    {"egpr", 7, 1, kEdx, 21, kApx},
    {"ndd", 7, 1, kEdx, 21, kApx},
    {"nf", 7, 1, kEdx, 21, kApx},
    {"ppx", 7, 1, kEdx, 21, kApx},
    {"push2pop2", 7, 1, kEdx, 21, kApx},
    {"zu", 7, 1, kEdx, 21, kApx},
    {"xsaveopt", 13, 1, kEax, 0, kNone},
    {"xsavec", 13, 1, kEax, 1, kNone},
    {"xsaves", 13, 1, kEax, 3, kNone},
    {"ptwrite", 0x14, 0, kEbx, 4, kNone},
    {"widekl", 0x19, 0, kEbx, 2, kNone},
    {"amx-fp8", 0x1e, 1, kEax, 4, kAmx},
    {"amx-tf32", 0x1e, 1, kEax, 6, kAmx},
    {"amx-avx512", 0x1e, 1, kEax, 7, kAmx},
    {"amx-movrs", 0x1e, 1, kEax, 8, kAmx},
    {"sahf", 0x80000001u, 0, kEcx, 0, kNone},
    {"lzcnt", 0x80000001u, 0, kEcx, 5, kNone},
    {"sse4a", 0x80000001u, 0, kEcx, 6, kNone},
    {"prfchw", 0x80000001u, 0, kEcx, 8, kNone},
    {"xop", 0x80000001u, 0, kEcx, 11, kAvx},
    {"lwp", 0x80000001u, 0, kEcx, 15, kNone},
    {"fma4", 0x80000001u, 0, kEcx, 16, kAvx},
    {"tbm", 0x80000001u, 0, kEcx, 21, kNone},
    {"mwaitx", 0x80000001u, 0, kEcx, 29, kNone},
    {"64bit", 0x80000001u, 0, kEdx, 29, kNone},
    {"clzero", 0x80000008u, 0, kEbx, 0, kNone},
    {"rdpru", 0x80000008u, 0, kEbx, 4, kNone},
    {"wbnoinvd", 0x80000008u, 0, kEbx, 9, kNone},
};

uint64_t SavedState() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;  // OSXSAVE
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// What this processor has. It is asked once: in a virtual machine each `cpuid` is a call of the hypervisor, and a
// program names some 80 features when it is loaded.
std::set<std::string_view> Found() {
  std::set<std::string_view> found;
  const uint64_t saved = SavedState();
  const Feature* asked = nullptr;
  bool known = false;
  uint32_t r[4] = {};
  for (const Feature& feature : kFeatures) {
    if (asked == nullptr || asked->leaf != feature.leaf || asked->subleaf != feature.subleaf) {
      known = __get_cpuid_count(feature.leaf, feature.subleaf, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx]) != 0;
      asked = &feature;
    }
    if (known && (r[feature.reg] >> feature.bit & 1) && (saved & feature.state) == feature.state) {
      found.insert(feature.name);
    }
  }
  const bool versions = __get_cpuid_count(0x24, 0, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx]) != 0;
  if (versions && (r[kEbx] & 0xff) >= 2 && found.contains("avx10.1")) found.insert("avx10.2");
  return found;
}

bool Has(std::string_view name) {
  static const std::set<std::string_view> found = Found();
  return found.contains(name);
}

#else

// Elsewhere only programs that need nothing beyond the architecture's baseline are accepted so far.
bool Has(std::string_view) { return false; }

#endif

}  // namespace

std::vector<std::string> MissingCpuFeatures(std::string_view features) {
  std::vector<std::string> missing;
  while (!features.empty()) {
    size_t comma = features.find(',');
    std::string_view name = features.substr(0, comma);
    features = comma == std::string_view::npos ? std::string_view() : features.substr(comma + 1);
    if (name.starts_with('-')) continue;  // LLVM's spelling of a feature that the code does without
    if (name.starts_with('+')) name.remove_prefix(1);
    if (!name.empty() && !Has(name)) missing.emplace_back(name);
  }
  return missing;
}

Isa ChosenIsa() {
  static const Isa chosen = [] {
#if defined(__x86_64__)
    const char* wish = std::getenv("FERRULE_ISA");
    std::string_view isa = wish ? wish : "";
    if (isa == "baseline") return Isa::kBaseline;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && isa != "avx2") return Isa::kAvx512;
    if (avx2) return Isa::kAvx2;
#endif
    return Isa::kBaseline;
  }();
  return chosen;
}

bool IsIntelWithAvx512() {
#if defined(__x86_64__)
  static const bool is = ChosenIsa() == Isa::kAvx512 && __builtin_cpu_is("intel");
  return is;
#else
  return false;
#endif
}

}  // namespace ferrule
