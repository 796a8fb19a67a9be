// While programs run, floats too small to be normal count as zero, both those that are read and those that come out:
// some processors take a hundred cycles for one, and XLA:CPU's programs never see any. FERRULE_FLUSH_DENORMALS=0 keeps
// them; so do processors other than x86's.
#pragma once

namespace ferrule {

class Denormals {
 public:
  enum class Mode { kChosen, kKept };
  // The calling thread's mode until this goes. Kept: for Python.
  explicit Denormals(Mode mode);
  ~Denormals();
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;
  // For a thread that does nothing but run programs.
  static void ChooseForThread();

 private:
  unsigned before_ = 0;
};

}  // namespace ferrule
