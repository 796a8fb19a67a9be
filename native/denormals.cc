#include "denormals.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ferrule {
namespace {

bool Chosen() {
#if defined(__x86_64__)
  const char* text = std::getenv("FERRULE_FLUSH_DENORMALS");
  if (text == nullptr || *text == '\0' || std::strcmp(text, "1") == 0) return true;
  if (std::strcmp(text, "0") == 0) return false;
  std::fprintf(stderr, "ferrule: FERRULE_FLUSH_DENORMALS='%s' is neither 0 nor 1; denormal numbers count as zero\n",
               text);
  return true;
#else
  return false;  // none of these processors is slow with them
#endif
}

bool Flush() {
  static const bool flush = Chosen();
  return flush;
}

#if defined(__x86_64__)
constexpr unsigned kBits = 0x8040;  // MXCSR: results to zero, operands to zero
unsigned State() { return _mm_getcsr(); }
void SetState(unsigned state) { _mm_setcsr(state); }
#else
constexpr unsigned kBits = 0;
unsigned State() { return 0; }
void SetState(unsigned) {}
#endif

}  // namespace

Denormals::Denormals(Mode mode) : before_(State()) {
  // Not only ours to choose: the threads on which JAX compiles make zeros of them.
  SetState(mode == Mode::kChosen && Flush() ? before_ | kBits : before_ & ~kBits);
}

Denormals::~Denormals() { SetState(before_); }

void Denormals::ChooseForThread() {
  if (Flush()) SetState(State() | kBits);
}

}  // namespace ferrule
