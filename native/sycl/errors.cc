#include "errors.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <sycl/sycl.hpp>

namespace ferrule_sycl {
namespace {

thread_local std::string last_error;

// SYCL has one code for most failures of the layers below it; their own names are in the text.
int CodeOf(const sycl::exception& e) {
  std::string text = e.what();
  auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  if (has("DEVICE_LOST") || has("DEVICE_NOT_AVAILABLE")) return kUnavailable;
  if (has("OUT_OF_DEVICE_MEMORY") || has("OUT_OF_HOST_MEMORY") || has("OUT_OF_RESOURCES") ||
      has("ALLOCATION_FAILURE")) {
    return kResourceExhausted;
  }
  if (has("UNSUPPORTED_FEATURE")) return kUnimplemented;
  if (e.code() == sycl::errc::memory_allocation) return kResourceExhausted;
  if (e.code() == sycl::errc::feature_not_supported) return kUnimplemented;
  if (e.code() == sycl::errc::invalid || e.code() == sycl::errc::nd_range) return kInvalidArgument;
  return kInternal;
}

}  // namespace

Error Describe(std::exception_ptr thrown, const std::string& what) {
  auto message = [&](const char* text) { return what + ": " + text; };
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& e) {
    return {e.code, message(e.message.c_str())};
  } catch (const sycl::exception& e) {
    return {CodeOf(e), message(e.what())};
  } catch (const std::bad_alloc&) {
    return {kResourceExhausted, message("the host has no memory left")};
  } catch (const std::exception& e) {
    return {kInternal, message(e.what())};
  } catch (...) {
    return {kInternal, message("an exception of unknown type")};
  }
}

int Fail(Error error) {
  last_error = std::move(error.message);
  return error.code;
}

const char* LastError() { return last_error.c_str(); }

int DebugLevel() {
  const char* text = std::getenv("FERRULE_DEBUG");
  return text ? std::atoi(text) : 0;
}

void Say(int level, const std::string& text) {
  if (DebugLevel() >= level) std::fprintf(stderr, "ferrule: %s\n", text.c_str());
}

}  // namespace ferrule_sycl
