# make demo   trains a network on Ferrule          make test   everything that is checked
# make demo TARGET=xpu   the same on an Intel GPU, or on the SYCL CPU device that stands in for one
# make setup  leaves a ready .venv                 make lint   style and types only
# make conformance  the whole of JAX's suite, 10000 random programs, the PJRT surface: hours; writes docs/conformance.md
# make sanitize  the runtime tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer
# PYTHON=/path/to/python3.11 picks the interpreter; without it the first one that is new enough is taken.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
JOBS ?= auto
TARGET ?= cpu
# The driver for Intel GPUs is built where these headers are, and its calls of oneMKL where that is.
INTEL := ; sys_platform == 'linux' and platform_machine == 'x86_64'
SYCL := "intel-sycl-rt>=2026.0,<2027$(INTEL)"
MKL := $(foreach part,include lapack dft,"onemkl-sycl-$(part)>=2026.2,<2027$(INTEL)")

# A change in any of these needs a new install; Python files are seen at once (editable install).
NATIVE := $(wildcard native/*.cc native/*.h native/sycl/* native/sycl/mkl/* src/ferrule/pjrt/*.py) $(wildcard CMakeLists.txt)

.PHONY: setup demo test conformance sanitize lint format clean

setup: $(STAMP)

$(BIN)/python:
	@tools/make_venv $(VENV) "$(PYTHON)"

$(STAMP): pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "Installing Ferrule and what it needs into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "scikit-build-core>=0.10" "cmake>=3.24" "ninja>=1.11" \
	  $(SYCL) $(MKL)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable ".[test]"
	@$(BIN)/ferrule doctor
	@touch $@

demo: setup
	@JAX_PLATFORMS=$(if $(filter cpu,$(TARGET)),ferrule,$(TARGET)),cpu $(BIN)/python examples/digits.py

test: setup
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadscope

# Goes on where it was cut off: the results are in build/conformance.
conformance: setup
	@$(BIN)/python tests/conformance/run.py all

# The native code under AddressSanitizer and UndefinedBehaviorSanitizer. Python itself leaks, so leaks are not counted.
sanitize: setup
	@$(BIN)/cmake -S . -B build/sanitize -G Ninja -DFERRULE_SANITIZE=ON -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python > /dev/null
	@$(BIN)/cmake --build build/sanitize
	@FERRULE_LIBRARY=build/sanitize/libferrule.so ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest -q tests/native tests/errors

lint: setup
	@twice=$$(find tests -name 'test_*.py' -printf '%f\n' | sort | uniq -d); test -z "$$twice" || \
		{ echo "two test files have one name, and pytest imports one of them: $$twice"; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/clang-format --dry-run --Werror $(wildcard native/*.cc native/*.h native/sycl/*.cc native/sycl/*.h native/sycl/mkl/*.cc native/sycl/mkl/*.h)
	@$(BIN)/mypy

format: setup
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(wildcard native/*.cc native/*.h native/sycl/*.cc native/sycl/*.h native/sycl/mkl/*.cc native/sycl/mkl/*.h)

clean:
	rm -rf $(VENV) build
