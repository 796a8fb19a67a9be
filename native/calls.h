// The registry of library calls (CALL steps): gemm, conv, sort, fft, LAPACK, … One `Prepared` is made per step when a
// program is loaded (where descriptors, plans and library handles are built) and run at each execution.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "status.h"

namespace ferrule {

// Signature of a compiled function taken as an attribute. What the arguments are depends on the call:
// a kernel gets (pointers to buffers, begin, end); a comparator gets (pointers to scalars: lhs0, rhs0, lhs1, rhs1, …,
// then a pointer to the i1 result), begin = 0, end = 1.
using CompiledFn = void (*)(void** pointers, int64_t begin, int64_t end);

struct Value;
using Dict = std::map<std::string, Value>;
struct TypedScalar {
  int dtype;  // PJRT_Buffer_Type
  char raw[8];
};
struct TypedArray {
  int dtype;
  std::string raw;
};
struct Value {
  std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, std::shared_ptr<Dict>, bool,
               TypedScalar, TypedArray, CompiledFn, std::vector<Value>>
      data;
};

struct Shape {
  int dtype;  // PJRT_Buffer_Type
  std::vector<int64_t> dims;
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
};

// What an operand of a call is to the program.
struct OperandSource {
  enum Kind : uint8_t { kComputed, kParam, kConstant } kind = kComputed;  // kParam: one that is never donated
  int64_t where = 0;  // the number of the parameter, or the constant's offset
};

struct CallDesc {
  std::string target;
  std::vector<Shape> operands, results;
  std::vector<OperandSource> sources;  // of each operand; empty where nobody knows
  Dict attrs;
};

struct ExecContext;  // program.h: thread pool, device ordinal, FFI context, scratch allocation

class Prepared {
 public:
  virtual ~Prepared() = default;
  // `operands` and `results` are the buffers' addresses. A result may share an operand's address only where the
  // call's factory says so. Called from one thread at a time per execution, but executions may overlap: const.
  virtual Status Run(void* const* operands, void* const* results, ExecContext& context) const = 0;
};

using Factory = Result<std::unique_ptr<Prepared>> (*)(const CallDesc&);

// Registers a builtin target; used by static initialisers in the files that implement calls.
bool RegisterCall(const char* target, Factory factory);
// Null when there is no such target.
Factory FindCall(const std::string& target);
std::vector<std::string> CallTargets();

// Symbols that Python hands over at start (SciPy's LAPACK and BLAS entry points as "lapack.dpotrf", "blas.dgemm"; paths
// of libraries as strings, "path.dnnl"). Null or empty when absent.
void SetSymbol(const std::string& name, void* address);
void* GetSymbol(const std::string& name);
void SetPath(const std::string& name, const std::string& path);
std::string GetPath(const std::string& name);

}  // namespace ferrule
