#include "denormals.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ferrule {
namespace {

#if defined(__x86_64__)
constexpr bool kCanFlush = true;
constexpr unsigned kBits = 0x8040;  // MXCSR: results to zero, operands to zero
unsigned State() { return _mm_getcsr(); }
void SetState(unsigned state) { _mm_setcsr(state); }
#else
constexpr bool kCanFlush = false;
constexpr unsigned kBits = 0;
unsigned State() { return 0; }
void SetState(unsigned) {}
#endif

bool Chosen() {
  const char* text = std::getenv("FERRULE_FLUSH_DENORMALS");
  if (text == nullptr || *text == '\0') return kCanFlush;
  if (std::strcmp(text, "0") == 0) return false;
  if (std::strcmp(text, "1") != 0) {
    std::fprintf(stderr, "ferrule: FERRULE_FLUSH_DENORMALS='%s' is neither 0 nor 1; denormal numbers %s\n", text,
                 kCanFlush ? "count as zero" : "are kept");
  } else if (!kCanFlush) {
    std::fprintf(stderr,
                 "ferrule: FERRULE_FLUSH_DENORMALS has no effect on this processor; denormal numbers are kept\n");
  }
  return kCanFlush;
}

bool Flush() {
  static const bool flush = Chosen();
  return flush;
}

}  // namespace

// Also what is kept has to be said: the threads on which JAX compiles make zeros, and threads that they start do, too.
Denormals::Denormals(Mode mode) : before_(State()) {
  SetState(mode == Mode::kChosen && Flush() ? before_ | kBits : before_ & ~kBits);
}

Denormals::~Denormals() { SetState(before_); }

void Denormals::ChooseForThread() { SetState(Flush() ? State() | kBits : State() & ~kBits); }

}  // namespace ferrule
